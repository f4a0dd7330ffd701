"""Passages in one SQLite file, and search by words: SQLite's FTS5, or bm25s."""

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

import numpy as np
import numpy.typing as npt

from ...errors import DataCorrupt, DataNotFound, MissingExtra, install_command, needs_extra
from ..storage import Listener, Progress
from .retriever import Hit, check_queries, split_contents

PASSAGES = "passages.db"
_LONGEST_LINE = 4 * 2**20
_BATCH = 2_000
_CACHE_KIB = 32_768


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn SQLite's errors of the disk into `OSError`, as other writers tell them."""
    try:
        yield
    except sqlite3.OperationalError as error:
        said = f"{error} (is the disk full?)"
        raise OSError(errno.ENOSPC, said, str(path)) from error


def read_corpus(path: Path, progress: Listener) -> Iterator[tuple[str, str, str]]:
    """Yield id, title and text of each passage of a corpus."""
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


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file of an index under construction, in one transaction and without a journal."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("BEGIN")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()


def write_passages(folder: Path, corpus: Path, progress: Listener) -> dict[str, Any]:
    """Write the passages of a corpus, in the order of their ids, and return figures."""
    given, digest = folder / "draft.db", hashlib.sha256()
    columns = "(id TEXT PRIMARY KEY, title TEXT, text TEXT) WITHOUT ROWID"
    try:
        with _writing(given) as draft, _writing(folder / PASSAGES) as store:
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
            store.execute(
                "CREATE TABLE passages (row INTEGER PRIMARY KEY, id TEXT, title TEXT, text TEXT)"
            )
            in_order = draft.execute("SELECT id, title, text FROM given ORDER BY id")
            for place, one in enumerate(in_order):
                digest.update(json.dumps(one).encode() + b"\n")
                store.execute("INSERT INTO passages VALUES (?, ?, ?, ?)", (place, *one))
                if place % _BATCH == 0:
                    progress(Progress("sorting", place, total))
    finally:
        given.unlink()
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
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
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


def all_words(text: str) -> list[str]:
    return [word[:_LONGEST] for word in _WORD.findall(text.lower())]


def query_words(query: str) -> list[str]:
    """Return the different words of a query, lower case, in order, without the commonest ones."""
    found = dict.fromkeys(all_words(query))
    words = [word for word in found if word not in _STOP] or list(found)
    return words[:MOST_WORDS]


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
        check_queries(queries, k)
        return [self._one(query, k) for query in queries]

    def _one(self, query: str, k: int) -> list[Hit]:
        words = query_words(query)
        if not words:
            return []
        wanted = " OR ".join(f'"{word}"' for word in words)
        found = self._store.run(_FIND, (wanted, k))
        passages = self._store.passages([row for row, _ in found])
        return [Hit(*one, score) for one, (_, score) in zip(passages, found, strict=True)]


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
                f"kind: {install_command('search')}, then --kind bm25s"
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


_K1, _B = 0.9, 0.4  # as pyserini's, which Search-R1 takes
_TITLE_WEIGHT = 2
_FEW = 64  # so many are found faster one by one than by sorting


class BM25Retriever:
    """Finds passages by BM25 over stemmed words, with bm25s; titles count twice."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.identity = f"bm25s:{manifest['sha256'][:16]}"
        self._made_of = (folder, manifest)
        bm25s, stemmer = _packages()
        self._store = PassageStore(folder / PASSAGES)
        self._stem = stemmer.stemWords
        try:
            self._index = bm25s.BM25.load(str(folder), mmap=True, load_vocab=False)
        except Exception as error:  # numpy, JSON and bm25s raise many kinds for what is not theirs
            raise corrupt(folder, "an index of bm25s", str(error)) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return BM25Retriever, self._made_of

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        check_queries(queries, k)
        return [self._one(query, k) for query in queries]

    def _one(self, query: str, k: int) -> list[Hit]:
        stems = list(dict.fromkeys(self._stem(query_words(query))))
        marks = ",".join("?" * len(stems))
        found = self._store.run(f"SELECT number FROM stems WHERE stem IN ({marks})", stems)
        if not found:
            return []
        known = sorted(number for (number,) in found)
        try:
            scores = np.asarray(self._index.get_scores_from_ids(known))
        except (IndexError, TypeError, ValueError, ArithmeticError, MemoryError) as error:
            raise self._store.corrupt(f"{type(error).__name__}: {error}") from error
        chosen = _best(scores, k)
        passages = self._store.passages(list(chosen))
        return [Hit(*one, score) for one, score in zip(passages, chosen.values(), strict=True)]


def _best(scores: npt.NDArray[np.float32], k: int) -> dict[int, float]:
    """Return the rows of the best scores above 0 with these, best first, ties by row."""
    if k > _FEW:
        rows = np.flatnonzero(scores > 0)
        order = rows[np.lexsort((rows, -scores[rows]))[:k]]
        return {int(row): float(scores[row]) for row in order}
    found: dict[int, float] = {}
    scores = scores.copy()
    while len(found) < k:
        row = int(scores.argmax())  # of equal ones the first
        if scores[row] <= 0:
            break
        found[row] = float(scores[row])
        scores[row] = 0
    return found


def build_bm25(folder: Path, total: int, progress: Listener) -> dict[str, Any]:
    """Add the matrix of scores to an index under construction."""
    bm25s, stemmer = _packages()
    store = PassageStore(folder / PASSAGES)
    numbers: dict[str, int] = {}
    known: dict[str, int] = {}
    documents: list[list[int]] = []
    for row, (title, text) in enumerate(store.texts()):
        words = all_words(" ".join([title] * _TITLE_WEIGHT + [text]))
        for word in words:
            if word not in known:
                (stem,) = stemmer.stemWords([word])
                known[word] = numbers.setdefault(stem, len(numbers))
        documents.append([known[word] for word in words])
        if row % 1000 == 0:
            progress(Progress("indexing", row, total))
    store.close()
    index = bm25s.BM25(k1=_K1, b=_B)
    index.index((documents, numbers), show_progress=False)
    index.save(str(folder), show_progress=False)
    for path in folder.glob("vocab*.json*"):  # the words are in the table below
        path.unlink()
    with _writing(folder / PASSAGES) as table:
        table.execute("CREATE TABLE stems (stem TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID")
        table.executemany("INSERT INTO stems VALUES (?, ?)", numbers.items())
    progress(Progress("indexing", total, total))
    return {}


def _packages() -> tuple[Any, Any]:
    with needs_extra("search", "an index of kind 'bm25s'"):
        import bm25s
        import Stemmer
    return bm25s, Stemmer.Stemmer("english")
