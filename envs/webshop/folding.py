"""What a page that follows an action makes of a belief."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from ...facts import Fact
from .cleaning import clean, read_action
from .facts import PAGES, STRUCTURAL, SUB_PAGES
from .matching import met_options, met_price, met_words
from .offers import Pairs
from .reading import Shown

__all__ = ["Belief", "Groups", "follow"]

Groups: TypeAlias = dict[str, frozenset[Fact]]
"""Facts by predicate."""

_NONE: frozenset[Fact] = frozenset()
_LENGTHS = (
    dict.fromkeys(STRUCTURAL, 2)
    | dict.fromkeys(("selected", "option", "option_available", "result", "title"), 3)
    | {"line": 4, "price": 4, "reward": 2, "done": 1}
)
_MATCHES = ("option_available", "attr_match", "price_ok")


class Belief:
    """A belief with its facts in groups, by predicate.

    Args:
        groups: The facts by predicate; there are no empty groups.

    Attributes:
        groups: As given.

    Example:
        >>> Belief.of_facts([("page", "item"), ("what", "is", "this")]).groups
        {'page': frozenset({('page', 'item')})}
    """

    __slots__ = ("groups",)

    def __init__(self, groups: Groups):
        self.groups = groups

    @classmethod
    def of_facts(cls, facts: Iterable[Fact]) -> Belief:
        """Return the belief with these facts; those of no schema of ours are left out."""
        groups: dict[str, set[Fact]] = {}
        for fact in facts:
            if fact and len(fact) == _LENGTHS.get(fact[0]):
                groups.setdefault(fact[0], set()).add(fact)
        return cls({name: frozenset(group) for name, group in groups.items()})

    def of(self, name: str) -> frozenset[Fact]:
        """Return the facts of one predicate."""
        return self.groups.get(name, _NONE)

    def told(self, name: str) -> str:
        """Return the argument of a fact that there is once; empty where there is none."""
        facts = self.groups.get(name)
        if not facts:
            return ""
        if len(facts) == 1:
            (fact,) = facts
            return fact[1]
        return min([fact[1] for fact in facts])

    def pairs(self, name: str) -> list[tuple[str, str]]:
        """Return the two arguments of each fact of one predicate, sorted."""
        return sorted((fact[1], fact[2]) for fact in self.of(name))


def follow(before: Belief, action: str, shown: Shown, legacy: bool) -> Groups | None:
    """Return the facts after an action that was answered with a page, by predicate.

    Args:
        before: The belief before the action.
        action: The action, as it was written.
        shown: The page.
        legacy: Whether a search works on every page.

    Returns:
        The groups, without empty ones; None where no such page can follow.

    Example:
        >>> before = Belief.of_facts([("page", "results"), ("query", "rug")])
        >>> follow(before, "click[back to search]", Shown("search"), False)
        {'page': frozenset({('page', 'search')})}
    """
    act = read_action(action) or ("", "")
    groups: Groups = {}
    instruction = before.of("instruction")
    if not instruction and shown.instruction:
        instruction = frozenset({("instruction", shown.instruction)})
    if shown.kind == "results":
        groups = _at_results(before, act, shown, legacy)
    elif shown.kind == "item":
        groups = _at_item(before, act, shown)
    elif shown.kind == "sub":
        page = _sub_page(before.told("page"), act)
        if not page:
            return None
        groups = _at_sub_page(before, page, shown)
    elif shown.kind == "done":
        groups = _at_end(before, shown)
    else:
        groups["page"] = _AT["search"]
    if instruction:
        groups["instruction"] = instruction
    return {name: group for name, group in groups.items() if group}


def _fact(*words: str) -> frozenset[Fact]:
    return frozenset({words})


_AT = {page: _fact("page", page) for page in PAGES}
_DONE = _fact("done")


def _kept(before: Belief, *names: str) -> Groups:
    return {name: before.groups[name] for name in names if name in before.groups}


def _at_results(before: Belief, act: tuple[str, str], shown: Shown, legacy: bool) -> Groups:
    """Return the facts on a result list."""
    opened, titles, prices = before.of("opened"), shown.titles, shown.prices
    if shown.opened:
        opened |= {("opened", asin) for asin in shown.opened}
    if opened:
        seen = {fact[1] for fact in opened} - {fact[2] for fact in shown.results}
        titles |= {fact for fact in before.of("title") if fact[1] in seen}
        prices |= {fact for fact in before.of("price") if fact[1] in seen}
    groups = {
        "page": _AT["results"],
        "page_no": _fact("page_no", shown.page_no),
        "total": _fact("total", shown.total),
        "opened": opened,
        "result": shown.results,
        "title": titles,
        "price": prices,
        "query": before.of("query"),
    }
    if act[0] == "search":
        same = all(groups[name] == before.of(name) for name in ("page_no", "total", "result"))
        if legacy or before.told("page") == "search" or not same:
            groups["query"] = _fact("query", clean(act[1]))
    return groups


_BEHIND = ("query", "page_no", "total", "result", "opened", "title", "price")
_OF_PRODUCT = (*_BEHIND, "line", *_MATCHES)


def _at_item(before: Belief, act: tuple[str, str], shown: Shown) -> Groups:
    """Return the facts on a product's page."""
    was = before.told("page")
    same = was == "item" or was in SUB_PAGES
    asin = _product(before, act, shown, same)
    same = same and asin == before.told("product")
    groups = _kept(before, *(_OF_PRODUCT if same else _BEHIND))
    groups["page"] = _AT["item"]
    groups["option"] = shown.offers
    selected = _selection(dict(before.pairs("selected")) if same else {}, act, shown)
    groups["selected"] = frozenset([("selected", *pair) for pair in selected.items()])
    if asin:
        groups["product"] = before.of("product") if same else _fact("product", asin)
        groups["opened"] = _replaced(before.of("opened"), ("opened", asin))
        groups["title"] = _replaced(before.of("title"), ("title", asin, shown.title))
        if shown.low:
            price = ("price", asin, shown.low, shown.high)
            groups["price"] = _replaced(before.of("price"), price)
    if not same or was != "item" or shown.offers != before.of("option"):
        wanted = before.told("instruction")
        groups["attr_match"] = groups.get("attr_match", _NONE) | met_words(wanted, [shown.title])
        groups["option_available"] = met_options(wanted, shown.options)
        groups["price_ok"] = met_price(wanted, shown.low, shown.high)
    return groups


