"""Which token mostly follows some tokens of a model's own texts, for speculative decoding.

A text's next tokens are guessed and read in one pass (Leviathan et al., 2023, with n-grams for the small
model); a guess is kept only as far as the same tokens are then chosen from the model's own logits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any

LONG = 3
"""Tokens of an n-gram, the last of which is counted."""

_MOST_GUESSED = 8  # tokens at once
_LEAST_PROBABILITY = 0.5  # of all tokens of a guess together: a wrong one costs a longer pass
_MOST_COUNTS = 200_000  # of 66 bytes each; then all are dropped, which bounds memory


class NGrams:
    """Counts of what followed the last tokens of texts."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        self._likeliest: dict[tuple[int, ...], tuple[int, float]] = {}
        self._size = 0  # how many numbers there are in all counts

    def learn(self, text: Sequence[int], count: int) -> None:
        """Count a text's last `count` tokens, each after those before it."""
        if self._size > _MOST_COUNTS:
            self._counts.clear()
            self._likeliest.clear()
            self._size = 0

        text = text[-count - LONG + 1 :]
        for position in range(len(text) - count, len(text)):
            beginning = tuple(text[max(0, position - LONG + 1) : position])
            followers = self._counts[beginning]
            self._size += text[position] not in followers
            followers[text[position]] += 1
            self._likeliest.pop(beginning, None)

    def after(
        self, text: Sequence[int], most: int, ends: Set[int], choices: Any = None
    ) -> list[int]:
        """Return tokens that all follow a text more probably than not, before one that ends it.

        Args:
            text: Tokens, of which the last few are looked at.
            most: How many tokens to return at most.
            ends: Tokens that end a text.
            choices: A `TokenTrie` and the node to which the text has come, if it must keep to them.
        """
        beginning = tuple(text[1 - LONG :])
        guess: list[int] = []
        probability = 1.0

        while len(guess) < min(most, _MOST_GUESSED):
            if choices:
                # Only these tokens are possible, so each has one count more than it was seen.
                trie, node = choices
                children = trie.children[node]
                counts = self._counts.get(beginning, Counter())
                token, share = _likeliest({child: 1 + counts[child] for child in children}, 0)
                choices = trie, children[token]
                if not trie.children[children[token]]:
                    break
            elif beginning in self._likeliest:
                token, share = self._likeliest[beginning]
            elif beginning in self._counts:
                token, share = _likeliest(self._counts[beginning], 1)
                self._likeliest[beginning] = token, share
            else:
                break

            probability *= share
            if probability <= _LEAST_PROBABILITY or token in ends:
                break
            guess.append(token)
            beginning = (*beginning[1:], token)

        return guess


def _likeliest(counts: Mapping[int, int], unseen: int) -> tuple[int, float]:
    """Return what was counted most often, and its share of all counts and `unseen` more."""
    token = max(counts, key=counts.__getitem__)
    return token, counts[token] / (sum(counts.values()) + unseen)
