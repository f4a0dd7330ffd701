"""Which tasks there are: official queries from their files, or generated ones."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ...errors import (
    DataCorrupt,
    DataNotFound,
    OptionError,
    TaskNotFound,
    check_choice,
    check_number,
)
from ..generated import warn_of_generated
from ..panel import Panel
from ..storage import comap_home, named_folder
from .apps import APPS, TOGETHER, answering, api_key, api_records, category_of, world_of
from .apps.world import Job, Ledger, World, data_file
from .calls import written
from .functions import Offer, offers

GROUPS = (
    "G1_instruction",
    "G1_category",
    "G1_tool",
    "G2_category",
    "G2_instruction",
    "G3_instruction",
)
SIZES: Mapping[str, int] = {"train": 400, **dict.fromkeys(GROUPS, 100)}
_UNSEEN_TOOLS = frozenset(("files", "library"))
_UNSEEN_CATEGORY = "Nature"
_MOST_CALLS = 5
_WORLDS = 25
_MOST_OFFERS = 10


@dataclass(frozen=True)
class GeneratedTask:
    """A task for the generated tools."""

    split: str
    record: Mapping[str, Any]
    offers: tuple[Offer, ...]
    world: World
    plan: tuple[tuple[str, Mapping[str, Any]], ...]
    answer: Mapping[str, Any]
    effects: Mapping[tuple[str, str, str], str]


@lru_cache(maxsize=256)
def generated_task(split: str, number: int, seed: int = 0) -> GeneratedTask:
    rng = random.Random(f"comap tasks {seed} {split} {number}")
    at = list(SIZES).index(split)
    world = world_of((seed * len(SIZES) + at) * _WORLDS + number % _WORLDS)
    kind = rng.choice(("G1", "G1", "G2", "G3")) if split == "train" else split[:2]
    jobs = _jobs(world, rng, split, kind)
    text, answer = _asked(jobs, rng, split.endswith("_instruction"))
    calls = [call for job in jobs for call in job.calls]
    needed = list(dict.fromkeys(name for name, _ in calls))
    listed = _listed(rng, kind, needed)
    record = {
        "query_id": number,
        "query": text,
        "api_list": listed,
        "relevant APIs": [
            [api["tool_name"], api["api_name"]] for api in listed if api_key(api) in needed
        ],
    }
    made = offers(record)
    names = {f"{offer.tool}.{offer.api}": offer.name for offer in made}
    plan = tuple((names[name], dict(arguments)) for name, arguments in calls)
    ledger = world.ledger()
    for name, arguments in calls:
        tool = answering(*name.split("."))
        assert tool is not None
        tool(ledger, arguments)
        ledger.clock += 1
    return GeneratedTask(split, record, made, world, plan, answer, cells(ledger))


def _jobs(world: World, rng: random.Random, split: str, kind: str) -> list[Job]:
    """Draw jobs that no two of share an app, of at most five calls together."""
    apps = _apps(split)
    while True:
        if kind == "G1":
            jobs = [_job(world, rng, rng.choice(apps))]
        elif kind == "G2":
            by_category: dict[str, list[str]] = {}
            for app in apps:
                by_category.setdefault(category_of(app), []).append(app)
            several = [group for group in by_category.values() if len(group) > 1]
            jobs = [_job(world, rng, app) for app in rng.sample(rng.choice(several), 2)]
        else:
            jobs = _over_categories(world, rng, apps, split != "train")
        if sum(len(job.calls) for job in jobs) <= _MOST_CALLS:
            return jobs


def _apps(split: str) -> list[str]:
    if split.endswith("_tool"):
        return sorted(_UNSEEN_TOOLS)
    unseen = split.endswith("_category")
    named = [app for app in APPS if (category_of(app) == _UNSEEN_CATEGORY) == unseen]
    return [app for app in named if app not in _UNSEEN_TOOLS]


def _job(world: World, rng: random.Random, app: str) -> Job:
    makers = APPS[app].jobs
    return makers[rng.choice(list(makers))](world, rng)


def _over_categories(
    world: World, rng: random.Random, apps: Sequence[str], nature: bool
) -> list[Job]:
    """Draw a job over several apps, with weather or not, or else jobs of several categories."""
    if rng.random() < 0.5:
        allowed = [name for name in TOGETHER if nature or "weather" not in name]
        return [TOGETHER[rng.choice(allowed)](world, rng)]
    chosen = rng.sample(sorted(set(map(category_of, apps))), rng.choice((2, 2, 3)))
    return [
        _job(world, rng, rng.choice([app for app in apps if category_of(app) == category]))
        for category in chosen
    ]


def _asked(jobs: Sequence[Job], rng: random.Random, unseen: bool) -> tuple[str, dict[str, Any]]:
    sentences, answer = [], dict[str, Any]()
    for job in jobs:
        wordings = data_file("queries")[job.wording]
        chosen = wordings[-1] if unseen else rng.choice(wordings[:2])
        sentences.append(chosen.format(**job.slots))
        for name, value in job.answer.items():
            number = 2
            field = name
            while field in answer:
                field, number = f"{name}_{number}", number + 1
            answer[field] = value
    fields = ", ".join(answer)
    wanted = f"the field{'s' * (len(answer) > 1)} {fields}"
    return f"{' '.join(sentences)} Give the final answer as JSON with {wanted}.", answer


def _listed(rng: random.Random, kind: str, needed: Sequence[str]) -> list[dict[str, Any]]:
    """Return the functions that are needed among others: of the same tools, categories, or any."""
    tools = list(dict.fromkeys(name.split(".")[0] for name in needed))
    offered = [record for tool in tools for record in api_records(tool)]
    others = [app for app in APPS if app not in tools]
    if kind == "G2":
        categories = set(map(category_of, tools))
        others = [app for app in others if category_of(app) in categories]
    more = [] if kind == "G1" else [record for app in others for record in api_records(app)]
    spare = [record for record in offered if api_key(record) not in needed] + rng.sample(
        more, min(3, len(more))
    )
    kept = [record for record in offered if api_key(record) in needed]
    room = max(_MOST_OFFERS - len(kept), 0)
    kept += rng.sample(spare, min(room, len(spare)))
    rng.shuffle(kept)
    return kept


def cells(ledger: Ledger) -> dict[tuple[str, str, str], str]:
    """Return what was changed, by table, id and column, all in written form."""
    return {
        (table, written(key), column): written(value)
        for (table, key, column), value in ledger.changed_cells().items()
    }


SPLITS = ("train", *GROUPS, "all")

SOURCES = ("auto", "official", "generated", "mixed")
"""Where tasks may come from; ``mixed`` trains on generated ones, and tests on official queries."""

_PLAIN = re.compile("0|[1-9][0-9]{0,7}")
_FOLDER = "test_instruction"
_MOST_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Tasks:
    """The tasks of one split."""

    split: str
    folder: Path | None
    seed: int = 0

    @cached_property
    def panel(self) -> Panel:
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
        prefix, _, rest = task.partition("/")
        group, _, number = rest.partition("/")
        known = prefix == "generated" and group in SIZES and _PLAIN.fullmatch(number)
        if known and int(number) < SIZES[group]:
            return generated_task(group, int(number), self.seed)
        raise self.panel.missing(task[:80])

    def official(self, task: str) -> tuple[str, Mapping[str, Any]]:
        """Return the group and the record of an official query, of this split or another."""
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
        return read_queries(_file_of(self.folder, group))


def _file_of(folder: Path, group: str) -> Path:
    return folder / _FOLDER / f"{group}.json"


def read_queries(path: str | os.PathLike[str]) -> Mapping[str, Mapping[str, Any]]:
    path = Path(path)
    if not path.is_file():
        raise DataNotFound(
            f"expected queries in {path}, found no such file; put the official "
            f"{_FOLDER}/{path.name} there"
        )
    stat = path.stat()
    return _read(path, stat.st_mtime_ns, stat.st_size)


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
    for index, record in enumerate(data):
        if problem := _problem(record):
            raise DataCorrupt(
                f"expected a query at place {index} of {path}, found {problem}; {again}"
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
    """Return the tasks of the official files that are there, else generated ones."""
    check_choice("StableToolBench's split", split, SPLITS)
    check_choice("StableToolBench's source", source, SOURCES)
    check_number("generator_seed", generator_seed, 0)
    if source == "generated" and data_dir is not None:
        raise OptionError("source='generated' reads no data, found data_dir as well; leave one out")
    folder = comap_home() / "stabletoolbench" if data_dir is None else named_folder(data_dir)
    there = (folder / _FOLDER).is_dir()
    if (source in ("official", "mixed") and not there) or (data_dir is not None and not there):
        raise DataNotFound(
            f"expected StableToolBench's queries in {folder / _FOLDER}, found no such folder; put "
            "the official test_instruction/ there, or name its parent with data_dir"
        )
    if source == "auto" and not there:
        remedy = f"put {_FOLDER}/ into {folder}, or name its parent by data_dir"
        warn_of_generated("comap/StableToolBench-v0", remedy)
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
