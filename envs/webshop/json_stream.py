"""Reading JSON files of any size, one element at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ...errors import DataCorrupt, DataNotFound

__all__ = ["elements", "items"]

_CHUNK = 1 << 20
_LARGEST = 1 << 28
_AHEAD = 3  # of "1.5" or "1e-5", the beginning is a number, too
_BLANKS = " \t\n\r"
Told = Callable[[int], object]
"""What is told how many characters were read so far."""


def elements(path: Path, told: Told = lambda read: None) -> Iterator[Any]:
    """Yield the elements of the JSON array in a file; memory holds one of them and a little more.

    Args:
        path: The file, UTF-8.
        told: Is told now and then how many characters were read.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: It is not a JSON array.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.json")
        ...     written = path.write_text('[{"a": 1}, 2.5, "x"]')
        ...     list(elements(path))
        [{'a': 1}, 2.5, 'x']
    """
    with _Reader.of(path, told) as reader:
        reader.expect("[")
        if reader.peek() != "]":
            yield reader.value()
            while reader.peek() == ",":
                reader.expect(",")
                yield reader.value()
        reader.expect("]")
        reader.end()


def items(path: Path, told: Told = lambda read: None) -> Iterator[tuple[str, Any]]:
    """Yield key and value of each entry of the JSON object in a file.

    Args:
        path: The file, UTF-8.
        told: Is told now and then how many characters were read.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: It is not a JSON object.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "a.json")
        ...     written = path.write_text('{"a": [1], "b": null}')
        ...     list(items(path))
        [('a', [1]), ('b', None)]
    """
    with _Reader.of(path, told) as reader:
        reader.expect("{")
        if reader.peek() != "}":
            yield reader.entry()
            while reader.peek() == ",":
                reader.expect(",")
                yield reader.entry()
        reader.expect("}")
        reader.end()


class _Reader:
    """A window over the file that moves on as values are taken from it."""

    def __init__(self, path: Path, file: IO[str], told: Told):
        self._path, self._file, self._told = path, file, told
        self._text, self._at, self._before = "", 0, 0
        self._decode = json.JSONDecoder().raw_decode

    @classmethod
    def of(cls, path: Path, told: Told) -> _Reader:
        try:
            return cls(path, path.open(encoding="utf-8"), told)
        except FileNotFoundError as error:
            raise DataNotFound(
                f"expected a JSON file at {path}, found nothing; give the path of WebShop's file"
            ) from error

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *caught: object) -> None:
        self._file.close()

    def peek(self) -> str:
        """Return the next character that is not blank; empty at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANKS:
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def expect(self, sign: str) -> None:
        """Take the next character, which must be `sign`."""
        if (found := self.peek()) != sign:
            raise self._corrupt(f"{sign!r}", repr(found) if found else "the end of the file")
        self._at += 1

    def entry(self) -> tuple[str, Any]:
        """Take a key, the colon and a value."""
        if self.peek() != '"':
            raise self._corrupt("a key in quotes", repr(self.peek()))
        key = self.value()
        self.expect(":")
        return key, self.value()

    def value(self) -> Any:
        """Take the next value; a number counts as whole once enough follows it."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > _LARGEST or not self._more():
                    raise self._corrupt("a JSON value", error.msg) from error
                continue
            except RecursionError as error:
                raise self._corrupt("a JSON value", "lists within lists without end") from error
            length = end - self._at
            if end + _AHEAD <= len(self._text) or not self._more():
                self._at += length
                return value

    def end(self) -> None:
        """Check that nothing but blanks follows."""
        if found := self.peek():
            raise self._corrupt("the end of the file", repr(found))

    def _more(self) -> bool:
        """Read on; return whether there was anything."""
        try:
            read = self._file.read(max(_CHUNK, len(self._text) - self._at))
        except UnicodeDecodeError as error:
            raise self._corrupt("UTF-8", str(error)) from error
        self._before += self._at
        self._text, self._at = self._text[self._at :] + read, 0
        self._told(self._before + len(self._text))
        return bool(read)

    def _corrupt(self, expected: str, found: str) -> DataCorrupt:
        return DataCorrupt(
            f"expected {expected} at character {self._before + self._at} of {self._path}, found "
            f"{found}; get the file again"
        )
