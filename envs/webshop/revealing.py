"""What the shop alone can tell: catalogue facts that no page so far has shown."""

from __future__ import annotations

from collections.abc import Iterable

from ...facts import Fact, State
from .facts import CATALOGUE

__all__ = ["reveals"]

_OF_A_LIST = ("total", "result")


def reveals(earlier: Iterable[State], before: State, after: State) -> bool:
    """Return whether a change tells what no page so far did.

    That is a catalogue fact that no belief of the episode has held yet: a title, a price, an option, a
    line, the reward; a result, or how many there are, unless that page of the same query was seen;
    and the options of a product that is opened for the first time, also where it has none. All else
    follows: going back, a list or a product seen before, what is chosen, and refusals.

    Args:
        earlier: The episode's beliefs, the present one among them or not.
        before: The belief before the action.
        after: The belief after it.

    Example:
        >>> found = State(frozenset({("page", "results"), ("query", "rug"), ("total", "0")}))
        >>> back = State(frozenset({("page", "search")}))
        >>> reveals([back], back, found), reveals([found, back], back, found)
        (True, False)
    """
    new = _told(after) - _told(before)
    return bool(new) and not new <= frozenset().union(*map(_told, earlier))


def _told(state: State) -> frozenset[Fact]:
    """Return what the shop told; of result lists, with the query and the page they are of."""
    one = {fact[0]: fact[1] for fact in state.facts if len(fact) == 2}
    page = (one.get("query", ""), one.get("page_no", ""))
    told = {fact for fact in state.facts if fact[0] in CATALOGUE and fact[0] != "result"}
    told |= {(*fact, *page) for fact in state.facts if fact[0] in _OF_A_LIST}
    if one.get("page") == "item":
        told.add(("offers", one.get("product", "")))
    return frozenset(told)
