"""A run's own numbers, made again from its trajectories."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..agents.run_summary import Tally
from .verify_episode import Difference
from .verify_files import Recorded

__all__ = ["check_numbers"]


def check_numbers(
    record: Recorded, tally: Tally, tasks: list[str]
) -> tuple[str, Difference | None, str]:
    """Return how a run's summary and list of tasks stand to its trajectories.

    Args:
        record: The run.
        tally: What its trajectories come to.
        tasks: The tasks in the file, in their order, each once.

    Returns:
        ``"agrees"``, ``"differs"`` or ``"not checked"``; the first difference; why it was not checked.

    Example:
        >>> from pathlib import Path
        >>> check_numbers(Recorded(Path("t.jsonl")), Tally(), [])[0]
        'not checked'
    """
    if record.summary is None:
        reason = "no summary.json is beside it" + ("" if record.run is None else ": it did not end")
        return "not checked", None, reason
    seconds = record.summary.get("seconds")
    whole = seconds.get("all") if isinstance(seconds, Mapping) else None
    number = whole if isinstance(whole, int | float) and not isinstance(whole, bool) else None
    again = json.loads(json.dumps(tally.summary(number)))
    found = _first(again, record.summary) or _tasks(record.run, tasks)
    return ("agrees" if found is None else "differs"), found, ""


def _first(expected: object, found: object, name: str = "summary") -> Difference | None:
    """Return the first place where two pieces of JSON data differ."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in sorted({*expected, *found}, key=str):
            if key not in expected or key not in found:
                sides = (
                    repr(side[key]) if key in side else "nothing" for side in (expected, found)
                )
                return Difference(0, f"{name}.{key}", *sides)
            inner = _first(expected[key], found[key], f"{name}.{key}")
            if inner is not None:
                return inner
        return None
    if json.dumps(expected) == json.dumps(found):
        return None
    return Difference(0, name, repr(expected), repr(found))


def _tasks(run: Mapping[str, Any] | None, tasks: list[str]) -> Difference | None:
    """Return whether the tasks are not those that the run set out to play."""
    told = None if run is None else run.get("tasks")
    if not isinstance(told, Mapping):
        return None
    listed = "".join(f"{task}\n" for task in tasks).encode("utf-8", "replace")
    here = {"number": len(tasks), "sha256": hashlib.sha256(listed).hexdigest()}
    found = _first(told, here, "tasks")  # run.json says what was to be played
    return found
