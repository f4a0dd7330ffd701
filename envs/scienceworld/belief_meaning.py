"""Which things an action and its answer mean, among those that the agent can see."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .belief import INVENTORY, Belief
from .belief_names import Phrase, called, chosen, named, pairs_of, parse_phrase, score

__all__ = ["TARGET", "Meaning"]

TARGET = re.compile(r" (?:on|with) (.+)")
"""What something was used on, in what ``use O on O`` is about."""


class Meaning:
    """What is known of an action's words when its answer is read.

    Args:
        belief: What is known.
        words: What the action was about, ``"red apple in kitchen"`` of ``"eat red apple in kitchen"``.
        request: What the request was about that a choice followed; empty where there was none.

    Example:
        >>> belief = Belief([("room", "agent", "kitchen"), ("in", "red apple", "kitchen")])
        >>> Meaning(belief, "red apple in kitchen").one("apple")
        ['red apple']
    """

    def __init__(self, belief: Belief, words: str, request: str = ""):
        self.belief = belief
        self.words = words
        self._said = [words, request] if request else [words]

    def one(self, name: str) -> list[str]:
        """Return the things that an answer about one thing may mean."""
        return self._chosen(named(self.belief, name))

    def _chosen(self, found: Sequence[str]) -> list[str]:
        return chosen(self.belief, found, [parse_phrase(words) for words in self._said])

    def meant(self, words: str) -> list[str]:
        """Return the things that an action's own words may mean."""
        phrase = parse_phrase(words)
        found = called(self.belief, phrase)
        others = [parse_phrase(said) for said in self._said[1:]]
        return chosen(self.belief, found, [phrase, *others])

    def _used_on(self, name: str) -> list[str]:
        """Return the things that an answer to ``use O on O`` may mean by what the first was used on."""
        target = TARGET.search(self.words)
        phrases = [parse_phrase(target[1])] if target else []
        return chosen(self.belief, named(self.belief, name), phrases)

    def two(self, first: str, second: str) -> tuple[list[str], list[str]]:
        """Return the things that an answer about two things may mean; they may be places, too."""
        ones = named(self.belief, first) or [first] * self._is_place(first)
        others = self.places(second)
        for words in self._said:
            first_phrase, second_phrase = max(
                pairs_of(words),
                key=lambda split: self._fit(ones, split[0]) + self._fit(others, split[1]),
                default=(None, None),
            )
            if first_phrase is not None and second_phrase is not None:
                ones = chosen(self.belief, ones, [first_phrase])
                others = chosen(self.belief, others, [second_phrase])
        return ones, others

    def _fit(self, things: Sequence[str], phrase: Phrase) -> int:
        return max(
            (score(self.belief, t, phrase) for t in things if t in self.belief.parent), default=0
        )

    def places(self, name: str) -> list[str]:
        """Return the things, or the room, or the inventory, that something may be put into."""
        if name in (INVENTORY, self.belief.room):
            return [name]
        found = named(self.belief, name)
        return found or ([name] if self._is_room(name) else [])

    def _is_place(self, name: str) -> bool:
        return name in (INVENTORY, self.belief.room) or self._is_room(name)

    def _is_room(self, name: str) -> bool:
        if name in self.belief.parent:
            return False
        return name in self.belief.seen or any(name in ends for ends in self.belief.doors)
