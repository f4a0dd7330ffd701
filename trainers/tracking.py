"""Curves and rollouts of a training or a run in TensorBoard, trackio or Weights & Biases.

By their own writers. Rollouts are traces in trackio, a table in Weights & Biases, and not in TensorBoard.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..agents.convert import turns_of
from ..agents.run import DIGESTS
from ..agents.tally import Tally
from ..errors import OptionError, suggest
from ..lm.base import valid_text
from ..trajectory import Trajectory
from .processes import is_first

TRACKERS = ("none", "tensorboard", "trackio", "wandb")
"""Where a training can report to; each but the first is a package of its own."""

_ROUND = re.compile(r"^round-\d+-")
_MOST_SHOWN = 8
"""Rollouts of an update, a stage or a run that a tracker shows."""
_LEFT_OUT = ("of", "number", "step", "steps", "update")
_MAPPINGS_LEFT_OUT = ("won", "weights", DIGESTS)


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
    """Return a callback for events that also logs their numbers, on the first process.

    The project is ``comap``, the run has the folder's name, and the settings are its config (TensorBoard:
    a text). TensorBoard's files are in the folder's ``tensorboard``.
    """
    check_tracker(name)
    if name == "none" or not is_first():
        yield tell
        return
    curves: list[Curves] = []

    def tell_and_log(event: Mapping[str, Any]) -> None:
        if not curves:  # not before: a run that is refused has no events
            tracker = _open(name, out, settings)
            curves.append(Curves(tracker, _ROLLOUTS.get(name, _NoRollouts)(tracker)))
        curves[0].add(event)
        tell(event)

    try:
        yield tell_and_log
    finally:
        for started_curves in curves:
            started_curves.finish()


def shown_settings(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a tracker shows beside a training's curves, with its tasks."""
    settings = dict(described["config"])
    env = described.get("env")
    tasks = env.get("tasks") if isinstance(env, Mapping) else None
    if tasks is not None:
        settings["tasks"] = tasks
    return settings


def _open(name: str, out: Path, settings: Mapping[str, Any]) -> Any:
    """Return a tracker's run, which has `log` and `finish`."""
    if name == "tensorboard":
        return _TensorBoard(out / name, settings)
    options = {"project": "comap", "name": out.resolve().name, "config": dict(settings)}
    if name == "wandb":
        options["dir"] = str(out)
    return import_module(name).init(**options)


class _TensorBoard:
    """Writes files of TensorBoard's, without torch or TensorFlow."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))
        self.finish = self._writer.close
        self._write_text("settings", settings)

    def _write_text(self, name: str, values: Mapping[str, Any]) -> None:
        """Show names and values on the page of texts, a line each."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        lines = [f"    {key}: {json.dumps(value, default=str)}" for key, value in values.items()]
        text = TensorProto(dtype=DT_STRING, string_val=["\n".join(lines).encode()])
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        value = Summary.Value(tag=name, metadata=metadata, tensor=text)
        self._writer.add_event(Event(wall_time=time.time(), step=0, summary=Summary(value=[value])))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each curve."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))
        self._writer.add_event(event)


class _NoRollouts:
    """What a tracker without a place for rollouts shows of them: nothing."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker

    def add(self, trajectory: Trajectory, part: str, step: int) -> None:
        """Show a rollout."""

    def finish(self) -> None:
        """Show what is not shown yet."""


class _Traces(_NoRollouts):
    """Rollouts as traces of trackio's, as soon as they have ended."""

    def add(self, trajectory: Trajectory, part: str, step: int) -> None:
        import trackio

        about = {"part": part, **_about(trajectory)}
        about["status"] = "error" if trajectory.error else "ok"
        trace = trackio.Trace(messages=turns_of(trajectory), metadata=about)
        self._tracker.log({"rollouts": trace}, step=step)


