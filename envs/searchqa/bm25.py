"""BM25 by the package bm25s: a matrix of scores, mapped into memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DataCorrupt, MissingExtra
from ..storage import Listener, Progress
from .passages import PASSAGES, PassageStore
from .retriever import Hit, check_queries
from .words import all_words, query_words

__all__ = ["BM25Retriever", "build_bm25"]

_K1, _B = 0.9, 0.4  # as pyserini's, which Search-R1 takes
_TITLE_WEIGHT = 2
_FEW = 64  # so many are found faster one by one than by sorting


class BM25Retriever:
    """Finds passages by BM25 over stemmed words, with bm25s; titles count twice.

    Args:
        folder: The index.
        manifest: What `open_index` read of it.

    Raises:
        MissingExtra: bm25s or PyStemmer is not installed.
        DataCorrupt: The index is broken.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.identity = f"bm25s:{manifest['sha256'][:16]}"
        self._made_of = (folder, manifest)
        bm25s, stemmer = _packages()
        self._store = PassageStore(folder / PASSAGES)
        self._stem = stemmer.stemWords
        try:
            self._index = bm25s.BM25.load(str(folder), mmap=True, load_vocab=False)
        except Exception as error:  # numpy, JSON and bm25s raise many kinds for what is not theirs
            raise DataCorrupt(
                f"expected an index of bm25s in {folder}, found: {error}; build it again: comap data "
                "build searchqa CORPUS --kind bm25s"
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return BM25Retriever, self._made_of

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, ties by id."""
        check_queries(queries, k)
        return [self._one(query, k) for query in queries]

    def _numbers(self, stems: Sequence[str]) -> list[int]:
        """Return the numbers of the stems that passages have."""
        marks = ",".join("?" * len(stems))
        found = self._store.run(f"SELECT number FROM stems WHERE stem IN ({marks})", stems)
        return sorted(number for (number,) in found)

    def _one(self, query: str, k: int) -> list[Hit]:
        stems = dict.fromkeys(self._stem(query_words(query)))
        known = self._numbers(list(stems))
        if not known:
            return []
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
    """Add the matrix of scores to an index under construction.

    Args:
        folder: It; the passages are there.
        total: How many.
        progress: Told how far it is.

    Raises:
        MissingExtra: bm25s or PyStemmer is not installed.
    """
    bm25s, stemmer = _packages()
    store = PassageStore(folder / PASSAGES)
    numbers: dict[str, int] = {}
    known: dict[str, int] = {}
    documents: list[list[int]] = []
    for row, (title, text) in enumerate(store.texts()):
        words = all_words(" ".join([title] * _TITLE_WEIGHT + [text]))
        for word in words:
            if word in known:
                continue
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
    table = sqlite3.connect(folder / PASSAGES)
    with table:
        table.execute("CREATE TABLE stems (stem TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID")
        table.executemany("INSERT INTO stems VALUES (?, ?)", numbers.items())
    table.close()
    progress(Progress("indexing", total, total))
    return {}


def _packages() -> tuple[Any, Any]:
    try:
        import bm25s
        import Stemmer
    except ImportError as error:
        raise MissingExtra.of("search", "an index of kind 'bm25s'") from error
    return bm25s, Stemmer.Stemmer("english")
