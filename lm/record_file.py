"""A file of JSON lines that several processes may append to, and that a kill leaves readable."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..checksums import seal, unseal
from ..errors import DataCorrupt, DataNotFound, LanguageModelError

try:
    import fcntl
except ImportError:  # Windows: a line is still written in one piece, but nothing holds others off.
    fcntl = None  # type: ignore[assignment]

__all__ = ["RecordFile"]

Read = Callable[[Any], None]


class RecordFile:
    """Reads and appends JSON lines with checksums (`comap.checksums`); lines without one count too.

    A line is whole when it ends with a line break. What follows the last one was being written when
    a process was killed; readers leave it out and the next writer removes it. Appending holds a lock
    on the file and first reads what others have appended.

    Args:
        path: The file.
        read: Called with the data of each line, in order; it raises `DataCorrupt` for wrong data.

    Raises:
        DataCorrupt: A whole line is no JSON, was changed since, or `read` said so; the message has the
            line's number.

    Example:
        >>> import tempfile
        >>> seen = []
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = RecordFile(Path(folder) / "lines.jsonl", seen.append)
        ...     file.append(lambda: [{"a": 1}])
        ...     RecordFile(file.path, seen.append).refresh()
        >>> seen
        [{'a': 1}, {'a': 1}]
    """

    def __init__(self, path: Path, read: Read):
        self.path, self._read = path, read
        self._offset = self._number = 0
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Read the lines that were appended since the last time.

        Raises:
            DataNotFound: There is no such file, or it cannot be read.
            DataCorrupt: A line is not what it should be.
        """
        try:
            with self._lock, self.path.open("rb") as file:
                self._take(file.fileno())
        except OSError as error:
            raise DataNotFound(
                f"cannot read the record {self.path}: {error.strerror}; name a file that was "
                "recorded, or give a model to record"
            ) from error

    def append(self, lines: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """Append lines; they are in the operating system's hands when this returns.

        Args:
            lines: Returns them. It is called when all lines of others have been read, so that it
                can leave out what they wrote already.

        Raises:
            LanguageModelError: The file cannot be written.
            DataCorrupt: A line of others is not what it should be.
        """
        try:
            with self._lock, _opened(self.path) as file:
                end = self._take(file)
                os.ftruncate(file, end)
                fresh = list(lines())
                text = "".join(seal(json.dumps(line, ensure_ascii=True)) + "\n" for line in fresh)
                _write(file, text.encode("ascii"), end)
                self._take(file)
        except OSError as error:
            raise LanguageModelError(
                f"cannot write the record {self.path}: {error.strerror}; make room or name another "
                "file"
            ) from error

    def _take(self, file: int) -> int:
        """Read new whole lines, and return where the last one ends."""
        os.lseek(file, self._offset, os.SEEK_SET)
        with os.fdopen(os.dup(file), "rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._number += 1
                try:
                    self._read(unseal(line))
                except (ValueError, RecursionError) as error:
                    self._number -= 1
                    raise DataCorrupt(
                        f"{self.path}, line {self._number + 1}: {error}; remove the line, or record "
                        "again"
                    ) from error
                self._offset += len(line)
        return self._offset


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file to read and append, held against other processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _write(file: int, data: bytes, end: int) -> None:
    """Append all of the data, or nothing where the disk is full."""
    done = 0
    try:
        while done < len(data):
            done += os.write(file, data[done:])
    except OSError:
        os.ftruncate(file, end)
        raise
