"""``wiki.test``: an encyclopedia of towns, people, companies and works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...generated import Draws
from ..pages import Page, heading, link, rows, text
from .base import Common, Fields, Site, address, labeled, listing, search_form, word_set, words

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
        self.get = {
            "/": self._front,
            "/search": self._search,
            "/article": self._article,
            "/links": self._links,
        }

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

    def _front(self, state: tuple[()], given: Fields) -> Page:
        regions = [title for title, one in self.articles.items() if one.kind == "region"]
        links = ((link(title, address("/article", t=title)),) for title in regions)
        return self.page(
            "The free encyclopedia",
            search_form("/search", "Search the encyclopedia", ""),
            labeled("Articles", len(self.articles)),
            rows(links),
        )

    def _search(self, state: tuple[()], given: Fields) -> Page:
        query = given.get("q", "")
        box = search_form("/search", "Search the encyclopedia", query)
        found = listing(
            self.found(query),
            "/search",
            given,
            lambda one: (link(one.title, address("/article", t=one.title)), text(f"A {one.kind}")),
        )
        return self.page("Search", box, *found)

    def _article(self, state: tuple[()], given: Fields) -> Page | None:
        article = self.articles.get(given.get("t", ""))
        if article is None:
            return None
        related = [
            (labeled(label, title), link(title, address("/article", t=title)))
            for label, title in article.links.items()
        ]
        return self.page(
            article.title,
            search_form("/search", "Search the encyclopedia", ""),
            labeled("Kind", article.kind),
            *(labeled(label, value) for label, value in article.facts.items()),
            heading("Related articles"),
            rows(related),
            link("What links here", address("/links", t=article.title)),
        )

    def _links(self, state: tuple[()], given: Fields) -> Page | None:
        title = given.get("t", "")
        if title not in self.articles:
            return None
        found = listing(
            self.linked[title],
            "/links",
            given,
            lambda one: (link(one, address("/article", t=one)),),
        )
        return self.page(f"Articles that link to {title}", *found)
