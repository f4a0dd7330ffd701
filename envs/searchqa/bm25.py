"""BM25 by the package bm25s: a matrix of scores, mapped into memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataCorrupt, MissingExtra
from ..storage import Listener, Progress
from .passages import PASSAGES, PassageStore
from .retriever import Hit, check_queries
from .words import all_words, query_words

__all__ = ["BM25Retriever", "build_bm25"]

_K1, _B = 0.9, 0.4  # as pyserini's, which Search-R1 takes
_TITLE_WEIGHT = 2
_WORDS = "words.json"


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
            self._words: dict[str, int] = json.loads((folder / _WORDS).read_text("utf-8"))
        except (OSError, ValueError, KeyError) as error:
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

    def _one(self, query: str, k: int) -> list[Hit]:
        stems = dict.fromkeys(self._stem(query_words(query)))
        known = [self._words[stem] for stem in stems if stem in self._words]
        if not known:
            return []
        scores = np.asarray(self._index.get_scores_from_ids(known))
        k = min(k, len(scores))
        least = max(float(np.partition(scores, len(scores) - k)[len(scores) - k]), 0.0)
        rows = np.flatnonzero(scores >= least if least > 0 else scores > 0)
        order = np.lexsort((rows, -scores[rows]))[:k]
        chosen: list[int] = rows[order].tolist()
        passages = self._store.passages(chosen)
        return [Hit(*one, float(scores[row])) for one, row in zip(passages, chosen, strict=True)]


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
    (folder / _WORDS).write_text(json.dumps(numbers), encoding="utf-8")
    progress(Progress("indexing", total, total))
    return {}


def _packages() -> tuple[Any, Any]:
    try:
        import bm25s
        import Stemmer
    except ImportError as error:
        raise MissingExtra.of("search", "an index of kind 'bm25s'") from error
    return bm25s, Stemmer.Stemmer("english")
