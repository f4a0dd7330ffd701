"""Work on many things, each done once: shared among processes, written down as it is done.

What a file has is not done again, so that a stage that was killed goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from ...agents.records import writing
from ...checksums import seal, unseal
from ...errors import DataCorrupt
from ..processes import gathered, rank, wait, world_size

__all__ = ["Found", "each_once"]

Found: TypeAlias = "tuple[str, Any]"
"""A key, and the JSON data that came of it."""


def each_once(
    folder: Path, keys: Sequence[str], work: Callable[[Sequence[str]], Iterable[Found]]
) -> dict[str, Any]:
    """Return what came of each key, in the order of the keys; what is known is not done again.

    Args:
        folder: Where a file for each process grows by a line a key.
        keys: The keys, all different.
        work: Given the keys that this process still has to do, yields each with what came of it.

    Raises:
        DataCorrupt: A line was changed, or one that is not the last is not what this wrote.
        OptionError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     once = each_once(Path(place), ["a", "b"], lambda keys: [(k, len(k)) for k in keys])
        ...     each_once(Path(place), ["a", "b"], lambda keys: []) == once
        True
    """
    mine = list(keys)[rank() :: world_size()]
    path = folder / f"rank-{rank()}-of-{world_size()}.jsonl"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        known = _read(path)
    missing = [key for key in mine if key not in known]
    if missing:
        for key, value in work(missing):
            with writing(folder):
                _append(path, {"key": key, "value": value})
            known[key] = value
    wait()
    everything = dict(gathered([(key, known[key]) for key in mine]))
    return {key: everything[key] for key in keys}


def _append(path: Path, told: object) -> None:
    line = f"{seal(json.dumps(told, ensure_ascii=True))}\n".encode("ascii")
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):  # else it is cut off when the file is read again
            os.truncate(path, size)
        raise


def _read(path: Path) -> dict[str, Any]:
    """Return what a file has, and cut off a last line that was only half written."""
    known: dict[str, Any] = {}
    if not path.exists():
        return known
    whole = path.read_bytes()
    lines, end = whole.splitlines(keepends=True), 0
    for number, line in enumerate(lines, 1):
        try:
            told: Any = unseal(line) if line.endswith(b"\n") else None
            known[str(told["key"])] = told["value"]
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines) or isinstance(error, DataCorrupt):
                raise DataCorrupt(
                    f"expected what came of one thing, as it was written, in line {number} of {path}, "
                    "found something else; remove that line (it is done again), or begin anew in "
                    "another folder"
                ) from error
            break
        end += len(line)
    if end < len(whole):
        os.truncate(path, end)
    return known
