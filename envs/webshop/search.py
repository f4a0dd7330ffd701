"""Search: BM25 as Lucene computes it, to the last bit of its 32-bit floats.

A small catalogue is read when it is opened, so that no search waits for that, and scored whole. In a
large one the rarest terms come first; once what the others can add is less than the fiftieth product
already has, only products already met are looked up in the others' long lists (Turtle and Flood's
MaxScore). Both give the same lists.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
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
        self._numbers: dict[str, int] = {}
        self._sums: _Scores | None = None
        few = len(self._terms) <= _FEW_TERMS
        self._words = self._terms.lines() if few else None
        self._ranked = self._rank() if len(ranks) <= _WHOLE else None

    def search(self, query: str, k: int = 50) -> list[int]:
        """Return the rows of the best `k` products, best first, ties by ASIN."""
        counts = {
            number: count
            for word, count in Counter(analyze(query)).items()
            if (number := self._number(word)) >= 0
        }
        if not counts or k < 1:
            return []
        if self._ranked is not None:
            return self._whole(counts, k, *self._ranked)
        return self._pruned(self._terms_of(counts), k)

    def _terms_of(self, counts: Mapping[int, int]) -> list[_Term]:
        """Return terms, given by number and repeats, those that can add most first."""
        numbers = np.array(list(counts), np.intp)
        starts, ends = self._starts[numbers], self._starts[numbers + 1]
        weights = np.array(list(counts.values()), np.float32) * self._idfs(ends - starts)
        most = weights - weights / self._largest[numbers]
        found = zip(most.tolist(), starts.tolist(), ends.tolist(), weights, strict=True)
        terms = [_Term(*parts) for parts in found]
        return sorted(terms, key=lambda term: (-term.most, term.start))

    def _idfs(self, frequencies: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return what terms weigh that so many products have."""
        count = self._documents
        logs = [math.log(1 + (count - has + 0.5) / (has + 0.5)) for has in frequencies.tolist()]
        return np.array(logs, np.float32)

    def _number(self, word: str) -> int:
        """Return a term's number, or -1."""
        number = self._numbers.get(word)
        if number is not None:
            return number
        if self._words is not None:
            at = bisect_left(self._words, word)
            there = self._words[at : at + 1] == [word]
        else:
            sought = f"{word}\n".encode("utf-8", "surrogatepass")
            at = bisect_left(range(len(self._terms)), sought, key=self._terms.raw)
            there = at < len(self._terms) and self._terms.raw(at) == sought
        if len(self._numbers) >= _FEW_TERMS:
            self._numbers.clear()
        number = self._numbers[word] = at if there else -1
        return number

    def _list(self, term: _Term) -> tuple[_Rows, _Scores]:
        """Return the products that have a term, and what it adds to each."""
        ones = self._ones[term.start : term.end]
        scores = (term.weight - term.weight / ones).astype(np.float64)
        return self._rows[term.start : term.end].astype(np.intp), scores

    def _whole(
        self,
        counts: Mapping[int, int],
        k: int,
        places: _Rows,
        added: npt.NDArray[np.float32],
        row_at: _Rows,
    ) -> list[int]:
        """Score all products. Sums of so few 32-bit floats are exact in 64 bits, in any order."""
        found: list[_Rows] = []
        scores: list[npt.NDArray[np.float32]] = []
        for number, count in counts.items():
            start, end = self._starts[number : number + 2].tolist()
            found.append(places[start:end])
            if count == 1:
                scores.append(added[start:end])
            else:
                weight = np.float32(count) * self._idfs(np.array([end - start]))
                scores.append(weight - weight / self._ones[start:end])
        sums = np.bincount(np.concatenate(found), np.concatenate(scores)).astype(np.float32)
        best = np.flatnonzero(sums)
        sums = sums[best]
        if k < len(sums):
            hopeful = sums >= np.partition(sums, len(sums) - k)[len(sums) - k]
            best, sums = best[hopeful], sums[hopeful]
        order = np.argsort(-sums, kind="stable")[:k]  # so that ties stay in the order of ranks
        rows: list[int] = row_at[best[order]].tolist()
        return rows

    def _rank(self) -> tuple[_Rows, npt.NDArray[np.float32], _Rows]:
        """Return what `_whole` reads.

        That is of all postings the product's rank, and what they add to its score where the term
        comes once in a query; and the row at each rank.
        """
        sizes = np.diff(self._starts)
        weights = np.zeros(sizes.max(initial=0) + 1, np.float32)
        there = np.flatnonzero(np.bincount(sizes))
        weights[there] = self._idfs(there)
        weights = np.repeat(weights[sizes], sizes)
        ranks = self._ranks.astype(np.intp)
        return ranks[self._rows], weights - weights / self._ones, np.argsort(ranks)

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
