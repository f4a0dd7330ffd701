"""The expert: it knows what the goal asks for, searches, opens the product, sets options and buys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rapidfuzz import fuzz

from .cleaning import clean
from .facts import SUB_PAGES
from .matching import keywords

__all__ = ["Errand", "ShopExpert", "Standing"]

_ON_A_PAGE = 10
_ALIKE = 85.0  # what WebShop's own comparison of options asks for
_BUTTONS = frozenset(("back to search", "< prev", "buy now", *SUB_PAGES))
_UNFIT = re.compile(r"[\[\]\s]+")


@dataclass(frozen=True, slots=True)
class Errand:
    """What the expert knows of a goal.

    Attributes:
        asin: The product, any case.
        instruction: The task in words.
        options: Pairs of group and value; the group is empty where a goal names only the value.
        offers: Of the product: the values of each group, in the order shown.
        title: Of the product; searched for where the instruction's words do not find it.
    """

    asin: str
    instruction: str
    options: tuple[tuple[str, str], ...] = ()
    offers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    title: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the shopper stands.

    Attributes:
        page: One of `comap.envs.webshop.facts.PAGES`.
        results: The whole result list, best first; also behind item pages.
        page_no: The page of it, from 1.
        asin: The product at hand, empty where there is none.
        selected: The options chosen, by group.
    """

    page: str
    results: Sequence[str] = ()
    page_no: int = 1
    asin: str = ""
    selected: Mapping[str, str] = field(default_factory=dict)


class _Plan(NamedTuple):
    """What to search for, what to buy, the page of results that shows it, and if it is the goal's."""

    query: str
    target: str
    page: int
    found: bool


class ShopExpert:
    """Shops for one goal, from wherever the shopper stands.

    It searches for words of the instruction, first few and then more, and takes the first query
    that shows the product on the first page, else the one that shows it earliest. Where no words of
    the instruction find the product it searches for its title. Where that fails as well, it buys
    the first product found.

    Args:
        errand: What is wanted.
        search: Returns the ASINs that a query finds, best first.
        legacy: Whether WebShop's own rules hold. By strict rules an option can also be chosen as
            ``click[group: value]``, which tells groups that share a value apart.

    Example:
        >>> expert = ShopExpert(Errand("B1", "find me a red rug", (("color", "red"),),
        ...                            {"color": ("blue", "red")}), lambda query: ["B2", "B1"])
        >>> expert.action(Standing("search"))
        'search[red rug]'
        >>> expert.action(Standing("results", ["B2", "B1"]))
        'click[b1]'
        >>> expert.action(Standing("item", ["B2", "B1"], asin="B1"))
        'click[red]'
        >>> expert.action(Standing("item", ["B2", "B1"], asin="B1", selected={"color": "red"}))
        'click[buy now]'
    """

    def __init__(
        self, errand: Errand, search: Callable[[str], Sequence[str]], legacy: bool = False
    ):
        self.errand = errand
        self._search = search
        self._plan: _Plan | None = None
        self._choices = _choices(errand, legacy)

    @property
    def query(self) -> str:
        """What it searches for."""
        return self._planned().query

    @property
    def found(self) -> bool:
        """Whether any of its queries finds the goal's product."""
        return self._planned().found

    def action(self, standing: Standing) -> str | None:
        """Return the next action; None only where the episode is over."""
        query, target, page, _ = self._planned()
        if standing.page == "done":
            return None
        if standing.page == "search":
            return f"search[{query}]"
        here = standing.asin.lower() == target
        if standing.page == "item" and here:
            return self._choose(standing, target)
        if standing.page in SUB_PAGES and here:
            return "click[< prev]"
        return self._towards(standing, target, page)

    def _towards(self, standing: Standing, target: str, page: int) -> str:
        """Return the next action on the way to the target's page, from a page that is not it."""
        results = [asin.lower() for asin in standing.results]
        if target not in results:
            return "click[back to search]"
        away = results.index(target) // _ON_A_PAGE + 1 - standing.page_no
        levels = {"results": 0, "item": 1}.get(standing.page, 2)
        if abs(away) + levels > 1 + page:
            return "click[back to search]"  # searching anew is shorter
        if levels:
            return "click[< prev]"
        if away:
            return "click[next >]" if away > 0 else "click[< prev]"
        return f"click[{target}]"

    def _choose(self, standing: Standing, target: str) -> str:
        """Return the click that sets the next option, or buys."""
        if target == self.errand.asin.lower():
            selected = {clean(group): clean(value) for group, value in standing.selected.items()}
            for group, value, name in self._choices:
                if selected.get(clean(group)) != clean(value):
                    return f"click[{name}]"
        return "click[buy now]"

    def _planned(self) -> _Plan:
        if self._plan is None:
            self._plan = self._make_plan()
        return self._plan

    def _make_plan(self) -> _Plan:
        wanted = self.errand.asin.lower()
        best: _Plan | None = None
        instead: _Plan | None = None
        queries = _queries(self.errand)
        for query in queries:
            found = [asin.lower() for asin in self._search(query)]
            if found and instead is None:
                instead = _Plan(query, found[0], 1, False)
            if wanted not in found:
                continue
            page = found.index(wanted) // _ON_A_PAGE + 1
            if best is None or page < best.page:
                best = _Plan(query, wanted, page, True)
            if page == 1:
                break
        return best or instead or _Plan(queries[0], wanted, 1, False)


def _queries(errand: Errand) -> list[str]:
    """Return what to search for, the best first; never empty."""
    few, more = keywords(errand.instruction)
    written = (few, more, errand.instruction, errand.title, errand.asin, "anything")
    queries = [_UNFIT.sub(" ", text).strip().lower() for text in written]
    return [query for query in dict.fromkeys(queries) if query]


def _choices(errand: Errand, legacy: bool) -> tuple[tuple[str, str, str], ...]:
    """Return the values to choose: the group in which each will be chosen, itself, what to click.

    By WebShop's own rules a value that two groups share is chosen in the later one; where that group
    is wanted otherwise it cannot be chosen, and neither can a value with brackets or a button's name.
    """
    wanted = dict[str, str]()
    for group, value in errand.options:
        if group and value in errand.offers.get(group, ()):
            wanted[group] = value
        elif not group and (pair := _alike(value, errand.offers)):
            wanted.setdefault(*pair)
    last = {value: group for group, values in errand.offers.items() for value in values}
    chosen = list[tuple[str, str, str]]()
    for group, value in wanted.items():
        if last[value] == group and value not in _BUTTONS:
            if not (legacy and "[" in value):
                chosen.append((group, value, value))
        elif not legacy:
            chosen.append((group, value, f"{group}: {value}"))
        elif last[value] not in wanted and value not in _BUTTONS:
            chosen.append((last[value], value, value))
    return tuple(chosen)


def _alike(value: str, offers: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
    """Return the offer that is most like a value, if WebShop would take it for that."""
    best: tuple[float, str, str] | None = None
    for group, values in offers.items():
        for offer in values:
            score = fuzz.token_set_ratio(clean(value), clean(offer)) + (
                clean(value) == clean(offer)
            )
            if score > _ALIKE and (best is None or score > best[0]):
                best = (score, group, offer)
    return None if best is None else best[1:]
