"""What an app, a job and a world are, and the state of one episode's tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from ...storage import packaged

Row: TypeAlias = Mapping[str, Any]

Table: TypeAlias = Mapping[str, Row]

Rows: TypeAlias = list[tuple[str, Row]]

ToolCall: TypeAlias = tuple[str, Mapping[str, Any]]


class ToolError(Exception):
    """A tool refuses a call; its message is what the agent is told."""


class Marks(NamedTuple):
    """A moment of a `Ledger`; nothing in it changes."""

    changes: tuple[tuple[tuple[str, str], tuple[tuple[str, Any], ...]], ...]
    clock: int
    uses: tuple[tuple[str, tuple[int, ...]], ...]


class Ledger:
    """Tables that are never changed, and changes beside them."""

    def __init__(self, tables: Mapping[str, Table]):
        self.tables = tables
        self.changes: dict[tuple[str, str], Row] = {}
        self.clock = 0
        self._uses: dict[str, tuple[int, ...]] = {}

    def row(self, table: str, key: str) -> Row:
        row = self.changes.get((table, key)) or self.tables[table].get(key)
        if row is None:
            raise not_found(table, key)
        return row

    def rows(self, table: str) -> Rows:
        base = self.tables[table]
        rows = [(key, self.changes.get((table, key), row)) for key, row in base.items()]
        new = [
            (key, row)
            for (name, key), row in self.changes.items()
            if name == table and key not in base
        ]
        return rows + new

    def where(self, table: str, **values: Any) -> Rows:
        columns = values.items()
        return [item for item in self.rows(table) if columns <= item[1].items()]

    def put(self, table: str, key: str, **values: Any) -> list[dict[str, Any]]:
        """Set columns of a row, new or not, and return what a tool tells of that."""
        before = self.changes.get((table, key)) or self.tables[table].get(key) or {}
        self.changes[table, key] = {**before, **values}
        return [{"table": table, "id": key, "set": values}]

    def new_id(self, table: str, letters: str) -> str:
        added = sum(name == table for name, _ in self.changes)
        return f"{letters}-{len(self.tables[table]) + added + 1}"

    def limit(self, tool: str, most: int, window: int) -> None:
        """Count a use of a tool that allows so many in so many calls, or refuse it."""
        recent = tuple(use for use in self._uses.get(tool, ()) if self.clock - use < window)
        if len(recent) >= most:
            raise ToolError(f"Rate limit: {most} requests to {tool} in {window} calls; try again")
        self._uses[tool] = (*recent, self.clock)

    def changed_cells(self) -> dict[tuple[str, str, str], Any]:
        """Return what differs from the start, by table, id and column."""
        return {
            (table, key, column): value
            for (table, key), row in self.changes.items()
            for column, value in row.items()
            if self.tables[table].get(key, {}).get(column) != value
        }

    def save(self) -> Marks:
        changes = tuple((key, tuple(row.items())) for key, row in self.changes.items())
        return Marks(changes, self.clock, tuple(self._uses.items()))

    def load(self, marks: Marks) -> None:
        self.changes = {key: dict(row) for key, row in marks.changes}
        self.clock, self._uses = marks.clock, dict(marks.uses)


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be done with apps: a wording in ``data/queries.json``, and the calls that solve it."""

    wording: str
    slots: Mapping[str, Any]
    calls: tuple[ToolCall, ...]
    answer: Mapping[str, Any]


@dataclass(frozen=True)
class Common:
    """What the apps of a world agree on."""

    cities: Table
    people: tuple[str, ...]
    days: tuple[str, ...]
    currencies: tuple[str, ...]


@dataclass(frozen=True)
class World:
    """The seeded tables of all apps: what they agree on, and their tables by name."""

    seed: int
    common: Common
    tables: Mapping[str, Table]

    def ledger(self) -> Ledger:
        return Ledger(self.tables)

    def pick(self, rng: random.Random, table: str) -> tuple[str, Row]:
        key = rng.choice(list(self.tables[table]))
        return key, self.tables[table][key]


Answering: TypeAlias = Callable[[Ledger, Mapping[str, Any]], Any]
"""Answers a call; raises `ToolError` where it refuses."""

Making: TypeAlias = Callable[[World, random.Random], Job]


