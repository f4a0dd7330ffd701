"""Search: BM25 as Lucene computes it, to the last bit of its 32-bit floats.

An index is written from products in turn. What does not fit into memory goes to disk in runs, each
sorted by term, which are merged at the end: memory holds the vocabulary, one run, and a few numbers
a product. Reading maps the files into memory.
"""

from __future__ import annotations

import math
import mmap
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import DataCorrupt, DataNotFound
from .analyzer import analyze


class TextWriter:
    """Writes texts one after the other into ``<name>.bin``, and where they begin into ``<name>.npy``."""

    def __init__(self, folder: Path, name: str):
        self._folder = folder
        self._name = name
        self._file = (folder / f"{name}.bin").open("wb")
        self._starts = array("Q", [0])

    def close(self) -> None:
        self._file.close()
        save_array(self._folder, self._name, np.frombuffer(self._starts, np.uint64))

    def add(self, text: str | bytes) -> int:
        """Write a text and return its number."""
        encoded = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self._file.write(encoded)
        self._starts.append(self._starts[-1] + len(encoded))
        return len(self._starts) - 2


class Texts:
    """The texts that a `TextWriter` wrote, as a sequence that reads each text when it is needed."""

    def __init__(self, folder: Path, name: str):
        self._starts = load_array(folder, name)
        path = folder / f"{name}.bin"
        size = path.stat().st_size if path.is_file() else -1
        if not len(self._starts) or int(self._starts[-1]) != size:
            raise DataCorrupt(
                f"expected {path} with as many bytes as {name}.npy says, found {size}; "
                "build the catalogue again: comap data build webshop SOURCE"
            )

        self._bytes: mmap.mmap | bytes = b""  # an empty file cannot be mapped
        if size:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> str:
        return self.raw(number).decode("utf-8", "surrogatepass")

    def lines(self) -> list[str]:
        """Return all texts at once, where each was written with a line break at its end."""
        return self._bytes[:].decode("utf-8", "surrogatepass").split("\n")[:-1]

    def raw(self, number: int) -> bytes:
        start, end = self._starts[number : number + 2].tolist()
        return self._bytes[start:end]


def save_array(folder: Path, name: str, content: npt.NDArray[np.generic]) -> None:
    np.save(folder / f"{name}.npy", content, allow_pickle=False)


def load_array(folder: Path, name: str) -> npt.NDArray[Any]:
    """Return the array in ``<name>.npy``, mapped into memory and not read yet."""
    path = folder / f"{name}.npy"
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError as error:
        raise DataNotFound(
            f"expected {path} as part of a catalogue, found nothing; "
            "build it again: comap data build webshop SOURCE"
        ) from error
    except (ValueError, EOFError, OSError, SyntaxError, TokenError, MemoryError) as error:
        raise DataCorrupt(
            f"expected an array in {path}, found: {error}; "
            "build the catalogue again: comap data build webshop SOURCE"
        ) from error


_Rows = npt.NDArray[np.intp]
_Scores = npt.NDArray[np.float64]

_MOST_SCORED = 20_000
"""Up to so many products, all are scored."""

_MOST_IN_MEMORY = 50_000
"""Up to so many terms, all are read at once; of more, so many numbers are remembered."""

_SAFE = 1 - 1e-6
"""A factor by which a bound may be off: more than rounding to 32 bits can change."""

_PROBES = 12
"""A look-up costs about as much as reading so many postings in a row."""


class _Term(NamedTuple):
    """A search term: the most that it can add, its postings, its weight (idf times repeats)."""

    most: float
    start: int
    end: int
    weight: np.float32


