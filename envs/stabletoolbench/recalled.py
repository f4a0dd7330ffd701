"""A backend that has only what a recorded episode shows."""

from __future__ import annotations

from collections.abc import Sequence

from ...trajectory import Step
from .backends import Hit, Request
from .facts import read_observation

__all__ = ["Recalled"]

_OUTSIDE = ("live", "sim")


class Recalled:
    """Answers calls by what a record shows, where live server and simulator are out of reach.

    Args:
        steps: Of the recorded episode.

    Attributes:
        texts: The observations that are taken from the record, by the number of the step.

    Example:
        >>> Recalled([]).texts
        {}
    """

    name = "recalled"

    def __init__(self, steps: Sequence[Step]):
        self.texts = {step.t: step.observation for step in steps if _is_outside(step)}
        self._sources = {step.t: str(step.told.get("tool_source", "none")) for step in steps}
        self._now = 0

    def at(self, step: int) -> None:
        """Take note of the number of the step that is taken now."""
        self._now = step

    def answer(self, request: Request) -> Hit | None:
        """Return the answer that the record shows to the present step; None where it shows none."""
        if self._now not in self.texts:
            return None
        told = read_observation(self.texts[self._now])
        error, response, _ = ("", self.texts[self._now], True) if told is None else told
        return Hit(error, response, self._sources[self._now])


def _is_outside(step: Step) -> bool:
    return step.told.get("tool_source") in _OUTSIDE or bool(step.told.get("tool_faults"))
