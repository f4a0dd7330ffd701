"""The experts: one knows what the goal asks for, `browse` knows only a belief."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from rapidfuzz import fuzz

from ...facts import State
from .belief import SUB_PAGES, Belief, Wish, keywords, whole, wish_of
from .catalog import Catalog
from .parser import Pairs, clean
from .products import Goal
from .session import ON_A_PAGE, Session

_ALIKE = 85.0  # what WebShop's own comparison of options asks for
_BUTTONS = frozenset(("back to search", "< prev", "buy now", *SUB_PAGES))
_UNSEARCHABLE = re.compile(r"[\[\]\s]+")


class _Plan(NamedTuple):
    """What to search for and what to buy."""

    query: str
    target: int  # the product's row
    page: int  # of the results, on which it is
    finds_goal: (
        bool  # whether the query finds the goal's product; else the target is another, or a guess
    )


class _Choice(NamedTuple):
    """A value to choose: the group that it will be selected in, itself, and what to click on."""

    group: str
    value: str
    label: str


class ShopExpert:
    """Shops for one goal, from wherever the shopper stands.

    It searches for words of the instruction, first few and then more, and takes the first query
    that shows the product on the first page, else the one that shows it earliest. Where no words of
    the instruction find the product it searches for its title. Where that fails as well, it buys
    the first product found.

    Args:
        goal: What is wanted.
        catalog: The shop.
        legacy: Whether WebShop's own rules hold. By strict rules an option can also be chosen as
            ``click[group: value]``, which distinguishes groups that share a value.

    Example:
        >>> from comap.envs.webshop.generate import embedded_catalog
        >>> from comap.envs.webshop.session import Session
        >>> catalog = embedded_catalog()
        >>> expert = ShopExpert(catalog.goal("synthetic", 0), catalog)
        >>> expert.action(Session()) == f"search[{expert.query}]"
        True
    """

    def __init__(self, goal: Goal, catalog: Catalog, legacy: bool = False):
        row = catalog.row(goal.asin)
        assert row is not None
        self._catalog = catalog
        self._wanted = row
        product = catalog.product(row)
        self._queries = _queries(goal.text, product.title, goal.asin)
        self._choices = _choices(goal.options, dict(product.options), legacy)

    @property
    def query(self) -> str:
        """What it searches for."""
        return self._plan.query

    @property
    def found(self) -> bool:
        """Whether any of its queries finds the goal's product."""
        return self._plan.finds_goal

    def action(self, here: Session) -> str | None:
        """Return the next action from where the shopper stands; None where the episode is over."""
        query, target, page, _ = self._plan
        if here.page == "done":
            return None
        if here.page == "search":
            return f"search[{query}]"
        if here.page == "item" and here.row == target:
            return self._choose(here)
        if here.page in SUB_PAGES and here.row == target:
            return "click[< prev]"
        return self._towards(here, target, page)

    def _towards(self, session: Session, target: int, page: int) -> str:
        """Return the next action on the way to the target's page, from a page that is not it."""
        if target not in session.rows:
            return "click[back to search]"

        # Either back to the list and through its pages, or a new search, where that is shorter.
        pages_ahead = session.rows.index(target) // ON_A_PAGE + 1 - session.page_no
        levels = {"results": 0, "item": 1}.get(session.page, 2)
        if abs(pages_ahead) + levels > 1 + page:
            return "click[back to search]"
        if levels:
            return "click[< prev]"
        if pages_ahead:
            return "click[next >]" if pages_ahead > 0 else "click[< prev]"
        return f"click[{self._catalog.asin(target).lower()}]"

    def _choose(self, session: Session) -> str:
        """Return the click that sets the next option, or buys."""
        if session.row == self._wanted:
            selected = {clean(group): clean(value) for group, value in session.options.items()}
            for choice in self._choices:
                if selected.get(clean(choice.group)) != clean(choice.value):
                    return f"click[{choice.label}]"
        return "click[buy now]"

    @cached_property
    def _plan(self) -> _Plan:
        """The query that shows the product earliest; else any that shows a product."""
        best: _Plan | None = None
        instead: _Plan | None = None
        for query in self._queries:
            rows = self._catalog.search_rows(query)
            if rows and instead is None:
                instead = _Plan(query, rows[0], 1, False)
            if self._wanted not in rows:
                continue

            page = rows.index(self._wanted) // ON_A_PAGE + 1
            if best is None or page < best.page:
                best = _Plan(query, self._wanted, page, True)
            if page == 1:
                break
        return best or instead or _Plan(self._queries[0], self._wanted, 1, False)


def _queries(instruction: str, title: str, asin: str) -> list[str]:
    """Return what to search for, the best first; never empty."""
    texts = (*keywords(instruction), instruction, title, asin, "anything")
    queries = [_UNSEARCHABLE.sub(" ", text).strip().lower() for text in texts]
    return [query for query in dict.fromkeys(queries) if query]


