"""Which tasks there are: ScienceWorld's 30 with their variations, in the splits of upstream or ETO."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import DataCorrupt, DataNotFound, OptionError, check_choice, suggest
from ..panel import Panel
from ..storage import comap_home, named_folder, packaged

SPLITS = ("train", "dev", "test")
SIMPLIFICATIONS = (
    "easy",
    "teleportAction",
    "openDoors",
    "openContainers",
    "selfWateringFlowerPots",
    "noElectricalAction",
)
"""What can be made simpler; ``"easy"`` stands for four of the others."""

SHORT = (
    "find-animal",
    "find-living-thing",
    "find-non-living-thing",
    "find-plant",
    "lifespan-longest-lived",
    "lifespan-longest-lived-then-shortest-lived",
    "lifespan-shortest-lived",
)
"""Tasks that a short gold path solves, which takes less than a second to work out."""

_SETS = ("upstream", "eto")
_WITHOUT_ELECTRICITY = "noElectricalAction"
_ELECTRICAL = ("power-component", "conductivity")
_LARGEST_FILE = 10_000_000


@dataclass(frozen=True)
class Source:
    """The tasks of one split."""

    panel: Panel
    limits: Mapping[str, int]
    splits: str
    members: frozenset[str]

    def parse(self, task: str) -> tuple[str, int]:
        if task not in self.members:
            raise self.panel.missing(task)
        name, _, variation = task.rpartition("/")
        return name, int(variation)


def task_table() -> dict[str, dict[str, int]]:
    """Return, for each task name, how many ``variations`` it has, and its ``limit``: actions."""
    table: dict[str, dict[str, int]] = packaged(__package__, "tasks")["tasks"]
    return table


def check_simplification(simplification: str) -> str:
    if not isinstance(simplification, str):
        raise OptionError(
            f"simplification must be text, such as 'easy' or '', not {simplification!r}"
        )
    names = simplification.split(",") if simplification else []
    for name in names:
        check_choice("simplification", name, SIMPLIFICATIONS)
    if len(set(names)) < len(names):
        raise OptionError(f"simplification names something twice: {simplification!r}; name it once")
    return simplification


def check_task_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of some tasks, in the table's order; none stand for all."""
    if names is None:
        return ()
    listed = names.split(",") if isinstance(names, str) else list(names)
    all_names = tuple(task_table())
    for name in listed:
        if name not in all_names:
            raise OptionError(f"ScienceWorld has no task {name!r}; {suggest(str(name), all_names)}")
    if not listed:
        raise OptionError("task_names must name a task; leave it out to play all")
    return tuple(name for name in all_names if name in listed)


def open_source(
    split: str,
    splits: str,
    data_dir: str | os.PathLike[str] | None = None,
    simplification: str = "easy",
    names: tuple[str, ...] = (),
) -> Source:
    """Return the tasks of a split, upstream's or those of ETO's lists, and their step limits."""
    check_choice("splits", splits, _SETS)
    check_choice("ScienceWorld's split", split, SPLITS)
    electrical = _WITHOUT_ELECTRICITY not in simplification.split(",")
    if splits == "upstream" and data_dir is not None:
        raise OptionError("splits='upstream' reads no data, found data_dir as well; leave one out")
    if splits == "upstream":
        source = _upstream(split, electrical)
    else:
        home = comap_home() / "scienceworld"
        folder = home if data_dir is None else named_folder(data_dir)
        source = _eto(split, folder, electrical)

    if not names:
        return source
    ids = [task for task in source.panel.ids if task.rpartition("/")[0] in names]
    if not ids:
        raise OptionError(
            f"expected a task of {', '.join(names)} in the split {source.panel.split!r} of "
            f"{source.splits!r}, found none; name others, or leave task_names out"
        )
    limits = {name: limit for name, limit in source.limits.items() if name in names}
    return _source(ids, source.panel.split, source.splits, limits)


@lru_cache(maxsize=8)
def _upstream(split: str, electrical: bool) -> Source:
    """Return the tasks of a split by the simulator's own rule."""
    ids: list[str] = []
    limits: dict[str, int] = {}
    split_index = SPLITS.index(split)
    for name, row in task_table().items():
        quarter = row["variations"] // 4  # two of them are train, one is dev, the rest is test
        ends = (0, 2 * quarter, 3 * quarter, row["variations"])
        if electrical or not _is_electrical(name):
            numbers = range(ends[split_index], ends[split_index + 1])
            ids += [f"{name}/{number}" for number in numbers]
            limits[name] = row["limit"]
    return _source(ids, split, "upstream", limits)


def _eto(split: str, folder: Path, electrical: bool) -> Source:
    """Read ETO's list of a split, and its step limits."""
    table = task_table()
    limits: dict[str, int] = {}
    for eto_name, limit in _read(folder / "max_steps.json", dict).items():
        name = _plain_name(eto_name)
        if name not in table or type(limit) is not int or limit < 1:
            raise _corrupt(folder / "max_steps.json", f"{eto_name!r}: {limit!r}")
        limits[name] = limit

    # An entry is a task's name and the number of a variation.
    ids = []
    path = folder / f"{split}_indices.json"
    for entry in _read(path, list):
        is_pair = isinstance(entry, list) and len(entry) == 2
        eto_name, number = entry if is_pair else (None, None)
        name = _plain_name(eto_name)
        is_known = name in limits and type(number) is int
        if not is_known or number not in range(table[name]["variations"]):
            raise _corrupt(path, repr(entry))
        if electrical or not _is_electrical(name):
            ids.append(f"{name}/{number}")
    return _source(ids, split, "eto", limits)


def _source(ids: list[str], split: str, splits: str, limits: dict[str, int]) -> Source:
    return Source(Panel.of(ids, split, SPLITS), limits, splits, frozenset(ids))


def _is_electrical(name: str) -> bool:
    return any(word in name for word in _ELECTRICAL)


def _plain_name(eto_name: object) -> str:
    """Return the simulator's name of a task for the one in ETO's files."""
    # ETO's names have the number of the task before them, and older spellings.
    name = eto_name if isinstance(eto_name, str) else ""
    return re.sub(r"^task-\d+[ab]?-|[()]", "", name).replace("mendellian", "mendelian")


def _read(path: Path, kind: type) -> Any:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise _corrupt(path, f"{path.stat().st_size:,} bytes")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DataNotFound(
            f"expected ETO's list at {path}, found: {error.strerror}; copy max_steps.json and the "
            "files *_indices.json of the ETO repository (github.com/Yifan-Song793/ETO, folder "
            "eval_agent/data/sciworld) to a folder and give it as data_dir"
        ) from None
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"{type(error).__name__}: {error}") from None
    if not isinstance(content, kind):
        raise _corrupt(path, type(content).__name__)
    return content


def _corrupt(path: Path, actual: str) -> DataCorrupt:
    return DataCorrupt(
        f"expected ETO's task names and variations in {path}, found {actual:.200}; get the file again"
    )
