"""WebShop's facts, schema ``webshop-1``: what they are called and which groups are scored apart.

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

Arguments are in lower case, NFKC-normalised, with single blanks; ASINs too.
"""

from __future__ import annotations

from ...facts import Fact, State

__all__ = [
    "CATALOGUE",
    "PAGES",
    "STRUCTURAL",
    "SUB_PAGES",
    "admissible_of",
    "catalogue",
    "goal_reached",
    "score_of",
    "structural",
    "unranked",
]

SUB_PAGES: tuple[str, ...] = ("description", "features", "reviews", "attributes")
"""The pages behind an item page; the last one only where ``show_attrs`` is set."""

PAGES: tuple[str, ...] = ("search", "results", "item", *SUB_PAGES, "done")
"""All pages."""

STRUCTURAL: frozenset[str] = frozenset(
    (
        "instruction",
        "page",
        "query",
        "page_no",
        "total",
        "product",
        "selected",
        "opened",
        "option_available",
        "attr_match",
        "price_ok",
        "done",
    )
)
"""Predicates that say where the shopper is."""

CATALOGUE: frozenset[str] = frozenset(("result", "title", "price", "option", "line", "reward"))
"""Predicates that say what the shop holds."""


def structural(state: State) -> State:
    """Return the structural facts alone.

    Scores of the two groups are taken by filtering transitions before they are scored:
    ``delta_f1_report((structural(b), structural(p), structural(a)) for b, p, a in rows)``.

    Example:
        >>> state = State(frozenset({("page", "item"), ("option", "size", "small")}))
        >>> structural(state).to_text()
        'page(item)'
    """
    return State(frozenset(f for f in state.facts if f[0] in STRUCTURAL), state.parsed)


def catalogue(state: State) -> State:
    """Return the catalogue facts alone: see `structural`.

    Example:
        >>> state = State(frozenset({("page", "item"), ("option", "size", "small")}))
        >>> catalogue(state).to_text()
        'option(size, small)'
    """
    return State(frozenset(f for f in state.facts if f[0] in CATALOGUE), state.parsed)


def unranked(state: State) -> State:
    """Return the state with ``result(asin)`` for ``result(rank, asin)``: order no longer counts.

    Example:
        >>> unranked(State(frozenset({("result", "3", "b000000001")}))).to_text()
        'result(b000000001)'
    """
    facts = (("result", f[2]) if f[0] == "result" and len(f) == 3 else f for f in state.facts)
    return State(frozenset(facts), state.parsed)


def score_of(state: State) -> float | None:
    """Return the reward that the facts tell: 0.0 before a purchase; None where it was not told.

    Example:
        >>> score_of(State(frozenset({("done",), ("reward", "0.5")})))
        0.5
    """
    for fact in state.facts:
        if fact[0] == "reward" and len(fact) == 2:
            return _number(fact)
    return None if ("done",) in state.facts else 0.0


def goal_reached(state: State) -> bool | None:
    """Return whether the facts say that the right thing was bought; None where that was not told.

    Example:
        >>> goal_reached(State(frozenset({("done",), ("reward", "1.0")})))
        True
    """
    score = score_of(state)
    return None if score is None else score == 1.0


def _number(fact: Fact) -> float | None:
    try:
        value = float(fact[1])
    except ValueError:
        return None  # such a fact is no canonicalizer's; it says nothing
    return value if 0.0 <= value <= 1.0 else None


def admissible_of(state: State) -> tuple[str, ...] | None:
    """Return the clicks that the facts allow, sorted; None where the page is not known.

    On the search page, where any ``search[...]`` is allowed, it is empty. Buttons that facts do not
    tell of (*Attributes*) are left out.

    Example:
        >>> admissible_of(State(frozenset({("page", "results"), ("page_no", "2"), ("total", "12"),
        ...                                ("result", "11", "b000000001")})))
        ('click[< prev]', 'click[b000000001]', 'click[back to search]')
    """
    facts = state.facts
    page = next((f[1] for f in facts if f[0] == "page" and len(f) == 2), None)
    if page is None:
        return None
    if page in ("search", "done"):
        return ()
    names = {"back to search"}
    if page == "results":
        names |= {f[2] for f in facts if f[0] == "result" and len(f) == 3}
        number, total = (_count(facts, name) for name in ("page_no", "total"))
        names |= {"< prev"} if number > 1 else set()
        names |= {"next >"} if number * 10 < total else set()
    else:
        names.add("< prev")
    if page == "item":
        names |= {"description", "features", "reviews", "buy now"}
        names |= {f[2] for f in facts if f[0] == "option" and len(f) == 3}
    return tuple(sorted(f"click[{name}]" for name in names))


def _count(facts: frozenset[Fact], name: str) -> int:
    """Return the number that a fact such as ``total(50)`` tells, 0 where there is none."""
    told = (f[1] for f in facts if f[0] == name and len(f) == 2)
    return max((int(n) for n in told if n.isascii() and n.isdecimal() and len(n) < 10), default=0)
