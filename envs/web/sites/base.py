"""What the sites share: requests and responses, the people and towns of an instance, page frames."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote_plus

from ...generated import Draws
from ...storage import packaged
from ..pages import Node, Page, form, heading, link, nav, rows, text, textbox

PER_PAGE = 10
HOME = "home.test"
_T = TypeVar("_T")

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
        where = {"Location": self.location} if self.location else {}
        return {"Content-Type": "text/html; charset=utf-8", "Cache-Control": "no-store"} | where


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
        draws, known = Draws("web", seed, "common"), words()
        self.seed = seed
        starts = draws.shuffled(known["towns"]["starts"])
        self.towns = [start + draws.pick(known["towns"]["ends"]) for start in starts[:12]]
        last = draws.shuffled(known["last"])
        firsts = draws.shuffled(known["first"])
        self.people = [f"{one} {other}" for one, other in zip(firsts, last, strict=False)]
        names = [f"{a} {b}" for a in known["stays"]["starts"] for b in known["stays"]["ends"]]
        self.stays = draws.shuffled(names)
        self.today = datetime.date(2031, 1, 1) + datetime.timedelta(draws.integer(0, 300))

    def day(self, offset: int) -> str:
        """Return a date, so many days after today."""
        return (self.today + datetime.timedelta(offset)).isoformat()

    def offset(self, day: str) -> int:
        """Return in how many days after today a date is; raise `ValueError` for what is no date."""
        return (datetime.date.fromisoformat(day) - self.today).days


Handler: TypeAlias = Callable[[Any, Fields], "Page | Redirect | None"]


class Site:
    """One host: a catalogue, and handlers that are pure functions of its state and of a request.

    A state is an immutable, picklable value; `start` is the first. A handler returns a page, or a
    `Redirect` after a POST, or None where nothing is at the address.
    """

    host: ClassVar[str]
    title: ClassVar[str]
    menu: ClassVar[Sequence[tuple[str, str]]] = ()

    def __init__(self, common: Common):
        self.common = common
        self.start: Any = None
        self.get: dict[str, Handler] = {}
        self.post: dict[str, Handler] = {}

    def records(self, state: Any) -> Iterable[tuple[str, ...]]:
        """Return what tasks may ask to change, without numbers that depend on the order of actions."""
        return ()

    def answer(self, state: Any, request: Request) -> tuple[Any, Response]:
        """Return the state after a request, and the response."""
        handlers = self.post if request.method == "POST" else self.get
        handler = handlers.get(request.path)
        given = request.body if request.method == "POST" else request.query
        found = handler(state, given) if handler else None
        if isinstance(found, Redirect):
            return found.state, Response(303, None, f"http://{self.host}{found.location}")
        if found is None:
            return state, Response(404, self.page("Page not found", text("Nothing is here.")))
        return state, Response(200, found)

    def page(self, title: str, *body: Node) -> Page:
        """Return a page with the site's menu and heading."""
        links = [link("Home", f"http://{HOME}/"), *(link(*entry) for entry in self.menu)]
        return Page(f"{title} - {self.title}", (nav(self.title, *links), heading(title), *body))


def labeled(label: str, value: object) -> Node:
    """Return the text ``label: value``."""
    return text(f"{label}: {value}")


def address(path: str, **query: object) -> str:
    """Return a path with a query.

    Example:
        >>> address("/search", q="red lamp", page=2)
        '/search?q=red+lamp&page=2'
    """
    return path + "?" + "&".join(f"{key}={quote_plus(str(value))}" for key, value in query.items())


def number(given: str | None, least: int = 0, most: int = 9_999_999) -> int | None:
    """Return the whole number that a field has; None where it has none in the range."""
    if given is None or not (given.isascii() and given.isdigit() and len(given) < 8):
        return None
    return int(given) if least <= int(given) <= most else None


def listing(
    found: Sequence[_T], path: str, query: Fields, row: Callable[[_T], Sequence[Node]]
) -> tuple[Node, ...]:
    """Return one page of results, and links to the pages around it."""
    kept = {key: value for key, value in query.items() if key != "page"}
    last = max(1, -(-len(found) // PER_PAGE))
    at = number(query.get("page"), 1, last) or 1
    shown = found[(at - 1) * PER_PAGE : at * PER_PAGE]
    parts = [labeled("Results", f"{len(found)}, page {at} of {last}"), rows(map(row, shown))]
    if at > 1:
        parts.append(link("Previous page", address(path, **kept, page=at - 1)))
    if at < last:
        parts.append(link("Next page", address(path, **kept, page=at + 1)))
    return tuple(parts)


def search_form(action: str, name: str, value: str, *more: Node) -> Node:
    """Return a form with a search box."""
    return form(action, textbox(name, "q", value, "searchbox"), *more, Node("button", "Search"))


def matches(query: str, words_of: frozenset[str]) -> bool:
    """Return whether all words of a query are among the words of a thing."""
    return all(word in words_of for word in query.lower().split())


def word_set(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).lower().replace(",", " ").replace(".", " ").split())


def clean(given: str | None, most: int = 200) -> str:
    """Return what somebody typed, with blanks collapsed and cut at a length."""
    return " ".join((given or "").split())[:most]
