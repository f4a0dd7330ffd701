"""Random draws that are the same on every machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Draws"]

_T = TypeVar("_T")


class Draws:
    """A stream of random choices named by a text.

    Only ``random.Random.random`` is used, whose stream Python promises to keep.

    Args:
        *names: What names the stream; other names give an independent one.

    Example:
        >>> Draws("dice", 1).integer(1, 6) == Draws("dice", 1).integer(1, 6)
        True
    """

    def __init__(self, *names: object):
        self.share = random.Random("/".join(map(str, names))).random

    def integer(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return low + int(self.share() * (high - low + 1))

    def pick(self, items: Sequence[_T]) -> _T:
        """Return one of the items, each as likely."""
        return items[int(self.share() * len(items))]

    def some(self, items: Sequence[_T], number: int) -> tuple[_T, ...]:
        """Return so many of the items, in their own order."""
        places = list(range(len(items)))
        while len(places) > number:
            del places[int(self.share() * len(places))]
        return tuple(items[place] for place in places)

    def mixed(self, items: Sequence[_T]) -> list[_T]:
        """Return the items in random order (Fisher and Yates)."""
        mixed = list(items)
        for place in range(len(mixed) - 1, 0, -1):
            other = self.integer(0, place)
            mixed[place], mixed[other] = mixed[other], mixed[place]
        return mixed
