"""What the sites share: requests and responses, the people and towns of an instance, page frames."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ...generated import Draws
from ...storage import packaged
from ..pages import Node, Page, heading, link, nav, text

HOME = "home.test"

Fields: TypeAlias = Mapping[str, str]
"""The values of a query or of a body; of several with one name the last."""


class Request(NamedTuple):
    """What a browser asks for."""

    method: str
    host: str
    path: str
    query: Fields
    body: Fields


class Response(NamedTuple):
    """What a site answers: a page, or with status 303 where to go."""

    status: int
    page: Page | None
    location: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers of the response."""
        # A page of another moment of the episode must not come out of the browser's cache.
        headers = {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"}
        if self.location:
            headers["Location"] = self.location
        return headers


class Redirect(NamedTuple):
    """A handler's answer to a POST: the state after it, and the page that confirms it."""

    state: Any
    location: str


def words() -> Any:
    """Return the names and words that all sites are made of."""
    return packaged("comap.envs.web", "words")


class Common:
    """What the sites of one instance have in common: people, towns, names of places, the date."""

    def __init__(self, seed: int):
        # The order of draws is the instance: another one would make other sites of every seed.
        draws = Draws("web", seed, "common")
        vocabulary = words()
        self.seed = seed
        town_starts = draws.shuffled(vocabulary["towns"]["starts"])
        town_ends = vocabulary["towns"]["ends"]
        self.towns = [start + draws.pick(town_ends) for start in town_starts[:12]]

        # Shuffled and paired, so that no two people of an instance share a first or a last name.
        last_names = draws.shuffled(vocabulary["last"])
        first_names = draws.shuffled(vocabulary["first"])
        self.people = [
            f"{first} {last}" for first, last in zip(first_names, last_names, strict=False)
        ]
        names = []
        for start in vocabulary["stays"]["starts"]:
            names += [f"{start} {end}" for end in vocabulary["stays"]["ends"]]
        self.stays = draws.shuffled(names)
        self.today = datetime.date(2031, 1, 1) + datetime.timedelta(draws.integer(0, 300))

    def day(self, offset: int) -> str:
        """Return a date, so many days after today."""
        return (self.today + datetime.timedelta(offset)).isoformat()

    def offset(self, day: str) -> int:
        """Return in how many days after today a date is; raise `ValueError` for what is no date."""
        return (datetime.date.fromisoformat(day) - self.today).days


class Site:
    """One host: a catalogue, and handlers that are pure functions of its state and of a request.

    A state is an immutable, picklable value; `start` is the first. ``show_item(state, query)`` answers
    GET /item, ``post_cart(state, body)`` POST /cart, with a page, with a `Redirect` after a POST, or with
    None where nothing is at the address.
    """

    host: ClassVar[str]
    title: ClassVar[str]
    menu: ClassVar[Sequence[tuple[str, str]]] = ()

    def __init__(self, common: Common):
        self.common = common
        self.start: Any = None

    def answer(self, state: Any, request: Request) -> tuple[Any, Response]:
        """Return the state after a request, and the response."""
        name = request.path[1:] or "front"
        if request.method == "POST":
            handler = getattr(self, f"post_{name}", None)
            fields = request.body
        else:
            handler = getattr(self, f"show_{name}", None)
            fields = request.query

        # After a change the browser is sent elsewhere (303): loading that page again changes nothing.
        answer = handler(state, fields) if handler else None
        if isinstance(answer, Redirect):
            return answer.state, Response(303, None, f"http://{self.host}{answer.location}")
        if answer is None:
            return state, Response(404, self.page("Page not found", text("Nothing is here.")))
        return state, Response(200, answer)

    def page(self, title: str, *body: Node) -> Page:
        """Return a page with the site's menu and heading."""
        links = [link("Home", f"http://{HOME}/"), *(link(*entry) for entry in self.menu)]
        return Page(f"{title} - {self.title}", (nav(self.title, *links), heading(title), *body))


def number(field: str | None, least: int = 0, most: int = 9_999_999) -> int | None:
    """Return the whole number that a field has; None where it has none in the range."""
    if field is None or not (field.isascii() and field.isdigit() and len(field) < 8):
        return None
    return int(field) if least <= int(field) <= most else None


def matches(query: str, words_of: frozenset[str]) -> bool:
    """Return whether all words of a query are among the words of a thing."""
    return all(word in words_of for word in query.lower().split())


def word_set(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).lower().replace(",", " ").replace(".", " ").split())


def clean(field: str | None, most: int = 200) -> str:
    """Return what somebody typed, with blanks collapsed and cut at a length."""
    return " ".join((field or "").split())[:most]
