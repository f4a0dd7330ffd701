"""WebShop's beliefs, schema ``webshop-1``: their facts, and what each page makes of them.

*Structural* facts say where the shopper is and how what is seen meets the instruction; *catalogue*
facts say what the shop holds, which nobody can predict who does not know the shop.

======================================  ==========================================================
structural
======================================  ==========================================================
``instruction(text)``                   the task; the same throughout an episode
``page(name)``                          one of `PAGES`
``query(words)``                        what was searched for, in the order written
``page_no(n) total(n)``                 of the result list; they hold behind item pages, too
``product(asin)``                       the product on the page, or on whose sub-page one is
``selected(group, value)``              the options chosen
``opened(asin)``                        looked at since the start page was last left
``option_available(group, value)``      a value of this product that the instruction names
``attr_match(words)``                   two words of the instruction that this product's text has
``price_ok(yes | no | maybe)``          whether the price is within the instruction's limit
``done()``                              something was bought
======================================  ==========================================================

======================================  ==========================================================
catalogue
======================================  ==========================================================
``result(rank, asin)``                  the result list's page; ranks count from 1 over all pages
``title(asin, text)``                   of listed and of opened products
``price(asin, low, high)``              in cents
``option(group, value)``                that the product on the page offers
``line(page, number, text)``            a line of a sub-page
``reward(number)``                      what the purchase was worth
======================================  ==========================================================

Arguments are in lower case, NFKC-normalized, with single blanks; ASINs too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from ...facts import Fact, State
from ..storage import packaged
from .parser import PageContents, clean, read_action

SUB_PAGES: tuple[str, ...] = ("description", "features", "reviews", "attributes")
"""The pages behind an item page; the last one only where ``show_attrs`` is set."""

PAGES: tuple[str, ...] = ("search", "results", "item", *SUB_PAGES, "done")
CATALOGUE: frozenset[str] = frozenset(("result", "title", "price", "option", "line", "reward"))
"""Predicates that say what the shop holds."""

_LENGTHS = {
    "instruction": 2,
    "page": 2,
    "query": 2,
    "page_no": 2,
    "total": 2,
    "product": 2,
    "selected": 3,
    "opened": 2,
    "option_available": 3,
    "attr_match": 2,
    "price_ok": 2,
    "done": 1,
    "result": 3,
    "title": 3,
    "price": 4,
    "option": 3,
    "line": 4,
    "reward": 2,
}
"""How many words a fact of each predicate has, the predicate included."""

STRUCTURAL: frozenset[str] = frozenset(_LENGTHS) - CATALOGUE


def score_of(state: State) -> float | None:
    """Return the reward that the facts state: 0.0 before a purchase; None where none is stated."""
    for fact in state.facts:
        if fact[0] == "reward" and len(fact) == 2:
            try:
                value = float(fact[1])
            except ValueError:
                return None  # such a fact is no canonicalizer's; it says nothing
            return value if 0.0 <= value <= 1.0 else None
    return None if ("done",) in state.facts else 0.0


def goal_reached(state: State) -> bool | None:
    """Return whether the facts say that the right thing was bought; None where they do not say."""
    score = score_of(state)
    return None if score is None else score == 1.0


def admissible_of(state: State) -> tuple[str, ...] | None:
    """Return the clicks that the facts allow, sorted; None where the page is not known."""
    belief = Belief.of_facts(state.facts)
    page = belief.argument("page")
    if not page:
        return None
    if page in ("search", "done"):
        return ()

    names = {"back to search"}
    if page == "results":
        names |= {fact[2] for fact in belief.of("result")}
        page_no = belief.number("page_no")
        if page_no > 1:
            names.add("< prev")
        if page_no * 10 < belief.number("total"):
            names.add("next >")
    else:
        names.add("< prev")
    if page == "item":
        names |= {"description", "features", "reviews", "buy now"}
        names |= {fact[2] for fact in belief.of("option")}
    return tuple(sorted(f"click[{name}]" for name in names))


def whole(digits: str) -> int:
    """Return the number in digits, 0 where a text is none."""
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else 0


_LIMIT = re.compile(r"price lower than ([0-9]{1,9}(?:\.[0-9]{1,9})?) dollars")
_CHOICES = re.compile(r"(?:with|, and|,) [^,:]{1,40}: ")
_BREAKS = re.compile(r"[^\w%&'’.\- ]+|\.(?= |$)")
_MOST_PAIRS = 40


class Wish(NamedTuple):
    """What an instruction says: pairs of words to look for, a price limit in cents, and its words."""

    pairs: tuple[str, ...]
    limit: int | None
    text: str


@lru_cache(maxsize=1)
def _idle_words() -> frozenset[str]:
    """Return the words of instructions that say nothing of a product."""
    return frozenset(packaged(__package__, "idle_words"))


@lru_cache(maxsize=256)
def wish_of(instruction: str) -> Wish:
    """Return what an instruction says; it is clean (see `clean`)."""
    limits = _LIMIT.findall(instruction)
    idle = _idle_words()
    pairs: list[str] = []

    # The wanted options follow the description of the thing, each with its group's name.
    description = _CHOICES.split(instruction, maxsplit=1)[0]
    for chunk in _BREAKS.split(description):
        words = [word.strip("'’.") for word in chunk.replace("-", " ").split()]
        for first, second in pairwise(words):
            if first and second and first not in idle and second not in idle:
                pairs.append(f"{first} {second}")

    return Wish(
        tuple(dict.fromkeys(pairs))[:_MOST_PAIRS],
        round(100 * float(limits[-1])) if limits else None,
        f" {_BREAKS.sub(' ', instruction)} ",
    )


def met_words(instruction: str, texts: Iterable[str]) -> frozenset[Fact]:
    """Return the facts ``attr_match``: what an instruction says that a product's texts have."""
    text = "\n".join(texts).replace("-", " ")  # no pair has a line break
    return frozenset([("attr_match", pair) for pair in wish_of(instruction).pairs if pair in text])


