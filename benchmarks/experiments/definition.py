"""What is measured and how, all of it data in JSON files beside this module, and the rows of results.

``definitions/ID.json`` is a table or figure (`Experiment`): its methods are rows or curves, its columns say
which metric they show. A method names a recipe; ``recipes.json`` says which kind of job measures it, after
which other jobs, and with which settings (`Recipe`). ``scales/NAME.json`` says models, environments,
settings of each kind of job, seeds and expected costs (`Scale`). ``cited/ID.json`` holds published numbers
(`cited.CitedTable`). A new file is all that a new table needs; CONTRIBUTING.md, "A new experiment", adds
one step by step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

from ... import jsonl
from ...envs.registry import env_class
from ...errors import DataCorrupt, OptionError, suggest
from ..tables import one_line
from .table import DIGITS, Block, Cell, Entry, Footnotes, Row, Table, best, head, label, number

FOLDER: Any = files(__package__)
KINDS = ("comap", "baseline", "paw", "play", "predict", "noise", "overhead", "told")
"""Kinds of jobs: trainings (CoMap's, its baselines', PaW's), an agent that plays, a world model that
predicts, gradients on noise, PaW's overhead, and what needs no run."""
SCALES = ("tiny", "small", "paper")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table, or what one panel of a figure shows."""

    label: str
    metric: str = ""
    """what `collect` calls it; ``average`` columns have none"""
    env: str | None = None
    split: str | None = None
    """the split that is shown; without one, the value of all splits"""
    unit: str = "%"
    better: Literal["more", "less"] | None = "more"
    average: bool = False
    """the mean of the columns before it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A row of a table, or a curve of a figure."""

    name: str
    recipe: str | None = None
    """how it is measured; without one it is only cited"""
    group: str | None = None
    """methods of one group stand together, between rules"""
    x: float | None = None
    """where it stands on an axis over settings"""
    series: str | None = None
    """the curve that it is a point of, on such an axis"""
    backbones: tuple[str, ...] | None = None
    """language models, where they are not the experiment's"""
    envs: tuple[str, ...] | None = None
    """environments, where they are not the columns'"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The horizontal axis of a figure."""

    label: str
    over: str
    """round or update: every point of a job; setting: each method's x; parameters: each language model;
    category: bars"""
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A table or figure."""

    id: str
    paper: str
    published: str
    """as the paper names it, such as Table 1"""
    kind: Literal["table", "figure"]
    title: str
    about: str
    backbones: tuple[str, ...]
    """slots of language models, which a scale fills; one that is ``""`` needs none"""
    methods: tuple[Method, ...]
    columns: tuple[Column, ...]
    axis: Axis | None = None
    footnotes: Mapping[str, str] = field(default_factory=dict)
    seeds: bool = True
    """whether it is measured with each seed"""

    def column(self, metric: str, env: str | None, split: str | None) -> Column | None:
        """Return the column that shows a measure; None where no column does."""
        for column in self.columns:
            if column.average or column.metric != metric:
                continue
            if column.env in (None, env) and column.split in (None, split):
                return column
        return None


def experiment_ids() -> tuple[str, ...]:
    """Return the names of all experiments, CoMap's tables first."""

    def order(name: str) -> tuple[str, bool, int, str]:
        paper, _, rest = name.partition("-")
        digits = "".join(letter for letter in rest if letter.isdigit())
        return paper, not rest.startswith("t"), int(digits or 0), rest

    names = (path.name for path in (FOLDER / "definitions").iterdir())
    return tuple(sorted((name[:-5] for name in names if name.endswith(".json")), key=order))


def experiment(name: str) -> Experiment:
    _known("experiment", name, experiment_ids())
    return read_data(f"definitions/{name}.json", experiment_of)


def experiment_of(data: dict[str, Any]) -> Experiment:
    methods: list[dict[str, Any]] = [
        {k: tuple(v) if isinstance(v, list) else v for k, v in one.items()}
        for one in data["methods"]
    ]
    parts = {
        "backbones": tuple(data["backbones"]),
        "methods": tuple(Method(**one) for one in methods),
        "columns": tuple(Column(**one) for one in data["columns"]),
        "axis": Axis(**data["axis"]) if "axis" in data else None,
    }
    return Experiment(**{**data, **parts})


def read_data(name: str, make: Callable[[Any], T]) -> T:
    try:
        return make(json.loads((FOLDER / name).read_text("utf-8")))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataCorrupt(f"expected other data in {FOLDER / name}, found {error!r}") from error


def _known(what: str, name: str, names: Iterable[str]) -> None:
    if name not in (known := list(names)):
        raise OptionError(f"there is no {what} {name!r:.80}; {suggest(name, known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a method is measured."""

    name: str
    kind: str
    start: str | None = None
    """the recipe whose models a training begins with"""
    policy: str | None = None
    """the recipe that trained the policy; base: the language model itself, free: the scale's choice"""
    world_model: str | None = None
    """the recipe that trained the world model, or a name that ``comap run --world-model`` takes"""
    agent: str | None = None
    method: str | None = None
    """of a baseline: iwm, wkm or itp"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """options of the command, which win over a scale's"""
    fact: str | None = None
    """what is read without a run: statistics or settings-comap"""


def recipe(name: str) -> Recipe:
    _known("recipe", name, recipes())
    return recipes()[name]


@cache
def recipes() -> dict[str, Recipe]:
    return read_data(
        "recipes.json",
        lambda data: {name: Recipe(name=name, **record) for name, record in data.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """A language model that methods begin with."""

    name: str
    model: str
    """as ``--model`` takes it"""
    parameters: float
    api: bool = False
    """whether a server has it"""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSetup:
    """An environment at a scale."""

    env: str
    options: Mapping[str, Any]
    splits: tuple[str, ...]
    data: bool = False
    """whether official data is needed: ``--data ENV=DIR``"""
    folders: Mapping[str, str] = field(default_factory=lambda: {"data_dir": ""})
    """options that name parts of that folder"""
    judge: str | None = None
    demos: bool = False
    """whether demonstrations are needed: ``--demos ENV=FILE``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large experiments are run."""

    name: str
    about: str
    seeds: tuple[int, ...]
    backbones: Mapping[str, Mapping[str, Backbone]]
    """the language model in each slot of each paper"""
    slots: Mapping[str, tuple[str, ...]]
    """the slots that are run of an experiment, or of all others (``*``)"""
    environments: Mapping[str, EnvSetup]
    kinds: Mapping[str, Mapping[str, Any]]
    """settings of each kind of job: ``set`` for all, ``on`` an environment, ``recipes`` by name"""
    cost: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...]

    def backbone(self, paper: str, slot: str) -> Backbone | None:
        """Return the language model in a paper's slot; None where this scale has none."""
        return self.backbones.get(paper, {}).get(slot)

    def settings(self, kind: str, env: str | None, recipe: str) -> dict[str, Any]:
        found = self.kinds.get(kind, {})
        recipes = found.get("recipes", {})
        own = {**recipes.get(recipe, {}), **recipes.get(f"{recipe} {env}", {})}
        if own.pop("only", False):
            return own
        return {**found.get("set", {}), **found.get("on", {}).get(env, {}), **own}

    def policy_of(self, recipe: Recipe, env: str | None) -> str | None:
        """Return the recipe that trained the policy that a job begins or plays with; None for none."""
        if recipe.kind == "paw":
            starts: Mapping[str, str | None] = self.kinds.get("paw", {}).get("starts", {})
            return starts.get(recipe.name, starts.get(env or ""))
        named = recipe.policy
        if named == "free":
            named = self.kinds.get("play", {}).get("free", "base")
        return None if named == "base" else named

    def preset(self, kind: str, env: str | None, recipe: str = "") -> str:
        """Return the preset of a kind of job on an environment, and for one recipe of that kind."""
        found = self.kinds.get(kind, {})
        by_recipe: str | None = found.get("recipe_presets", {}).get(recipe)
        by_env: str | None = found.get("presets", {}).get(env)
        return by_recipe or by_env or str(found.get("preset", self.name))


def scale_named(name: str) -> Scale:
    _known("scale", name, SCALES)
    return read_data(f"scales/{name}.json", _scale)


def _scale(data: dict[str, Any]) -> Scale:
    models = {name: Backbone(name=name, **record) for name, record in data["models"].items()}
    return Scale(
        name=data["name"],
        about=data["about"],
        seeds=tuple(data["seeds"]),
        backbones={
            paper: {slot: models[name] for slot, name in slots.items()}
            for paper, slots in data["backbones"].items()
        },
        slots={name: tuple(slots) for name, slots in data.get("slots", {}).items()},
        environments={env: _setup(env, record) for env, record in data["environments"].items()},
        kinds=data["kinds"],
        cost=data.get("cost", {}),
        notes=tuple(data.get("notes", ())),
    )


def _setup(env: str, record: Mapping[str, Any]) -> EnvSetup:
    """Return an environment; on generated tasks unless the scale asks for official data."""
    cls = env_class(env)
    options = {} if record.get("data") else {**cls.generated_options, **cls.listed_actions()}
    parts = {
        "options": {**options, **record.get("options", {})},
        "splits": tuple(record.get("splits") or cls.test_splits),
    }
    return EnvSetup(env=env, **{**record, **parts})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """One value of a table or a figure, from one seed; a cell without one says why."""

    experiment: str
    method: str
    metric: str
    backbone: str | None = None
    env: str | None = None
    split: str | None = None
    unit: str = "%"
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    seed: int | None = None
    x: float | None = None
    text: str | None = None
    cited: bool = False
    """always false in what we write; other rows are never shown among ours"""
    config_hash: str | None = None
    code_version: str | None = None
    fingerprint: str | None = None
    hardware: str | None = None
    seconds: float | None = None
    cost: Mapping[str, float] | None = None
    job: str | None = None
    trajectories: str | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        for name in ("experiment", "method", "metric"):
            if not isinstance(getattr(self, name), str):
                raise DataCorrupt(f"expected text as {name}, found {getattr(self, name)!r:.80}")
        for name in ("value", "low", "high", "x", "seconds"):
            number = getattr(self, name)
            known = isinstance(number, int | float) and not isinstance(number, bool)
            if number is not None and not (known and math.isfinite(number)):
                raise DataCorrupt(f"expected a finite number as {name}, found {number!r:.80}")


def write_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write rows as JSON lines, so that a reader finds the old file or the new one, whole."""
    records = (asdict(row) for row in rows)
    jsonl.write(path, ({k: v for k, v in row.items() if v is not None} for row in records))


def read_rows(path: Path) -> Iterator[ResultRow]:
    expected = "result rows of 'comap bench run' (a row)"
    return jsonl.read(path, lambda record: ResultRow(**record), expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedRow:
    """One published number."""

    method: str
    metric: str
    unit: str
    value: float
    backbone: str | None = None
    env: str | None = None
    split: str | None = None
    spread: float | None = None
    n: int | None = None
    note: str | None = None
    """the footnote that comes first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footnote:
    """What a reader should know of some numbers."""

    id: str
    text: str
    applies_to: Mapping[str, Any] = field(default_factory=dict)
    """fields of the rows that it is about, each with a value or a list of values"""

    def about(self, row: CitedRow) -> bool:
        """Return whether the footnote is about `row`."""
        if row.note == self.id or not self.applies_to:
            return row.note == self.id
        return all(
            getattr(row, name) in (wanted if isinstance(wanted, list) else [wanted])
            for name, wanted in self.applies_to.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CitedTable:
    """The published numbers of one table or figure."""

    id: str
    paper: str
    arxiv: str
    table: str
    source: str
    missing: str | None = None
    footnotes: tuple[Footnote, ...] = ()
    rows: tuple[CitedRow, ...] = ()

    def notes(self, row: CitedRow) -> tuple[Footnote, ...]:
        """Return the footnotes that are about a row, its own first."""
        found = (note for note in self.footnotes if note.about(row))
        return tuple(sorted(found, key=lambda note: note.id != row.note))


def cited_ids() -> tuple[str, ...]:
    """Return the names of the tables and figures that there are published numbers of."""
    names = (path.name for path in (FOLDER / "cited").iterdir())
    return tuple(sorted(name[:-5] for name in names if name.endswith(".json")))


def load_cited(name: str) -> CitedTable | None:
    """Return the published numbers of a table or figure; None where there are none."""
    return read_data(f"cited/{name}.json", cited_of) if name in cited_ids() else None


def cited_of(data: dict[str, Any]) -> CitedTable:
    parts = {
        "footnotes": tuple(Footnote(**one) for one in data["footnotes"]),
        "rows": tuple(CitedRow(**one) for one in data["rows"]),
    }
    return CitedTable(**{**data, **parts})


def column_of(experiment: Experiment, row: CitedRow) -> int | None:
    """Return the index of a cited value's column; None where the definition has none."""
    columns = list(enumerate(experiment.columns))
    if row.metric == "average":
        return next((i for i, one in columns if one.average and row.split is None), None)
    wanted = (row.metric, row.env, row.unit)
    alike = [
        (i, one)
        for i, one in columns
        if not one.average and (one.metric, one.env, one.unit) == wanted
    ]
    exact = [i for i, one in alike if one.split == row.split]
    if exact:
        return exact[0]
    return alike[0][0] if row.split is None and len(alike) == 1 else None


def cited_tables(
    experiment: Experiment, cited: CitedTable | None
) -> tuple[Table | None, Table | None]:
    """Return the values that have a column of a table, and a list of the others; None for no value."""
    if cited is None:
        return None, None
    found: dict[str | None, dict[str, dict[int, CitedRow]]] = {}
    others = []
    for row in cited.rows:
        column = column_of(experiment, row) if experiment.kind == "table" else None
        if column is None:
            others.append(row)
        else:
            found.setdefault(row.backbone, {}).setdefault(row.method, {})[column] = row
    return (
        _in_columns(experiment, cited, found) if found else None,
        _listed(experiment, cited, others) if others else None,
    )


def _in_columns(
    experiment: Experiment,
    cited: CitedTable,
    found: Mapping[str | None, Mapping[str, Mapping[int, CitedRow]]],
) -> Table:
    """Return the values in the columns that have some; an average is as printed, none is computed."""
    order = {one.name: i for i, one in enumerate(experiment.methods)}
    filled = sorted({i for methods in found.values() for rows in methods.values() for i in rows})
    footnotes, blocks = Footnotes(), []
    for backbone, methods in found.items():
        names = sorted(methods, key=lambda name: order.get(name, len(order)))
        bests = {}
        for i in filled:
            rows = [methods[name].get(i) for name in names]
            cells = [Cell(status="value", value=row.value if row else None) for row in rows]
            bests[i] = best(cells, experiment.columns[i].better, 2)
        lines = []
        for at, name in enumerate(names):
            own = methods[name]
            entries = (_entry(cited, own.get(i), footnotes, at in bests[i]) for i in filled)
            lines.append(Row((label(name), *entries)))
        blocks.append(Block(None if backbone is None else one_line(backbone), tuple(lines)))
    columns = experiment.columns
    return Table(
        title=f"Cited: {experiment.published} of the paper",
        head=("method (cited)", *(head(columns[i], columns) for i in filled)),
        blocks=tuple(blocks),
        notes=_source(cited),
        footnotes=footnotes.written(),
    )


def _listed(experiment: Experiment, cited: CitedTable, rows: Sequence[CitedRow]) -> Table:
    """Return cited values one below the other, which fits any measure."""
    footnotes, lines = Footnotes(), []
    for row in rows:
        unit = f" {row.unit}" if row.unit not in ("", "share", "count") else ""
        value = _entry(cited, row, footnotes)
        where = ", ".join(one for one in (row.env, row.split) if one)
        names = (row.method, row.backbone or "–", where or "–", row.metric)
        value = replace(value, mean=f"{value.text}{unit}", spread="")
        lines.append(Row((*map(label, names), value)))
    without = "values without a column above"
    return Table(
        title=f"Cited: {without if experiment.kind == 'table' else 'numbers of the paper'}",
        head=("method (cited)", "model", "where", "measure", "value"),
        blocks=(Block(None, tuple(lines)),),
        notes=_source(cited),
        footnotes=footnotes.written(),
        texts=4,
    )


def _entry(
    cited: CitedTable, row: CitedRow | None, footnotes: Footnotes, is_best: bool = False
) -> Entry:
    if row is None:
        return Entry("–", status="missing")
    marks = {footnotes.mark(note.text) for note in cited.notes(row)}
    spread = "" if row.spread is None else _printed(row.spread, row.unit)
    in_order = tuple(sorted(marks, key=lambda mark: (len(mark), mark)))
    return Entry(_printed(row.value, row.unit), spread, "value", is_best, in_order)


def _printed(value: float, unit: str) -> str:
    """Return a cited number with the decimals that it has, two at most where ours have few."""
    if unit == "count" and value == round(value):
        return number(value, unit)
    decimals = len(f"{value:.6f}".rstrip("0").partition(".")[2])
    return f"{value:,.{min(max(decimals, 1), 2 if unit in DIGITS else 6)}f}"


def _source(cited: CitedTable) -> tuple[str, ...]:
    seen = one_line(cited.source, 600)
    lines = [f"Cited from arXiv {cited.arxiv}, {cited.table}; seen in: {seen}."]
    if cited.missing:
        lines.append(f"Not seen: {one_line(cited.missing, 600)}")
    return tuple(lines)
