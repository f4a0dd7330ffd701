"""The embedded sites: seeded catalogues behind pure functions of a state and a request."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

from .. import pages as ui
from ..lines import plain
from .base import HOME, Common, Fields, Request, Response, Site
from .forum import Forum
from .mail import Mail
from .maps import Map
from .shop import Shop
from .stay import Stay
from .wiki import Wiki

SITES: Mapping[str, type[Any]] = {cls.host: cls for cls in (Shop, Wiki, Forum, Stay, Map, Mail)}
HOSTS = (HOME, *SITES)


class World:
    """One instance of all sites; the states of all are a mapping from hosts, and never changed.

    Args:
        seed: What everything is generated from.

    Example:
        >>> world = World(0)
        >>> states, response = world.answer({}, Request("GET", "shop.test", "/cart", {}, {}))
        >>> response.status, response.page.title
        (200, 'Cart - Shop')
    """

    def __init__(self, seed: int):
        self.common = Common(seed)

    home = cached_property(lambda self: Home(self))
    shop = cached_property(lambda self: Shop(self.common))
    wiki = cached_property(lambda self: Wiki(self.common))
    forum = cached_property(lambda self: Forum(self.common))
    stay = cached_property(lambda self: Stay(self.common))
    map = cached_property(lambda self: Map(self.common))
    mail = cached_property(lambda self: Mail(self.common))

    def site(self, host: str) -> Site:
        """Return the site of one of `HOSTS`; it is generated when it is first asked for."""
        site: Site = getattr(self, host.removesuffix(".test"))
        return site

    def answer(
        self, states: Mapping[str, Any], request: Request
    ) -> tuple[Mapping[str, Any], Response]:
        """Return the states after a request to one of `HOSTS`, and the response."""
        site = self.site(request.host)
        before = states.get(request.host, site.start)
        after, response = site.answer(before, request)

        # The same mapping says that nothing changed: environments and tasks compare by identity.
        if after is not before:
            states = {**states, request.host: after}
        return states, response

    def changed(self, states: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
        """Return the states that are others than at the start, in a form that can be compared."""
        changes = set()
        for host, state in states.items():
            comparable_state = comparable(state)
            if comparable_state != comparable(self.site(host).start):
                changes.add((host, comparable_state))
        return frozenset(changes)


class Home(Site):
    """The page that links all sites, and searches some of them."""

    host = HOME
    title = "Home"
    menu = tuple((cls.title, f"http://{host}/") for host, cls in SITES.items())

    def __init__(self, world: World):
        super().__init__(world.common)
        self._world = world

    def show_front(self, state: None, fields: Fields) -> ui.Page:
        return self.page(
            "Start",
            ui.text(f"Today: {self.common.today.isoformat()}"),
            ui.search_form("/search", "Search all sites", ""),
        )

    def show_search(self, state: None, fields: Fields) -> ui.Page:
        query = fields.get("q", "").lower()
        names_and_urls = [
            (article.title, f"http://wiki.test{ui.address('/article', t=article.title)}")
            for article in self._world.wiki.articles.values()
        ]
        names_and_urls += [
            (product.name, f"http://shop.test{ui.address('/item', id=product.id)}")
            for product in self._world.shop.products
        ]
        names_and_urls += [
            (place.name, f"http://stay.test{ui.address('/place', id=place.id)}")
            for place in self._world.stay.places
        ]
        hits = [(name, url) for name, url in names_and_urls if query and query in name.lower()]

        def row(hit: tuple[str, str]) -> tuple[ui.Node, ...]:
            name, url = hit
            return ui.link(name, url), ui.text(url.removeprefix("http://"))

        results = ui.listing(hits, "/search", fields, row)
        return self.page("Search", ui.search_form("/search", "Search all sites", query), *results)


def comparable(state: Any) -> Any:
    """Return a state so that the order of equal things and the case of texts make no difference."""
    if isinstance(state, str):
        return plain(state)
    if not isinstance(state, tuple):
        return state
    # The parts of a named tuple keep their places; of any other one the order is an accident.
    parts = tuple(map(comparable, state))
    return parts if hasattr(state, "_fields") else tuple(sorted(parts, key=repr))


@lru_cache(maxsize=32)
def world_of(seed: int) -> World:
    """Return the instance of a seed; each is generated once in a process."""
    return World(seed)
