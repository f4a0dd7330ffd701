"""What is measured and how, all of it data in JSON files beside this module, and the rows of results.

``definitions/ID.json`` is a table or figure (`Experiment`): its methods are rows or curves, its columns say
which metric they show. A method names a recipe; ``recipes.json`` says which kind of job measures it, after
which other jobs, and with which settings (`Recipe`). ``scales/NAME.json`` says models, environments,
settings of each kind of job, seeds and expected costs (`Scale`). ``cited/ID.json`` holds published numbers
(`cited.CitedTable`). A new file is all that a new table needs; docs/guides/inside.md adds one step by step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

from ... import jsonl
from ...envs.registry import env_class
from ...errors import DataCorrupt, OptionError, suggest

FOLDER: Any = files(__package__)
KINDS = ("comap", "baseline", "paw", "play", "predict", "noise", "told")
"""Kinds of jobs: trainings (CoMap's, its baselines', PaW's), an agent that plays, a world model that
predicts, gradients on noise, and what needs no run."""
SCALES = ("tiny", "lab", "lab-real", "lab-real-official", "small", "paper")

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
    """the mean of the columns since the last such column; in a figure, it alone is drawn"""
    group: str | None = None
    """the group of methods that it shows, beside those without a group; None for all methods"""
    over: str | None = None
    """what its panel is over, where that is not the figure's axis"""


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
    first_seeds: int | None = None
    """with how many of the scale's seeds it is run, counted from the first; None for all"""


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
    compared: tuple[tuple[str, ...], ...] = ()
    """methods, each with those that it is compared with in the first column, paired by seed"""

    def column(self, method: str, metric: str, env: str | None, split: str | None) -> Column | None:
        """Return the column that shows a measure of a method; None where no column does."""
        for column in self.columns:
            is_its = column.metric == metric and column.split in (None, split)
            if is_its and self.judges(column, method, env):
                return column
        return None

    def judges(self, column: Column, method: str, env: str | None) -> bool:
        """Return whether a column has measures of a method in an environment."""
        # A method that only rows name has no group: every column has it.
        groups = (definition.group for definition in self.methods if definition.name == method)
        group = next(groups, None)
        is_shown = not column.group or group in (None, column.group)
        return is_shown and not column.average and column.env in (None, env)

    def averaged(self, column: Column) -> tuple[Column, ...]:
        """Return the columns that a column of averages is the mean of."""
        end = self.columns.index(column)
        start = end
        while start > 0 and not self.columns[start - 1].average:
            start -= 1
        return self.columns[start:end]


def experiment_ids() -> tuple[str, ...]:
    """Return the names of all experiments, CoMap's tables first and our own last."""

    def order(name: str) -> tuple[bool, str, bool, int, str]:
        # Tables before figures, and Table 10 after Table 9: names are t10 and t9.
        paper, _, rest = name.partition("-")
        digits = "".join(letter for letter in rest if letter.isdigit())
        return paper == "lab", paper, not rest.startswith("t"), int(digits or 0), rest

    return tuple(sorted(file_stems("definitions"), key=order))


def file_stems(folder: str) -> list[str]:
    """Return the names of the JSON files in a folder of data, without their ending, in no order."""
    names = [path.name for path in (FOLDER / folder).iterdir()]
    return [name.removesuffix(".json") for name in names if name.endswith(".json")]


def experiment(name: str) -> Experiment:
    """Return the definition of a table or figure."""
    _check_name("experiment", name, experiment_ids())
    return read_data(f"definitions/{name}.json", experiment_of)


def experiment_of(data: dict[str, Any]) -> Experiment:
    """Return an experiment from the data of its file."""
    parts = {
        "backbones": tuple(data["backbones"]),
        "methods": tuple(map(_method_of, data["methods"])),
        "columns": tuple(Column(**record) for record in data["columns"]),
        "axis": Axis(**data["axis"]) if "axis" in data else None,
        "compared": tuple(map(tuple, data.get("compared", ()))),
    }
    return Experiment(**{**data, **parts})


def _method_of(record: Mapping[str, Any]) -> Method:
    """Return a method from its data; JSON has lists where a method has tuples."""
    method_fields: dict[str, Any] = {}
    for name, value in record.items():
        method_fields[name] = tuple(value) if isinstance(value, list) else value
    return Method(**method_fields)


def read_data(name: str, make: Callable[[Any], T]) -> T:
    """Return what `make` makes of a JSON file beside this module; DataCorrupt where it cannot."""
    try:
        return make(json.loads((FOLDER / name).read_text("utf-8")))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataCorrupt(f"expected other data in {FOLDER / name}, found {error!r}") from error


def _check_name(kind: str, name: str, names: Iterable[str]) -> None:
    """Raise OptionError where a name is none of those that there are."""
    existing_names = list(names)
    if name not in existing_names:
        raise OptionError(
            f"there is no {kind} {name!r:.80}; {suggest(name, existing_names)} (comap bench list)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a method is measured."""

    name: str
    kind: str
    start: str | None = None
    """the recipe whose models a training begins with, or whose transitions a world model predicts"""
    policy: str | None = None
    """the recipe that trained the policy; base: the language model itself, free: the scale's choice"""
    warmed_up_only: bool = False
    """whether the policy plays as it was after the warm-up of a training of PaW, before any update"""
    world_model: str | None = None
    """the recipe that trained the world model, or a name that ``comap run --world-model`` takes"""
    agent: str | None = None
    method: str | None = None
    """of a baseline: sft, iwm, wkm, itp or webevolver"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """options of the command, which win over a scale's"""
    fact: str | None = None
    """what is read without a run: statistics or settings-comap"""


def recipe(name: str) -> Recipe:
    """Return the recipe of a name."""
    _check_name("recipe", name, recipes())
    return recipes()[name]


@cache
def recipes() -> dict[str, Recipe]:
    """Return all recipes by name; the file is read once, since a plan asks for each of its jobs."""
    return read_data("recipes.json", _recipes)


def _recipes(data: Mapping[str, Mapping[str, Any]]) -> dict[str, Recipe]:
    """Return recipes; one that is ``like`` an earlier one has what that has, and its settings too."""
    records: dict[str, dict[str, Any]] = {}
    for name, entry in data.items():
        model = records.get(entry.get("like", ""), {})
        record = {**model, **entry}
        record.pop("like", None)
        # Settings are merged one by one; all other parts replace those of the earlier recipe.
        record["settings"] = {**model.get("settings", {}), **entry.get("settings", {})}
        records[name] = record
    return {name: Recipe(name=name, **record) for name, record in records.items()}


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
    """whether official data is needed: ``--data-dir ENV=DIR``"""
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
    """settings of each kind of job: ``set`` for all, ``on`` an environment, ``recipes`` by name or by
    their names' beginning (``lab-*``)"""
    cost: Mapping[str, Mapping[str, Any]]
    most: Mapping[str, Mapping[str, Any]]
    """of recipes, by name or by their names' beginning (``lab-*``), how large settings may be"""
    notes: tuple[str, ...]

    def backbone(self, paper: str, slot: str) -> Backbone | None:
        """Return the language model in a paper's slot; None where this scale has none."""
        return self.backbones.get(paper, {}).get(slot)

    def settings(self, kind: str, env: str | None, recipe: str) -> dict[str, Any]:
        """Return what is set for a kind of job on an environment, and for one recipe of that kind."""
        kind_settings = self.kinds.get(kind, {})
        by_recipe = kind_settings.get("recipes", {})
        recipe_settings = {
            **by_recipe.get(_family(recipe), {}),
            **by_recipe.get(recipe, {}),
            **by_recipe.get(f"{recipe} {env}", {}),
        }
        # Some recipes are measured with settings of their own alone.
        if recipe_settings.pop("only", False):
            return recipe_settings

        shared = kind_settings.get("set", {})
        on_env = kind_settings.get("on", {}).get(env, {})
        return {**shared, **on_env, **recipe_settings}

    def limited(self, recipe: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return a recipe's settings, none larger than this scale allows."""
        largest = {**self.most.get(_family(recipe), {}), **self.most.get(recipe, {})}
        limited = dict(settings)
        for name, value in settings.items():
            if name in largest:
                limited[name] = min(value, largest[name])
        return limited

    def policy_of(self, recipe: Recipe, env: str | None) -> str | None:
        """Return the recipe that trained the policy that a job begins or plays with; None for none."""
        if recipe.kind == "paw" and recipe.policy is None:
            starts: Mapping[str, str | None] = self.kinds.get("paw", {}).get("starts", {})
            return starts.get(recipe.name, starts.get(env or ""))

        policy = recipe.policy
        if policy == "free":
            policy = self.kinds.get("play", {}).get("free", "base")
        return None if policy == "base" else policy

    def preset(self, kind: str, env: str | None, recipe: str = "") -> str:
        """Return the preset of a kind of job on an environment, and for one recipe of that kind."""
        kind_settings = self.kinds.get(kind, {})
        by_recipe: str | None = kind_settings.get("recipe_presets", {}).get(recipe)
        by_env: str | None = kind_settings.get("presets", {}).get(env)
        return by_recipe or by_env or str(kind_settings.get("preset", self.name))


def _family(recipe: str) -> str:
    """Return the key that stands for all recipes whose names begin alike, such as ``lab-*``."""
    return f"{recipe.partition('-')[0]}-*"


def scale_named(name: str) -> Scale:
    """Return the scale of a name."""
    _check_name("scale", name, SCALES)
    return read_data(f"scales/{name}.json", _scale)


def _scale(data: dict[str, Any]) -> Scale:
    """Return a scale from the data of its file, whose slots name the models that it lists."""
    models = {name: Backbone(name=name, **record) for name, record in data["models"].items()}
    backbones = {}
    for paper, slots in data["backbones"].items():
        backbones[paper] = {slot: models[name] for slot, name in slots.items()}

    return Scale(
        name=data["name"],
        about=data["about"],
        seeds=tuple(data["seeds"]),
        backbones=backbones,
        slots={name: tuple(slots) for name, slots in data.get("slots", {}).items()},
        environments={env: _setup(env, record) for env, record in data["environments"].items()},
        kinds=data["kinds"],
        cost=data.get("cost", {}),
        most=data.get("most", {}),
        notes=tuple(data.get("notes", ())),
    )


def _setup(env: str, record: Mapping[str, Any]) -> EnvSetup:
    """Return an environment; on generated tasks unless the scale asks for official data."""
    cls = env_class(env)
    options: dict[str, Any] = {}
    if not record.get("data"):
        options = {**cls.generated_options, **cls.listed_actions()}
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
    tasks: str | None = None
    """that these are generated tasks, in words, if they are"""
    caution: str | None = None
    """that an oracle was asked, in words, if one was"""

    def __post_init__(self) -> None:
        for name in ("experiment", "method", "metric"):
            if not isinstance(getattr(self, name), str):
                raise DataCorrupt(f"expected text as {name}, found {getattr(self, name)!r:.80}")

        # Rows come from files that others may have written; Python's JSON also reads NaN and Infinity.
        for name in ("value", "low", "high", "x", "seconds"):
            number = getattr(self, name)
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if number is not None and not (is_number and math.isfinite(number)):
                raise DataCorrupt(f"expected a finite number as {name}, found {number!r:.80}")


def write_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Write rows as JSON lines, so that a reader finds the old file or the new one, whole."""
    jsonl.write(path, map(_record_of, rows))


def _record_of(row: ResultRow) -> dict[str, Any]:
    """Return the fields of a row that are known."""
    return {name: value for name, value in asdict(row).items() if value is not None}


def read_rows(path: Path) -> Iterator[ResultRow]:
    """Yield the rows of a file; raises DataNotFound or DataCorrupt with the line."""
    expected = "result rows of 'comap bench run' (a row)"
    return jsonl.read(path, lambda record: ResultRow(**record), expected=expected)
