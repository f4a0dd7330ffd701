"""Which transitions follow from the belief, and which no world model can predict.

What a place holds cannot be known before it was seen. Scores tell such transitions apart from those
that follow, so that a model is not blamed for what nobody could know.
"""

from __future__ import annotations

import re

from ..envs import Canonicalizer
from ..facts import Delta, State, diff
from ..worldmodel import Query

__all__ = ["is_predictable"]

_CONDITIONS = ("clean", "hot", "cool", "sliced")
_TREATING = ("clean ", "heat ", "cool ", "slice ")
_HOLDS = ("holding", "in", "near")
_PLACED = ("at", "holding", "in", "near")
_FIRST_SIGHT = ("exists", "seen")


def is_predictable(query: Query, observation: str, canonicalizer: Canonicalizer) -> bool | None:
    """Return whether what was observed follows from the belief and the action.

    For ALFWorld it does not if any changed fact is told only by the environment: a receptacle's
    contents are seen for the first time (``seen``, also where there is nothing), a receptacle is
    first heard of (``exists``), a thing that the action does not name is in, at or off a place or
    the hand, or its condition is read rather than brought about. All else follows, as in the
    repository's earlier measurements: coming back to a place whose contents are believed as they
    are, what was asked for and done, doors (also one found closed, with nothing shown), and
    "Nothing happens."

    Args:
        query: The action and the belief before it.
        observation: What was really observed.
        canonicalizer: The environment's; says by its version which facts there are.

    Returns:
        None where it cannot be told: the observation fits no rule of the canonicalizer, or there is
        no rule for the environment's facts.

    Example:
        >>> from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
        >>> query = Query("comap/ALFWorld-v0", "goal", (), State(), "go to shelf 1")
        >>> text = "You arrive at shelf 1. On the shelf 1, you see nothing."
        >>> is_predictable(query, text, ALFWorldCanonicalizer())
        False
    """
    if not canonicalizer.version.startswith("alfworld-"):
        return None
    after = canonicalizer.update(query.state, query.action, observation)
    if not after.parsed:
        return None
    action = canonicalizer.action(query.action)
    return not _reveals(query.state, action, diff(query.state, after))


def _reveals(before: State, action: str, delta: Delta) -> bool:
    """Return whether a change in ALFWorld tells what neither the belief nor the action did."""
    known = {fact[1] for fact in before.facts if fact[0] in _HOLDS and len(fact) > 1}
    for fact in delta.added | delta.removed:
        predicate, thing = fact[0], fact[-1] if fact[0] == "at" else "".join(fact[1:2])
        if predicate in _FIRST_SIGHT:
            return True
        if predicate in _CONDITIONS and not action.startswith(_TREATING):
            return True
        if predicate in _PLACED and not _names(action, thing):
            leaves = (
                predicate == "at" and fact in delta.removed
            )  # going somewhere is leaving where one was
            beside = predicate == "near" and thing in known
            if not (leaves or beside):
                return True
    return False


def _names(action: str, thing: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(thing)}(?!\w)", action) is not None
