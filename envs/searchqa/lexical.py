"""Passages in one SQLite file, and search by words: SQLite's FTS5, or Tantivy."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import DataCorrupt, DataNotFound, MissingExtra, install_command, needs_extra
from ..storage import Listener, Progress
from .retriever import Hit, check_queries, split_contents

PASSAGES = "passages.db"
_LONGEST_LINE = 4 * 2**20
_BATCH = 2_000
_CACHE_KIB = 32_768


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn SQLite's errors of the disk into `OSError`, which other writers raise."""
    try:
        yield
    except sqlite3.OperationalError as error:
        message = f"{error} (is the disk full?)"
        raise OSError(errno.ENOSPC, message, str(path)) from error


def read_corpus(path: Path, progress: Listener) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of each passage of a corpus."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataNotFound(
            f"expected a corpus at {path}, found: {error.strerror}; name a file of JSON lines, each "
            '{"id": ..., "contents": ...}'
        ) from error

    bytes_read = 0
    total = path.stat().st_size
    with file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), 1):
            bytes_read += len(line)
            if number % _BATCH == 0:
                progress(Progress("reading", bytes_read, total))
            if line.strip():
                yield _passage(line, path, number)
    progress(Progress("reading", total, total))


def _passage(line: bytes, path: Path, number: int) -> tuple[str, str, str]:
    """Return id, title and text of the passage in a line of a corpus."""
    place = f"line {number} of {path}"
    if len(line) > _LONGEST_LINE:
        raise DataCorrupt(
            f"expected a passage of at most {_LONGEST_LINE:,} bytes in {place}, found more"
        )

    try:
        record = json.loads(line)
        name = record["id"]
        contents = record["contents"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataCorrupt(
            f'expected {{"id": ..., "contents": ...}} in {place}, found {line[:80]!r}; is this a corpus '
            "in FlashRAG's form?"
        ) from error
    if isinstance(name, bool) or not isinstance(name, str | int) or not isinstance(contents, str):
        raise DataCorrupt(f"expected an id and a text in {place}, found {record!r:.120}")

    name = str(name)
    try:
        (name + contents).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataCorrupt(f"expected text in {place}, found half a character: {error}") from error
    return name, *split_contents(contents.replace("\0", " "))


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file of an index under construction, in one transaction and without a journal."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        # What is cut off is made anew: nothing needs to be recovered.
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("BEGIN")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()


def write_passages(folder: Path, corpus: Path, progress: Listener) -> dict[str, Any]:
    """Write the passages of a corpus, in the order of their ids, and return figures."""
    draft_path = folder / "draft.db"
    digest = hashlib.sha256()
    columns = "(id TEXT PRIMARY KEY, title TEXT, text TEXT) WITHOUT ROWID"
    try:
        with _writing(draft_path) as draft, _writing(folder / PASSAGES) as store:
            draft.execute(f"CREATE TABLE given {columns}")
            for row in read_corpus(corpus, progress):
                try:
                    draft.execute("INSERT INTO given VALUES (?, ?, ?)", row)
                except sqlite3.IntegrityError:
                    raise DataCorrupt(
                        f"expected ids that differ in {corpus}, found two passages with the id "
                        f"{row[0]!r:.80}; give each its own"
                    ) from None

            (total,) = draft.execute("SELECT count(*) FROM given").fetchone()
            if not total:
                raise DataCorrupt(f"expected passages in {corpus}, found none; name another")

            # The draft has sorted them: rows are in the order of ids, and ties of scores by row.
            store.execute(
                "CREATE TABLE passages (row INTEGER PRIMARY KEY, id TEXT, title TEXT, text TEXT)"
            )
            in_order = draft.execute("SELECT id, title, text FROM given ORDER BY id")
            for row_number, passage in enumerate(in_order):
                digest.update(json.dumps(passage).encode() + b"\n")
                store.execute("INSERT INTO passages VALUES (?, ?, ?, ?)", (row_number, *passage))
                if row_number % _BATCH == 0:
                    progress(Progress("sorting", row_number, total))
    finally:
        draft_path.unlink()

    progress(Progress("sorting", total, total))
    return {"passages": total, "sha256": digest.hexdigest()}


def corrupt(folder: Path, expected: str, found: str) -> DataCorrupt:
    """Return the error for an index that is not whole."""
    return DataCorrupt(
        f"expected {expected} in {folder}, found: {found}; build it again: comap data build searchqa "
        "CORPUS"
    )


class PassageStore:
    """The passages of an index, read where they lie."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return PassageStore, (self.path,)

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows that a statement selects."""
        with self._lock:
            try:
                return self._connected().execute(sql, values).fetchall()
            except (sqlite3.Error, UnicodeError, MemoryError) as error:
                raise self.corrupt(str(error)) from error

    def passages(self, rows: Sequence[int]) -> list[tuple[str, str, str]]:
        """Return id, title and text of some rows, in their order."""
        marks = ",".join("?" * len(rows))
        sql = f"SELECT row, id, title, text FROM passages WHERE row IN ({marks})"  # only marks
        by_row = {row: (name, title, text) for row, name, title, text in self.run(sql, rows)}
        missing = [row for row in rows if row not in by_row]
        if missing:
            raise self.corrupt(f"no passage in row {missing[0]}")
        return [by_row[row] for row in rows]

    def corrupt(self, found: str) -> DataCorrupt:
        """Return the error for an index that is not whole."""
        return corrupt(self.path.parent, "a whole index", found)

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield title and text of all passages, in the order of rows, a part at a time."""
        first = 0
        while part := self.run(
            "SELECT title, text FROM passages WHERE row >= ? ORDER BY row LIMIT ?", (first, _BATCH)
        ):
            yield from part
            first += len(part)

    def close(self) -> None:
        """Close the file; the next statement opens it again."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        """Return this process's connection: SQLite's may not be carried through a fork."""
        if self._connection is None or self._process != os.getpid():
            self._connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro&immutable=1",
                uri=True,
                check_same_thread=False,
            )
            self._process = os.getpid()
        return self._connection


MOST_WORDS = 64
"""Different words of a query that count; the rest of a longer one is left out."""

_WORD = re.compile(r"[^\W_]+")
_LONGEST = 64
_STOP = frozenset(
    """
    a an and are as at be been but by did do does for from had has have he her his how i in is it
    its of on or she that the their they this to was were what when where which who whom whose why
    will with
    """.split()  # noqa: SIM905
)


def query_words(query: str) -> list[str]:
    """Return the different words of a query, lower case, in order, without the commonest ones."""
    all_words = dict.fromkeys(word[:_LONGEST] for word in _WORD.findall(query.lower()))
    words = [word for word in all_words if word not in _STOP]
    return (words or list(all_words))[:MOST_WORDS]


_FIND = (
    "SELECT rowid, -bm25(words, 3.0, 1.0) AS fits FROM words WHERE words MATCH ? "
    "ORDER BY fits DESC, rowid LIMIT ?"
)


class FTS5Retriever:
    """Finds passages by SQLite's BM25 over stemmed words, titles counting threefold."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.identity = f"fts5:{manifest['sha256'][:16]}"
        self._store = PassageStore(folder / PASSAGES)

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, ties by id."""
        check_queries(queries, k)
        return [self._search_one(query, k) for query in queries]

    def _search_one(self, query: str, k: int) -> list[Hit]:
        words = query_words(query)
        if not words:
            return []

        expression = " OR ".join(f'"{word}"' for word in words)
        rows = self._store.run(_FIND, (expression, k))
        passages = self._store.passages([row for row, _ in rows])
        return [Hit(*passage, score) for passage, (_, score) in zip(passages, rows, strict=True)]


def build_fts5(folder: Path, total: int, progress: Listener) -> dict[str, Any]:
    """Add the words of all passages to an index under construction."""
    with _writing(folder / PASSAGES) as index:
        try:
            index.execute(
                "CREATE VIRTUAL TABLE words USING fts5(title, text, content='', "
                "tokenize='porter unicode61 remove_diacritics 2')"
            )
        except sqlite3.OperationalError as error:
            if "no such module" not in str(error):
                raise  # the disk, say
            raise MissingExtra(
                f"expected an SQLite with FTS5, found {sqlite3.sqlite_version} ({error}); take another "
                f"kind: {install_command('search')}, then --kind tantivy"
            ) from error

        for first in range(0, total, _BATCH):
            rows = index.execute(
                "SELECT row, title, text FROM passages WHERE row >= ? AND row < ? ORDER BY row",
                (first, first + _BATCH),
            ).fetchall()
            index.executemany("INSERT INTO words(rowid, title, text) VALUES (?, ?, ?)", rows)
            progress(Progress("indexing", first, total))
        index.execute("INSERT INTO words(words) VALUES ('optimize')")
    progress(Progress("indexing", total, total))
    return {}


_TITLE_WEIGHT = 3
_HEAP = 128 * 2**20  # bytes of words that are held before they are written
_TIES = 16  # more are asked for, so that equal scores are in the order of rows


class TantivyRetriever:
    """Finds passages by Lucene's BM25 over stemmed words, with Tantivy; titles count threefold."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.identity = f"tantivy:{manifest['sha256'][:16]}"
        self._made_of = (folder, manifest)
        self._store = PassageStore(folder / PASSAGES)
        tantivy = _tantivy()
        with _corrupt_files(folder):
            self._index = tantivy.Index.open(str(folder))
            self._index.config_reader("manual", 1)  # it does not change: no thread looks after it
            self._searcher = self._index.searcher()

    def __reduce__(self) -> tuple[Any, ...]:
        return TantivyRetriever, self._made_of

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, ties by id."""
        check_queries(queries, k)
        return [self._search_one(query, k) for query in queries]

    def _search_one(self, query: str, k: int) -> list[Hit]:
        words = " ".join(query_words(query))  # letters and digits, lower case: no operators
        if not words:
            return []

        with _corrupt_files(self._store.path.parent):
            parsed = self._index.parse_query(words, ["words"])
            hits = self._searcher.search(parsed, k + _TIES, count=False).hits
            rows = self._searcher.fast_field_values("row", [address for _, address in hits])
        best = sorted((-score, row) for (score, _), row in zip(hits, rows, strict=True))[:k]
        passages = self._store.passages([row for _, row in best])
        return [Hit(*passage, -score) for passage, (score, _) in zip(passages, best, strict=True)]


@contextmanager
def _corrupt_files(folder: Path) -> Iterator[None]:
    """Turn what Tantivy raises over broken files into `DataCorrupt`: Rust's panics are no `Exception`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, ValueError | OSError) and type(error).__name__ != "PanicException":
            raise
        raise corrupt(folder, "an index of Tantivy", str(error)) from error


def build_tantivy(folder: Path, total: int, progress: Listener) -> dict[str, Any]:
    """Add the words of all passages to an index under construction."""
    tantivy = _tantivy()
    schema = tantivy.SchemaBuilder()
    schema.add_unsigned_field("row", stored=False, indexed=False, fast=True)
    schema.add_text_field("words", stored=False, tokenizer_name="en_stem", index_option="freq")
    store = PassageStore(folder / PASSAGES)
    index = tantivy.Index(schema.build(), path=str(folder))
    with index.writer(heap_size=_HEAP, num_threads=1) as writer:
        for row, (title, text) in enumerate(store.texts()):
            passage = tantivy.Document(words=" ".join([title] * _TITLE_WEIGHT + [text]))
            passage.add_unsigned("row", row)
            writer.add_document(passage)
            if row % _BATCH == 0:
                progress(Progress("indexing", row, total))
        writer.commit()
        writer.wait_merging_threads()
    store.close()
    progress(Progress("indexing", total, total))
    return {}


def _tantivy() -> Any:
    with needs_extra("search", "an index of kind 'tantivy'"):
        import tantivy
    return tantivy
