"""The shop: where a shopper stands, where each action leads, and what the pages show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from ..storage import packaged
from .belief import SUB_PAGES
from .catalog import Catalog
from .parser import read_action, read_written
from .products import Product

ON_A_PAGE = 10
_MOST_RESULTS = 50
_BACK = "back to search"
_PREVIOUS = "< prev"
_NEXT = "next >"
_BUY = "buy now"
_REMEMBERED = 1024  # products of which it is remembered what to click on, and pieces of pages
_NOTHING: Mapping[str, Any] = {}


class Session(NamedTuple):
    """Where a shopper stands; nothing in it changes, so that it can be kept."""

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
        """Return the rows of the products on this page of results."""
        return self.rows[(self.page_no - 1) * ON_A_PAGE : self.page_no * ON_A_PAGE]


class _Choices(NamedTuple):
    """What can be clicked on at an item: the options that texts select; all texts; the actions."""

    pairs: dict[str, tuple[str, str]]
    texts: tuple[str, ...]
    clicks: tuple[str, ...]


class Shop:
    """The rules of moving about; what a purchase is worth is not decided here."""

    def __init__(self, catalog: Catalog, legacy: bool, show_attrs: bool):
        self.catalog = catalog
        self.legacy = legacy
        self.sub_pages = SUB_PAGES if show_attrs else SUB_PAGES[:-1]
        self._links: dict[int, str] = {}
        self._choices_by_row: dict[int, _Choices] = {}

    def act(self, session: Session, action: str) -> Session | None:
        """Return where an action leads, or None where it means nothing here."""
        parsed = read_action(action) if self.legacy else read_written(action)
        if parsed is None:
            return None
        verb, argument = parsed
        if not self.legacy:
            argument = " ".join(argument.lower().split())

        # Upstream accepts a search on every page, the one after the purchase included.
        if verb == "search" and argument and (self.legacy or session.page == "search"):
            return self._search(session, argument)
        if verb == "click" and argument != "search":
            return self._click(session, argument)
        return None

    def clickables(self, session: Session) -> list[str]:
        """Return the texts that can be clicked on."""
        if session.page == "results":
            links = [self._link(row).removeprefix("click[")[:-1] for row in session.shown()]
            return [*self.buttons(session), *links]
        if session.page == "item":
            return list(self._choices(session).texts)
        return self.buttons(session)

    def clicks(self, session: Session) -> tuple[str, ...]:
        """Return an action for each of the `clickables`."""
        if session.page == "item":
            return self._choices(session).clicks
        actions = [f"click[{name}]" for name in self.buttons(session)]
        if session.page == "results":
            actions += map(self._link, session.shown())
        return tuple(actions)

    def buttons(self, session: Session) -> list[str]:
        """Return the buttons of a page, in lower case."""
        if session.page == "search":
            return ["search"]
        if session.page == "done":
            return []
        if session.page == "results":
            buttons = [_BACK]
            if session.page_no > 1:
                buttons.append(_PREVIOUS)
            # Upstream has pages of results without end.
            if self.legacy or session.page_no * ON_A_PAGE < len(session.rows):
                buttons.append(_NEXT)
            return buttons
        if session.page == "item":
            return [_BACK, _PREVIOUS, *self.sub_pages, _BUY]
        return [_BACK, _PREVIOUS]

    def _search(self, session: Session, query: str) -> Session:
        """Return where a search leads."""
        words = query.split(" ")
        # Upstream's escapes: all products of a category, or those once found by a query.
        if self.legacy and words[0] == "<c>":
            rows = self.catalog.rows_with("categories", "".join(words[1:2]).strip())
        elif self.legacy and words[0] == "<q>":
            rows = self.catalog.rows_with("queries", " ".join(words[1:]).strip())
        else:
            rows = self.catalog.search_rows(query, _MOST_RESULTS)
        return Session("results", query, tuple(rows), 1, opened=session.opened)

    def _click(self, session: Session, text: str) -> Session | None:
        """Return where a click on a button, a product or an option leads."""
        if text in self.buttons(session):
            return self._press(session, text)

        if session.page == "results":
            for row in session.shown():
                if self._link(row) == f"click[{text}]":
                    return session._replace(page="item", row=row, opened=session.opened | {row})
        elif session.page == "item":
            option = self._choices(session).pairs.get(text)
            if option is not None:
                group, value = option
                return session._replace(options={**session.options, group: value})
        return None

    def _press(self, session: Session, button: str) -> Session:
        """Return where a button leads."""
        if button == _BACK:
            return Session()
        if button in self.sub_pages:
            return session._replace(page=button)
        if button == _BUY:
            return session._replace(page="done")

        if session.page == "results":
            step = 1 if button == _NEXT else -1
            return session._replace(page_no=session.page_no + step, row=None, options=_NOTHING)
        # From an item back to the results its options are forgotten; from behind an item they stay.
        if session.page == "item":
            return session._replace(page="results", row=None, options=_NOTHING)
        return session._replace(page="item")

    def _link(self, row: int) -> str:
        """Return the action that opens a listed product."""
        link = self._links.get(row)
        if link is None:
            link = _remember(self._links, row, f"click[{self.catalog.asin(row).lower()}]")
        return link

    def _choices(self, session: Session) -> _Choices:
        """Return what can be clicked on at an item."""
        assert session.row is not None
        remembered = self._choices_by_row.get(session.row)
        if remembered is not None:
            return remembered

        # Of two groups that share a value, the text selects the later one, as upstream.
        buttons = self.buttons(session)
        options: list[tuple[str, str]] = []
        for group, values in self.catalog.product(session.row).options:
            options += [(group, value) for value in values]
        pairs = {_as_clicked(value, self.legacy): (group, value) for group, value in options}
        listed = list(pairs)

        # "group: value" selects any option; it is listed where the value alone does not: where it
        # selects another group's, or is the text of a button.
        for option in () if self.legacy else options:
            group, value = option
            full = _as_clicked(f"{group}: {value}", False)
            if pairs.setdefault(full, option) != option:
                continue
            bare = _as_clicked(value, False)
            if pairs[bare] != option:
                listed.append(full)
            elif bare in buttons:
                listed[listed.index(bare)] = full

        texts = tuple(dict.fromkeys([*buttons, *listed]))
        clicks = tuple([f"click[{text}]" for text in texts])
        return _remember(self._choices_by_row, session.row, _Choices(pairs, texts, clicks))


def _as_clicked(value: str, legacy: bool) -> str:
    """Return the text of a click that selects a value."""
    return value if legacy else " ".join(value.lower().split())


_SEP = " [SEP] "
_BUTTONS = (
    "Search",
    "Back to Search",
    "< Prev",
    "Next >",
    "Description",
    "Features",
    "Reviews",
    "Attributes",
    "Buy Now",
)
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"}
"""How Jinja's ``tojson`` writes these characters, on the page after the purchase."""

