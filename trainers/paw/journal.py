"""What a training writes down as it goes: a line for each update, a line for each evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...agents.records import writing
from ...checksums import seal, unseal
from ...errors import DataCorrupt
from ..processes import is_first, wait

__all__ = ["EVALUATIONS", "FAULTS", "METRICS", "Journal", "read_lines"]

METRICS = "metrics.jsonl"
"""The file of updates."""
EVALUATIONS = "evaluations.jsonl"
"""The file of evaluations."""

FAULTS = "faults.jsonl"
"""The file of episodes that a fault ended, in rollouts."""


class Journal:
    """The files of a training's folder that grow by lines; the first process writes them.

    Args:
        out: The folder.

    Example:
        >>> Path("out").mkdir()
        >>> journal = Journal(Path("out"))
        >>> journal.update({"update": 1, "success": 0.5})
        >>> journal.begin_after(0)  # a kill came before the checkpoint of update 1
        >>> read_lines(Path("out") / METRICS)
        []
    """

    def __init__(self, out: Path) -> None:
        self._metrics, self._evaluations = out / METRICS, out / EVALUATIONS
        self._faults = out / FAULTS
        self._known: set[tuple[int, str]] = set()

    def begin_after(self, update: int) -> None:
        """Forget what is there of later updates: they are done again.

        Args:
            update: Updates that are done.

        Raises:
            DataCorrupt: A file is not what this wrote.
        """
        if is_first():
            _keep(self._metrics, update)
            _keep(self._faults, update, "task", "error")
            _keep(self._evaluations, update, "split")
        wait()
        lines = read_lines(self._evaluations, "split")
        self._known = {(line["update"], line["split"]) for line in lines}

    def evaluated(self, update: int, split: str) -> bool:
        """Return whether a split was evaluated after so many updates."""
        return (update, split) in self._known

    def update(self, line: Mapping[str, Any]) -> None:
        """Write down an update."""
        _append(self._metrics, line)

    def fault(self, line: Mapping[str, Any]) -> None:
        """Write down an episode of an update that a fault ended: nothing is learned from it."""
        _append(self._faults, line)

    def evaluation(self, line: Mapping[str, Any]) -> None:
        """Write down an evaluation of a split."""
        _append(self._evaluations, line)
        self._known.add((line["update"], line["split"]))


def read_lines(path: Path, *names: str) -> list[dict[str, Any]]:
    """Return the lines of a file; none where it is not there, nor of a last one that is half written.

    Args:
        path: The file.
        *names: What each line tells besides its update, in text.

    Raises:
        DataCorrupt: A line was changed, or another than the last is not one of a journal.
    """
    found: list[dict[str, Any]] = []
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            told: Any = unseal(line) if line.endswith(b"\n") else None
            if not isinstance(told["update"], int):
                raise TypeError("no number of an update")
            if not all(isinstance(told[name], str) for name in names):
                raise TypeError(f"no text as {' and '.join(names)}")
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and not isinstance(error, DataCorrupt):
                break
            raise DataCorrupt(
                f"expected an update or an evaluation in line {number} of {path}, found something "
                f"else ({error}); remove that line"
            ) from error
        found.append(told)
    return found


def _keep(path: Path, update: int, *names: str) -> None:
    if not path.exists():
        return
    kept = [line for line in read_lines(path, *names) if line["update"] <= update]
    draft = path.with_name(path.name + ".part")
    with writing(path.parent):
        draft.write_text("".join(f"{seal(json.dumps(line))}\n" for line in kept), "ascii")
        draft.replace(path)


def _append(path: Path, line: Mapping[str, Any]) -> None:
    if is_first():
        with writing(path.parent), path.open("a", encoding="ascii") as file:
            file.write(seal(json.dumps(line)) + "\n")
