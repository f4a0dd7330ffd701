"""Invented passages by the million, to measure search on.

Words are drawn by rank from a Zipf-Mandelbrot law; a passage has some hundred, as wiki-18's have. The
words of queries are drawn from passages, the commonest left out, as stopwords are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .invented_words import WordLaw, word

__all__ = ["CORPUS", "QUERIES", "write_passages"]

CORPUS = "corpus.jsonl"
"""The file of passages."""

QUERIES = "queries.json"
"""The file of queries: some words of a passage each, 4 to 11 of them."""

_WORDS, _SHIFT = 500_000, 2.7
_LENGTH, _DEVIATION, _SHORTEST = 100.0, 18.0, 20
_COMMON = 60
_TITLE = 3
_BATCH = 10_000


def write_passages(folder: Path, count: int, queries: int = 200, seed: int = 0) -> None:
    """Write passages and queries for them; memory does not grow with their number.

    Args:
        folder: Where to; it is made if need be.
        count: How many passages.
        queries: How many queries.
        seed: Of all draws.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_passages(Path(folder), 3, queries=2)
        ...     lines = Path(folder, CORPUS).read_text().splitlines()
        ...     len(lines), sorted(json.loads(lines[0]))
        (3, ['contents', 'id'])
    """
    folder.mkdir(parents=True, exist_ok=True)
    draws = np.random.default_rng(seed + 1)
    asked: list[str] = []
    every = max(1, count // queries)
    with (folder / CORPUS).open("w", encoding="utf-8") as file:
        for number, ranks in enumerate(_texts(count, seed)):
            words = [word(rank) for rank in ranks]
            contents = f'"{" ".join(words[:_TITLE])}"\n{" ".join(words[_TITLE:])}'
            file.write(json.dumps({"id": f"{number:08d}", "contents": contents}) + "\n")
            if number % every == 0 and len(asked) < queries:
                rare = [rank for rank in ranks if rank >= _COMMON]
                size = min(int(draws.integers(4, 12)), len(rare))
                chosen = draws.choice(len(rare), size, replace=False)
                asked.append(" ".join(word(rare[place]) for place in chosen.tolist()))
    (folder / QUERIES).write_text(json.dumps(asked), encoding="utf-8")


def _texts(count: int, seed: int) -> Iterator[list[int]]:
    """Yield the ranks of each passage's words."""
    draws = np.random.default_rng(seed)
    law = WordLaw(_WORDS, _SHIFT)
    for start in range(0, count, _BATCH):
        size = min(_BATCH, count - start)
        lengths = np.maximum(_SHORTEST, draws.normal(_LENGTH, _DEVIATION, size).astype(int))
        yield from law.texts(draws, lengths)
