"""Panels: frozen lists of tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..errors import TaskNotFound, suggest

_Item = TypeVar("_Item")


def evenly(items: Sequence[_Item], number: int | None) -> list[_Item]:
    """Return so many items, spread evenly over all; all of them where there are no more, or for None."""
    if number is None or number >= len(items):
        return list(items)
    # In whole numbers: the choice is the same on every machine.
    return [items[index * len(items) // number] for index in range(number)]


@dataclass(frozen=True)
class Panel:
    """The tasks of one split, in a fixed order.

    Attributes:
        split: The split's name.
        ids: The task ids, sorted.
        splits: Names of all splits of the benchmark.
        sha256: SHA-256 of the ids, one a line, in hexadecimal.

    Example:
        >>> panel = Panel.of(["b", "a"], split="dev", splits=("train", "dev"))
        >>> panel.ids, len(panel), panel.sha256[:8]
        (('a', 'b'), 2, '911169dd')
    """

    split: str
    ids: tuple[str, ...]
    splits: tuple[str, ...]
    sha256: str

    def __repr__(self) -> str:
        """Return the panel in a line: there may be thousands of ids."""
        first = [repr(task) for task in self.ids[:3]]
        ellipsis = ", ..." if len(self.ids) > len(first) else ""
        return (
            f"<Panel {self.split!r}: {len(self.ids):,} tasks ({', '.join(first)}{ellipsis}), "
            f"sha256 {self.sha256[:8]}>"
        )

    @classmethod
    def of(cls, ids: Iterable[str], split: str, splits: Iterable[str]) -> Panel:
        """Return the panel of these ids, sorted, each once."""
        # Folders list their files in any order; the digest must not depend on it.
        ordered = tuple(sorted(set(ids)))
        digest = hashlib.sha256("".join(f"{name}\n" for name in ordered).encode()).hexdigest()
        return cls(split, ordered, tuple(splits), digest)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __contains__(self, task: object) -> bool:
        return task in self.ids

    def missing(self, task: str) -> TaskNotFound:
        """Return the error for a task that is not here."""
        return TaskNotFound(
            f"expected one of the {len(self.ids)} tasks of split {self.split!r}, found {task!r}; "
            f"{suggest(task, self.ids, limit=3)} (all: env.unwrapped.tasks.ids)"
        )
