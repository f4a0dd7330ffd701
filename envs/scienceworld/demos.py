"""`comap data build scienceworld-demos`: demonstrations along the simulator's own gold paths.

They are made on this machine, by several processes, each with a simulator; kept is what an environment
with the same settings plays to the full score. What is done is written down at once, so that a build
that was killed goes on where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from ...checksums import seal, unseal
from ...errors import DataCorrupt, OptionError, TaskNotFound, suggest
from ..panel import evenly
from ..storage import Listener, Progress, locked, on_disk, silent
from .demos_processes import make, played

__all__ = ["Built", "build_demonstrations"]

_SUFFIX = ".part"


class Built(NamedTuple):
    """What a build has made.

    Attributes:
        path: The file of demonstrations.
        kept: The tasks that are in it.
        failed: Why others are not, by task.
    """

    path: Path
    kept: tuple[str, ...]
    failed: Mapping[str, str]


def build_demonstrations(
    out: str | os.PathLike[str],
    *,
    tasks: Sequence[str] = (),
    variations: int | None = None,
    workers: int = 1,
    options: Mapping[str, Any] | None = None,
    progress: Listener = silent,
) -> Built:
    """Play gold paths and write those that reach the full score, one line of JSON each.

    A line has ``game`` (the task's id and ``/gold``), ``settings`` and ``steps`` of ``command`` and
    ``observation``; the first command is null. `comap.trainers.read_demonstrations` reads it.

    Args:
        out: The file; beside it lies ``<name>.part`` until the build is done.
        tasks: Names of tasks, ``"boil"``; all by default.
        variations: How many of each, spread evenly over those of the split; all by default.
        workers: How many processes; each has a simulator (some 200 MB).
        options: Of the environment: ``split``, ``simplification``, ``java`` and so on.
        progress: Told of each task.

    Raises:
        OptionError: A number or an option cannot be.
        TaskNotFound: A task has no such name.
        DataCorrupt: An unfinished build with other settings is there.
        DownloadError: The disk refuses, or another build is at work on this file.
        EngineError, MissingExtra: There is no simulator.

    Example:
        >>> build_demonstrations("demos.jsonl", tasks=["boil"], variations=1)  # doctest: +SKIP
        Built(path=PosixPath('demos.jsonl'), kept=('boil/0',), failed={})
    """
    for name, number in (("variations", variations), ("workers", workers)):
        if number is not None and (type(number) is not int or number < 1):
            raise OptionError(f"{name} must be a whole number of at least 1, not {number!r}")
    path, chosen = Path(out), dict(options or {})
    with closing(make(chosen)) as env:
        wanted = _wanted(env.tasks.ids, tasks, variations)
        settings = {**env.fingerprint(), **env.settings()}
    with on_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + _SUFFIX)
    with locked(part, wait=0.0):
        journal = _Journal(part, settings)
        missing = [task for task in wanted if task not in journal.done]
        with journal.opened():
            for task, told in played(missing, workers, chosen):
                journal.note(task, told)
                done = sum(one in journal.done for one in wanted)
                note = "" if "steps" in told else f"{task} is not kept: {told['failed']}"
                progress(Progress("playing", done, len(wanted), note))
        return _finished(path, journal, wanted, settings)


def _wanted(ids: Sequence[str], names: Sequence[str], variations: int | None) -> list[str]:
    """Return the ids of the tasks of these names, in the order of their variations."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for task in ids:
        name, _, variation = task.rpartition("/")
        groups.setdefault(name, []).append((int(variation), task))
    for name in names:
        if name not in groups:
            raise TaskNotFound(
                f"expected the name of a task, found {name!r}; {suggest(name, groups)}"
            )
    chosen = sorted(groups) if not names else [name for name in groups if name in names]
    return [task for name in chosen for _, task in evenly(sorted(groups[name]), variations)]


@dataclass
class _Journal:
    """What is done so far: a line with the settings, then one for each task."""

    path: Path
    settings: Mapping[str, str]
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    _file: IO[bytes] | None = None
    _size: int = 0

    def __post_init__(self) -> None:
        with on_disk(self.path):
            lines = self.path.read_bytes().split(b"\n")[
                :-1
            ]  # what follows the last line end is torn
        records = [_record(self.path, number, line) for number, line in enumerate(lines, 1)]
        if records and records[0].get("settings") != self.settings:
            raise DataCorrupt(
                f"expected the unfinished build {self.path} to have these settings, found others: "
                f"{_difference(records[0].get('settings'), self.settings)}; go on with those, or "
                "remove that file"
            )
        self.done = {record["task"]: record for record in records[1:]}
        self._size = sum(len(line) + 1 for line in lines)

    def opened(self) -> closing[IO[bytes]]:
        """Open the file for further lines, without what is torn."""
        with on_disk(self.path):
            self._file = self.path.open("r+b")
            self._file.truncate(self._size)
            self._file.seek(self._size)
            if not self._size:
                self._write({"settings": self.settings})
        return closing(self._file)

    def note(self, task: str, told: Mapping[str, Any]) -> None:
        """Write down how a task went."""
        self.done[task] = {"task": task, **told}
        self._write(self.done[task])

    def _write(self, record: Mapping[str, Any]) -> None:
        assert self._file is not None
        with on_disk(self.path):
            self._file.write(f"{seal(json.dumps(record))}\n".encode("ascii"))
            self._file.flush()


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = unseal(line)
        record["settings" if number == 1 else "task"]
    except (ValueError, TypeError, KeyError) as error:
        raise DataCorrupt(
            f"{path}, line {number}: expected a record of an unfinished build, found {error!r}; "
            "remove the file to begin anew"
        ) from error
    return dict(record)


def _difference(old: Any, new: Mapping[str, str]) -> str:
    old = old if isinstance(old, dict) else {}
    keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    return "; ".join(f"{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in keys)


def _finished(
    path: Path, journal: _Journal, wanted: Sequence[str], settings: Mapping[str, str]
) -> Built:
    """Write the file of demonstrations and remove the journal."""
    kept = [task for task in wanted if "steps" in journal.done[task]]
    draft = path.with_name(path.name + ".new")
    with on_disk(path):
        with draft.open("w", encoding="ascii") as file:
            for task in kept:
                steps = journal.done[task]["steps"]
                line = {"game": f"{task}/gold", "settings": dict(settings), "steps": steps}
                file.write(seal(json.dumps(line)) + "\n")
        draft.replace(path)
        journal.path.unlink()
    failed = {task: journal.done[task]["failed"] for task in wanted if task not in set(kept)}
    return Built(path, tuple(kept), failed)
