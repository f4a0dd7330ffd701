"""Which goals there are, by which names, and in which splits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

from ...errors import DataNotFound, OptionError, TaskNotFound, suggest
from ..panel import Panel, evenly
from ..storage import comap_home
from .build import MANIFEST
from .catalog import KINDS, Catalog
from .embedded import embedded_catalog
from .goals import Goal, legacy_order, split_of_asin

__all__ = ["SOURCES", "SPLITS", "Tasks", "open_tasks"]

_LEGACY = {
    "legacy-test": (0, 500),
    "legacy-eval": (500, 1500),
    "legacy-train": (1500, None),
    "legacy-train-500": (500, None),
}
_BY_PRODUCT = ("train", "valid", "test")
SPLITS = (*_BY_PRODUCT, "all", *_LEGACY)
"""All splits: by product, none, and by place in WebShop's shuffle."""

SOURCES = ("auto", "official", "generated")
"""Where goals may come from."""

_PREFIX = "generated/"


@dataclass(frozen=True)
class Tasks:
    """The goals of one split.

    Attributes:
        catalog: The catalogue that they are from.
        split: One of `SPLITS`.
        kind: ``"synthetic"`` or ``"human"``.
        most: At most so many synthetic goals of a product, spread evenly over all of them; None for
            all. Splits by WebShop's shuffle have all.
        generated: Whether the catalogue is the embedded one.
    """

    catalog: Catalog
    split: str
    kind: str
    most: int | None
    generated: bool

    @cached_property
    def panel(self) -> Panel:
        """The ids of the split's tasks."""
        prefix = f"{_PREFIX if self.generated else ''}{self.kind}/"
        ids = (f"{prefix}{index}" for index in self._indices())
        return Panel.of(ids, self.split, SPLITS)

    def goal(self, task: str) -> Goal:
        """Return the goal of a task, of this split or another.

        Raises:
            TaskNotFound: There is no such task.
        """
        expected = "generated/" if self.generated else ""
        kind, _, number = task.removeprefix(expected).partition("/")
        if task.startswith(expected) and number.isascii() and number.isdigit() and len(number) < 12:
            return self.catalog.goal(kind, int(number))
        raise TaskNotFound(
            f"expected a task such as '{expected}synthetic/0', found {task!r:.80}; "
            "env.unwrapped.tasks.ids lists those of the split"
        )

    def split_of(self, goal: Goal) -> str:
        """Return the split that a goal is in, among those of this split's family."""
        if self.split in _BY_PRODUCT:
            return split_of_asin(goal.asin)
        if self.split == "all":
            return "all"
        place = legacy_order(self.catalog.goals(goal.kind)).index(goal.index)
        first, last = _LEGACY[self.split]
        if place >= first and (last is None or place < last):
            return self.split
        return next(n for n, (a, b) in _LEGACY.items() if place >= a and (b is None or place < b))

    def _indices(self) -> list[int]:
        if self.split in _LEGACY:
            first, last = _LEGACY[self.split]
            return list(legacy_order(self.catalog.goals(self.kind))[first:last])
        rows, starts = self.catalog.goal_products(self.kind)
        indices: list[int] = []
        for row, start, end in zip(
            rows.tolist(), starts[:-1].tolist(), starts[1:].tolist(), strict=True
        ):
            if self.split == "all" or split_of_asin(self.catalog.asin(row)) == self.split:
                indices += evenly(range(start, end), self.most)
        return indices


def open_tasks(
    data_dir: str | os.PathLike[str] | None,
    split: str,
    kind: str,
    most: int | None,
    source: str,
    generator_seed: int,
) -> Tasks:
    """Return the tasks of the catalogue that is there, else of the embedded one.

    Args:
        data_dir: Folder of a catalogue; None looks in ``COMAP_HOME/webshop``.
        split: One of `SPLITS`.
        kind: ``"synthetic"`` or ``"human"``.
        most: As in `Tasks`.
        source: One of `SOURCES`.
        generator_seed: Of the embedded catalogue.

    Raises:
        OptionError: An option has a value that it cannot have.
        DataNotFound: A catalogue is asked for and not there.
    """
    for name, value, known in (
        ("split", split, SPLITS),
        ("goals", kind, KINDS),
        ("source", source, SOURCES),
    ):
        if value not in known:
            raise OptionError(f"WebShop's {name} cannot be {value!r}; {suggest(str(value), known)}")
    if most is not None and (type(most) is not int or most < 1):
        raise OptionError(
            f"goals_per_product must be a whole number of at least 1, or None, not {most!r}"
        )
    if source == "generated" and data_dir is not None:
        raise OptionError("source='generated' reads no data, found data_dir as well; leave one out")
    home = comap_home() / "webshop"
    folder = home if data_dir is None else data_dir
    if source != "generated":
        if data_dir is not None or (home / MANIFEST).is_file():
            return Tasks(Catalog.open(folder), split, kind, most, False)
        if source == "official":
            raise DataNotFound(
                f"expected a WebShop catalogue in {home}, found none; "
                "run: comap data build webshop SOURCE"
            )
    return Tasks(embedded_catalog(generator_seed), split, kind, most, True)
