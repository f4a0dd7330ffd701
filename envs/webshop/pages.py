"""Pages in words, as WebShop's two text modes show them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TypeVar

from .catalog import Catalog
from .products import Product
from .session import Session, Shop

__all__ = ["Pages"]

_SEP = " [SEP] "
_NAMES = {
    "search": "Search",
    "back to search": "Back to Search",
    "< prev": "< Prev",
    "next >": "Next >",
    "description": "Description",
    "features": "Features",
    "reviews": "Reviews",
    "attributes": "Attributes",
    "buy now": "Buy Now",
}
_RECEIPT = (
    *(
        "Thank you for shopping with us!",
        "Your code: ",
        "None",
        " (Paste it in your MTurk interface.)",
    ),
    *("Purchased", "asin", "{asin}", "options", "{options}", "attrs", "None", "category", "None"),
    *(
        "query",
        "None",
        "product category",
        "None",
        "Target",
        "asin",
        "options",
        "attrs",
        "price upper",
    ),
    *("instuction text", "category", "product category", "query", "Goal ", "None", "Reward"),
    *("Your score (min 0.0, max 1.0)", "{reward}", "Reward Details ", "None"),
)
_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"}
_Key = TypeVar("_Key")
_Piece = TypeVar("_Piece")
_KNOWN = 1024  # pieces of pages that are remembered
_UNSEEN = ("", "\n")  # texts that HTML does not show at all


class Pages:
    """Writes pages.

    In the mode ``text`` a page is its texts, joined by ``[SEP]``; in ``text_rich`` each has a line,
    and buttons are marked. By WebShop's own rules (``legacy``) ``text`` does not show what is
    selected, and ``text_rich`` marks the values that it finds in the page's address. By strict rules
    both show exactly what is selected; ``text`` by parts such as ``Selected color: red`` before the
    title.

    Args:
        shop: The rules, which know the buttons of each page.
        rich: Whether the mode is ``text_rich``.
    """

    def __init__(self, shop: Shop, rich: bool):
        self._shop, self._catalog, self._rich = shop, shop.catalog, rich
        self._cards: dict[tuple[int, bool], str] = {}
        self._items: dict[int, tuple[str, str]] = {}
        self._tops: dict[str, str] = {}
        self._names = {name: self._button(shown) for name, shown in _NAMES.items()}

    def write(self, here: Session, instruction: str) -> str:
        """Return the page that a shopper sees."""
        if here.page == "done":
            return self._first(_receipt(here, self._catalog))
        if here.page == "search":
            return self._first(["WebShop", "Instruction: ", instruction, self._names["search"]])
        top = self._tops.get(instruction)
        if top is None:
            nodes = ["Instruction:", instruction, self._names["back to search"]]
            top = _keep(self._tops, instruction, self._first(nodes))
        if here.page == "results":
            return top + self._results(here)
        assert here.row is not None
        if here.page == "item":
            return self._item(here, here.row, top + self._more([self._names["< prev"]]))
        lines = _lines(here.page, self._catalog.product(here.row))
        return top + self._more([self._names["< prev"], *lines])

    def _results(self, here: Session) -> str:
        """Return a page of results, below its first button."""
        told = f"Page {here.page_no} (Total results: {len(here.rows)})"
        nodes = [told, *[self._names[name] for name in self._shop.buttons(here)[1:]]]
        parts = [self._more(nodes)]
        opened = here.opened if self._rich else ()
        for row in here.shown():
            key = (row, row in opened)
            parts.append(self._cards.get(key) or self._card(*key))
        return "".join(parts)

    def _card(self, row: int, opened: bool) -> str:
        """Return a product in a list of results."""
        asin, title, tag = self._catalog.card(row)
        if self._rich:
            button = "clicked button" if opened else "button"
            text = f"\n[{button}] {asin} [{button}_]\n{self._more([title, tag])}"
        else:
            text = f"{_SEP}{asin}{self._more([title, tag])}"
        return _keep(self._cards, (row, opened), text)

    def _item(self, here: Session, row: int, head: str) -> str:
        """Return a product's page."""
        known = self._items.get(row)
        if known is None:
            product = self._catalog.product(row)
            buttons = [self._names[name] for name in self._shop.buttons(here)[2:]]
            below = [product.title, f"Price: {product.price_tag}", "Rating: N.A.", *buttons]
            options = self._options(product, set())[0]
            known = _keep(self._items, row, (options, self._more(below)))
        options, below_options = known
        if not here.options or (self._shop.legacy and not self._rich):
            return head + options + below_options
        product = self._catalog.product(row)
        if not self._rich:
            told = [
                f"Selected {group}: {here.options[group]}"
                for group, _ in product.options
                if group in here.options
            ]
            return head + options + self._more(told) + below_options
        options, clicked = self._options(product, self._marked(here, product))
        told = [f"You have clicked {value}." for value in reversed(clicked)]
        return self._more(told) + head + options + below_options

    def _options(self, product: Product, marked: set[tuple[str, str]]) -> tuple[str, list[str]]:
        """Return the options as text, and those values that are marked in it."""
        nodes: list[str] = []
        clicked: list[str] = []
        for group, values in product.options:
            nodes.append(group)
            for value in values:
                if not self._rich:
                    nodes.append(value)
                elif (group, value) in marked:
                    nodes.append(f"  [clicked button] {value} [clicked button_]")
                    clicked.append(value)
                elif value not in _UNSEEN:
                    nodes.append(f"  [button] {value} [button_]")
        return self._more(nodes), clicked

    def _marked(self, here: Session, product: Product) -> set[tuple[str, str]]:
        """Return the option values that are marked as selected."""
        if not self._shop.legacy:
            return set(here.options.items())
        words = "+".join((here.query or "").split(" "))
        address = f"{words}/{here.page_no}/{json.dumps(dict(here.options))}"
        return {
            (group, value)
            for group, values in product.options
            for value in values
            if f'"{value}"' in address and value not in _UNSEEN
        }

    def _button(self, name: str) -> str:
        return f"[button] {name} [button_]" if self._rich else name

    def _first(self, nodes: Iterable[str]) -> str:
        """Return texts as a page's beginning."""
        return self._more(nodes) if self._rich else self._more(nodes).removeprefix(_SEP)

    def _more(self, nodes: Iterable[str]) -> str:
        """Return texts as the next ones of a page; empty ones are not shown."""
        if self._rich:
            return "".join([f"{node}\n" for node in nodes if node not in _UNSEEN])
        return "".join([f"{_SEP}{node.strip()}" for node in nodes if node not in _UNSEEN])


def _keep(memory: dict[_Key, _Piece], key: _Key, piece: _Piece) -> _Piece:
    """Remember a piece of a page."""
    if len(memory) >= _KNOWN:
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
        told = (product.category, product.query, product.product_category)
        return [*(f" {attribute}" for attribute in product.attributes), *told]
    return []


def _receipt(here: Session, catalog: Catalog) -> list[str]:
    """Return what stands on the page after a purchase."""
    assert here.row is not None
    options = json.dumps(dict(here.options), sort_keys=True)
    for sign, written in _IN_SCRIPT.items():
        options = options.replace(sign, written)
    filled = {
        "{asin}": catalog.asin(here.row),
        "{options}": options,
        "{reward}": str(here.reward),
    }
    return [filled.get(node, node) for node in _RECEIPT]
