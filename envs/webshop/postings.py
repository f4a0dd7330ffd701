"""The search index: which products have a term, and how much it counts there.

An index is built from products in turn. What does not fit into memory goes to disk in runs, each
sorted by term, which are put together at the end; so memory holds the vocabulary, one run, and a few
numbers a product.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .texts import TextWriter, save_array

__all__ = ["K1", "B", "IndexWriter", "length_of_norm", "norm_of_length"]

K1, B = np.float32(0.9), np.float32(0.4)
"""BM25's parameters, as Anserini sets them."""

_RUN = 1 << 22
_FREE = 24  # lengths below this are kept exactly


class IndexWriter:
    """Collects products' terms and writes their index.

    Args:
        folder: Where the index, and on the way its runs, are written.
        run: Postings in one run; each takes 12 bytes of memory.
    """

    def __init__(self, folder: Path, run: int = _RUN):
        self._folder, self._run = folder, run
        self._numbers: dict[str, int] = {}
        self._terms, self._rows, self._counts = array("I"), array("I"), array("I")
        self._lengths = array("I")
        self._runs = 0

    def add(self, terms: Iterable[str]) -> None:
        """Add the next product, by its terms."""
        counts = Counter(terms)
        row = len(self._lengths)
        numbers = self._numbers
        self._terms.extend([numbers.setdefault(term, len(numbers)) for term in counts])
        self._counts.extend(counts.values())
        self._rows.extend([row] * len(counts))
        self._lengths.append(counts.total())
        if len(self._terms) >= self._run:
            self._spill()

    def finish(self) -> dict[str, Any]:
        """Write the index and return its figures for the manifest."""
        self._spill()
        words = sorted(self._numbers, key=lambda word: word.encode("utf-8", "surrogatepass"))
        with TextWriter(self._folder, "terms") as writer:
            for word in words:
                writer.add(f"{word}\n")
        place = np.empty(len(words), np.uint32)
        for rank, word in enumerate(words):
            place[self._numbers[word]] = rank
        self._numbers.clear()
        del words
        lengths = np.frombuffer(self._lengths, np.uint32)
        documents, total = int(np.count_nonzero(lengths)), int(lengths.sum(dtype=np.int64))
        self._merge(place, self._denominators(lengths, documents, total))
        return {"documents": documents, "terms": len(place), "tokens": total}

    def _denominators(
        self, lengths: npt.NDArray[np.uint32], documents: int, total: int
    ) -> npt.NDArray[np.float32]:
        """Return of each product what a term's count is multiplied with (1 / K of BM25)."""
        mean = np.float32(total / max(documents, 1))
        known = np.array([length_of_norm(norm) for norm in range(256)], np.float32)
        one = np.float32(1)
        inverse = one / (K1 * ((one - B) + B * known / max(mean, one)))
        unique, where = np.unique(lengths, return_inverse=True)
        norms = np.array([norm_of_length(int(length)) for length in unique], np.uint8)
        factors: npt.NDArray[np.float32] = inverse[norms][where]
        return factors

    def _spill(self) -> None:
        """Write what is in memory as a run, sorted by term and then by product."""
        if not self._terms:
            return
        terms = np.frombuffer(self._terms, np.uint32)
        order = np.argsort(terms, kind="stable")
        for name, kept in (("t", self._terms), ("r", self._rows), ("c", self._counts)):
            save_array(
                self._folder, f"run{self._runs}{name}", np.frombuffer(kept, np.uint32)[order]
            )
        self._terms, self._rows, self._counts = array("I"), array("I"), array("I")
        self._runs += 1

    def _merge(self, place: npt.NDArray[np.uint32], factors: npt.NDArray[np.float32]) -> None:
        """Put the runs together: all postings of a term side by side, products ascending."""
        sizes = np.zeros(len(place) + 1, np.int64)
        for number in range(self._runs):
            sizes[1:] += np.bincount(place[self._load(number, "t")], minlength=len(place))
        starts = np.cumsum(sizes)
        save_array(self._folder, "starts", starts)
        total = int(starts[-1])
        rows = self._new("rows", np.uint32, total)
        weights = self._new("weights", np.float32, total)
        largest = np.zeros(len(place), np.float32)
        cursor = starts[:-1].copy()
        for number in range(self._runs):
            terms = place[self._load(number, "t")]
            owners = self._load(number, "r")
            ones = np.float32(1) + self._load(number, "c").astype(np.float32) * factors[owners]
            heads = np.flatnonzero(np.r_[True, terms[1:] != terms[:-1]])
            counts = np.diff(np.r_[heads, len(terms)])
            first = np.repeat(cursor[terms[heads]] - heads, counts)
            target = first + np.arange(len(terms))
            rows[target], weights[target] = owners, ones
            cursor[terms[heads]] += counts
            largest[terms[heads]] = np.maximum(
                largest[terms[heads]], np.maximum.reduceat(ones, heads)
            )
        save_array(self._folder, "largest", largest)
        for number in range(self._runs):
            for name in "trc":
                (self._folder / f"run{number}{name}.npy").unlink()

    def _load(self, number: int, name: str) -> npt.NDArray[np.uint32]:
        array: npt.NDArray[np.uint32] = np.load(self._folder / f"run{number}{name}.npy")
        return array

    def _new(self, name: str, kind: type[np.generic], length: int) -> npt.NDArray[Any]:
        """Return a new array on disk; an empty one cannot be mapped."""
        path = self._folder / f"{name}.npy"
        if not length:
            np.save(path, np.empty(0, kind))
            return np.empty(0, kind)
        made: npt.NDArray[Any] = np.lib.format.open_memmap(
            path, mode="w+", dtype=kind, shape=(length,)
        )
        return made


def norm_of_length(length: int) -> int:
    """Return the byte in which Lucene keeps a document's length, some precision lost.

    Example:
        >>> norm_of_length(39), norm_of_length(40), norm_of_length(100), norm_of_length(101)
        (39, 40, 57, 57)
    """
    if length < _FREE:
        return length
    rest = length - _FREE
    bits = rest.bit_length()
    if bits < 4:
        return _FREE + rest
    shift = bits - 4
    return _FREE + (((rest >> shift) & 0x07) | ((shift + 1) << 3))


def length_of_norm(norm: int) -> int:
    """Return the length that `norm_of_length` keeps in a byte.

    Example:
        >>> length_of_norm(57)
        96
    """
    if norm < _FREE:
        return norm
    code = norm - _FREE
    shift = (code >> 3) - 1
    return _FREE + ((code & 0x07) if shift < 0 else ((code & 0x07) | 0x08) << shift)
