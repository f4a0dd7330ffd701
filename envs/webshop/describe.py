"""Putting belief facts back into WebShop's pages.

World models that predict facts answer with such a page. Facts are in lower case, so the page differs
from the shop's own in that; `WebShopCanonicalizer.update` reads the same facts from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from ...facts import State
from .facts import SUB_PAGES
from .wording import dollars

__all__ = ["describe"]

_SEPARATOR = " [SEP] "


def describe(before: State, action: str, after: State, mode: str = "text") -> str:
    """Return a page that leads from `before` to `after`.

    Args:
        before: The belief before the action; its instruction is used where `after` has none.
        action: The action.
        after: The belief that reading the page shall give, as far as a page can say it.
        mode: ``"text"`` or ``"text_rich"``.

    Example:
        >>> after = State(frozenset({("instruction", "find a rug"), ("page", "search")}))
        >>> describe(State(), "click[back to search]", after)
        'WebShop [SEP] Instruction: [SEP] find a rug [SEP] Search'
    """
    page = _Page(after, _one(before, "instruction"), mode == "text_rich")
    parts = page.parts()
    if mode == "text_rich":
        return "\n".join(part for part in parts if part) + "\n"
    return _SEPARATOR.join(parts)


def _one(state: State, name: str) -> str:
    return min((f[1] for f in state.facts if f[0] == name and len(f) == 2), default="")


class _Page:
    """One page to be written, a part at a time."""

    def __init__(self, state: State, instruction: str, rich: bool):
        self.facts, self.rich = state.facts, rich
        self.instruction = _one(state, "instruction") or instruction
        self.name, self.product = _one(state, "page"), _one(state, "product")
        self.state = state
        self.selected = set(self.pairs("selected"))

    def pairs(self, name: str) -> list[tuple[str, str]]:
        """Return the arguments of facts that have two, sorted."""
        return sorted((f[1], f[2]) for f in self.facts if f[0] == name and len(f) == 3)

    def button(self, name: str, clicked: bool = False) -> str:
        """Return a button as the mode shows it."""
        mark = "clicked button" if clicked else "button"
        return f"[{mark}] {name} [{mark}_]" if self.rich else name

    def parts(self) -> list[str]:
        """Return the parts of the page."""
        if self.name == "done":
            return self.end()
        if self.name == "search" or not self.name:
            return ["WebShop", "Instruction:", self.instruction, self.button("Search")]
        head = ["Instruction:", self.instruction, self.button("Back to Search")]
        if self.name == "results":
            return head + self.results()
        body = self.lines() if self.name in SUB_PAGES else self.item()
        return [*head, self.button("< Prev"), *body]

    def results(self) -> list[str]:
        """Return the parts of a result list."""
        number = _one(self.state, "page_no") or "1"
        parts = [f"Page {number} (Total results: {_one(self.state, 'total') or '0'})"]
        parts += [self.button("< Prev")] if number != "1" else []
        parts.append(self.button("Next >"))
        titles = dict(self.pairs("title"))
        opened = {f[1] for f in self.facts if f[0] == "opened" and len(f) == 2}
        listed = sorted(self.pairs("result"), key=lambda row: (len(row[0]), row))
        for _, asin in listed:
            parts += [self.button(asin.upper(), asin in opened), titles.get(asin, "unnamed")]
            parts.append(self.price(asin))
        return parts

    def price(self, asin: str) -> str:
        """Return a price as the shop writes it; 100 dollars, as there, where it is not known."""
        told = sorted(f[2:] for f in self.facts if f[:2] == ("price", asin) and len(f) == 4)
        low, high = told[0] if told else ("10000", "10000")
        return f"${dollars(low)}" + (f" to ${dollars(high)}" if high != low else "")

    def item(self) -> list[str]:
        """Return the parts of an item page."""
        parts, group = list[str](), ""
        for name, value in self.pairs("option"):
            parts += [name] if name != group else []
            group = name
            indent = "  " if self.rich else ""
            parts.append(indent + self.button(value, (name, value) in self.selected))
        if not self.rich:
            parts += [f"Selected {name}: {value}" for name, value in sorted(self.selected)]
        parts.append(dict(self.pairs("title")).get(self.product, "unnamed"))
        parts += [f"Price: {self.price(self.product)}", "Rating: N.A."]
        names: Iterable[str] = ("Description", "Features", "Reviews", "Buy Now")
        return parts + [self.button(name) for name in names]

    def lines(self) -> list[str]:
        """Return the lines of a sub-page."""
        lines = [f[2:] for f in self.facts if f[:2] == ("line", self.name) and len(f) == 4]
        return [line for _, line in sorted(lines, key=lambda row: (len(row[0]), row))]

    def end(self) -> list[str]:
        """Return the parts of the page after a purchase."""
        chosen = json.dumps(dict(sorted(self.selected)))
        parts = ["Thank you for shopping with us!", "Purchased", "asin", self.product.upper()]
        parts += ["options", chosen, "Reward", "Your score (min 0.0, max 1.0)"]
        return [*parts, _one(self.state, "reward")]
