"""SQLite's own full-text search, FTS5: nothing to install, little memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import MissingExtra, OptionError
from ..storage import Listener, Progress
from .passages import PASSAGES, PassageStore
from .retriever import Hit, check_queries
from .words import query_words

__all__ = ["TITLE_WEIGHT", "FTS5Retriever", "build_fts5"]

TITLE_WEIGHT = 3.0
"""How often titles count unless told otherwise."""

_BATCH = 2_000
_MOST = 1_000
_FIND = (
    "SELECT rowid, -bm25(words, ?, 1.0) AS fits FROM words WHERE words MATCH ? "
    "ORDER BY fits DESC, rowid LIMIT ?"
)


class FTS5Retriever:
    """Finds passages by SQLite's BM25 over stemmed words, titles counting threefold.

    Args:
        folder: The index.
        manifest: What `open_index` read of it.
        title_weight: How often a word of a title counts; 1 as one of the text.

    Raises:
        OptionError: The weight is no number from 0 to 1,000.
        DataCorrupt: A search finds the index broken.
    """

    def __init__(
        self, folder: Path, manifest: dict[str, Any], *, title_weight: float = TITLE_WEIGHT
    ):
        number = isinstance(title_weight, int | float) and not isinstance(title_weight, bool)
        if not number or not 0 <= title_weight <= _MOST:
            raise OptionError(
                f"title_weight must be a number from 0 to {_MOST:,}, not {title_weight!r}"
            )
        self.identity = f"fts5:{manifest['sha256'][:16]}"
        if title_weight != TITLE_WEIGHT:
            self.identity += f":{title_weight:g}"
        self._weight = float(title_weight)
        self._store = PassageStore(folder / PASSAGES)

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, ties by id."""
        check_queries(queries, k)
        return [self._one(query, k) for query in queries]

    def _one(self, query: str, k: int) -> list[Hit]:
        words = query_words(query)
        if not words:
            return []
        wanted = " OR ".join(f'"{word}"' for word in words)
        found = self._store.run(_FIND, (self._weight, wanted, k))
        passages = self._store.passages([row for row, _ in found])
        return [Hit(*one, score) for one, (_, score) in zip(passages, found, strict=True)]


def build_fts5(folder: Path, total: int, progress: Listener) -> dict[str, Any]:
    """Add the words of all passages to an index under construction.

    Args:
        folder: It; the passages are there.
        total: How many.
        progress: Told how far it is.

    Raises:
        MissingExtra: This Python's SQLite has no FTS5.
    """
    index = sqlite3.connect(folder / PASSAGES, isolation_level=None)
    try:
        index.execute("PRAGMA journal_mode = OFF")
        index.execute("PRAGMA synchronous = OFF")
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
                'kind: pip install "comap[search]", then --kind bm25s'
            ) from error
        index.execute("BEGIN")
        for row, one in enumerate(_in_parts(index, total)):
            index.execute("INSERT INTO words(rowid, title, text) VALUES (?, ?, ?)", (row, *one))
            if row % _BATCH == 0:
                progress(Progress("indexing", row, total))
        index.execute("COMMIT")
        index.execute("INSERT INTO words(words) VALUES ('optimize')")
    finally:
        index.close()
    progress(Progress("indexing", total, total))
    return {}


def _in_parts(index: sqlite3.Connection, total: int) -> Iterator[tuple[str, str]]:
    """Yield title and text of all passages, read by the connection that writes."""
    for first in range(0, total, _BATCH):
        yield from index.execute(
            "SELECT title, text FROM passages WHERE row >= ? AND row < ? ORDER BY row",
            (first, first + _BATCH),
        ).fetchall()