class TableOfRollouts(_NoRollouts):
    """Rollouts as rows of tables in Weights & Biases: one for each part, sent when the next one begins.

    A training that is killed loses the part that it was in, and memory holds no more than that.
    """

    def __init__(self, tracker: Any) -> None:
        super().__init__(tracker)
        self._part = ""
        self._rows: list[dict[str, Any]] = []

    def add(self, trajectory: Trajectory, part: str, step: int) -> None:
        if part != self._part:
            self.finish()
            self._part = part
        texts = [f"[{turn['role']}]\n{turn['content']}" for turn in turns_of(trajectory)]
        row = {"step": step, "part": part, **_about(trajectory), "rollout": "\n\n".join(texts)}
        self._rows.append(row)

    def finish(self) -> None:
        if not self._rows:
            return
        columns = list(self._rows[0])
        rows = [list(row.values()) for row in self._rows]
        self._rows = []
        table = import_module("wandb").Table(columns=columns, data=rows)
        self._tracker.log({"rollouts": table})


def _about(trajectory: Trajectory) -> dict[str, Any]:
    """Return what a rollout is of, and how it ended."""
    return {
        "environment": trajectory.env_id,
        "task": trajectory.task,
        "seed": trajectory.seed,
        "agent": trajectory.agent,
        "success": trajectory.success,
        "score": trajectory.score,
        "steps": len(trajectory.steps),
        "error": None if trajectory.error is None else valid_text(trajectory.error),
    }


_ROLLOUTS: dict[str, type[_NoRollouts]] = {"trackio": _Traces, "wandb": TableOfRollouts}


class Curves:
    """Logs the numbers of events: a curve goes on from round to round, over optimizer updates.

    Of the rollouts of an update, a stage or a run, the first few are shown whole, so that a tracker stays
    small; the folder has all of them.
    """

    def __init__(self, tracker: Any, rollouts: _NoRollouts | None = None):
        self.tracker = tracker
        self.rollouts = rollouts or _NoRollouts(tracker)
        self._shown: Counter[tuple[str, int]] = Counter()  # of each part
        self._before = 0  # updates of earlier stages, or episodes of a run
        self._step = 0

    def add(self, event: Mapping[str, Any]) -> None:
        """Log an event's numbers, where its kind has a curve."""
        kind = event["event"]
        stage = _ROUND.sub("", event.get("stage", ""))
        if kind == "update":
            update = event["step"] if "step" in event else event["update"]
            self._log(stage, event, self._before + update)
        elif kind == "evaluated":
            self._log(f"evaluation/{event['split']}", event, event["update"])
        elif kind == "episode":
            part = str(event.get("stage") or "update")
            self._show(event.get("trials", ()), part, event.get("update", 0))
        elif kind == "played":  # a task of a run
            self._before += 1
            self._show(event["trials"], "run", 0)
            summary = Tally.of(event["trials"]).summary()
            del summary["n"], summary["generated_tasks"]
            success = summary["success"]["value"]
            self._log("episode", summary | {"success": success}, self._before)
        elif kind in ("done", "known"):
            self._before += event["result"].get("updates", 0)
            if kind == "done":  # what is known was logged when it was done
                self._log(stage, event["result"], self._before)

    def finish(self) -> None:
        """Show what is not shown yet, and end the tracker's run."""
        self.rollouts.finish()
        self.tracker.finish()

    def _show(self, trajectories: Iterable[Trajectory], part: str, number: int) -> None:
        """Show rollouts of a part of the training, if not enough of that part are shown."""
        for trajectory in trajectories:
            if self._shown[part, number] >= _MOST_SHOWN:
                return
            self._shown[part, number] += 1
            numbered_part = f"{part} {number}" if number else part
            self.rollouts.add(trajectory, numbered_part, self._step)

    def _log(self, prefix: str, values: Mapping[str, Any], step: int) -> None:
        self._step = max(self._step, step)  # W&B drops what is logged for earlier steps
        if numbers := dict(_numbers(values, prefix)):
            self.tracker.log(numbers, step=self._step)


def _numbers(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """Yield all numbers of nested mappings, by their path."""
    for name, value in values.items():
        path = f"{prefix}/{name}" if prefix else name
        if isinstance(value, Mapping) and name not in _MAPPINGS_LEFT_OUT:
            yield from _numbers(value, path)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            is_mean = name == "steps" and isinstance(value, float)  # of episodes, not of a stage
            if is_mean or name not in _LEFT_OUT:
                yield path, float(value)