def _replaced(facts: frozenset[Fact], fact: Fact) -> frozenset[Fact]:
    """Return facts of one predicate with the one about this product replaced."""
    if fact in facts:
        return facts
    return frozenset([fact, *[f for f in facts if f[1] != fact[1]]])


def _product(before: Belief, act: tuple[str, str], shown: Shown, same: bool) -> str:
    """Return the product of an item page: the one at hand, the one clicked on, or one by title.

    Whoever clicks on a listed product while at another one is refused and sees the same title.
    """
    here = before.told("product") if same else ""
    if here and ("title", here, shown.title) in before.of("title"):
        return here
    if act[0] == "click" and any(fact[2] == act[1] for fact in before.of("result")):
        return act[1]
    if same:
        return here
    titled = [asin for asin, title in before.pairs("title") if title == shown.title]
    return titled[0] if len(titled) == 1 else ""


def _selection(selected: dict[str, str], act: tuple[str, str], shown: Shown) -> dict[str, str]:
    """Return what is chosen on an item page: as it shows, else as the clicks so far tell."""
    chosen = {g: v for g, v in selected.items() if ("option", g, v) in shown.offers}
    if act[0] == "click" and act[1] == act[1].strip():
        clicked = clean(act[1])
        group = _group_of(shown.options, clicked)
        if group is not None:
            chosen[group] = clicked
    if not shown.selected:
        return chosen
    told: dict[str, list[str]] = {}
    for group, value in shown.selected:
        told.setdefault(group, []).append(value)
    for group in _groups(shown.options):
        believed = chosen.get(group, "")
        if group in told and believed not in told[group]:
            chosen[group] = told[group][0]
        elif group not in told and _can_be_shown(believed):
            chosen.pop(group, None)
    return chosen


def _group_of(options: Pairs, value: str) -> str | None:
    """Return the last group that has a value; None where no group has it."""
    for group, other in reversed(options):
        if other == value:
            return group
    return None


@lru_cache(maxsize=1024)
def _groups(options: Pairs) -> tuple[str, ...]:
    """Return the groups of options, each once."""
    return tuple(dict(options))


def _can_be_shown(value: str) -> bool:
    """Return whether upstream would mark this value: it looks for it in escaped JSON."""
    return value.isascii() and '"' not in value and "\\" not in value


def _sub_page(page: str, act: tuple[str, str]) -> str:
    """Return which page behind an item this is, or nothing where none is expected."""
    if page == "item" and act[0] == "click" and act[1] in SUB_PAGES:
        return act[1]
    return page if page in SUB_PAGES else ""


def _at_sub_page(before: Belief, page: str, shown: Shown) -> Groups:
    """Return the facts on a page behind an item."""
    groups = _kept(before, *_BEHIND, "product", "option", "selected", *_MATCHES)
    groups["page"] = _AT[page]
    lines = frozenset(
        [("line", page, str(number), line) for number, line in enumerate(shown.lines, 1) if line]
    )
    known = before.of("line")
    groups["line"] = lines.union([fact for fact in known if fact[1] != page])
    if not lines <= known:
        found = met_words(before.told("instruction"), shown.lines)
        groups["attr_match"] = before.of("attr_match") | found
    return groups


def _at_end(before: Belief, shown: Shown) -> Groups:
    """Return the facts after a purchase."""
    groups = _kept(before, *_BEHIND, "product", "option", "selected", "line", *_MATCHES)
    groups["page"], groups["done"] = _AT["done"], _DONE
    if shown.asin:
        groups["product"] = _fact("product", shown.asin)
        groups["selected"] = frozenset(("selected", *pair) for pair in shown.selected)
    if shown.reward:
        groups["reward"] = _fact("reward", shown.reward)
    return groups
