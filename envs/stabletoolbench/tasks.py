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
from .calls import written_form
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
    """Return a generated task: the same for the same numbers, in any process."""
    # Each split has worlds of its own: what is learned of one in training is of no use in a test.
    rng = random.Random(f"comap tasks {seed} {split} {number}")
    split_index = list(SIZES).index(split)
    world = world_of((seed * len(SIZES) + split_index) * _WORLDS + number % _WORLDS)
    kind = rng.choice(("G1", "G1", "G2", "G3")) if split == "train" else split[:2]
    jobs = _jobs(world, rng, split, kind)
    text, answer = _query_and_answer(jobs, rng, split.endswith("_instruction"))
    calls = [call for job in jobs for call in job.calls]
    needed_functions = list(dict.fromkeys(name for name, _ in calls))
    api_list = _api_list(rng, kind, needed_functions)

    # The record has upstream's form, so that both kinds of tasks are offered by the same code.
    relevant = [
        [api["tool_name"], api["api_name"]] for api in api_list if api_key(api) in needed_functions
    ]
    record = {
        "query_id": number,
        "query": text,
        "api_list": api_list,
        "relevant APIs": relevant,
    }
    offers_of_task = offers(record)
    names = {f"{offer.tool}.{offer.api}": offer.name for offer in offers_of_task}
    plan = tuple((names[name], dict(arguments)) for name, arguments in calls)

    # The plan is played once: what it changes is what the task wants changed.
    ledger = world.ledger()
    for name, arguments in calls:
        tool = answering(*name.split("."))
        assert tool is not None
        tool(ledger, arguments)
        ledger.clock += 1
    return GeneratedTask(split, record, offers_of_task, world, plan, answer, cells(ledger))


def _jobs(world: World, rng: random.Random, split: str, kind: str) -> list[Job]:
    """Draw jobs that share no app, with at most five calls in all."""
    apps = _apps(split)

    # Drawn anew where these are too many calls: a part of a job would have no answer.
    while True:
        if kind == "G1":
            jobs = [_job(world, rng, rng.choice(apps))]
        elif kind == "G2":
            jobs = [_job(world, rng, app) for app in _two_of_a_category(rng, apps)]
        else:
            jobs = _over_categories(world, rng, apps, with_weather=split != "train")
        if sum(len(job.calls) for job in jobs) <= _MOST_CALLS:
            return jobs


def _two_of_a_category(rng: random.Random, apps: Sequence[str]) -> list[str]:
    apps_by_category: dict[str, list[str]] = {}
    for app in apps:
        apps_by_category.setdefault(category_of(app), []).append(app)
    groups = [group for group in apps_by_category.values() if len(group) > 1]
    return rng.sample(rng.choice(groups), 2)


def _apps(split: str) -> list[str]:
    """Return the apps of a split: its name says whether tools or categories are new, as upstream's."""
    if split.endswith("_tool"):
        return sorted(_UNSEEN_TOOLS)
    is_unseen = split.endswith("_category")
    apps = [app for app in APPS if (category_of(app) == _UNSEEN_CATEGORY) == is_unseen]
    return [app for app in apps if app not in _UNSEEN_TOOLS]


def _job(world: World, rng: random.Random, app: str) -> Job:
    makers = APPS[app].jobs
    return makers[rng.choice(list(makers))](world, rng)


def _over_categories(
    world: World, rng: random.Random, apps: Sequence[str], with_weather: bool
) -> list[Job]:
    """Draw a job over several apps, or else jobs of several categories."""
    # Weather belongs to the category that training never offers.
    if rng.random() < 0.5:
        names = [name for name in TOGETHER if with_weather or "weather" not in name]
        return [TOGETHER[rng.choice(names)](world, rng)]

    jobs = []
    for category in rng.sample(sorted(set(map(category_of, apps))), rng.choice((2, 2, 3))):
        apps_of_category = [app for app in apps if category_of(app) == category]
        jobs.append(_job(world, rng, rng.choice(apps_of_category)))
    return jobs


def _query_and_answer(
    jobs: Sequence[Job], rng: random.Random, is_new_wording: bool
) -> tuple[str, dict[str, Any]]:
    """Return the text that asks for jobs, and the answer that they have together."""
    sentences = []
    answer: dict[str, Any] = {}
    for job in jobs:
        # The third wording of a job is for tests of new instructions alone; hotels have none.
        wordings = data_file("queries")[job.wording]
        wording = wordings[-1] if is_new_wording else rng.choice(wordings[:2])
        sentences.append(wording.format(**job.slots))

        # Two jobs may ask for a field of the same name: the second one gets a number.
        for name, value in job.answer.items():
            number = 2
            field = name
            while field in answer:
                field = f"{name}_{number}"
                number += 1
            answer[field] = value

    noun = "fields" if len(answer) > 1 else "field"
    ending = f"Give the final answer as JSON with the {noun} {', '.join(answer)}."
    return f"{' '.join(sentences)} {ending}", answer