def met_options(instruction: str, options: Iterable[tuple[str, str]]) -> frozenset[Fact]:
    """Return the facts ``option_available``: pairs of group and value whose value is asked for."""
    text = wish_of(instruction).text
    return frozenset(
        [("option_available", group, value) for group, value in options if f" {value} " in text]
    )


def met_price(instruction: str, low: str, high: str) -> frozenset[Fact]:
    """Return the fact ``price_ok``: whether a price is within the limit."""
    if not (low and high):
        return frozenset()
    limit = wish_of(instruction).limit
    if limit is None or int(high) <= limit:
        answer = "yes"
    elif int(low) > limit:
        answer = "no"
    else:
        answer = "maybe"
    return frozenset({("price_ok", answer)})


def keywords(instruction: str) -> tuple[str, str]:
    """Return what to search for: few words of an instruction, and more of them."""
    text = _LIMIT.split(clean(instruction), maxsplit=1)[0]
    description = _CHOICES.split(text, maxsplit=1)[0]
    return _telling_words(description), _telling_words(text)


def _telling_words(text: str) -> str:
    """Return the words of a text without idle ones and repeats, in order."""
    words = (word.strip("'’.,:;!?()\"") for word in text.split())
    idle = _idle_words()
    return " ".join(dict.fromkeys(word for word in words if word and word not in idle))


Groups: TypeAlias = dict[str, frozenset[Fact]]

_NONE: frozenset[Fact] = frozenset()
_MATCHES = ("option_available", "attr_match", "price_ok")


