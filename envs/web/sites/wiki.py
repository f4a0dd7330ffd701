"""``wiki.test``: an encyclopedia of towns, people, companies and works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...generated import Draws
from .. import pages as ui
from .base import Common, Fields, Site, word_set, words

_PEOPLE, _COMPANIES, _WORKS = 48, 24, 30


class Article(NamedTuple):
    """An article: `facts` are texts, `links` are other articles, both by label."""

    title: str
    kind: str
    facts: dict[str, str]
    links: dict[str, str]
    words: frozenset[str]


class Wiki(Site):
    """The encyclopedia of an instance."""

    host, title = "wiki.test", "Encyclopedia"
    menu = (("Encyclopedia", "/"),)

    def __init__(self, common: Common):
        super().__init__(common)
        self.articles = {article.title: article for article in self._written()}
        self.linked: dict[str, list[str]] = {title: [] for title in self.articles}
        for article in self.articles.values():
            for other in dict.fromkeys(article.links.values()):
                self.linked[other].append(article.title)
        self.start = ()

    def _written(self) -> Iterator[Article]:
        known, towns = words(), self.common.towns
        draws = Draws("web", self.common.seed, "wiki")
        names = [f"{first} {last}" for first in known["first"] for last in known["last"]]
        people = [one for one in draws.some(names, _PEOPLE + 24) if one not in self.common.people]
        people = draws.shuffled(people)[:_PEOPLE]
        companies = [
            f"{name.split()[1]} {draws.pick(('Works', 'Mills', 'Press'))}" for name in people
        ]
        companies = list(dict.fromkeys(companies))[:_COMPANIES]
        works = [f"The {a} {b}" for a in known["works"]["starts"] for b in known["works"]["ends"]]

        def article(title: str, kind: str, facts: dict[str, str], **links: str) -> Article:
            named = {label.replace("_", " ").capitalize(): to for label, to in links.items()}
            return Article(title, kind, facts, named, word_set(title, kind))

        for region in known["regions"]:
            facts = {"Area": f"{draws.integer(200, 9_000)} square kilometers"}
            yield article(region, "region", facts, capital=draws.pick(towns))
        for town in towns:
            facts = {
                "Inhabitants": str(draws.integer(2_000, 99_000)),
                "First mentioned": str(draws.integer(900, 1500)),
            }
            yield article(town, "town", facts, region=draws.pick(known["regions"]))
        for person in people:
            born = draws.integer(1780, 1930)
            facts = {"Born": str(born), "Occupation": draws.pick(known["occupations"])}
            yield article(person, "person", facts, birthplace=draws.pick(towns))
        for company in companies:
            facts = {
                "Founded": str(draws.integer(1800, 1990)),
                "Product": draws.pick(known["products"]),
            }
            founder, seat = draws.pick(people), draws.pick(towns)
            yield article(company, "company", facts, founder=founder, head_office=seat)
        for work in draws.some(works, _WORKS):
            form = draws.pick(known["works"]["forms"])
            facts = {"Form": form, "Published": str(draws.integer(1800, 1990))}
            yield article(work, form, facts, author=draws.pick(people), set_in=draws.pick(towns))

    def found(self, query: str) -> list[Article]:
        """Return the articles that have a word of the query, those with most of them first."""
        wanted = set(query.lower().split())
        scored = [(len(wanted & one.words), one) for one in self.articles.values()]
        hits = [(score, one) for score, one in scored if score]
        return [one for _, one in sorted(hits, key=lambda hit: (-hit[0], hit[1].title))]

    def show_front(self, state: tuple[()], given: Fields) -> ui.Page:
        regions = [title for title, one in self.articles.items() if one.kind == "region"]
        links = ((ui.link(title, "/article", t=title),) for title in regions)
        return self.page(
            "The free encyclopedia",
            ui.search_form("/search", "Search the encyclopedia", ""),
            ui.text(f"Articles: {len(self.articles)}"),
            ui.rows(links),
        )

    def show_search(self, state: tuple[()], given: Fields) -> ui.Page:
        query = given.get("q", "")
        box = ui.search_form("/search", "Search the encyclopedia", query)
        found = ui.listing(
            self.found(query),
            "/search",
            given,
            lambda one: (ui.link(one.title, "/article", t=one.title), ui.text(f"A {one.kind}")),
        )
        return self.page("Search", box, *found)

    def show_article(self, state: tuple[()], given: Fields) -> ui.Page | None:
        article = self.articles.get(given.get("t", ""))
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

    def show_links(self, state: tuple[()], given: Fields) -> ui.Page | None:
        title = given.get("t", "")
        if title not in self.articles:
            return None
        found = ui.listing(
            self.linked[title], "/links", given, lambda one: (ui.link(one, "/article", t=one),)
        )
        return self.page(f"Articles that link to {title}", *found)
