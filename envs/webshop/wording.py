"""A belief in a few words: for agents and world models with little room."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...facts import State
from ...trajectory import Turn
from .cleaning import clean, read_action
from .facts import SUB_PAGES
from .matching import keywords

__all__ = ["dollars", "narrate", "narrate_scene"]

_LAST = 2
_TITLE = 80
_OPTIONS = 12


def narrate(goal: str, history: Sequence[Turn], state: State) -> str:
    """Return what matters for the next action.

    That is: the goal; the page; on the search page the instruction's keywords; on a result list its
    products, each with its price and whether it was opened; on an item page (and behind it) the
    product, how it meets the instruction, what is chosen and what can be; the last actions.

    Example:
        >>> state = State(frozenset({("page", "results"), ("query", "rug"), ("page_no", "1"),
        ...     ("total", "1"), ("result", "1", "b1"), ("title", "b1", "oat rug"),
        ...     ("price", "b1", "1250", "1250")}))
        >>> print(narrate("find a rug", (), state))
        goal: find a rug
        page: results 1 of 1 for rug
        listed: b1 oat rug $12.50
    """
    belief = _Belief(state)
    lines = [f"goal: {goal}", f"page: {belief.page_line()}"]
    if belief.page == "search":
        lines.append(f"keywords: {keywords(goal)[0]}")
    elif belief.page == "results":
        lines.append("listed: " + ("; ".join(map(belief.listed, belief.results())) or "nothing"))
    else:
        lines += belief.product_lines()
    return "\n".join([*lines, *_lately(history)])


def narrate_scene(goal: str, history: Sequence[Turn], state: State, action: str) -> str:
    """Return what matters for predicting what follows `action`.

    That is: the goal, the page, the product at hand or the one that the action names, and the last
    actions.

    Example:
        >>> state = State(frozenset({("page", "item"), ("product", "b1"), ("title", "b1", "oat rug"),
        ...     ("option", "size", "small"), ("selected", "size", "small"), ("price_ok", "yes")}))
        >>> print(narrate_scene("find a rug", (), state, "click[buy now]"))
        goal: find a rug
        page: item b1
        product: oat rug
        fits: price yes
        chosen: size small
        options: size: small
    """
    belief = _Belief(state)
    lines = [f"goal: {goal}", f"page: {belief.page_line()}"]
    _, argument = read_action(action) or ("", "")
    named = clean(argument)
    if belief.page == "results" and named in belief.results():
        lines.append(f"listed: {belief.listed(named)}")
    elif belief.page == "item" or belief.page in SUB_PAGES:
        lines += belief.product_lines()
    return "\n".join([*lines, *_lately(history)])


def dollars(cents: str) -> str:
    """Return cents as dollars.

    Example:
        >>> dollars("1250")
        '12.50'
    """
    cents = cents.zfill(3)
    return f"{cents[:-2]}.{cents[-2:]}"


class _Belief:
    """A belief, sorted by what it is about."""

    def __init__(self, state: State):
        self.facts: dict[str, list[tuple[str, ...]]] = {}
        for fact in sorted(state.facts):
            self.facts.setdefault(fact[0], []).append(fact[1:])
        self.page = self.one("page")
        self.product = self.one("product")
        self.titles = {row[0]: row[1] for row in self.facts.get("title", ()) if len(row) == 2}
        self.prices = {row[0]: row[1:] for row in self.facts.get("price", ()) if len(row) == 3}
        self.opened = {row[0] for row in self.facts.get("opened", ()) if row}

    def one(self, name: str) -> str:
        """Return the argument of a fact that there is once; empty where there is none."""
        rows = self.facts.get(name)
        return rows[0][0] if rows and rows[0] else ""

    def pairs(self, name: str) -> list[tuple[str, str]]:
        """Return the arguments of facts that have two, sorted."""
        return [(row[0], row[1]) for row in self.facts.get(name, ()) if len(row) == 2]

    def page_line(self) -> str:
        """Return where the shopper is."""
        if self.page == "results":
            pages = f"{self.one('page_no')} of {self._pages()}"
            return f"results {pages} for {self.one('query') or 'something'}"
        if self.page in SUB_PAGES:
            return f"{self.page} of {self.product or 'a product'}"
        if self.page == "done":
            return f"done, reward {self.one('reward') or 'not known'}"
        return f"{self.page or 'not known'} {self.product if self.page == 'item' else ''}".strip()

    def _pages(self) -> int:
        total = self.one("total")
        number = int(total) if total.isascii() and total.isdecimal() and len(total) < 10 else 0
        return max(1, -(-number // 10))

    def results(self) -> list[str]:
        """Return the products of the page's list, in order."""
        return [asin for _, asin in sorted(self.pairs("result"), key=_ranked)]

    def listed(self, asin: str) -> str:
        """Return a product as a list shows it."""
        title = _shortened(self.titles.get(asin, ""))
        seen = " (opened)" if asin in self.opened else ""
        return " ".join(filter(None, (asin, title, self.price(asin)))) + seen

    def price(self, asin: str) -> str:
        """Return a product's price, or nothing where it is not known."""
        low, high = self.prices.get(asin, ("", ""))
        if not (low and high):
            return ""
        return f"${dollars(low)}" + (f" to ${dollars(high)}" if high != low else "")

    def product_lines(self) -> list[str]:
        """Return the lines about the product at hand."""
        told = (_shortened(self.titles.get(self.product, "")), self.price(self.product))
        lines = [f"product: {' '.join(filter(None, told))}"] if any(told) else []
        fits = [row[0] for row in self.facts.get("attr_match", ()) if row]
        fits += [f"price {self.one('price_ok')}"] if self.one("price_ok") else []
        lines += [f"fits: {', '.join(fits)}"] if fits else []
        chosen = [f"{group} {value}" for group, value in self.pairs("selected")]
        lines += [f"chosen: {', '.join(chosen)}"] if chosen else []
        offers: dict[str, list[str]] = {}
        for group, value in self.pairs("option"):
            offers.setdefault(group, []).append(value)
        named = set(self.pairs("option_available"))
        told_of = (
            f"{group}: {_some(values, [v for v in values if (group, v) in named])}"
            for group, values in offers.items()
        )
        lines += [f"options: {'; '.join(told_of)}"] if offers else []
        return lines


def _ranked(row: tuple[str, str]) -> tuple[int, str, str]:
    rank, asin = row
    return int(rank) if rank.isascii() and rank.isdecimal() and len(rank) < 10 else 0, rank, asin


def _shortened(title: str) -> str:
    return title if len(title) <= _TITLE else title[: _TITLE - 3].rstrip() + "..."


def _some(values: list[str], first: list[str]) -> str:
    """Return values, those that the instruction names first, and not too many."""
    ordered = first + [value for value in values if value not in first]
    more = len(ordered) - _OPTIONS
    return ", ".join(ordered[:_OPTIONS]) + (f" and {more} more" if more > 0 else "")


def _lately(history: Sequence[Turn]) -> list[str]:
    """Return the line about the last actions."""
    turns = list(history)[-_LAST - 1 :]
    told = [
        f"{after.action} (nothing changed)"
        if after.observation == before.observation
        else f"{after.action}"
        for before, after in pairwise(turns)
    ]
    return [f"last: {'; '.join(told)}"] if told else []
