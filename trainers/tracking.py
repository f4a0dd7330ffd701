"""Curves of a training in TensorBoard, trackio or Weights & Biases, through accelerate's trackers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import OptionError, suggest
from .processes import is_first

TRACKERS = ("none", "tensorboard", "trackio", "wandb")
"""The trackers that a training reports to; each but the first is a package of its own."""

_PROJECT = "comap"
_ROUND = re.compile(r"^round-\d+-")
_LEFT_OUT = ("won", "log", "weights", "of", "number", "step", "steps", "update")


def check_tracker(name: str) -> None:
    """Refuse a tracker that is not known or not installed, before hours of work."""
    if name not in TRACKERS:
        raise OptionError(f"there is no tracker {name!r}; {suggest(name, TRACKERS)}")
    if name != "none" and find_spec(name) is None:
        raise OptionError(
            f"expected the tracker {name!r} to be installed, it is not; run: pip install {name}"
        )


@contextmanager
def tracked(
    tell: Callable[[Mapping[str, Any]], object], name: str, out: Path, settings: Mapping[str, Any]
) -> Iterator[Callable[[Mapping[str, Any]], object]]:
    """Return a callback for a training's events that also logs their numbers, on the first process.

    The project is ``comap``, the run has the folder's name. TensorBoard's files are in the folder's
    ``tensorboard``.
    """
    check_tracker(name)
    if name == "none" or not is_first():
        yield tell
        return
    curves = Curves(_open(name, out, settings))

    def both(event: Mapping[str, Any]) -> None:
        curves.add(event)
        tell(event)

    try:
        yield both
    finally:
        curves.tracker.finish()


def _open(name: str, out: Path, settings: Mapping[str, Any]) -> Any:
    from accelerate.state import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # the trackers ask it which process this is
    if name == "tensorboard":
        tracker = LOGGER_TYPE_TO_CLASS[name]("tensorboard", logging_dir=out)
    else:
        options = {"dir": str(out)} if name == "wandb" else {}
        tracker = LOGGER_TYPE_TO_CLASS[name](_PROJECT, name=out.resolve().name, **options)
    tracker.start()
    if name != "tensorboard":
        tracker.store_init_configuration(dict(settings))
    return tracker


class Curves:
    """Logs the numbers of events: curves of rounds go on from round to round, over optimizer updates."""

    def __init__(self, tracker: Any):
        self.tracker, self._before, self._step = tracker, 0, 0

    def add(self, event: Mapping[str, Any]) -> None:
        kind, stage = event["event"], _ROUND.sub("", event.get("stage", ""))
        if kind == "update":
            at = event["step"] if "step" in event else event["update"]
            self._log(stage, event, self._before + at)
        elif kind == "evaluated":
            self._log(f"evaluation/{event['split']}", event, event["update"])
        elif kind in ("done", "known"):
            self._before += event["result"].get("updates", 0)
            if kind == "done":  # what is known was logged when it was done
                self._log(stage, event["result"], self._before)

    def _log(self, prefix: str, values: Mapping[str, Any], step: int) -> None:
        self._step = max(
            self._step, step
        )  # Weights & Biases drops what is logged for earlier steps
        found = dict(_numbers(values, prefix))
        if found:
            self.tracker.log(found, step=self._step)


def _numbers(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """Yield all numbers of nested mappings, by their path."""
    for name, value in values.items():
        path = f"{prefix}/{name}" if prefix else name
        if isinstance(value, Mapping) and name not in _LEFT_OUT:
            yield from _numbers(value, path)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            mean = name == "steps" and isinstance(value, float)  # of episodes, not of a stage
            if mean or name not in _LEFT_OUT:
                yield path, float(value)
