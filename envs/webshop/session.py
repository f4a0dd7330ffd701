"""Where a shopper stands, and where each action leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .catalog import Catalog
from .cleaning import read_action, read_written
from .facts import SUB_PAGES

__all__ = ["ON_A_PAGE", "Session", "Shop"]

ON_A_PAGE = 10
"""How many products a page of results shows."""

_FOUND = 50
_BACK, _PREVIOUS, _NEXT, _BUY = "back to search", "< prev", "next >", "buy now"
_KNOWN = 1024  # products of which it is remembered what to click on
_NOTHING: Mapping[str, Any] = {}


class Session(NamedTuple):
    """Where a shopper stands; nothing in it changes, so that it can be kept.

    Attributes:
        page: ``"search"``, ``"results"``, ``"item"``, one of `SUB_PAGES`, or ``"done"``.
        query: What was searched for, or None on the search page.
        rows: The products that the search found, best first.
        page_no: Which ten of them are shown, from 1; 0 on the search page.
        row: The product at hand, or None.
        options: The options that are selected, by group, in the order of the first choice.
        opened: Products opened since the search page was last left.
        reward: What the purchase was worth; None before one.
        parts: The reward's parts; empty before a purchase.
    """

    page: str = "search"
    query: str | None = None
    rows: tuple[int, ...] = ()
    page_no: int = 0
    row: int | None = None
    options: Mapping[str, str] = _NOTHING
    opened: frozenset[int] = frozenset()
    reward: float | None = None
    parts: Mapping[str, Any] = _NOTHING

    def shown(self) -> tuple[int, ...]:
        """Return the products on this page of results."""
        return self.rows[(self.page_no - 1) * ON_A_PAGE : self.page_no * ON_A_PAGE]


class _Choices(NamedTuple):
    """What can be clicked on at an item: the options that texts select; all texts; the actions."""

    pairs: dict[str, tuple[str, str]]
    texts: tuple[str, ...]
    clicks: tuple[str, ...]


class Shop:
    """The rules of moving about; what a purchase is worth is not decided here.

    Args:
        catalog: The products.
        legacy: Whether WebShop's own, looser rules hold: search from every page, pages of results
            without end, ``<c>`` and ``<q>`` searches, actions matched to the letter.
        show_attrs: Whether items have a page of attributes.
    """

    def __init__(self, catalog: Catalog, legacy: bool, show_attrs: bool):
        self.catalog, self.legacy = catalog, legacy
        self.sub_pages = SUB_PAGES if show_attrs else SUB_PAGES[:-1]
        self._links: dict[int, str] = {}
        self._known: dict[int, _Choices] = {}

    def act(self, here: Session, action: str) -> Session | None:
        """Return where an action leads, or None where it means nothing here."""
        read = read_action(action) if self.legacy else read_written(action)
        if read is None:
            return None
        name, said = read
        if not self.legacy:
            said = " ".join(said.lower().split())
        if name == "search" and said and (self.legacy or here.page == "search"):
            return self._search(here, said)
        if name == "click" and said != "search":
            return self._click(here, said)
        return None

    def clickables(self, here: Session) -> list[str]:
        """Return what can be clicked on, in WebShop's order."""
        if here.page == "results":
            links = [self._link(row).removeprefix("click[")[:-1] for row in here.shown()]
            return [*self.buttons(here), *links]
        if here.page == "item":
            return list(self._choices(here).texts)
        return self.buttons(here)

    def clicks(self, here: Session) -> tuple[str, ...]:
        """Return an action for each of the `clickables`."""
        if here.page == "item":
            return self._choices(here).clicks
        actions = [f"click[{name}]" for name in self.buttons(here)]
        if here.page == "results":
            actions += map(self._link, here.shown())
        return tuple(actions)

    def buttons(self, here: Session) -> list[str]:
        """Return the buttons of a page, in lower case."""
        if here.page == "search":
            return ["search"]
        if here.page == "done":
            return []
        if here.page == "results":
            buttons = [_BACK]
            if here.page_no > 1:
                buttons.append(_PREVIOUS)
            if self.legacy or here.page_no * ON_A_PAGE < len(here.rows):
                buttons.append(_NEXT)
            return buttons
        if here.page == "item":
            return [_BACK, _PREVIOUS, *self.sub_pages, _BUY]
        return [_BACK, _PREVIOUS]

    def _search(self, here: Session, query: str) -> Session:
        words = query.split(" ")
        if self.legacy and words[0] == "<c>":
            rows = self.catalog.rows_with("categories", "".join(words[1:2]).strip())
        elif self.legacy and words[0] == "<q>":
            rows = self.catalog.rows_with("queries", " ".join(words[1:]).strip())
        else:
            rows = self.catalog.search_rows(query, _FOUND)
        return Session("results", query, tuple(rows), 1, opened=here.opened)

    def _click(self, here: Session, said: str) -> Session | None:
        if said in self.buttons(here):
            return self._press(here, said)
        if here.page == "results":
            for row in here.shown():
                if self._link(row) == f"click[{said}]":
                    return here._replace(page="item", row=row, opened=here.opened | {row})
        elif here.page == "item":
            chosen = self._choices(here).pairs.get(said)
            if chosen is not None:
                group, value = chosen
                return here._replace(options={**here.options, group: value})
        return None

    def _press(self, here: Session, button: str) -> Session:
        """Return where a button leads."""
        if button == _BACK:
            return Session()
        if button in self.sub_pages:
            return here._replace(page=button)
        if button == _BUY:
            return here._replace(page="done")
        if here.page == "results":
            step = 1 if button == _NEXT else -1
            return here._replace(page_no=here.page_no + step, row=None, options=_NOTHING)
        if here.page == "item":
            return here._replace(page="results", row=None, options=_NOTHING)
        return here._replace(page="item")

    def _link(self, row: int) -> str:
        """Return the action that opens a product."""
        link = self._links.get(row)
        if link is None:
            if len(self._links) >= _KNOWN:
                self._links.clear()
            link = self._links[row] = f"click[{self.catalog.asin(row).lower()}]"
        return link

    def _choices(self, here: Session) -> _Choices:
        """Return what can be clicked on at an item.

        A value that two groups share selects the later one's. By strict rules any value can also be
        clicked as ``group: value``.
        """
        assert here.row is not None
        known = self._known.get(here.row)
        if known is not None:
            return known
        buttons, options = self.buttons(here), self.catalog.product(here.row).options
        pairs = [(group, value) for group, values in options for value in values]
        choices = {_said(value, self.legacy): (group, value) for group, value in pairs}
        listed = list(choices)
        for group, value in () if self.legacy else pairs:
            full = _said(f"{group}: {value}", False)
            if choices.setdefault(full, (group, value)) != (group, value):
                continue
            bare = _said(value, False)
            if choices[bare] != (group, value):
                listed.append(full)
            elif bare in buttons:
                listed[listed.index(bare)] = full
        if len(self._known) >= _KNOWN:
            self._known.clear()
        texts = tuple(dict.fromkeys([*buttons, *listed]))
        known = _Choices(choices, texts, tuple([f"click[{text}]" for text in texts]))
        self._known[here.row] = known
        return known


def _said(value: str, legacy: bool) -> str:
    """Return what to click on for an option value."""
    return value if legacy else " ".join(value.lower().split())