def _choices(
    options: Pairs, offers: Mapping[str, Sequence[str]], legacy: bool
) -> tuple[_Choice, ...]:
    """Return the clicks that select what a goal asks for, as far as the product offers it."""
    # A human goal names no groups: there, what an option is like counts.
    value_of_group = dict[str, str]()
    for group, value in options:
        if group and value in offers.get(group, ()):
            value_of_group[group] = value
        elif not group and (pair := _alike(value, offers)):
            value_of_group.setdefault(*pair)

    # A click on a value selects it in the last group that has it. By upstream's rules nothing else
    # can be clicked on, and no value with a bracket; strict rules have "group: value" as well.
    last_group = {}
    for group, values in offers.items():
        last_group.update(dict.fromkeys(values, group))

    choices = list[_Choice]()
    for group, value in value_of_group.items():
        is_button = value in _BUTTONS  # a click on it would leave the item
        if last_group[value] == group and not is_button:
            if not (legacy and "[" in value):
                choices.append(_Choice(group, value, value))
        elif not legacy:
            choices.append(_Choice(group, value, f"{group}: {value}"))

        # WebShop's reward compares values, whatever their groups: the last group will do as well,
        # unless another value is wanted there.
        elif last_group[value] not in value_of_group and not is_button:
            choices.append(_Choice(last_group[value], value, value))
    return tuple(choices)


def _alike(value: str, offers: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
    """Return the offer that is most like a value, if WebShop would take it for that."""
    best: tuple[float, str, str] | None = None
    for group, values in offers.items():
        for offer in values:
            score = fuzz.token_set_ratio(clean(value), clean(offer))
            # A part counts as the whole ("large" of "x-large", 100): the whole itself is better.
            if clean(value) == clean(offer):
                score += 1
            if score > _ALIKE and (best is None or score > best[0]):
                best = (score, group, offer)
    return None if best is None else best[1:]


_TRIES = 5
_CHOICE = re.compile(r"(?:with|, and|,) [^,:]{1,40}: (.+?)(?=, and |, price|$)")
_LIMIT = ", and price lower than"
_BRACKETS = re.compile(r"[\[\]]+")


def browse(state: State) -> str | None:
    """Return the next action of a sensible shopper; None after a purchase or on an unknown page."""
    belief = Belief.of_facts(state.facts)
    page = belief.argument("page")
    instruction = belief.argument("instruction")
    if page == "search":
        words = " ".join(_BRACKETS.sub(" ", keywords(instruction)[0]).split())
        return f"search[{words or 'anything'}]"
    if page == "results":
        return _pick(belief, wish_of(instruction))
    if page == "item":
        return _decide(belief, instruction)
    return "click[< prev]" if page in SUB_PAGES else None


def _pick(belief: Belief, wish: Wish) -> str:
    """Return which product of a list to open, or another page."""
    words = {word for pair in wish.pairs for word in pair.split()}
    titles = {asin: set(text.replace("-", " ").split()) for asin, text in belief.pairs("title")}
    prices = {fact[1]: whole(fact[2]) for fact in sorted(belief.of("price"))}
    opened = {fact[1] for fact in belief.of("opened")}

    # First what is not too dear, then what shares most words with the instruction, then by rank.
    candidates = []
    for rank, asin in belief.pairs("result"):
        if asin in opened:
            continue
        too_dear = wish.limit is not None and prices.get(asin, 0) > wish.limit
        shared_words = len(words & titles.get(asin, set()))
        candidates.append(((too_dear, -shared_words, whole(rank)), asin))
    if candidates:
        _, asin = min(candidates)
        return f"click[{asin}]"

    has_next_page = belief.number("page_no") * ON_A_PAGE < belief.number("total")
    return "click[next >]" if has_next_page else "click[back to search]"


def _decide(belief: Belief, instruction: str) -> str:
    """Return the next action at an item: select an option, buy, or look at another."""
    matching_options = belief.pairs("option_available")
    selected = dict(belief.pairs("selected"))
    # Of the values in a group that the instruction names, the longest: "x-large" names "large", too.
    longest = dict(sorted(matching_options, key=lambda pair: (len(pair[1]), pair)))
    for group, value in longest.items():
        if selected.get(group) != value:
            return f"click[{value}]"

    asked_for = {clean(value) for value in _CHOICE.findall(instruction.split(_LIMIT)[0])}
    has_options = asked_for <= {value for _, value in matching_options}
    fits = has_options and belief.argument("price_ok") != "no"
    others = len(belief.of("result")) > 1 and len(belief.of("opened")) < _TRIES
    return "click[buy now]" if fits or not others else "click[< prev]"
