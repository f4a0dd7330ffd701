"""Random draws that are the same on every machine."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

__all__ = ["Draws"]

_T = TypeVar("_T")


class Draws:
    """A stream of random choices named by a text.

    Only ``random.Random.random`` is used, whose stream Python promises to keep, seeded by the
    SHA-512 of the name: hash seeds, Python's and numpy's versions make no difference.

    Args:
        *names: What names the stream; other names give an independent one.

    Example:
        >>> Draws("dice", 1).integer(1, 6) == Draws("dice", 1).integer(1, 6)
        True
    """

    def __init__(self, *names: object):
        self.share = random.Random("/".join(map(str, names))).random

    def integer(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included.

        Example:
            >>> Draws("a").integer(3, 3)
            3
        """
        return low + int(self.share() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """Return True with this probability.

        Example:
            >>> Draws("a").chance(0), Draws("a").chance(1)
            (False, True)
        """
        return self.share() < probability

    def pick(self, items: Sequence[_T]) -> _T:
        """Return one of the items, each as likely.

        Example:
            >>> Draws("a").pick(["only"])
            'only'
        """
        return items[int(self.share() * len(items))]

    def some(self, items: Sequence[_T], number: int) -> tuple[_T, ...]:
        """Return so many of the items, in their own order.

        Example:
            >>> Draws("a").some("abc", 3)
            ('a', 'b', 'c')
        """
        places = list(range(len(items)))
        while len(places) > number:
            del places[int(self.share() * len(places))]
        return tuple(items[place] for place in places)

    def weighted(self, weights: Mapping[_T, float]) -> _T:
        """Return one of the keys, by weight; at least one weight must be positive.

        Example:
            >>> Draws("a").weighted({"never": 0, "always": 2})
            'always'
        """
        total = 0.0
        for weight in weights.values():  # not sum(): since Python 3.12 it rounds otherwise
            total += weight
        left = self.share() * total
        chosen = None
        for item, weight in weights.items():
            if weight > 0:
                chosen = item
                left -= weight
                if left < 0:
                    break
        if chosen is None:
            raise ValueError("expected a positive weight, found none")
        return chosen

    def shuffled(self, items: Iterable[_T]) -> list[_T]:
        """Return the items in random order (Fisher and Yates).

        Example:
            >>> sorted(Draws("a").shuffled([3, 1, 2]))
            [1, 2, 3]
        """
        mixed = list(items)
        for place in range(len(mixed) - 1, 0, -1):
            other = self.integer(0, place)
            mixed[place], mixed[other] = mixed[other], mixed[place]
        return mixed