def _api_list(
    rng: random.Random, kind: str, needed_functions: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the functions that are needed among others: of the same tools, categories, or any."""
    tools = list(dict.fromkeys(name.split(".")[0] for name in needed_functions))
    records_of_tools = [record for tool in tools for record in api_records(tool)]

    # What may mislead comes from where upstream's group has it: G1 has one tool, G2 one category.
    other_apps = [app for app in APPS if app not in tools]
    if kind == "G2":
        categories = set(map(category_of, tools))
        other_apps = [app for app in other_apps if category_of(app) in categories]
    other_records = []
    if kind != "G1":
        other_records = [record for app in other_apps for record in api_records(app)]

    needed_records = []
    spare_records = []
    for record in records_of_tools:
        if api_key(record) in needed_functions:
            needed_records.append(record)
        else:
            spare_records.append(record)
    spare_records += rng.sample(other_records, min(3, len(other_records)))

    room = max(_MOST_OFFERS - len(needed_records), 0)
    api_list = needed_records + rng.sample(spare_records, min(room, len(spare_records)))
    rng.shuffle(api_list)
    return api_list


def cells(ledger: Ledger) -> dict[tuple[str, str, str], str]:
    """Return what was changed, by table, id and column, all in written form."""
    return {
        (table, written_form(key), column): written_form(value)
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
            ids = []
            for group in groups:
                ids += [f"generated/{group}/{number}" for number in range(SIZES[group])]
            return Panel.of(ids, self.split, SPLITS)

        if self.split == "all":  # of the files that are there
            groups = tuple(group for group in GROUPS if _file_of(self.folder, group).is_file())
        ids = []
        for group in groups:
            ids += [f"{group}/{key}" for key in self._queries(group)]
        return Panel.of(ids, self.split, SPLITS)

    def generated(self, task: str) -> GeneratedTask:
        prefix, _, rest = task.partition("/")
        group, _, number = rest.partition("/")
        is_id = prefix == "generated" and group in SIZES and _PLAIN.fullmatch(number)
        if is_id and int(number) < SIZES[group]:
            return generated_task(group, int(number), self.seed)
        raise self.panel.missing(task[:80])

    def official(self, task: str) -> tuple[str, Mapping[str, Any]]:
        """Return the group and the record of an official query, of this split or another."""
        group, _, key = task.partition("/")
        if group not in GROUPS:
            raise self.panel.missing(task[:80])
        query = self._queries(group).get(key)
        if query is None:
            raise TaskNotFound(
                f"expected a query of {group}, such as {group}/{next(iter(self._queries(group)), 1)}, "
                f"found {task!r:.80}; env.unwrapped.tasks.ids lists those of the split"
            )
        return group, query

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
    remedy = "get the file again from THUNLP-MT/StableToolBench"
    if size > _MOST_BYTES:
        raise DataCorrupt(f"expected queries in {path}, found {size:,} bytes; {remedy}")
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataCorrupt(f"expected JSON in {path}, found {error}; {remedy}") from error
    if not isinstance(data, list):
        raise DataCorrupt(f"expected a list in {path}, found {type(data).__name__}; {remedy}")
    queries: dict[str, dict[str, Any]] = {}
    for index, record in enumerate(data):
        if problem := _problem(record):
            raise DataCorrupt(
                f"expected a query at place {index} of {path}, found {problem}; {remedy}"
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
    has_queries = (folder / _FOLDER).is_dir()
    if not has_queries and (source in ("official", "mixed") or data_dir is not None):
        raise DataNotFound(
            f"expected StableToolBench's queries in {folder / _FOLDER}, found no such folder; put "
            "the official test_instruction/ there, or name its parent with data_dir"
        )
    if source == "auto" and not has_queries:
        remedy = f"put {_FOLDER}/ into {folder}, or name its parent by data_dir"
        warn_of_generated("comap/StableToolBench-v0", remedy)
    if source == "generated" or not has_queries:
        return Tasks(split, None, generator_seed)

    # All official queries are tests: whoever trains gets generated tasks, unless only official
    # ones were asked for, which is a mistake.
    if split == "train":
        if source == "mixed" or (source == "auto" and data_dir is None):
            return Tasks(split, None, generator_seed)
        raise OptionError(
            "StableToolBench's split cannot be 'train' with official queries, which are all for "
            f"tests; choose one of {', '.join(GROUPS)}, or source='mixed' to train on generated "
            "tasks"
        )
    return Tasks(split, folder)
