"""Rows of published files, one after the other: JSON arrays, JSON lines (also gzip), Parquet.

A file may be larger than memory: of JSON no more than a row is held, of Parquet a group of rows.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from ... import jsonl
from ...errors import DataNotFound, OptionError, needs_extra

MOST_ROW = 1 << 26
"""Most bytes of a row; a line without an end, or an archive that unfolds to terabytes, stops there."""

_CHUNK = 1 << 20
_NEAR_END = 32  # characters: a fault so near to what was read may be mended by what follows
_BLANKS = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
_UNREADABLE = (ValueError, RecursionError)
_DAMAGED = (EOFError, OSError, zlib.error, UnicodeDecodeError)
_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".parquet")

Read = Callable[[int], object]
"""Told how many bytes of the file were read so far."""


class Row(NamedTuple):
    """A row of a file: its number from 1, its line (0 where files have none), and what it holds.

    `problem` says why it holds nothing; `is_end` whether nothing after it could be read.
    """

    number: int
    line: int
    value: Any = None
    problem: str = ""
    is_end: bool = False

    @property
    def place(self) -> str:
        return f"row {self.number}, line {self.line}" if self.line else f"row {self.number}"


def rows_of(path: Path, on_read: Read = lambda count: None) -> Iterator[Row]:
    """Yield the rows of a file; what is broken comes as a row with a problem.

    Raises:
        MissingExtra: It is Parquet, and pyarrow is not installed.
    """
    if path.suffix == ".parquet":
        yield from _parquet_rows(path, on_read)
        return

    with path.open("rb") as raw, _unpacked(raw, path.suffix == ".gz") as file:
        start = b""
        try:
            # Some files of JSON lines are named .json: the first letter tells.
            while not start.strip() and (block := file.read(64)):
                start = block
            file.seek(0)
        except _DAMAGED as error:
            yield Row(1, 1, problem=f"a damaged file ({error})", is_end=True)
            return

        is_array = start.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["
        reader = _array_rows if is_array else _line_rows
        for row in reader(file):
            on_read(raw.tell())
            yield row


def check_file(path: Path) -> None:
    """Refuse a file that is not there, or whose name ends in nothing that is known."""
    if path.is_dir():
        raise OptionError(
            f"expected a file, found the folder {path}; name the files in it ({path}/*.json)"
        )
    if not path.is_file():
        raise DataNotFound(f"expected a file at {path}, found none; name another")
    if not path.name.endswith(_SUFFIXES):
        raise OptionError(
            f"expected a file whose name ends in {', '.join(_SUFFIXES)}, found {path.name!r:.80}; "
            "rename it"
        )


def _unpacked(raw: IO[bytes], is_archive: bool) -> IO[bytes]:
    return gzip.GzipFile(fileobj=raw) if is_archive else raw  # type: ignore[return-value]


def _parquet_rows(path: Path, on_read: Read) -> Iterator[Row]:
    with needs_extra("hub", "a Parquet file"):
        import pyarrow
        from pyarrow import parquet

    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=64):
            for value in batch.to_pylist():
                number += 1
                yield Row(number, 0, value)
            on_read(0)
    except (pyarrow.ArrowException, OSError) as error:
        problem = f"a damaged Parquet file ({error!s:.120})"
        yield Row(number + 1, 0, problem=problem, is_end=True)


def _line_rows(file: IO[bytes]) -> Iterator[Row]:
    """Yield the rows of JSON lines; a broken line is a row with a problem, and the next is read."""
    number = 0
    line_number = 0
    try:
        while line := file.readline(MOST_ROW):
            line_number += 1
            if len(line) == MOST_ROW and not line.endswith(b"\n"):
                number += 1
                yield Row(number, line_number, problem=f"more than {MOST_ROW:,} bytes")
                while line and not line.endswith(b"\n"):
                    line = file.readline(_CHUNK)
                continue
            if not line.removeprefix(codecs.BOM_UTF8).strip():
                continue

            number += 1
            try:
                value = jsonl.plain(json.loads(line.removeprefix(codecs.BOM_UTF8)))
            except _UNREADABLE as error:
                yield Row(number, line_number, problem=f"no JSON ({error!s:.120})")
            else:
                yield Row(number, line_number, value)
    except _DAMAGED as error:
        problem = f"a damaged file ({error!s:.120})"
        yield Row(number + 1, line_number + 1, problem=problem, is_end=True)


class _Window:
    """The part of a text that is being read, from `start` on: it grows at its end."""

    def __init__(self, file: IO[bytes]):
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text = ""
        self.start = 0
        self.line = 1
        self.has_all = False

    def grow(self) -> bool:
        """Read on, as much again as there is; return whether there was anything."""
        if self.has_all or len(self.text) - self.start > MOST_ROW:
            return False
        block = self._file.read(max(_CHUNK, len(self.text) - self.start))
        self.has_all = not block

        # What was read is dropped here alone: to do it for each row would copy the rest each time.
        self.text = self.text[self.start :] + self._decoder.decode(block, final=not block)
        self.start = 0
        return True

    def go_to(self, end: int) -> None:
        self.line += self.text.count("\n", self.start, end)
        self.start = end

    def skip(self, separators: re.Pattern[str]) -> str:
        """Go behind separators, and return the letter that follows; empty at the end."""
        while True:
            match = separators.match(self.text, self.start)
            self.go_to(match.end() if match else self.start)
            if self.start < len(self.text):
                return self.text[self.start]
            if not self.grow():
                return ""


def _array_rows(file: IO[bytes]) -> Iterator[Row]:
    """Yield the elements of an array, each as soon as its text is there."""
    window = _Window(file)
    number = 0
    try:
        window.skip(_BLANKS)
        window.go_to(window.start + 1)  # the bracket
        while (letter := window.skip(_BETWEEN if number else _BLANKS)) != "]":
            number += 1
            if not letter:
                problem = "the file ends within its array"
                yield Row(number, window.line, problem=problem, is_end=True)
                return

            row, end = _element(window, number)
            yield row
            if row.is_end:  # where the next element begins is not known
                return
            window.go_to(end)
    except _DAMAGED as error:
        problem = f"a damaged file ({error!s:.120})"
        yield Row(number + 1, window.line, problem=problem, is_end=True)


def _element(window: _Window, number: int) -> tuple[Row, int]:
    """Return the element at the window's start, and where it ends."""
    decoder = json.JSONDecoder()
    while True:
        try:
            value, end = decoder.raw_decode(window.text, window.start)
            # A number goes on with what is not yet read.
            if end < len(window.text) or not window.grow():
                break
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated") or (
                error.pos + _NEAR_END >= len(window.text)
            )
            if not is_cut or not window.grow():
                line = window.line + window.text.count("\n", window.start, error.pos)
                problem = f"no JSON ({error.msg}, line {line}); the rest of the file is not read"
                return Row(number, window.line, problem=problem, is_end=True), 0
        except _UNREADABLE as error:
            problem = f"no JSON ({error!s:.120}); the rest of the file is not read"
            return Row(number, window.line, problem=problem, is_end=True), 0

    if not jsonl.is_shallow(value):
        return Row(number, window.line, problem="nested too deeply"), end
    return Row(number, window.line, value), end
