"""Passages on disk: a corpus is read line by line into one SQLite file, in the order of ids."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import DataCorrupt, DataNotFound
from ..storage import Listener, Progress
from .retriever import split_contents

__all__ = ["PASSAGES", "PassageStore", "read_corpus", "write_passages", "written"]

PASSAGES = "passages.db"
"""The file of passages in an index."""

_LONGEST_LINE = 4 * 2**20
_BATCH = 2_000
_CACHE_KIB = 32_768


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn SQLite's errors of the disk into `OSError`, as other writers tell them.

    Args:
        path: What is written.

    Example:
        >>> with written(Path("index")):
        ...     raise sqlite3.OperationalError("database or disk is full")
        Traceback (most recent call last):
        OSError: [Errno 28] database or disk is full (is the disk full?): 'index'
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        said = f"{error} (is the disk full?)"
        raise OSError(errno.ENOSPC, said, str(path)) from error


def read_corpus(path: Path, progress: Listener) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of each passage of a corpus.

    Args:
        path: JSON lines, ``{"id", "contents"}``.
        progress: Told how many bytes are read.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: A line is no passage; the message says which.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataNotFound(
            f"expected a corpus at {path}, found: {error.strerror}; name a file of JSON lines, each "
            '{"id": ..., "contents": ...}'
        ) from error
    done, total = 0, path.stat().st_size
    with file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), 1):
            done += len(line)
            if number % _BATCH == 0:
                progress(Progress("reading", done, total))
            if line.strip():
                yield _passage(line, path, number)
    progress(Progress("reading", total, total))


def _passage(line: bytes, path: Path, number: int) -> tuple[str, str, str]:
    said = f"line {number} of {path}"
    if len(line) > _LONGEST_LINE:
        raise DataCorrupt(
            f"expected a passage of at most {_LONGEST_LINE:,} bytes in {said}, found more"
        )
    try:
        record = json.loads(line)
        name, contents = record["id"], record["contents"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataCorrupt(
            f'expected {{"id": ..., "contents": ...}} in {said}, found {line[:80]!r}; is this a corpus '
            "in FlashRAG's form?"
        ) from error
    if isinstance(name, bool) or not isinstance(name, str | int) or not isinstance(contents, str):
        raise DataCorrupt(f"expected an id and a text in {said}, found {record!r:.120}")
    name = str(name)
    try:
        (name + contents).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataCorrupt(f"expected text in {said}, found half a character: {error}") from error
    return name, *split_contents(contents.replace("\0", " "))


def write_passages(folder: Path, corpus: Path, progress: Listener) -> dict[str, Any]:
    """Write the passages of a corpus, in the order of their ids, and return figures.

    Rows are numbered from 0 in that order, so that what is sorted by row is sorted by id. Memory does
    not grow with the corpus.

    Args:
        folder: The index under construction.
        corpus: The corpus.
        progress: Told how far it is.

    Returns:
        ``passages``, how many, and ``sha256`` of ids and texts.

    Raises:
        DataNotFound, DataCorrupt: See `read_corpus`; or two passages have one id, or there is none.
    """
    draft = sqlite3.connect(folder / "draft.db", isolation_level=None)
    try:
        draft.execute("PRAGMA journal_mode = OFF")
        draft.execute("PRAGMA synchronous = OFF")
        draft.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        draft.execute(
            "CREATE TABLE given (id TEXT PRIMARY KEY, title TEXT, text TEXT) WITHOUT ROWID"
        )
        draft.execute("BEGIN")
        for row in read_corpus(corpus, progress):
            try:
                draft.execute("INSERT INTO given VALUES (?, ?, ?)", row)
            except sqlite3.IntegrityError:
                raise DataCorrupt(
                    f"expected ids that differ in {corpus}, found two passages with the id "
                    f"{row[0]!r:.80}; give each its own"
                ) from None
        draft.execute("COMMIT")
        return _in_order(draft, folder, corpus, progress)
    finally:
        draft.close()
        (folder / "draft.db").unlink()


def _in_order(
    draft: sqlite3.Connection, folder: Path, corpus: Path, progress: Listener
) -> dict[str, Any]:
    """Copy the passages in the order of their ids."""
    (total,) = draft.execute("SELECT count(*) FROM given").fetchone()
    if not total:
        raise DataCorrupt(f"expected passages in {corpus}, found none")
    store = sqlite3.connect(folder / PASSAGES, isolation_level=None)
    digest = hashlib.sha256()
    try:
        store.execute("PRAGMA journal_mode = OFF")
        store.execute("PRAGMA synchronous = OFF")
        store.execute(
            "CREATE TABLE passages (row INTEGER PRIMARY KEY, id TEXT, title TEXT, text TEXT)"
        )
        store.execute("BEGIN")
        for row, one in enumerate(draft.execute("SELECT id, title, text FROM given ORDER BY id")):
            digest.update(json.dumps(one).encode() + b"\n")
            store.execute("INSERT INTO passages VALUES (?, ?, ?, ?)", (row, *one))
            if row % _BATCH == 0:
                progress(Progress("sorting", row, total))
        store.execute("COMMIT")
    finally:
        store.close()
    progress(Progress("sorting", total, total))
    return {"passages": total, "sha256": digest.hexdigest()}


class PassageStore:
    """The passages of an index, read where they lie.

    It may be used by many threads, and in a process that was forked off.

    Args:
        path: The SQLite file.

    Raises:
        DataCorrupt: A query finds the file broken.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return PassageStore, (self.path,)

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query."""
        with self._lock:
            try:
                return self._connected().execute(sql, values).fetchall()
            except (sqlite3.Error, UnicodeError, MemoryError) as error:
                raise self.corrupt(str(error)) from error

    def passages(self, rows: Sequence[int]) -> list[tuple[str, str, str]]:
        """Return id, title and text of some rows, in their order."""
        marks = ",".join("?" * len(rows))
        sql = f"SELECT row, id, title, text FROM passages WHERE row IN ({marks})"  # only marks
        found = {row: (name, title, text) for row, name, title, text in self.run(sql, rows)}
        missing = [row for row in rows if row not in found]
        if missing:
            raise self.corrupt(f"no passage in row {missing[0]}")
        return [found[row] for row in rows]

    def corrupt(self, found: str) -> DataCorrupt:
        """Return the error for an index that is not whole."""
        return DataCorrupt(
            f"expected a whole index at {self.path.parent}, found: {found}; build it again: comap data "
            "build searchqa CORPUS"
        )

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield title and text of all passages, in the order of rows, a part at a time."""
        first = 0
        while part := self.run(
            "SELECT title, text FROM passages WHERE row >= ? ORDER BY row LIMIT ?", (first, _BATCH)
        ):
            yield from part
            first += len(part)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        """Return a connection of this process."""
        if self._connection is None or self._process != os.getpid():
            self._connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro&immutable=1",
                uri=True,
                check_same_thread=False,
            )
            self._process = os.getpid()
        return self._connection
