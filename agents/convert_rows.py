"""What converters of trajectories share: reading rows with care, and an episode as a conversation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import DataCorrupt
from ..trajectory import Step, Trajectory, Turn
from .base import View
from .parsing import parse_action

__all__ = ["checked_rows", "number_of", "reply_of", "text_of", "value_of", "views_of"]


def reply_of(step: Step) -> str:
    """Return what the agent said for a step: the last text that names its action, or that alone.

    Example:
        >>> from comap.facts import Delta, State
        >>> reply_of(Step(1, "look", "A room.", 0.0, False, False, False, State(), Delta()))
        'Action: look'
    """
    for call in reversed(step.calls):
        if call.kind == "generate" and parse_action(call.prefix + call.text) == step.action:
            return (call.prefix + call.text).strip()
    return f"Action: {step.action}"


def views_of(trajectory: Trajectory) -> Iterator[View]:
    """Yield what the agent saw before each step, as far as a trajectory tells.

    It does not tell which actions were admissible, nor the memory of other trials.
    """
    history = [Turn(None, trajectory.observation)]
    memory: dict[str, Any] = {}
    for number, (before, step) in enumerate(trajectory.transitions()):
        yield View(
            trajectory.env_id,
            trajectory.task,
            trajectory.goal,
            tuple(history),
            before,
            None,
            number,
            lambda: None,
            memory=memory,
            trial=trajectory.trial,
        )
        history.append(Turn(step.action, step.observation))


def checked_rows(rows: Iterable[Any], what: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each row with how to call it in a message.

    Raises:
        DataCorrupt: A row is no object.

    Example:
        >>> list(checked_rows([3], "a conversation"))
        Traceback (most recent call last):
        comap.errors.DataCorrupt: row 1: expected an object with a conversation, found int
    """
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataCorrupt(
                f"row {number}: expected an object with {what}, found {type(row).__name__}"
            )
        yield f"row {number}", row


def text_of(row: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    """Return a text of a row.

    Args:
        row: The row.
        key: Its key.
        where: How to call the row.
        default: What stands for a missing one; None where it must not be missing.

    Raises:
        DataCorrupt: It is missing, or no text.

    Example:
        >>> text_of({}, "goal", "row 7")
        Traceback (most recent call last):
        comap.errors.DataCorrupt: row 7: expected a text as 'goal', found none
    """
    value = row.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        found = "none" if value is None else f"{value!r:.80}"
        raise DataCorrupt(f"{where}: expected a text as {key!r}, found {found}")
    return value


def value_of(
    row: Mapping[str, Any], key: str, where: str, kind: type | tuple[type, ...], default: Any
) -> Any:
    """Return a value of a row, or `default` where it is missing.

    Raises:
        DataCorrupt: It is of another kind.

    Example:
        >>> value_of({"done": True}, "done", "row 1", bool, False)
        True
    """
    value = row.get(key)
    if value is None:
        return default
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        expected = " or ".join(part.__name__ for part in kinds)
        raise DataCorrupt(f"{where}: expected {expected} as {key!r}, found {value!r:.80}")
    return value


def number_of(row: Mapping[str, Any], key: str, where: str, default: float = 0.0) -> float:
    """Return a number of a row, or `default` where it is missing.

    Raises:
        DataCorrupt: It is no number, or not finite.

    Example:
        >>> number_of({"score": 1}, "score", "row 1")
        1.0
    """
    value = value_of(row, key, where, (int, float), default)
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise DataCorrupt(f"{where}: expected a finite number as {key!r}, found {value!r:.80}")
    return found
