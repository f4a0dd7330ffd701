"""Which token mostly follows some tokens of a model's own texts, for speculative decoding.

A text's next tokens are guessed and read in one pass (Leviathan et al., 2023, with n-grams for the small
model); a guess is kept only as far as the same tokens are then chosen from the model's own logits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any

LONG = 3  # tokens of an n-gram, the last of which is counted
_MOST = 8  # tokens that are guessed at once
_LEAST = 0.5  # a guess is more probable than this
_KINDS = 100_000  # beginnings that are counted


class NGrams:
    """Counts of what followed the last tokens of texts."""

    def __init__(self) -> None:
        self._counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        self._first: dict[tuple[int, ...], tuple[int, float]] = {}

    def learn(self, text: Sequence[int], count: int) -> None:
        """Count a text's last `count` tokens, each after those before it."""
        if len(self._counts) > _KINDS:
            self._counts.clear()
            self._first.clear()
        text = text[-count - LONG + 1 :]
        for end in range(len(text) - count, len(text)):
            last = tuple(text[max(0, end - LONG + 1) : end])
            self._counts[last][text[end]] += 1
            self._first.pop(last, None)

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
        last, found, chance = tuple(text[1 - LONG :]), list[int](), 1.0
        while len(found) < min(most, _MOST):
            if choices:
                trie, node = choices
                follow, counts = trie.children[node], self._counts.get(last, Counter())
                token, share = _likely({one: 1 + counts[one] for one in follow}, 0)
                choices = trie, follow[token]
                if not trie.children[follow[token]]:
                    break
            elif last in self._first:
                token, share = self._first[last]
            elif last in self._counts:
                token, share = self._first[last] = _likely(self._counts[last], 1)
            else:
                break
            chance *= share
            if chance <= _LEAST or token in ends:
                break
            found.append(token)
            last = (*last[1:], token)
        return found


def _likely(counts: Mapping[int, int], others: int) -> tuple[int, float]:
    """Return what was counted most often, and its share."""
    token = max(counts, key=counts.__getitem__)
    return token, counts[token] / (sum(counts.values()) + others)