class SearchIndex:
    """The index that `IndexWriter` wrote."""

    def __init__(self, folder: Path, documents: int, ranks: npt.NDArray[Any]):
        self._documents = documents
        self._ranks = ranks
        self._terms = Texts(folder, "terms")

        # The postings of all terms, one term after the other: rows, and of each 1 + tf / K, of which
        # the term's part of the score is idf - idf / (1 + tf / K).
        self._starts = load_array(folder, "starts")
        self._largest = load_array(folder, "largest")
        self._rows = load_array(folder, "rows")
        self._ones = load_array(folder, "weights")

        self._numbers: dict[str, int] = {}
        self._sums: _Scores | None = None
        few = len(self._terms) <= _MOST_IN_MEMORY
        self._words = self._terms.lines() if few else None
        self._ranked = self._rank() if len(ranks) <= _MOST_SCORED else None

    def search(self, query: str, k: int = 50) -> list[int]:
        """Return the rows of the best `k` products, best first, ties by ASIN."""
        counts = {}
        for word, count in Counter(analyze(query)).items():
            number = self._number(word)
            if number >= 0:
                counts[number] = count
        if not counts or k < 1:
            return []

        if self._ranked is not None:
            return self._score_all(counts, k, *self._ranked)
        return self._pruned(self._terms_of(counts), k)

    def _terms_of(self, counts: Mapping[int, int]) -> list[_Term]:
        """Return terms, given by number and repeats, those that can add most first."""
        numbers = np.array(list(counts), np.intp)
        starts = self._starts[numbers]
        ends = self._starts[numbers + 1]
        weights = np.array(list(counts.values()), np.float32) * self._idfs(ends - starts)
        most = weights - weights / self._largest[numbers]

        fields = zip(most.tolist(), starts.tolist(), ends.tolist(), weights, strict=True)
        terms = [_Term(*values) for values in fields]
        return sorted(terms, key=lambda term: (-term.most, term.start))

    def _idfs(self, frequencies: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return BM25's inverse document frequencies, as Lucene computes them."""
        count = self._documents
        logs = [math.log(1 + (count - n + 0.5) / (n + 0.5)) for n in frequencies.tolist()]
        return np.array(logs, np.float32)

    def _number(self, word: str) -> int:
        """Return a term's number, -1 where no product has it."""
        number = self._numbers.get(word)
        if number is not None:
            return number
        if self._words is not None:
            position = bisect_left(self._words, word)
            is_known = self._words[position : position + 1] == [word]
        else:
            # Too many to hold: the file's lines, which are sorted by their bytes, are compared one by one.
            line = f"{word}\n".encode("utf-8", "surrogatepass")
            position = bisect_left(range(len(self._terms)), line, key=self._terms.raw)
            is_known = position < len(self._terms) and self._terms.raw(position) == line

        # Queries are anybody's: what is remembered of them must not grow for ever.
        if len(self._numbers) >= _MOST_IN_MEMORY:
            self._numbers.clear()
        number = position if is_known else -1
        self._numbers[word] = number
        return number

    def _list(self, term: _Term) -> tuple[_Rows, _Scores]:
        """Return the products that have a term, and what it adds to the score of each."""
        ones = self._ones[term.start : term.end]
        scores = (term.weight - term.weight / ones).astype(np.float64)
        return self._rows[term.start : term.end].astype(np.intp), scores

    def _score_all(
        self,
        counts: Mapping[int, int],
        k: int,
        posting_ranks: _Rows,
        posting_scores: npt.NDArray[np.float32],
        row_of_rank: _Rows,
    ) -> list[int]:
        """Score all products. Sums of so few 32-bit floats are exact in 64 bits, in any order."""
        ranks: list[_Rows] = []
        scores: list[npt.NDArray[np.float32]] = []
        for number, count in counts.items():
            start, end = self._starts[number : number + 2].tolist()
            ranks.append(posting_ranks[start:end])
            if count == 1:
                scores.append(posting_scores[start:end])
            else:
                weight = np.float32(count) * self._idfs(np.array([end - start]))
                scores.append(weight - weight / self._ones[start:end])

        sums = np.bincount(np.concatenate(ranks), np.concatenate(scores)).astype(np.float32)
        best = np.flatnonzero(sums)
        sums = sums[best]
        if k < len(sums):
            hopeful = sums >= np.partition(sums, len(sums) - k)[len(sums) - k]
            best = best[hopeful]
            sums = sums[hopeful]

        # A stable order leaves ties in the order of ranks.
        order = np.argsort(-sums, kind="stable")[:k]
        rows: list[int] = row_of_rank[best[order]].tolist()
        return rows

    def _rank(self) -> tuple[_Rows, npt.NDArray[np.float32], _Rows]:
        """Return of each posting the product's rank and its score, and the row of each rank."""
        sizes = np.diff(self._starts)
        weights = np.zeros(sizes.max(initial=0) + 1, np.float32)
        frequencies = np.flatnonzero(np.bincount(sizes))
        weights[frequencies] = self._idfs(frequencies)
        weights = np.repeat(weights[sizes], sizes)
        ranks = self._ranks.astype(np.intp)
        return ranks[self._rows], weights - weights / self._ones, np.argsort(ranks)

    def _pruned(self, terms: Sequence[_Term], k: int) -> list[int]:
        """Score the products that can be among the best.

        Terms come in the order of the most that each can add. Once the terms that are left can lift
        no further product among the best `k`, only the products that were met are looked up in them.
        """
        # The sums are kept for the next search, all zero. While they are not, nobody may find them:
        # this may be interrupted.
        sums = np.zeros(len(self._ranks)) if self._sums is None else self._sums
        self._sums = None

        met: list[_Rows] = []
        met_count = 0
        terms_read = 0
        rest = sum(term.most for term in terms)
        limit = 0.0
        for term in terms:
            terms_read += 1
            rows, scores = self._list(term)
            before = sums[rows]
            met.append(rows[before == 0])
            met_count += len(met[-1])
            sums[rows] = before + scores

            rest -= term.most
            limit += term.most
            if met_count >= k and rest < limit:
                all_met = np.concatenate(met)
                least = np.partition(sums[all_met], met_count - k)[met_count - k]
                if rest < least * _SAFE:
                    break

        rows = np.concatenate(met)
        scores = sums[rows]
        sums[rows] = 0
        self._sums = sums

        rows, scores = _hopeful(rows, scores, rest, k)
        order = np.argsort(rows)
        rows = rows[order]
        scores = scores[order]
        for term in terms[terms_read:]:
            self._look_up(term, rows, scores)
            rest -= term.most
            rows, scores = _hopeful(rows, scores, rest, k)

        # Lucene compares sums of 32 bits; equal ones are ordered by ASIN.
        final = scores.astype(np.float32)
        order = np.lexsort((self._ranks[rows], -final))[:k]
        best: list[int] = rows[order].tolist()
        return best

    def _look_up(self, term: _Term, rows: _Rows, scores: _Scores) -> None:
        """Add to the scores of some products what a term adds, reading as little as possible."""
        listed = self._rows[term.start : term.end]
        if len(rows) * _PROBES * max(1, len(listed).bit_length() - 8) < len(listed):
            positions = np.searchsorted(listed, rows.astype(listed.dtype))
            positions[positions == len(listed)] = 0
            has_term = listed[positions] == rows
            positions = positions[has_term]
        else:
            has_term = np.isin(rows, listed, assume_unique=True)
            positions = np.searchsorted(listed, rows[has_term].astype(listed.dtype))

        ones = self._ones[term.start : term.end][positions]
        scores[has_term] += (term.weight - term.weight / ones).astype(np.float64)


def _hopeful(rows: _Rows, scores: _Scores, rest: float, k: int) -> tuple[_Rows, _Scores]:
    """Return the rows that `rest` more could bring among the best `k`, and their scores."""
    if len(rows) <= k:
        return rows, scores

    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    hopeful = scores + rest >= least * _SAFE
    return rows[hopeful], scores[hopeful]


K1 = np.float32(0.9)
B = np.float32(0.4)
"""BM25's parameters, as Anserini sets them."""

_RUN = 1 << 22  # postings
_EXACT = 24  # lengths below this are kept exactly


class IndexWriter:
    """Collects products' terms and writes their index."""

    def __init__(self, folder: Path, run: int = _RUN):
        self._folder = folder
        self._run = run
        self._numbers: dict[str, int] = {}
        self._terms = array("I")
        self._rows = array("I")
        self._counts = array("I")
        self._lengths = array("I")
        self._runs = 0

    def add(self, terms: Iterable[str]) -> None:
        """Take in the terms of the next product."""
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
        """Write the index and return its figures."""
        self._spill()

        # Terms are numbered anew, in the order of their bytes, so that they can be looked up.
        words = sorted(self._numbers, key=lambda word: word.encode("utf-8", "surrogatepass"))
        writer = TextWriter(self._folder, "terms")
        for word in words:
            writer.add(f"{word}\n")
        writer.close()

        ranks = np.empty(len(words), np.uint32)
        for rank, word in enumerate(words):
            ranks[self._numbers[word]] = rank
        self._numbers.clear()
        del words

        lengths = np.frombuffer(self._lengths, np.uint32)
        documents = int(np.count_nonzero(lengths))
        total = int(lengths.sum(dtype=np.int64))
        self._merge(ranks, self._denominators(lengths, documents, total))
        return {"documents": documents, "terms": len(ranks), "tokens": total}

    def _denominators(
        self, lengths: npt.NDArray[np.uint32], documents: int, total: int
    ) -> npt.NDArray[np.float32]:
        """Return of each product what a term's count is multiplied with (1 / K of BM25)."""
        mean = np.float32(total / max(documents, 1))
        one = np.float32(1)

        # Lucene keeps a length in a byte: there are 256 factors.
        norm_lengths = np.array([length_of_norm(norm) for norm in range(256)], np.float32)
        inverse = one / (K1 * ((one - B) + B * norm_lengths / max(mean, one)))
        unique, positions = np.unique(lengths, return_inverse=True)
        norms = np.array([norm_of_length(int(length)) for length in unique], np.uint8)
        factors: npt.NDArray[np.float32] = inverse[norms][positions]
        return factors

    def _spill(self) -> None:
        """Write what is in memory as a run, sorted by term and then by product."""
        if not self._terms:
            return

        terms = np.frombuffer(self._terms, np.uint32)
        order = np.argsort(terms, kind="stable")
        for name, column in (("t", self._terms), ("r", self._rows), ("c", self._counts)):
            postings = np.frombuffer(column, np.uint32)[order]
            save_array(self._folder, f"run{self._runs}{name}", postings)

        self._terms = array("I")
        self._rows = array("I")
        self._counts = array("I")
        self._runs += 1

    def _merge(self, ranks: npt.NDArray[np.uint32], factors: npt.NDArray[np.float32]) -> None:
        """Put the runs together: all postings of a term side by side, products ascending."""
        sizes = np.zeros(len(ranks) + 1, np.int64)
        for number in range(self._runs):
            sizes[1:] += np.bincount(ranks[self._load(number, "t")], minlength=len(ranks))
        starts = np.cumsum(sizes)
        save_array(self._folder, "starts", starts)

        total = int(starts[-1])
        rows = self._new("rows", np.uint32, total)
        weights = self._new("weights", np.float32, total)
        largest = np.zeros(len(ranks), np.float32)

        # `cursor` is where the next posting of each term goes. Within a run the postings of a term
        # stand together, from its head on.
        cursor = starts[:-1].copy()
        for number in range(self._runs):
            terms = ranks[self._load(number, "t")]
            owners = self._load(number, "r")
            ones = np.float32(1) + self._load(number, "c").astype(np.float32) * factors[owners]

            heads = np.flatnonzero(np.r_[True, terms[1:] != terms[:-1]])
            counts = np.diff(np.r_[heads, len(terms)])
            first = np.repeat(cursor[terms[heads]] - heads, counts)
            target = first + np.arange(len(terms))
            rows[target] = owners
            weights[target] = ones

            head_terms = terms[heads]
            cursor[head_terms] += counts
            largest_here = np.maximum.reduceat(ones, heads)
            largest[head_terms] = np.maximum(largest[head_terms], largest_here)

        save_array(self._folder, "largest", largest)
        for number in range(self._runs):
            for name in "trc":
                (self._folder / f"run{number}{name}.npy").unlink()

    def _load(self, number: int, name: str) -> npt.NDArray[np.uint32]:
        """Return one column of a run: terms, rows or counts."""
        column: npt.NDArray[np.uint32] = np.load(self._folder / f"run{number}{name}.npy")
        return column

    def _new(self, name: str, kind: type[np.generic], length: int) -> npt.NDArray[Any]:
        """Return a new array in a file, to be filled."""
        path = self._folder / f"{name}.npy"
        if not length:
            np.save(path, np.empty(0, kind))
            return np.empty(0, kind)
        content: npt.NDArray[Any] = np.lib.format.open_memmap(
            path, mode="w+", dtype=kind, shape=(length,)
        )
        return content


def norm_of_length(length: int) -> int:
    """Return the byte in which Lucene keeps a document's length, some precision lost."""
    if length < _EXACT:
        return length

    # A floating point number of three bits, with an exponent.
    rest = length - _EXACT
    bits = rest.bit_length()
    if bits < 4:
        return _EXACT + rest
    shift = bits - 4
    return _EXACT + (((rest >> shift) & 0x07) | ((shift + 1) << 3))


def length_of_norm(norm: int) -> int:
    """Return the length that `norm_of_length` keeps in a byte."""
    if norm < _EXACT:
        return norm
    code = norm - _EXACT
    shift = (code >> 3) - 1
    if shift < 0:
        return _EXACT + (code & 0x07)
    return _EXACT + (((code & 0x07) | 0x08) << shift)
