"""Verbs, the first words of actions, and how they are distributed (WKM; METHODS.md 3)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from .knowledge import Knowledge

__all__ = ["mixed_verbs", "next_verbs", "normalized", "verb_of"]

_WORD = re.compile(r"\w+")


def verb_of(action: str) -> str:
    """Return the first word of an action, in lower case: of ``search[pen]`` it is ``search``.

    Example:
        >>> verb_of("Go to fridge 1"), verb_of("click[Buy Now]"), verb_of(" ")
        ('go', 'click', '')
    """
    found = _WORD.search(action)
    return "" if found is None else found[0].lower()


def next_verbs(neighbours: Sequence[Knowledge], previous_action: str) -> dict[str, float]:
    """Return how the next verb is distributed among neighbours with the same verb before.

    Empty where there is none of these.

    Example:
        >>> from comap.agents.knowledge import Knowledge
        >>> seen = [Knowledge("", "go to safe 1", "open safe 1"), Knowledge("", "look", "look")]
        >>> next_verbs(seen, "go to desk 2")
        {'open': 1.0}
    """
    before = verb_of(previous_action)
    same = Counter(verb_of(n.action) for n in neighbours if verb_of(n.previous_action) == before)
    total = sum(same.values())
    return {verb: count / total for verb, count in sorted(same.items())}


def mixed_verbs(agent: dict[str, float], known: dict[str, float], gamma: float) -> dict[str, float]:
    """Return ``gamma * P_agent + (1 - gamma) * P_know`` over the agent's verbs.

    Both are brought to a sum of 1 over these verbs first; where one of them has nothing to say of
    them, the other counts alone.

    Example:
        >>> mixed_verbs({"go": 0.2, "take": 0.2}, {"take": 1.0}, 0.5)
        {'go': 0.25, 'take': 0.75}
    """
    own = normalized(agent, agent)
    base = normalized(known, agent)
    if not base:
        return own or dict.fromkeys(agent, 1 / len(agent)) if agent else {}
    if not own:
        return base
    return {verb: gamma * own[verb] + (1 - gamma) * base[verb] for verb in agent}


def normalized(values: dict[str, float], verbs: Iterable[str]) -> dict[str, float]:
    """Return values over some verbs with the sum 1; empty where they have none.

    What is no positive, finite number counts as 0.

    Example:
        >>> normalized({"go": 1.0, "look": 3.0, "sit": 9.0}, ["go", "look"])
        {'go': 0.25, 'look': 0.75}
    """
    found = {verb: values.get(verb, 0.0) for verb in verbs}
    found = {verb: value if 0 < value < math.inf else 0.0 for verb, value in found.items()}
    total = sum(found.values())
    return {verb: value / total for verb, value in found.items()} if total > 0 else {}
