"""Thoughts that a model writes before its reply, between ``<think>`` and ``</think>``."""

from __future__ import annotations

OPENS = "<think>"
ENDS = "</think>"


def end_of_thought(text: str) -> int:
    """Return where the reply begins behind a thought: 0 without one, the end where it is cut.

    Example:
        >>> reply = "<think>The fridge, I guess.</think>Action: open fridge 1"
        >>> reply[end_of_thought(reply):]
        'Action: open fridge 1'
        >>> len("<think>The fr") == end_of_thought("<think>The fr")
        True
    """
    if not text.lstrip().startswith(OPENS):
        return 0
    end = text.find(ENDS)
    return end + len(ENDS) if end >= 0 else len(text)


def first_stop(text: str, stops: tuple[str, ...] | list[str]) -> int | None:
    """Return where the first of some stop texts stands behind the thought; None where none does."""
    start = end_of_thought(text)
    found = [place for stop in stops if (place := text.find(stop, start)) >= 0]
    return min(found, default=None)
