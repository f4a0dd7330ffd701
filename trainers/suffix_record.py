"""The folder of suffix rollouts: it grows by whole units, survives a kill, and can be gone on with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..agents.records import writing
from ..agents.run_description import FORMAT, known_sessions
from ..checksums import seal, unseal
from ..envs.storage import locked
from ..errors import DataCorrupt, DownloadError, OptionError
from .suffix_play import Branch, Outcome, Unit

__all__ = ["HEADER", "OUTCOMES", "SuffixRecord", "recording"]

HEADER = "suffix.json"
"""The file that says what was asked, with what."""
OUTCOMES = "outcomes.jsonl"
"""The file of outcomes, one line a unit."""


class SuffixRecord:
    """The outcomes of branches, in a file of one line a unit.

    Opening reads what is there. A last line that was only half written is cut off; one that was
    changed since is an error, wherever it is.

    Args:
        path: The file; its folder exists, the file may not.

    Attributes:
        known: The outcomes that the file has.

    Raises:
        DataCorrupt: A line was changed, or one that is not the last is no unit's.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     record = SuffixRecord(Path(folder, OUTCOMES))
        ...     unit = Unit("task", (), 0, ("look",))
        ...     record.add(unit, {"look": Outcome(False, 0.0, 1, "A room.", None)})
        ...     SuffixRecord(Path(folder, OUTCOMES)).known[unit.branch("look")].observation
        'A room.'
    """

    def __init__(self, path: Path):
        self._path = path
        self.known: dict[Branch, Outcome] = {}
        if path.exists():
            self._read()

    def add(self, unit: Unit, outcomes: Mapping[str, Outcome]) -> None:
        """Append what came of a unit, and see to it that it is on the disk.

        Raises:
            OSError: It cannot be written; the file is as before.
        """
        told = {
            "task": unit.task,
            "prefix": list(unit.prefix),
            "seed": unit.seed,
            "outcomes": [[action, one.to_json()] for action, one in outcomes.items()],
        }
        line = f"{seal(json.dumps(told, ensure_ascii=True, allow_nan=False))}\n".encode("ascii")
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):  # else it is cut off when the folder is opened again
                os.truncate(self._path, size)
            raise
        self.known |= {unit.branch(action): one for action, one in outcomes.items()}

    def _read(self) -> None:
        start, size = 0, self._path.stat().st_size
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                end = start + len(line)
                try:
                    self.known |= _outcomes_in(line)
                except DataCorrupt as error:
                    if end < size or isinstance(error.__cause__, DataCorrupt):
                        raise DataCorrupt(
                            f"line {number} of {self._path}: {error}; remove that line (it is played "
                            "again), or begin anew in another folder"
                        ) from error
                    break
                start = end
        if start < size:
            with self._path.open("r+b") as file:
                file.truncate(start)


@contextmanager
def recording(folder: Path, described: Mapping[str, Any], live: int) -> Iterator[SuffixRecord]:
    """Open the record in a folder, alone, once it is sure that it is of the same rollouts.

    Args:
        folder: The folder; made where it is missing.
        described: What is asked, with what, as `comap.agents.run_description` tells it.
        live: How many are played at the same time; written down only.

    Raises:
        OptionError: The folder is of other rollouts, in use by another process or cannot be written.
        DataCorrupt: Its files are not what they should be.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "lock", wait=0))
        except DownloadError as error:
            raise OptionError(f"cannot record suffix rollouts in {folder}: {error}") from error
        header = folder / HEADER
        if (folder / OUTCOMES).exists() and not header.exists():
            raise DataCorrupt(
                f"expected {HEADER} beside {OUTCOMES} in {folder}, found none: nobody knows what "
                "these are outcomes of; begin anew in another folder"
            )
        sessions = [*known_sessions(header, described), {"live": live}]
        with writing(folder):
            record = SuffixRecord(folder / OUTCOMES)
            _write(header, {"format": FORMAT, **described, "sessions": sessions})
        yield record


def _outcomes_in(line: bytes) -> dict[Branch, Outcome]:
    """Return what a line of the file tells."""
    try:
        told: Any = unseal(line) if line.endswith(b"\n") else None
        unit = Unit(told["task"], tuple(told["prefix"]), told["seed"], ())
        return {unit.branch(action): Outcome.from_json(one) for action, one in told["outcomes"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataCorrupt(
            "expected what came of a unit's branches, found something else"
        ) from error


def _write(path: Path, value: object) -> None:
    """Write a file so that a reader finds the old one or the new one, whole."""
    draft = path.with_name(path.name + ".part")
    draft.write_text(seal(json.dumps(value, indent=2, ensure_ascii=True)) + "\n", "ascii")
    draft.replace(path)
