"""Which transitions follow from the belief, and which no world model can predict.

What a place holds cannot be known before it was seen. Scores tell such transitions apart from those
that follow, so that a model is not blamed for what nobody could know.
"""

from __future__ import annotations

from ..envs import Canonicalizer, Revealer
from ..worldmodel import Query

__all__ = ["is_predictable"]


def is_predictable(query: Query, observation: str, canonicalizer: Canonicalizer) -> bool | None:
    """Return whether what was observed follows from the belief, the texts so far and the action.

    It does not if any changed fact is told only by the environment; which those are each benchmark's
    ``revealing`` module says (`comap.envs.alfworld.revealing.reveals` and so on).

    Args:
        query: The action and what was known before it.
        observation: What was really observed.
        canonicalizer: The environment's.

    Returns:
        None where it cannot be told: the observation fits no rule of the canonicalizer, or the
        canonicalizer does not know what could be foreseen (it is no `comap.envs.Revealer`).

    Example:
        >>> from comap.envs.alfworld.canonicalizer import ALFWorldCanonicalizer
        >>> from comap.facts import State
        >>> query = Query("comap/ALFWorld-v0", "goal", (), State(), "go to shelf 1")
        >>> text = "You arrive at shelf 1. On the shelf 1, you see nothing."
        >>> is_predictable(query, text, ALFWorldCanonicalizer())
        False
    """
    if not isinstance(canonicalizer, Revealer):
        return None
    after = canonicalizer.update(query.state, query.action, observation)
    if not after.parsed:
        return None
    return not canonicalizer.reveals(query.goal, query.history, query.state, query.action, after)
