"""A shopper who knows only a belief, real or imagined: what an expert does without being told."""

from __future__ import annotations

import re

from ...facts import State
from .cleaning import clean
from .facts import SUB_PAGES
from .matching import keywords, wish_of

__all__ = ["browse"]

_TRIES = 5
_ON_A_PAGE = 10
_CHOICE = re.compile(r"(?:with|, and|,) [^,:]{1,40}: (.+?)(?=, and |, price|$)")
_LIMIT = ", and price lower than"
_UNFIT = re.compile(r"[\[\]]+")


def browse(state: State) -> str | None:
    """Return the next action of a sensible shopper; None after a purchase or on an unknown page.

    It searches for the instruction's words, opens what has most of them in its title and is not too
    dear, chooses the options that the instruction names, and buys if all of these are there and the
    price is within the limit; else it looks at up to four more products, and buys the last.

    Example:
        >>> browse(State(frozenset({("instruction", "find me a red rug"), ("page", "search")})))
        'search[red rug]'
    """
    groups: dict[str, list[tuple[str, ...]]] = {}
    for fact in sorted(state.facts):
        groups.setdefault(fact[0], []).append(fact[1:])
    page = groups.get("page", [("",)])[0][0]
    instruction = groups.get("instruction", [("",)])[0][0]
    if page == "search":
        words = " ".join(_UNFIT.sub(" ", keywords(instruction)[0]).split())
        return f"search[{words or 'anything'}]"
    if page == "results":
        return _pick(groups, instruction)
    if page == "item":
        return _decide(groups, instruction)
    return "click[< prev]" if page in SUB_PAGES else None


_Groups = dict[str, list[tuple[str, ...]]]


def _pick(groups: _Groups, instruction: str) -> str:
    """Return which product of a list to open, or another page."""
    wish = wish_of(instruction)
    words = {word for pair in wish.pairs for word in pair.split()}
    titles = {row[0]: set(row[1].replace("-", " ").split()) for row in groups.get("title", ())}
    prices = {row[0]: _number(row[1]) for row in groups.get("price", ())}
    opened = {row[0] for row in groups.get("opened", ())}
    best: tuple[bool, int, int, str] | None = None
    for row in groups.get("result", ()):
        rank, asin = _number(row[0]), row[1]
        if asin not in opened:
            dear = wish.limit is not None and prices.get(asin, 0) > wish.limit
            key = (dear, -len(words & titles.get(asin, set())), rank, asin)
            best = key if best is None else min(best, key)
    if best is not None:
        return f"click[{best[3]}]"
    shown, total = (_number(groups.get(name, [("0",)])[0][0]) for name in ("page_no", "total"))
    return "click[next >]" if shown * _ON_A_PAGE < total else "click[back to search]"


def _decide(groups: _Groups, instruction: str) -> str:
    """Return what to do on an item page."""
    named = groups.get("option_available", [])
    selected = {row[0]: row[1] for row in groups.get("selected", ())}
    best = {row[0]: row[1] for row in sorted(named, key=lambda row: (len(row[1]), row))}
    for group, value in best.items():
        if selected.get(group) != value:
            return f"click[{value}]"
    asked = {clean(value) for value in _CHOICE.findall(instruction.split(_LIMIT)[0])}
    fits = asked <= {row[1] for row in named} and ("no",) not in groups.get("price_ok", ())
    others = len(groups.get("result", ())) > 1 and len(groups.get("opened", ())) < _TRIES
    return "click[buy now]" if fits or not others else "click[< prev]"


def _number(digits: str) -> int:
    """Return the number that digits write, 0 for anything else."""
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else 0
