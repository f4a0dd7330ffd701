"""Invented words by rank, drawn from a Zipf-Mandelbrot law: texts to measure search on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

__all__ = ["WordLaw", "word"]

_LETTERS = "bcdfghjklmnpqrtvwxz"


def word(rank: int) -> str:
    """Return a made-up word; stemming leaves it alone, and no two ranks share one.

    Example:
        >>> word(0), word(1), word(19)
        ('b1', 'c1', 'bc2')
    """
    letters = ""
    while True:
        rank, place = divmod(rank, len(_LETTERS))
        letters += _LETTERS[place]
        if not rank:
            return f"{letters}{len(letters)}"


class WordLaw:
    """How often words are used: in proportion to 1 / (rank + 1 + shift).

    Args:
        words: How many there are.
        shift: The larger, the less the first ones stand out.

    Example:
        >>> law = WordLaw(1_000, 2.7)
        >>> [len(text) for text in law.texts(np.random.default_rng(0), np.array([3, 5]))]
        [3, 5]
    """

    def __init__(self, words: int, shift: float):
        shares = 1 / (np.arange(words) + 1 + shift)
        self._limits = np.cumsum(shares / shares.sum())
        self._limits[-1] = 1.0

    def texts(self, draws: np.random.Generator, lengths: np.ndarray) -> Iterator[list[int]]:
        """Yield texts of these lengths, each a list of its words' ranks."""
        ranks = np.searchsorted(self._limits, draws.random(int(lengths.sum()))).tolist()
        at = 0
        for length in lengths.tolist():
            yield ranks[at : at + length]
            at += length