class Belief:
    """A belief with its facts in groups, by predicate."""

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

    def argument(self, name: str) -> str:
        """Return the argument of a fact that there is once; empty where there is none."""
        # A belief that was predicted may have several: the choice must not depend on hashes.
        facts = self.groups.get(name)
        if not facts:
            return ""
        if len(facts) == 1:
            (fact,) = facts
            return fact[1]
        return min([fact[1] for fact in facts])

    def number(self, name: str) -> int:
        return whole(self.argument(name))

    def pairs(self, name: str) -> list[tuple[str, str]]:
        """Return the two arguments of each fact of one predicate, sorted."""
        return sorted((fact[1], fact[2]) for fact in self.of(name))


def follow(before: Belief, action: str, contents: PageContents, legacy: bool) -> Groups | None:
    """Return the facts after an action that was answered with a page, by predicate."""
    act = read_action(action) or ("", "")
    groups: Groups = {}

    instruction = before.of("instruction")
    if not instruction and contents.instruction:
        instruction = frozenset({("instruction", contents.instruction)})

    if contents.kind == "results":
        groups = _at_results(before, act, contents, legacy)
    elif contents.kind == "item":
        groups = _at_item(before, act, contents)
    elif contents.kind == "sub":
        page = before.argument("page")
        if page == "item" and act[0] == "click":
            page = act[1]
        if page not in SUB_PAGES:
            return None  # no page behind an item is expected
        groups = _at_sub_page(before, page, contents)
    elif contents.kind == "done":
        groups = _at_end(before, contents)
    else:
        groups["page"] = _AT["search"]

    if instruction:
        groups["instruction"] = instruction
    return {name: group for name, group in groups.items() if group}


def _fact(*words: str) -> frozenset[Fact]:
    return frozenset({words})


_AT = {page: _fact("page", page) for page in PAGES}


def _kept(before: Belief, *names: str) -> Groups:
    """Return the facts of these predicates as they were."""
    return {name: before.groups[name] for name in names if name in before.groups}


def _at_results(
    before: Belief, act: tuple[str, str], contents: PageContents, legacy: bool
) -> Groups:
    """Return the facts on a page of results."""
    opened = before.of("opened")
    titles = contents.titles
    prices = contents.prices
    if contents.opened:
        opened |= {("opened", asin) for asin in contents.opened}

    # Of products that are not listed any more, those that were opened stay known.
    if opened:
        unlisted = {fact[1] for fact in opened} - {fact[2] for fact in contents.results}
        titles |= {fact for fact in before.of("title") if fact[1] in unlisted}
        prices |= {fact for fact in before.of("price") if fact[1] in unlisted}

    groups = {
        "page": _AT["results"],
        "page_no": _fact("page_no", contents.page_no),
        "total": _fact("total", contents.total),
        "opened": opened,
        "result": contents.results,
        "title": titles,
        "price": prices,
        "query": before.of("query"),
    }

    # A search away from the search page is refused in strict episodes: the same list is shown again.
    if act[0] == "search":
        same_list = all(groups[name] == before.of(name) for name in ("page_no", "total", "result"))
        if legacy or before.argument("page") == "search" or not same_list:
            groups["query"] = _fact("query", clean(act[1]))
    return groups


_BEHIND = ("query", "page_no", "total", "result", "opened", "title", "price")
_OF_PRODUCT = (*_BEHIND, "line", *_MATCHES)


def _at_item(before: Belief, act: tuple[str, str], contents: PageContents) -> Groups:
    """Return the facts on an item page."""
    page_before = before.argument("page")
    was_at_item = page_before == "item" or page_before in SUB_PAGES
    asin = _product(before, act, contents, was_at_item)
    same_item = was_at_item and asin == before.argument("product")

    groups = _kept(before, *(_OF_PRODUCT if same_item else _BEHIND))
    groups["page"] = _AT["item"]
    groups["option"] = contents.offers
    selected = _selection(dict(before.pairs("selected")) if same_item else {}, act, contents)
    groups["selected"] = frozenset([("selected", *pair) for pair in selected.items()])
    if asin:
        groups["product"] = before.of("product") if same_item else _fact("product", asin)
        groups["opened"] = _replaced(before.of("opened"), ("opened", asin))
        groups["title"] = _replaced(before.of("title"), ("title", asin, contents.title))
        if contents.low:
            price = ("price", asin, contents.low, contents.high)
            groups["price"] = _replaced(before.of("price"), price)

    # On the same page as before, what meets the instruction is the same.
    if not same_item or page_before != "item" or contents.offers != before.of("option"):
        instruction = before.argument("instruction")
        in_title = met_words(instruction, [contents.title])
        groups["attr_match"] = groups.get("attr_match", _NONE) | in_title
        groups["option_available"] = met_options(instruction, contents.options)
        groups["price_ok"] = met_price(instruction, contents.low, contents.high)
    return groups