_Key = TypeVar("_Key")
_Piece = TypeVar("_Piece")
_UNSEEN = ("", "\n")
"""Texts that HTML does not show at all."""


class Pages:
    """Writes pages, to the byte as upstream's HTML comes out as text; pieces of them are kept."""

    def __init__(self, shop: Shop, rich: bool):
        self._shop = shop
        self._catalog = shop.catalog
        self._rich = rich
        self._cards: dict[tuple[int, bool], str] = {}
        self._items: dict[int, tuple[str, str]] = {}
        self._tops: dict[str, str] = {}
        self._buttons = {name.lower(): self._button(name) for name in _BUTTONS}

    def write(self, session: Session, instruction: str) -> str:
        """Return the page where the shopper stands."""
        if session.page == "done":
            return self._first(_receipt(session, self._catalog))
        if session.page == "search":
            return self._first(["WebShop", "Instruction: ", instruction, self._buttons["search"]])

        # All other pages begin with the same lines.
        top = self._tops.get(instruction)
        if top is None:
            nodes = ["Instruction:", instruction, self._buttons["back to search"]]
            top = _remember(self._tops, instruction, self._first(nodes))

        if session.page == "results":
            return top + self._results(session)
        assert session.row is not None
        if session.page == "item":
            return self._item(session, session.row, top + self._more([self._buttons["< prev"]]))
        lines = _lines(session.page, self._catalog.product(session.row))
        return top + self._more([self._buttons["< prev"], *lines])

    def _results(self, session: Session) -> str:
        """Return a page of results below its first lines."""
        head = f"Page {session.page_no} (Total results: {len(session.rows)})"
        buttons = [self._buttons[name] for name in self._shop.buttons(session)[1:]]
        parts = [self._more([head, *buttons])]

        # Only in the mode `text_rich` does a page show which products were opened.
        opened = session.opened if self._rich else ()
        for row in session.shown():
            key = (row, row in opened)
            parts.append(self._cards.get(key) or self._card(*key))
        return "".join(parts)

    def _card(self, row: int, opened: bool) -> str:
        """Return a product as result lists show it."""
        asin, title, tag = self._catalog.card(row)
        if self._rich:
            button = "clicked button" if opened else "button"
            text = f"\n[{button}] {asin} [{button}_]\n{self._more([title, tag])}"
        else:
            text = f"{_SEP}{asin}{self._more([title, tag])}"
        return _remember(self._cards, (row, opened), text)

    def _item(self, session: Session, row: int, head: str) -> str:
        """Return an item's page, with what is selected."""
        pieces = self._items.get(row)
        if pieces is None:
            # With nothing selected an item's page is always the same.
            product = self._catalog.product(row)

            # The first two, back to the list and to the search, are in the page's first lines.
            buttons = [self._buttons[name] for name in self._shop.buttons(session)[2:]]
            parts_below = [product.title, f"Price: {product.price_tag}", "Rating: N.A.", *buttons]
            unmarked_options, _ = self._options(product, set())
            pieces = _remember(self._items, row, (unmarked_options, self._more(parts_below)))
        unmarked_options, below_options = pieces

        # Upstream's plain text does not show at all what is selected.
        if not session.options or (self._shop.legacy and not self._rich):
            return head + unmarked_options + below_options

        product = self._catalog.product(row)
        if not self._rich:
            selected = []
            for group, _ in product.options:
                if group in session.options:
                    selected.append(f"Selected {group}: {session.options[group]}")
            return head + unmarked_options + self._more(selected) + below_options

        options, clicked = self._options(product, self._marked(session, product))

        # Upstream puts the line of each value above those before it.
        click_notes = [f"You have clicked {value}." for value in reversed(clicked)]
        return self._more(click_notes) + head + options + below_options

    def _options(
        self, product: Product, marked_options: set[tuple[str, str]]
    ) -> tuple[str, list[str]]:
        """Return the options of an item as its page shows them, and the values that are marked."""
        nodes: list[str] = []
        clicked: list[str] = []
        for group, values in product.options:
            nodes.append(group)
            for value in values:
                if not self._rich:
                    nodes.append(value)
                elif (group, value) in marked_options:
                    nodes.append(f"  [clicked button] {value} [clicked button_]")
                    clicked.append(value)
                elif value not in _UNSEEN:
                    nodes.append(f"  [button] {value} [button_]")
        return self._more(nodes), clicked

    def _marked(self, session: Session, product: Product) -> set[tuple[str, str]]:
        """Return the options that the mode `text_rich` shows as clicked."""
        if not self._shop.legacy:
            return set(session.options.items())

        # Upstream marks every value that stands in quotes anywhere in the page's address, which has
        # the query and the selected options: never one that JSON escapes.
        words = "+".join((session.query or "").split(" "))
        address = f"{words}/{session.page_no}/{json.dumps(dict(session.options))}"
        marked_options = set()
        for group, values in product.options:
            for value in values:
                if f'"{value}"' in address and value not in _UNSEEN:
                    marked_options.add((group, value))
        return marked_options

    def _button(self, name: str) -> str:
        """Return a button as pages show it."""
        return f"[button] {name} [button_]" if self._rich else name

    def _first(self, nodes: Iterable[str]) -> str:
        """Return texts as the first ones of a page."""
        return self._more(nodes) if self._rich else self._more(nodes).removeprefix(_SEP)

    def _more(self, nodes: Iterable[str]) -> str:
        """Return texts as the next ones of a page; empty ones are not shown."""
        if self._rich:
            return "".join([f"{node}\n" for node in nodes if node not in _UNSEEN])
        return "".join([f"{_SEP}{node.strip()}" for node in nodes if node not in _UNSEEN])


def _remember(memory: dict[_Key, _Piece], key: _Key, piece: _Piece) -> _Piece:
    """Return a piece and keep it; a memory that is full is emptied."""
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = piece
    return piece


def _lines(page: str, product: Product) -> list[str]:
    """Return what stands on a page behind an item; reviews are never loaded."""
    if page == "description":
        return [product.description]
    if page == "features":
        return [f" {line}" for line in product.bullets]
    if page == "attributes":
        labels = (product.category, product.query, product.product_category)
        return [*(f" {attribute}" for attribute in product.attributes), *labels]
    return []


def _receipt(session: Session, catalog: Catalog) -> list[str]:
    """Return the texts of the page after a purchase."""
    assert session.row is not None
    options = json.dumps(dict(session.options), sort_keys=True)
    for sign, escape in _IN_SCRIPT.items():
        options = options.replace(sign, escape)

    fields = {
        "{asin}": catalog.asin(session.row),
        "{options}": options,
        "{reward}": str(session.reward),
    }
    return [fields.get(node, node) for node in packaged(__package__, "receipt")]
