"""Search: BM25 as Lucene computes it, to the last bit of its 32-bit floats.

A small catalogue is scored whole. In a large one the rarest terms come first; once what the others
can add is less than the fiftieth product already has, only products already met are looked up in the
others' long lists (Turtle and Flood's MaxScore). Both give the same lists.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .analyzer import analyze
from .texts import Texts, load_array

__all__ = ["SearchIndex"]

_Rows = npt.NDArray[np.intp]
_Scores = npt.NDArray[np.float64]

_WHOLE = 20_000  # products up to which all are scored
_FEW_TERMS = 50_000  # so many are read at once
_SAFE = 1 - 1e-6  # more than rounding to 32 bits can change
_PROBES = 12  # a look-up costs about as much as reading so many postings in a row


class _Term(NamedTuple):
    """A search term: the most that it can add, its postings, its weight (idf times repeats)."""

    most: float
    start: int
    end: int
    weight: np.float32


class SearchIndex:
    """The index that `IndexWriter` wrote.

    Args:
        folder: Where it lies.
        documents: How many products have any term.
        ranks: Of each product its place in the order of ASINs, by which ties are broken.
    """

    def __init__(self, folder: Path, documents: int, ranks: npt.NDArray[Any]):
        self._documents, self._ranks = documents, ranks
        self._terms = Texts(folder, "terms")
        self._starts, self._largest = load_array(folder, "starts"), load_array(folder, "largest")
        self._rows, self._ones = load_array(folder, "rows"), load_array(folder, "weights")
        self._postings: tuple[_Rows, npt.NDArray[np.float32]] | None = None
        self._numbers: dict[str, int] = {}
        self._sums: _Scores | None = None

    def search(self, query: str, k: int = 50) -> list[int]:
        """Return the rows of the best `k` products, best first, ties by ASIN."""
        terms = self._known(query)
        if not terms or k < 1:
            return []
        if len(self._ranks) <= _WHOLE:
            return self._whole(terms, k)
        return self._pruned(terms, k)

    def _known(self, query: str) -> list[_Term]:
        """Return the query's terms that any product has, those that can add most first."""
        counts = {
            number: count
            for word, count in Counter(analyze(query)).items()
            if (number := self._number(word)) >= 0
        }
        numbers = np.array(list(counts), np.intp)
        starts, ends = self._starts[numbers], self._starts[numbers + 1]
        idfs = [
            math.log(1 + (self._documents - frequency + 0.5) / (frequency + 0.5))
            for frequency in (ends - starts).tolist()
        ]
        weights = np.array(list(counts.values()), np.float32) * np.array(idfs, np.float32)
        most = weights - weights / self._largest[numbers]
        found = zip(most.tolist(), starts.tolist(), ends.tolist(), weights, strict=True)
        terms = [_Term(*parts) for parts in found]
        return sorted(terms, key=lambda term: (-term.most, term.start))

    def _number(self, word: str) -> int:
        """Return a term's number, or -1."""
        if not self._numbers and len(self._terms) <= _FEW_TERMS:
            self._numbers = dict(zip(self._terms.lines(), range(len(self._terms)), strict=True))
        if word not in self._numbers:
            if len(self._numbers) >= 2 * _FEW_TERMS:
                self._numbers.clear()
            sought = f"{word}\n".encode("utf-8", "surrogatepass")
            at = bisect_left(range(len(self._terms)), sought, key=self._terms.raw)
            there = at < len(self._terms) and self._terms.raw(at) == sought
            self._numbers[word] = at if there else -1
        return self._numbers[word]

    def _list(self, term: _Term) -> tuple[_Rows, _Scores]:
        """Return the products that have a term, and what it adds to each."""
        ones = self._ones[term.start : term.end]
        scores = (term.weight - term.weight / ones).astype(np.float64)
        return self._rows[term.start : term.end].astype(np.intp), scores

    def _whole(self, terms: Sequence[_Term], k: int) -> list[int]:
        """Score all products."""
        if self._postings is None:
            self._postings = self._rows.astype(np.intp), np.array(self._ones)
        rows, ones = (
            np.concatenate([part[term.start : term.end] for term in terms])
            for part in self._postings
        )
        weights = np.repeat(
            np.array([term.weight for term in terms], np.float32),
            [term.end - term.start for term in terms],
        )
        sums = np.bincount(rows, weights - weights / ones, len(self._ranks)).astype(np.float32)
        least = np.float32(0)
        if k < len(sums):
            least = np.partition(sums, len(sums) - k)[len(sums) - k]
        return self._best(np.flatnonzero((sums >= least) & (sums > 0)), sums, k)

    def _best(self, rows: _Rows, sums: npt.NDArray[np.float32], k: int) -> list[int]:
        """Return the best `k` of these rows; `sums` has the score of each product."""
        order = np.lexsort((self._ranks[rows], -sums[rows]))[:k]
        best: list[int] = rows[order].tolist()
        return best

    def _pruned(self, terms: Sequence[_Term], k: int) -> list[int]:
        """Score the products that can be among the best."""
        sums = np.zeros(len(self._ranks)) if self._sums is None else self._sums
        self._sums = None  # if this is interrupted, they are not all zero
        met: list[_Rows] = []
        rest, limit, read, count = sum(term.most for term in terms), 0.0, 0, 0
        for term in terms:
            read += 1
            rows, scores = self._list(term)
            before = sums[rows]
            met.append(rows[before == 0])
            count += len(met[-1])
            sums[rows] = before + scores
            rest -= term.most
            limit += term.most
            if count >= k and rest < limit:
                found = np.concatenate(met)
                least = np.partition(sums[found], count - k)[count - k]
                if rest < least * _SAFE:
                    break
        rows = np.concatenate(met)
        scores = sums[rows]
        sums[rows] = 0
        self._sums = sums
        rows, scores = _hopeful(rows, scores, rest, k)
        order = np.argsort(rows)
        rows, scores = rows[order], scores[order]
        for term in terms[read:]:
            self._look_up(term, rows, scores)
            rest -= term.most
            rows, scores = _hopeful(rows, scores, rest, k)
        final = scores.astype(np.float32)
        order = np.lexsort((self._ranks[rows], -final))[:k]
        best: list[int] = rows[order].tolist()
        return best

    def _look_up(self, term: _Term, rows: _Rows, scores: _Scores) -> None:
        """Add a term to the scores of these rows, which ascend."""
        listed = self._rows[term.start : term.end]
        if len(rows) * _PROBES * max(1, len(listed).bit_length() - 8) < len(listed):
            at = np.searchsorted(listed, rows.astype(listed.dtype))
            at[at == len(listed)] = 0
            hit = listed[at] == rows
            at = at[hit]
        else:
            hit = np.isin(rows, listed, assume_unique=True)
            at = np.searchsorted(listed, rows[hit].astype(listed.dtype))
        scores[hit] += (term.weight - term.weight / self._ones[term.start : term.end][at]).astype(
            np.float64
        )


def _hopeful(rows: _Rows, scores: _Scores, rest: float, k: int) -> tuple[_Rows, _Scores]:
    """Return the rows that `rest` more could bring among the best `k`, and their scores."""
    if len(rows) <= k:
        return rows, scores
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    hopeful = scores + rest >= least * _SAFE
    return rows[hopeful], scores[hopeful]
