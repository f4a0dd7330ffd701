"""What ALFWorld alone can tell: what a place holds cannot be known before it was seen."""

from __future__ import annotations

from ...facts import State, diff
from ..canon import names

__all__ = ["reveals"]

_CONDITIONS = ("clean", "hot", "cool", "sliced")
_TREATING = ("clean ", "heat ", "cool ", "slice ")
_HOLDS = ("holding", "in", "near")
_PLACED = ("at", "holding", "in", "near")
_FIRST_SIGHT = ("exists", "seen")


def reveals(before: State, action: str, after: State) -> bool:
    """Return whether a change tells what neither the belief nor the action did.

    It does where a receptacle's contents are seen for the first time (``seen``, also where there is
    nothing), a receptacle is first heard of (``exists``), a thing that the action does not name is
    in, at or off a place or the hand, or its condition is read rather than brought about. All else
    follows: coming back to a place whose contents are believed as they are, what was asked for and
    done, doors (also one found closed, with nothing shown), and "Nothing happens."

    Args:
        before: The belief before the action.
        action: The action in its canonical form.
        after: The belief after it.

    Example:
        >>> after = State(frozenset({("seen", "shelf 1"), ("in", "pen 1", "shelf 1")}))
        >>> reveals(State(), "go to shelf 1", after), reveals(after, "go to shelf 1", after)
        (True, False)
    """
    known = {fact[1] for fact in before.facts if fact[0] in _HOLDS and len(fact) > 1}
    delta = diff(before, after)
    for fact in delta.added | delta.removed:
        predicate, thing = fact[0], fact[-1] if fact[0] == "at" else "".join(fact[1:2])
        if predicate in _FIRST_SIGHT:
            return True
        if predicate in _CONDITIONS and not action.startswith(_TREATING):
            return True
        if predicate in _PLACED and not names(action, thing):
            leaves = predicate == "at" and fact in delta.removed  # whoever goes leaves a place
            if not (leaves or (predicate == "near" and thing in known)):
                return True
    return False
