"""Calls that a belief suggests: functions filled with values that were seen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import Any

from ...facts import State
from .calls import write_call
from .functions import FINISH, Offer

__all__ = ["suggested"]

_WORD = re.compile(r"[A-Za-z0-9][\w.:-]*[\w]|\d+")
_MOST_VALUES = 5
_MOST_CALLS = 8
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(r"\d{2}:\d{2}")
_PHRASE = re.compile(r"(?:[A-Z]\w+ )+[A-Z]\w+")
_OF_PEOPLE = frozenset(("name", "owner", "reader", "title"))
_NEVER = frozenset(("JSON", "Give"))
_NUMBERS = ("integer", "number")


def suggested(goal: str, offers: Sequence[Offer], state: State) -> tuple[str, ...]:
    """Return calls of each function, and two ends: giving up, and the last value as the answer.

    The values are identifiers that were seen, and words of the goal that are of a parameter's type;
    a correct call is often among them, and often is not.

    Args:
        goal: The task in words.
        offers: The functions.
        state: The belief.
    """
    words = [word for word in dict.fromkeys(_WORD.findall(goal)) if word not in _NEVER]
    words += _PHRASE.findall(goal)
    entities: dict[str, list[str]] = {}
    for fact in sorted(state.facts):
        if fact[0] == "entity" and len(fact) == 3:
            entities.setdefault(fact[1], []).append(fact[2].upper())
    calls: list[str] = []
    for offer in offers:
        choices = [
            _values(name, offer.parameters["properties"][name], words, entities)
            for name in offer.required
        ]
        for values in islice(product(*choices), _MOST_CALLS):
            calls.append(write_call(offer.name, dict(zip(offer.required, values, strict=True))))
    last = _last_value(state)
    calls.append(write_call(FINISH, {"return_type": "give_answer", "final_answer": last}))
    calls.append(write_call(FINISH, {"return_type": "give_up_and_restart"}))
    return tuple(dict.fromkeys(calls))


def _values(
    name: str, told: Mapping[str, Any], words: Sequence[str], entities: Mapping[str, Sequence[str]]
) -> list[Any]:
    """Return values that a parameter might have."""
    if told.get("enum"):
        return list(told["enum"])[:_MOST_VALUES]
    kind = told.get("type")
    if kind in _NUMBERS:
        return [int(word) for word in words if word.isdecimal() and len(word) < 9][
            :_MOST_VALUES
        ] or [1]
    if kind == "boolean":
        return [True, False]
    if kind == "array":
        return [[]]
    if kind == "object":
        return [{}]
    if "date" in name:
        found = [word for word in words if _DATE.fullmatch(word)]
    elif name == "start":
        found = [word for word in words if _TIME.fullmatch(word)]
    elif name in _OF_PEOPLE and any(" " in word for word in words):
        found = [word for word in words if " " in word]
    else:
        stem = name.removesuffix("_id")
        found = [*entities.get(stem, ())]
        found += [word for word in words if word[0].isupper() and word not in found][1:]
        coded = [word for word in found if "-" in word and any(c.isdecimal() for c in word)]
        found = coded or found if name.endswith("_id") or stem in entities else found
    return (
        found[:_MOST_VALUES] or [str(example) for example in told.get("examples", [])[:1]] or [name]
    )


def _last_value(state: State) -> str:
    """Return the last value that a call returned."""
    returned = [fact for fact in state.facts if fact[0] == "ret" and fact[1].isdecimal()]
    if not returned:
        return "unknown"
    return max(returned, key=lambda fact: (int(fact[1]), fact))[-1]