def _replaced(facts: frozenset[Fact], fact: Fact) -> frozenset[Fact]:
    """Return facts with one in the place of those that have the same first argument."""
    if fact in facts:
        return facts
    return frozenset([fact, *[kept_fact for kept_fact in facts if kept_fact[1] != fact[1]]])


def _product(
    before: Belief, act: tuple[str, str], contents: PageContents, was_at_item: bool
) -> str:
    """Return the product of an item page: the one at hand, the one clicked on, or one by title."""
    product_at_hand = before.argument("product") if was_at_item else ""
    if product_at_hand and ("title", product_at_hand, contents.title) in before.of("title"):
        return product_at_hand
    if act[0] == "click" and any(fact[2] == act[1] for fact in before.of("result")):
        return act[1]
    if was_at_item:
        return product_at_hand

    asins = [asin for asin, title in before.pairs("title") if title == contents.title]
    return asins[0] if len(asins) == 1 else ""


def _selection(
    selected: dict[str, str], act: tuple[str, str], contents: PageContents
) -> dict[str, str]:
    """Return what is selected on an item page: as it shows, else as the clicks so far say."""
    selection = {}
    for group, value in selected.items():
        if ("option", group, value) in contents.offers:
            selection[group] = value

    # Of groups that share a value, a click selects it in the last one.
    if act[0] == "click" and act[1] == act[1].strip():
        clicked = clean(act[1])
        for group, value in reversed(contents.options):
            if value == clicked:
                selection[group] = clicked
                break
    if not contents.selected:
        return selection

    # What the page marks is right. What it does not mark may be selected all the same where
    # upstream, which looks for values in escaped JSON, does not find it.
    values_of_group: dict[str, list[str]] = {}
    for group, value in contents.selected:
        values_of_group.setdefault(group, []).append(value)
    for group in dict(contents.options):
        believed = selection.get(group, "")
        if group in values_of_group and believed not in values_of_group[group]:
            selection[group] = values_of_group[group][0]
        elif group not in values_of_group and believed.isascii() and not {'"', "\\"} & {*believed}:
            selection.pop(group, None)
    return selection


def _at_sub_page(before: Belief, page: str, contents: PageContents) -> Groups:
    """Return the facts on a page behind an item."""
    groups = _kept(before, *_BEHIND, "product", "option", "selected", *_MATCHES)
    groups["page"] = _AT[page]

    lines = frozenset(
        [("line", page, str(number), line) for number, line in enumerate(contents.lines, 1) if line]
    )
    known_lines = before.of("line")
    groups["line"] = lines.union([fact for fact in known_lines if fact[1] != page])
    if not lines <= known_lines:
        in_lines = met_words(before.argument("instruction"), contents.lines)
        groups["attr_match"] = before.of("attr_match") | in_lines
    return groups


def _at_end(before: Belief, contents: PageContents) -> Groups:
    """Return the facts after a purchase."""
    groups = _kept(before, *_BEHIND, "product", "option", "selected", "line", *_MATCHES)
    groups["page"] = _AT["done"]
    groups["done"] = _fact("done")
    if contents.asin:
        groups["product"] = _fact("product", contents.asin)
        groups["selected"] = frozenset(("selected", *pair) for pair in contents.selected)
    if contents.reward:
        groups["reward"] = _fact("reward", contents.reward)
    return groups
