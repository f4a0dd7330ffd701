"""What agents read: the task with its functions, and a belief in few words."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...facts import State
from ...trajectory import Turn
from .calls import parse_call
from .functions import FINISH_OFFER, Offer, signature

__all__ = ["FORMATS", "first_observation", "narrate"]

FORMATS = ("signatures", "json")
"""How functions are shown: on a line each, or as their whole JSON schemas."""

_LAST = 6
_LONGEST = 300


def first_observation(goal: str, offers: Sequence[Offer], budget: int, form: str) -> str:
    """Return what an episode starts with.

    Example:
        >>> print(first_observation("Convert 2 EUR.", [], 9, "signatures").splitlines()[0])
        Task: Convert 2 EUR.
    """
    lines = [f"Task: {goal}", "Functions:"]
    for offer in (*offers, FINISH_OFFER):
        told = json.dumps(offer.schema(), ensure_ascii=False, default=str)
        lines.append(f"- {told if form == 'json' else signature(offer)}")
    return "\n".join([*lines, f"Calls left: {budget}"])


def narrate(goal: str, history: Sequence[Turn], state: State, action: str | None = None) -> str:
    """Return the task, the functions' parameters, the last calls with their answers, and what is left.

    Example:
        >>> state = State(frozenset({("tool", "rate"), ("param", "rate", "to", "required", "string"),
        ...                          ("budget", "9")}))
        >>> print(narrate("Convert.", (), state))
        goal: Convert.
        rate(to)
        left: 9
    """
    parameters: dict[str, list[str]] = {f[1]: [] for f in state.facts if f[0] == "tool"}
    for fact in sorted(state.facts):
        if fact[0] == "param" and len(fact) == 5 and fact[1] in parameters:
            parameters[fact[1]].append(fact[2] + ("?" if fact[3] == "optional" else ""))
    called = parse_call(action) if action is not None else None
    chosen = [called.name.lower()] if called is not None else sorted(parameters)
    lines = [f"goal: {goal}"]
    lines += [f"{name}({', '.join(parameters[name])})" for name in chosen if name in parameters]
    left = [fact[1] for fact in state.facts if fact[0] == "budget" and len(fact) == 2]
    for turn in history[1:][-_LAST:]:
        lines.append(f"> {_short(turn.action or '')}")
        lines.append(_short(turn.observation))
    return "\n".join([*lines, f"left: {left[0] if left else '?'}"])


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
