"""What generated tasks share: random draws, and folders that keep what was generated."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from ..errors import CoMapError
from .storage import comap_home, locked

_T = TypeVar("_T")
_WAIT = 300.0
_TEMPORARY: list[tempfile.TemporaryDirectory[str]] = []


@lru_cache(maxsize=8)
def code_digest(package: str) -> str:
    """Return the SHA-256 of a package's modules and JSON data: other code may generate other data."""
    digest = hashlib.sha256()

    def take(folder: Any) -> None:
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            if path.is_dir() and path.name == "data":
                take(path)
            elif path.name.endswith((".py", ".json")):
                digest.update(path.name.encode() + path.read_bytes())

    take(files(package))
    return digest.hexdigest()


def kept_folder(
    package: str,
    name: str,
    seed: int,
    make: Callable[[Path], object],
    check: Callable[[Path], object],
) -> Path:
    """Return the folder of what a package generates from a seed: in ``COMAP_HOME``, else temporary.

    `check` raises `CoMapError` where a folder is not whole.
    """
    kept = comap_home() / f"{name}-generated" / f"{code_digest(package)[:16]}-{seed}"

    def is_whole() -> bool:
        try:
            check(kept)
        except CoMapError:
            return False
        return True

    try:
        if not is_whole():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with locked(kept.parent / f"{kept.name}.lock", wait=_WAIT):
                if not is_whole():
                    make(kept)
        return kept
    except (OSError, CoMapError):  # nothing can be written there: a folder of this process alone
        folder = tempfile.TemporaryDirectory(prefix=f"comap-{name}-", ignore_cleanup_errors=True)
        _TEMPORARY.append(folder)
        make(Path(folder.name, "made"))
        return Path(folder.name, "made")


class Draws:
    """A stream of random choices named by a text."""

    def __init__(self, *names: object):
        self.share = random.Random("/".join(map(str, names))).random

    def integer(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return low + int(self.share() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        return self.share() < probability

    def pick(self, items: Sequence[_T]) -> _T:
        return items[int(self.share() * len(items))]

    def some(self, items: Sequence[_T], number: int) -> tuple[_T, ...]:
        indices = list(range(len(items)))
        while len(indices) > number:
            del indices[int(self.share() * len(indices))]
        return tuple(items[index] for index in indices)

    def weighted(self, weights: Mapping[_T, float]) -> _T:
        """Return one of the keys, by weight; at least one weight must be positive."""
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
        """Return the items in random order (Fisher and Yates)."""
        mixed = list(items)
        for index in range(len(mixed) - 1, 0, -1):
            other = self.integer(0, index)
            mixed[index], mixed[other] = mixed[other], mixed[index]
        return mixed
