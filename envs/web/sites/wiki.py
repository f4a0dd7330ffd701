"""``wiki.test``: an encyclopedia of towns, people, companies and works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...generated import Draws
from .. import pages as ui
from .base import Common, Fields, Site, word_set, words

_PEOPLE = 48
_COMPANIES = 24
_WORKS = 30


class Article(NamedTuple):
    """An article: `facts` are texts, `links` are other articles, both by label."""

    title: str
    kind: str
    facts: dict[str, str]
    links: dict[str, str]
    words: frozenset[str]


class Wiki(Site):
    """The encyclopedia of an instance."""

    host = "wiki.test"
    title = "Encyclopedia"
    menu = (("Encyclopedia", "/"),)

    def __init__(self, common: Common):
        super().__init__(common)
        self.articles = {article.title: article for article in self._written()}
        self.linked: dict[str, list[str]] = {title: [] for title in self.articles}
        for article in self.articles.values():
            for target in dict.fromkeys(article.links.values()):
                self.linked[target].append(article.title)
        self.start = ()

    def _written(self) -> Iterator[Article]:
        """Yield the articles, drawn from the instance's seed: what is linked has one of its own."""
        vocabulary = words()
        towns = self.common.towns
        draws = Draws("web", self.common.seed, "wiki")

        # Nobody whom the other sites know: the forum and the mailbox would tell more of them. A few
        # more are drawn than are needed, since those are left out.
        names = []
        for first in vocabulary["first"]:
            names += [f"{first} {last}" for last in vocabulary["last"]]
        candidates = draws.some(names, _PEOPLE + 24)
        people = [name for name in candidates if name not in self.common.people]
        people = draws.shuffled(people)[:_PEOPLE]

        # Companies have their names of people; of equal names one stays.
        companies = []
        for name in people:
            _, last_name = name.split()
            companies.append(f"{last_name} {draws.pick(('Works', 'Mills', 'Press'))}")
        companies = list(dict.fromkeys(companies))[:_COMPANIES]

        works = []
        for start in vocabulary["works"]["starts"]:
            works += [f"The {start} {end}" for end in vocabulary["works"]["ends"]]

        def article(title: str, kind: str, facts: dict[str, str], **links: str) -> Article:
            titles_by_label = {
                label.replace("_", " ").capitalize(): target for label, target in links.items()
            }
            return Article(title, kind, facts, titles_by_label, word_set(title, kind))

        for region in vocabulary["regions"]:
            facts = {"Area": f"{draws.integer(200, 9_000)} square kilometers"}
            yield article(region, "region", facts, capital=draws.pick(towns))
        for town in towns:
            facts = {
                "Inhabitants": str(draws.integer(2_000, 99_000)),
                "First mentioned": str(draws.integer(900, 1500)),
            }
            yield article(town, "town", facts, region=draws.pick(vocabulary["regions"]))
        for person in people:
            year = draws.integer(1780, 1930)
            facts = {"Born": str(year), "Occupation": draws.pick(vocabulary["occupations"])}
            yield article(person, "person", facts, birthplace=draws.pick(towns))
        for company in companies:
            facts = {
                "Founded": str(draws.integer(1800, 1990)),
                "Product": draws.pick(vocabulary["products"]),
            }
            founder = draws.pick(people)
            head_office = draws.pick(towns)
            yield article(company, "company", facts, founder=founder, head_office=head_office)
        for work in draws.some(works, _WORKS):
            form = draws.pick(vocabulary["works"]["forms"])
            facts = {"Form": form, "Published": str(draws.integer(1800, 1990))}
            yield article(work, form, facts, author=draws.pick(people), set_in=draws.pick(towns))

    def found(self, query: str) -> list[Article]:
        """Return the articles that have a word of the query, those with most of them first."""
        query_words = set(query.lower().split())
        hits = []
        for article in self.articles.values():
            score = len(query_words & article.words)
            if score:
                hits.append((score, article))
        hits.sort(key=lambda hit: (-hit[0], hit[1].title))
        return [article for _, article in hits]

    def show_front(self, state: tuple[()], fields: Fields) -> ui.Page:
        articles = self.articles.values()
        regions = [article.title for article in articles if article.kind == "region"]
        links = ((ui.link(title, "/article", t=title),) for title in regions)
        return self.page(
            "The free encyclopedia",
            ui.search_form("/search", "Search the encyclopedia", ""),
            ui.text(f"Articles: {len(self.articles)}"),
            ui.rows(links),
        )

    def show_search(self, state: tuple[()], fields: Fields) -> ui.Page:
        query = fields.get("q", "")
        box = ui.search_form("/search", "Search the encyclopedia", query)

        def row(article: Article) -> tuple[ui.Node, ...]:
            link = ui.link(article.title, "/article", t=article.title)
            return link, ui.text(f"A {article.kind}")

        results = ui.listing(self.found(query), "/search", fields, row)
        return self.page("Search", box, *results)

    def show_article(self, state: tuple[()], fields: Fields) -> ui.Page | None:
        article = self.articles.get(fields.get("t", ""))
        if article is None:
            return None
        related = [
            (ui.text(f"{label}: {title}"), ui.link(title, "/article", t=title))
            for label, title in article.links.items()
        ]
        return self.page(
            article.title,
            ui.search_form("/search", "Search the encyclopedia", ""),
            *ui.facts({"Kind": article.kind, **article.facts}),
            ui.heading("Related articles"),
            ui.rows(related),
            ui.link("What links here", "/links", t=article.title),
        )

    def show_links(self, state: tuple[()], fields: Fields) -> ui.Page | None:
        title = fields.get("t", "")
        if title not in self.articles:
            return None

        def row(linking_title: str) -> tuple[ui.Node, ...]:
            return (ui.link(linking_title, "/article", t=linking_title),)

        titles = ui.listing(self.linked[title], "/links", fields, row)
        return self.page(f"Articles that link to {title}", *titles)
