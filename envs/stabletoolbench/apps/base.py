"""What an app is, what a job is, and what all apps of a world share: cities, people, days."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, TypeAlias

from .ledger import Ledger, Row, Table

__all__ = ["Answering", "App", "Common", "Job", "Making", "World", "common_of", "data_file", "pick"]


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be done with apps.

    Attributes:
        wording: Which of the wordings in ``data/queries.json`` ask for it.
        slots: What is filled into them.
        calls: What solves it: ``"app.api"`` and arguments, in order.
        answer: The fields of the right final answer.
    """

    wording: str
    slots: Mapping[str, Any]
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    answer: Mapping[str, Any]


@dataclass(frozen=True)
class Common:
    """What the apps of a world agree on.

    Attributes:
        cities: Name, country and airport of each city, by number (``G-1``).
        people: Full names.
        days: Days, as texts.
        currencies: Codes; the first is what flights and orders cost.
    """

    cities: Table
    people: tuple[str, ...]
    days: tuple[str, ...]
    currencies: tuple[str, ...]


Answering: TypeAlias = Callable[[Ledger, Mapping[str, Any]], Any]
"""Answers a call; raises `ToolError` where it refuses."""

Making: TypeAlias = Callable[["World", random.Random], Job]
"""Draws a job."""


@dataclass(frozen=True)
class App:
    """A small program with tables.

    Attributes:
        name: As in ``data/apps.json``, which has its functions.
        tables: Draws its tables.
        answers: Answers calls, by the API's name.
        jobs: Draws jobs, by wording.
    """

    name: str
    tables: Callable[[random.Random, Common], dict[str, Table]]
    answers: Mapping[str, Answering]
    jobs: Mapping[str, Making]


@dataclass(frozen=True)
class World:
    """The seeded tables of all apps.

    Attributes:
        seed: What they were drawn from.
        common: What they agree on.
        tables: By name.
    """

    seed: int
    common: Common
    tables: Mapping[str, Table]

    def ledger(self) -> Ledger:
        """Return a fresh state."""
        return Ledger(self.tables)


@lru_cache(maxsize=8)
def data_file(name: str) -> Any:
    """Return one of the files in ``data``."""
    folder = files((__package__ or "").rpartition(".")[0])
    return json.loads(folder.joinpath("data").joinpath(name).read_text("utf-8"))


def common_of(rng: random.Random) -> Common:
    """Draw what the apps of a world agree on."""
    words = data_file("words.json")
    starts = rng.sample(words["city_starts"], 12)
    ends = [rng.choice(words["city_ends"]) for _ in starts]
    countries = rng.sample(words["countries"], 3)
    cities: dict[str, Row] = {
        f"G-{number}": {
            "name": start + end,
            "country": countries[number % 3],
            "airport": start.upper(),
        }
        for number, (start, end) in enumerate(zip(starts, ends, strict=True), 20)
    }
    firsts, lasts = rng.sample(words["first_names"], 10), words["last_names"]
    people = tuple(f"{first} {rng.choice(lasts)}" for first in firsts)
    month = rng.randrange(1, 10)
    days = tuple(f"2031-{month:02}-{day:02}" for day in sorted(rng.sample(range(1, 29), 5)))
    return Common(cities, people, days, tuple(rng.sample(words["currencies"], 5)))


def pick(rng: random.Random, table: Table) -> tuple[str, Row]:
    """Draw a row and its id."""
    key = rng.choice(list(table))
    return key, table[key]
