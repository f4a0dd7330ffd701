"""Which tasks there are: official queries from their files, or generated ones."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ...errors import DataCorrupt, DataNotFound, OptionError, TaskNotFound, suggest
from ..panel import Panel
from ..storage import comap_home
from .generate import GROUPS, SIZES, GeneratedTask, generated_task

__all__ = ["SOURCES", "SPLITS", "Tasks", "open_tasks", "read_queries"]

SPLITS = ("train", *GROUPS, "all")
"""All splits; ``all`` is the six groups."""

SOURCES = ("auto", "official", "generated", "mixed")
"""Where tasks may come from; ``mixed`` trains on generated ones, and tests on official queries."""

_PLAIN = re.compile("0|[1-9][0-9]{0,7}")
_FOLDER = "test_instruction"
_MOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Tasks:
    """The tasks of one split.

    Attributes:
        split: One of `SPLITS`.
        folder: The folder with the official files, or None for generated tasks.
        seed: Of generated tasks.
    """

    split: str
    folder: Path | None
    seed: int = 0

    @cached_property
    def panel(self) -> Panel:
        """The ids of the split's tasks."""
        groups: tuple[str, ...] = (self.split,)
        if self.folder is None:
            groups = GROUPS if self.split == "all" else groups
            ids = [f"generated/{group}/{n}" for group in groups for n in range(SIZES[group])]
            return Panel.of(ids, self.split, SPLITS)
        if self.split == "all":
            groups = tuple(group for group in GROUPS if _file_of(self.folder, group).is_file())
        named = [f"{group}/{key}" for group in groups for key in self._queries(group)]
        return Panel.of(named, self.split, SPLITS)

    def generated(self, task: str) -> GeneratedTask:
        """Return a generated task.

        Raises:
            TaskNotFound: There is no such task.
        """
        prefix, _, rest = task.partition("/")
        group, _, number = rest.partition("/")
        known = prefix == "generated" and group in SIZES and _PLAIN.fullmatch(number)
        if known and int(number) < SIZES[group]:
            return generated_task(group, int(number), self.seed)
        raise self.panel.missing(task[:80])

    def official(self, task: str) -> tuple[str, Mapping[str, Any]]:
        """Return the group and the record of an official query, of this split or another.

        Raises:
            TaskNotFound: There is no such query.
            DataNotFound: Its group's file is not there.
        """
        group, _, key = task.partition("/")
        if group not in GROUPS:
            raise self.panel.missing(task[:80])
        found = self._queries(group).get(key)
        if found is None:
            raise TaskNotFound(
                f"expected a query of {group}, such as {group}/{next(iter(self._queries(group)), 1)}, "
                f"found {task!r:.80}; env.unwrapped.tasks.ids lists those of the split"
            )
        return group, found

    def _queries(self, group: str) -> Mapping[str, Mapping[str, Any]]:
        assert self.folder is not None
        path = _file_of(self.folder, group)
        if not path.is_file():
            raise DataNotFound(
                f"expected the queries of {group} in {path}, found no such file; put the official "
                f"test_instruction/{group}.json there"
            )
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)


def _file_of(folder: Path, group: str) -> Path:
    return folder / _FOLDER / f"{group}.json"


def read_queries(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Return the queries of an official file by id.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: It is not what it should be.
    """
    path = Path(path)
    if not path.is_file():
        raise DataNotFound(f"expected a file of queries, found none at {path}")
    stat = path.stat()
    return dict(_read(path, stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=8)
def _read(path: Path, changed: int, size: int) -> dict[str, dict[str, Any]]:
    """Read a file of queries; a file that was changed is read anew."""
    again = "get the file again from THUNLP-MT/StableToolBench"
    if size > _MOST_BYTES:
        raise DataCorrupt(f"expected queries in {path}, found {size:,} bytes; {again}")
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataCorrupt(f"expected JSON in {path}, found {error}; {again}") from error
    if not isinstance(data, list):
        raise DataCorrupt(f"expected a list in {path}, found {type(data).__name__}; {again}")
    queries: dict[str, dict[str, Any]] = {}
    for place, record in enumerate(data):
        if problem := _problem(record):
            raise DataCorrupt(
                f"expected a query at place {place} of {path}, found {problem}; {again}"
            )
        queries[str(record["query_id"])] = record
    return queries


def _problem(record: Any) -> str:
    """Return what is wrong with a query; empty if nothing is."""
    if not isinstance(record, dict):
        return type(record).__name__
    if type(record.get("query_id")) not in (int, str):
        return f"query_id {record.get('query_id')!r:.40}"
    if not isinstance(record.get("query"), str) or not record["query"].strip():
        return f"query {record.get('query')!r:.40}"
    if not isinstance(record.get("api_list"), list):
        return f"api_list {record.get('api_list')!r:.40}"
    pairs = record.get("relevant APIs", [])
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        return f"relevant APIs {pairs!r:.40}"
    return ""


def open_tasks(
    data_dir: str | os.PathLike[str] | None, split: str, source: str, generator_seed: int
) -> Tasks:
    """Return the tasks of the official files that are there, else generated ones.

    Args:
        data_dir: Folder with ``test_instruction/``; None looks in ``COMAP_HOME/stabletoolbench``.
        split: One of `SPLITS`.
        source: One of `SOURCES`.
        generator_seed: Of generated tasks.

    Raises:
        OptionError: An option has a value that it cannot have.
        DataNotFound: Official queries are asked for and not there.

    Example:
        >>> len(open_tasks(None, "G1_tool", "generated", 0).panel)
        100
    """
    for name, value, known in (("split", split, SPLITS), ("source", source, SOURCES)):
        if value not in known:
            raise OptionError(
                f"StableToolBench's {name} cannot be {value!r}; {suggest(str(value), known)}"
            )
    if type(generator_seed) is not int or generator_seed < 0:
        raise OptionError(
            f"generator_seed must be a whole number of at least 0, not {generator_seed!r}"
        )
    if source == "generated" and data_dir is not None:
        raise OptionError("source='generated' reads no data, found data_dir as well; leave one out")
    folder = comap_home() / "stabletoolbench" if data_dir is None else Path(data_dir)
    there = (folder / _FOLDER).is_dir()
    if (source in ("official", "mixed") and not there) or (data_dir is not None and not there):
        raise DataNotFound(
            f"expected StableToolBench's queries in {folder / _FOLDER}, found no such folder; put "
            "the official test_instruction/ there, or name its parent with data_dir"
        )
    if source == "generated" or not there:
        return Tasks(split, None, generator_seed)
    if split == "train":
        if source == "mixed" or (source == "auto" and data_dir is None):
            return Tasks(split, None, generator_seed)
        raise OptionError(
            "StableToolBench's split cannot be 'train' with official queries, which are all for "
            f"tests; choose one of {', '.join(GROUPS)}, or source='mixed' to train on generated "
            "tasks"
        )
    return Tasks(split, folder)