class App:
    """A small program with tables; ``data/apps.json`` has its functions under its class's name.

    A function's ``answers`` there name what it returns of a ``row``, whose id is its parameter, or of
    the ``rows`` with its parameter in a column; for any other a subclass has a method
    ``_api_NAME(ledger, **arguments)``. Jobs are likewise described there, or methods
    ``_job_NAME(world, rng)``.
    """

    page_size = 3

    def __init__(self) -> None:
        self.name = type(self).__name__.lower()
        description = data_file("apps")[self.name]
        self.answers: dict[str, Answering] = {}
        for api in description["apis"]:
            name = api["name"].replace(" ", "_")
            self.answers[name] = self._answering(name, api)

        # What is not described is code: it computes, or has rules that a table cannot have.
        self.jobs: dict[str, Making] = {}
        for name, job_description in description["jobs"].items():
            if job_description:
                self.jobs[name] = partial(self._job, name, job_description)
            else:
                self.jobs[name] = getattr(self, f"_job_{name}")

    def _answering(self, name: str, api: Mapping[str, Any]) -> Answering:
        if "answers" not in api:
            method = getattr(self, f"_api_{name}")
            return lambda ledger, arguments: method(ledger, **arguments)
        parameter = api["required"][0][0]

        def answer(ledger: Ledger, arguments: Mapping[str, Any]) -> Any:
            return self._answer(api["answers"], ledger, arguments[parameter], arguments)

        return answer

    def _answer(
        self, form: Mapping[str, Any], ledger: Ledger, value: str, arguments: Mapping[str, Any]
    ) -> Any:
        """Return an answer of a form that ``data/apps.json`` describes: of a row, an id, or rows."""
        if "row" in form:
            return fields_of(value, ledger.row(form["row"], value), form["fields"])
        rows = matching(ledger, form["rows"], form["column"], value, form.get("called", ""))
        if "first" in form:
            return {form["first"]: rows[0][0]}
        if form.get("paged"):
            return self.page(form["name"], rows, form["fields"], arguments.get("page", 1))
        return {form["name"]: listed(rows, form["fields"])}

    def _job(
        self, name: str, description: Mapping[str, Any], world: World, rng: random.Random
    ) -> Job:
        """Draw a job about one row; ``[column, divisor]`` is a column in another unit."""
        key, row = self.draw(world, rng, description["row"])
        values = {"id": key, **row}
        calls = self.finding(world, key, row)
        for api, columns in description["calls"].items():
            arguments = {argument: values[column] for argument, column in columns.items()}
            calls.append(call(f"{self.name}.{api}", **arguments))

        answer = {}
        for field, source in description["answer"].items():
            if isinstance(source, list):
                column, divisor = source
                answer[field] = round(values[column] / divisor, 2)
            else:
                answer[field] = values[source]
        slots = {slot: values[column] for slot, column in description["slots"].items()}
        return Job(f"{self.name}.{name}", slots, tuple(calls), answer)

    def draw(self, world: World, rng: random.Random, table: str) -> tuple[str, Row]:
        return world.pick(rng, table)

    def finding(self, world: World, key: str, row: Row) -> list[ToolCall]:
        return []

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        raise NotImplementedError

    def page(self, name: str, rows: Rows, fields: str, page: int) -> dict[str, Any]:
        size = self.page_size
        pages = max((len(rows) + size - 1) // size, 1)
        if not 1 <= page <= pages:
            raise ToolError(f"page {page} not found: there are {pages}")
        rows_of_page = listed(rows[(page - 1) * size : page * size], fields)
        return {name: rows_of_page, "page": page, "pages": pages, "total": len(rows)}

    def pages(self, api: str, index: int, **arguments: Any) -> list[ToolCall]:
        """Return the calls of an API that tell its pages as far as the item at an index."""
        # The first page is what a call without a page gets.
        name = f"{self.name}.{api}"
        calls = [call(name, **arguments)]
        for page in range(2, index // self.page_size + 2):
            calls.append(call(name, **arguments, page=page))
        return calls


def data_file(name: str) -> Any:
    return packaged("comap.envs.stabletoolbench", name)


def common_of(rng: random.Random) -> Common:
    words = data_file("words")
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
    first_names = rng.sample(words["first_names"], 10)
    people = tuple(f"{first} {rng.choice(words['last_names'])}" for first in first_names)
    month = rng.randrange(1, 10)
    days = tuple(f"2031-{month:02}-{day:02}" for day in sorted(rng.sample(range(1, 29), 5)))
    return Common(cities, people, days, tuple(rng.sample(words["currencies"], 5)))


def call(name: str, /, **arguments: Any) -> ToolCall:
    """Return a call of ``"app.api"``."""
    return name, arguments


def numbered(letters: str, first: int, rows: Iterable[Row]) -> dict[str, Row]:
    """Return rows by ids such as ``FL-101``."""
    return {f"{letters}-{number}": row for number, row in enumerate(rows, first)}


def fields_of(key: str, row: Row, fields: str) -> dict[str, Any]:
    """Return fields of a row, named by their columns, or as ``name=column``; ``id`` is its id."""
    columns = {"id": key, **row}
    pairs = [field.partition("=") for field in fields.split()]
    return {name: columns[column or name] for name, _, column in pairs}


def listed(rows: Rows, fields: str) -> list[dict[str, Any]]:
    """Return fields of several rows: see `fields_of`."""
    return [fields_of(key, row, fields) for key, row in rows]


def matching(ledger: Ledger, table: str, column: str, text: str, kind: str = "") -> Rows:
    """Return the rows with a text in a column, in any case, or refuse where there are none."""
    plain_text = " ".join(text.lower().split())
    rows = [item for item in ledger.rows(table) if item[1][column].lower() == plain_text]
    if not rows:
        raise not_found(kind or column, text)
    return rows


def not_found(kind: str, text: str, advice: str = "") -> ToolError:
    """Return the refusal of a call about something that is not there."""
    return ToolError(f"{kind} {text[:64]!r} not found{advice}")


def index_of(key: str, rows: Rows) -> int:
    return [row_key for row_key, _ in rows].index(key)
