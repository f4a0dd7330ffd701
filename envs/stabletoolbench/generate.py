"""Generated tasks: questions for the embedded tools, with functions that are not needed as well."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .apps import (
    APPS,
    TOGETHER,
    Job,
    Ledger,
    World,
    answering,
    api_key,
    api_records,
    category_of,
    world_of,
)
from .apps.base import data_file
from .functions import Offer, offers
from .values import written

__all__ = ["GROUPS", "SIZES", "GeneratedTask", "cells", "generated_task"]

GROUPS = (
    "G1_instruction",
    "G1_category",
    "G1_tool",
    "G2_category",
    "G2_instruction",
    "G3_instruction",
)
"""ToolBench's six groups of queries."""

SIZES: Mapping[str, int] = {"train": 400, **dict.fromkeys(GROUPS, 100)}
"""How many generated tasks each split has."""

_UNSEEN_TOOLS = frozenset(("files", "library"))
_UNSEEN_CATEGORY = "Nature"
_MOST_CALLS = 5
_WORLDS = 25
_MOST_OFFERS = 10


@dataclass(frozen=True)
class GeneratedTask:
    """A task for the embedded tools.

    Attributes:
        split: Where it is from.
        record: The query with its functions, as the official files have them.
        offers: The functions, made of `record`.
        world: The tables of all tools at its start.
        plan: Names of functions and arguments that solve it, in order.
        answer: The right answer's fields.
        effects: What must be changed in the end, by table, id and column, in written form.
    """

    split: str
    record: Mapping[str, Any]
    offers: tuple[Offer, ...]
    world: World
    plan: tuple[tuple[str, Mapping[str, Any]], ...]
    answer: Mapping[str, Any]
    effects: Mapping[tuple[str, str, str], str]


@lru_cache(maxsize=256)
def generated_task(split: str, number: int, seed: int = 0) -> GeneratedTask:
    """Return a generated task; the same in every process.

    Args:
        split: ``train`` or one of `GROUPS`. Groups that end with ``_instruction`` ask in words that
            ``train`` never uses, ``_tool`` asks about tools and ``_category`` about a category of tools
            that are not in it. G1 is about one tool, G2 about two of a category, G3 about several.
        number: Which one.
        seed: Of all tasks.

    Example:
        >>> task = generated_task("G1_tool", 0)
        >>> {offer.tool for offer in task.offers} <= {"files", "library"}
        True
    """
    rng = random.Random(f"comap tasks {seed} {split} {number}")
    place = list(SIZES).index(split)
    world = world_of((seed * len(SIZES) + place) * _WORLDS + number % _WORLDS)
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
    return GeneratedTask(split, record, made, world, plan, answer, _effects(world, calls))


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
    chosen = rng.sample(sorted(_reach(apps)), rng.choice((2, 2, 3)))
    return [
        _job(world, rng, rng.choice([app for app in apps if category_of(app) == category]))
        for category in chosen
    ]


def _reach(apps: Sequence[str]) -> set[str]:
    return {category_of(app) for app in apps}


def _asked(jobs: Sequence[Job], rng: random.Random, unseen: bool) -> tuple[str, dict[str, Any]]:
    """Return the words of a task, and the right answer."""
    sentences, answer = [], dict[str, Any]()
    for job in jobs:
        wordings = data_file("queries.json")[job.wording]
        chosen = wordings[-1] if unseen else rng.choice(wordings[:2])
        sentences.append(chosen.format(**job.slots))
        for name, value in job.answer.items():
            number = 2
            field = name
            while field in answer:
                field, number = f"{name}_{number}", number + 1
            answer[field] = value
    fields = ", ".join(answer)
    told = f"the field {fields}" if len(answer) == 1 else f"the fields {fields}"
    return f"{' '.join(sentences)} Give the final answer as JSON with {told}.", answer


def _listed(rng: random.Random, kind: str, needed: Sequence[str]) -> list[dict[str, Any]]:
    """Return the functions that are needed among others: of the same tools, categories, or any."""
    tools = list(dict.fromkeys(name.split(".")[0] for name in needed))
    offered = [record for tool in tools for record in api_records(tool)]
    others = [app for app in APPS if app not in tools]
    if kind == "G2":
        others = [app for app in others if category_of(app) in _reach(tools)]
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


def _effects(
    world: World, calls: Sequence[tuple[str, Mapping[str, Any]]]
) -> dict[tuple[str, str, str], str]:
    """Return what the plan changes."""
    ledger = world.ledger()
    for name, arguments in calls:
        answer = answering(*name.split("."))
        assert answer is not None
        answer(ledger, arguments)
        ledger.clock += 1
    return cells(ledger)
