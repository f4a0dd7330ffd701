"""What an agent's notes tell of a decision that was weighed: its draft, its gates, what was taken.

Notes come from files and from agents of any kind: what is not of the expected type is not told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

__all__ = ["gates_of", "was_revised"]

_DRAFTS = ("draft_action", "proposal")
_REFLECTED = ("ref_action", "choice")
_TEXTS = {"path": ("path",), "decision": ("decision",), "context": ("context_source",)}
_SOURCES = {"p": "p_source", "q": "q_source"}
_THRESHOLDS = {"p": "tau_p", "q": "tau_q", "agreement": "tau_wm"}


def was_revised(notes: Mapping[str, Any]) -> bool:
    """Return whether the action that was taken is not the one that was drafted.

    Example:
        >>> was_revised({"gate": True}), was_revised({"changed": False})
        (True, False)
    """
    return notes.get("gate") is True or notes.get("changed") is True


def gates_of(notes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what was weighed, and how; None where the notes tell of no draft and no gate.

    Args:
        notes: The notes of a step.
        settings: How the agent was set up: has the thresholds.

    Returns:
        ``draft``, ``reflected`` and ``taken`` (actions), ``revised``, texts, and ``numbers``: for each
        of p, q and the world model's agreement its ``value``, ``threshold``, ``source``, and whether it
        is ``enough``; ``None`` stands for what is not known, and what nobody asked for is left out.

    Example:
        >>> said = {"draft_action": "look", "ref_action": "wait", "p": 0.7, "gate": True}
        >>> found = gates_of(said, {"tau_p": 0.5})
        >>> found["reflected"], found["revised"], found["numbers"]["p"]["threshold"]
        ('wait', True, 0.5)
    """
    draft, reflected = _text(notes, _DRAFTS), _text(notes, _REFLECTED)
    numbers = _numbers(notes, settings)
    weighed = isinstance(notes.get("gate"), bool) or isinstance(notes.get("changed"), bool)
    if not (numbers or (draft is not None and weighed)):
        return None
    found: dict[str, Any] = {"draft": draft, "reflected": reflected}
    found["taken"] = _text(notes, ("exec_action",))
    found |= {name: _text(notes, names) for name, names in _TEXTS.items()}
    parts = notes.get("gate_parts")
    changed = parts.get("changed") if isinstance(parts, Mapping) else None
    told = {
        "numbers": numbers,
        "revised": was_revised(notes) if weighed else None,
        "changed": changed if isinstance(changed, bool) else None,
        "gated": settings.get("action_gate") is not False,
    }
    return {name: value for name, value in {**found, **told}.items() if value is not None}


def _numbers(notes: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers that gates compare, with their thresholds."""
    parts = notes.get("gate_parts")
    found: dict[str, Any] = {}
    for name, threshold in _THRESHOLDS.items():
        value, limit = _number(notes.get(name)), _number(settings.get(threshold))
        if value is None:
            continue
        known = parts.get(name) if isinstance(parts, Mapping) else None
        if name == "agreement":
            known = notes.get("wm_gate")
        source = notes.get(_SOURCES.get(name, ""))
        found[name] = {
            "value": value,
            "threshold": limit,
            "source": source if isinstance(source, str) else None,
            "enough": known if isinstance(known, bool) else None,
        }
    return found


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    with suppress(OverflowError):  # a whole number may be longer than any float
        return round(float(value), 6) if math.isfinite(value) else None
    return None


def _text(notes: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((notes[name] for name in names if isinstance(notes.get(name), str)), None)
