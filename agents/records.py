"""The trajectory file of a run: it grows by whole tasks, survives a kill, and ends up in order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checksums import unseal
from ..errors import DataCorrupt, OptionError
from ..trajectory import Trajectory

__all__ = ["Records", "writing"]

_OF_WEIGHTS = ("SafetensorError", "safetensors")
_OF_TORCH = ("PytorchStreamWriter", "inline_container")  # `torch.save` tells a full disk so


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say in a run's own words that it cannot be written: a full disk, a folder that is closed.

    Args:
        folder: The run's folder.

    Raises:
        OptionError: Something in the block raised an `OSError`, or what safetensors and torch raise in
            its place.

    Example:
        >>> with writing(Path("run")):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        comap.errors.OptionError: cannot write the run in run: No space left on device; what was \
recorded is kept: mend that, and give the same command again to go on
    """
    try:
        yield
    except Exception as error:
        why = _unwritten(error)
        if why is None:
            raise
        raise OptionError(
            f"cannot write the run in {folder}: {why}; what was recorded is "
            "kept: mend that, and give the same command again to go on"
        ) from error


def _unwritten(error: Exception) -> str | None:
    """Return why something could not be written, where that is what an error says."""
    said = " ".join(str(error).split())
    if isinstance(error, OSError):
        return error.strerror or said
    kind = type(error)
    of_weights = (kind.__name__, kind.__module__.partition(".")[0]) == _OF_WEIGHTS
    if of_weights or (kind is RuntimeError and any(name in said for name in _OF_TORCH)):
        return f"{said[:200]} (is the disk full?)"
    return None


@dataclass(frozen=True, slots=True)
class _Line:
    """Where a trajectory is in the file, and what is known of it."""

    start: int
    end: int
    failed: bool


class Records:
    """The trajectories of a run's tasks, in a file of one line each.

    Opening reads what is there. A last line that was only half written is cut off; one that was
    changed since is an error, wherever it is.

    Args:
        path: The file; its folder exists, the file may not.
        retrying: Whether tasks may have several trials: then nobody knows whether the last task in an
            unfinished file had all of its own, and it is dropped, to be played again.

    Raises:
        DataCorrupt: A line was changed, or one that is not the last is no trajectory.

    Example:
        >>> import tempfile
        >>> from comap.facts import State
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     records = Records(Path(folder, "trajectories.jsonl"))
        ...     records.add([Trajectory("id", "task", "dev", "goal", "agent", "Hello.", State())])
        ...     sorted(Records(records.path).tasks)
        ['task']
    """

    def __init__(self, path: Path, retrying: bool = False):
        self.path = path
        self._lines: dict[str, list[_Line]] = {}
        if path.exists():
            self._read(retrying)

    @property
    def tasks(self) -> set[str]:
        """The tasks that have ended."""
        return set(self._lines)

    @property
    def failed(self) -> set[str]:
        """The tasks whose last trial ended by a fault."""
        return {task for task, lines in self._lines.items() if lines[-1].failed}

    def add(self, trials: Sequence[Trajectory]) -> None:
        """Append all trials of a task, and see to it that they are on the disk.

        Raises:
            OSError: They cannot be written; the file is as before.
        """
        start = self.path.stat().st_size if self.path.exists() else 0
        written = [_encoded(trial) for trial in trials]
        try:
            with self.path.open("ab") as file:
                file.write(b"".join(written))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            self._cut(start)
            raise
        for trial, line in zip(trials, written, strict=True):
            self._note(trial.task, _Line(start, start + len(line), trial.error is not None))
            start += len(line)

    def drop(self, tasks: Iterable[str]) -> None:
        """Remove tasks from the file."""
        gone = set(tasks)
        if gone & set(self._lines):
            self.sort([task for task in self._lines if task not in gone])

    def sort(self, tasks: Sequence[str]) -> None:
        """Write the file anew with these tasks, in this order: the whole new one or not at all."""
        kept = [task for task in tasks if task in self._lines]
        if kept == list(self._lines):
            return  # it is so already: no second copy is needed, which may be large
        draft = self.path.with_name(self.path.name + ".part")
        lines: dict[str, list[_Line]] = {}
        with draft.open("wb") as target:
            if self.path.exists():
                with self.path.open("rb") as source:
                    for task in kept:
                        for line in self._lines[task]:
                            source.seek(line.start)
                            start = target.tell()
                            target.write(source.read(line.end - line.start))
                            moved = _Line(start, target.tell(), line.failed)
                            lines.setdefault(task, []).append(moved)
            target.flush()
            os.fsync(target.fileno())
        draft.replace(self.path)
        self._lines = lines

    def _cut(self, size: int) -> None:
        """Take away what was written beyond a size, if that can be done."""
        with suppress(OSError):  # else it is cut off when the run is gone on with
            os.truncate(self.path, size)

    def _note(self, task: str, line: _Line) -> None:
        self._lines.setdefault(task, []).append(line)

    def _read(self, retrying: bool) -> None:
        """Take note of every line; cut off a half one at the end."""
        start, last = 0, ""
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                end = start + len(line)
                try:
                    record: Any = unseal(line) if line.endswith(b"\n") else None
                    last, failed = str(record["task"]), record["error"] is not None
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    if end < size or isinstance(error, DataCorrupt):
                        raise DataCorrupt(
                            f"expected a trajectory as it was written in line {number} of {self.path}, "
                            "found something else; remove that line (its task is played again), or "
                            "begin anew in another folder"
                        ) from error
                    break
                self._note(last, _Line(start, end, failed))
                start = end
        if retrying and last:
            start = self._lines.pop(last)[0].start
        if start < size:
            with self.path.open("r+b") as file:
                file.truncate(start)


def _encoded(trajectory: Trajectory) -> bytes:
    """Return a trajectory's line, as `write_trajectories` writes it."""
    return f"{trajectory.to_line()}\n".encode("ascii")
