"""Invented words: each rank its own, the first ones the most used."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from comap.benchmarks.invented_words import WordLaw, word
from comap.envs.webshop.porter import stem


def test_no_two_ranks_share_a_word_and_stemming_leaves_it() -> None:
    words = [word(rank) for rank in range(20_000)]
    assert len(set(words)) == len(words)
    assert [stem(one) for one in words[::37]] == words[::37]


@pytest.mark.parametrize("shift", [2.7, 18.0])
def test_words_are_as_frequent_as_the_law_says(shift: float) -> None:
    law = WordLaw(500, shift)
    lengths = np.full(400, 100)
    texts = list(law.texts(np.random.default_rng(7), lengths))
    assert [len(text) for text in texts] == lengths.tolist()
    counts = collections.Counter(rank for text in texts for rank in text)
    total = sum(1 / (rank + 1 + shift) for rank in range(500))
    for rank in (0, 1, 10, 50):
        expected = 40_000 / (rank + 1 + shift) / total
        assert counts[rank] == pytest.approx(expected, rel=0.25)
    assert max(counts) < 500
    again = list(WordLaw(500, shift).texts(np.random.default_rng(7), lengths))
    assert again == texts
