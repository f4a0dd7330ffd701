"""What a table or figure is: its methods, columns and axes, read from ``definitions/*.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from ...errors import DataCorrupt, OptionError, suggest

__all__ = ["Axis", "Column", "Experiment", "Method", "experiment", "experiment_ids"]

_FOLDER = "definitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table, or what one panel of a figure shows.

    Attributes:
        label: What stands above it.
        metric: Which of a job's measures it shows.
        env: The environment that is measured; None for the method's own, or for none.
        split: Its split; None for the measure of all splits.
        unit: ``%``, ``share``, ``nats``, ``s``, ``GiB``, ``count`` or "".
        better: Whether "more" or "less" is better; None where neither is.
        average: Whether it is the mean of the columns before it, and no job measures it.
    """

    label: str
    metric: str = ""
    env: str | None = None
    split: str | None = None
    unit: str = "%"
    better: Literal["more", "less"] | None = "more"
    average: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A row of a table, or a curve of a figure.

    Attributes:
        name: Its name, as the paper has it.
        recipe: Which recipe of ``recipes.json`` measures it; None where it is only cited.
        group: Methods with the same group stand together.
        x: Its position on a figure's axis, where each method is one point.
        series: The curve that it is a point of; None for a curve of its own.
        backbones: The backbone slots that it is run with; None for the experiment's.
        envs: The environments that it is run in; None for all that columns name.
    """

    name: str
    recipe: str | None = None
    group: str | None = None
    x: float | None = None
    series: str | None = None
    backbones: tuple[str, ...] | None = None
    envs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The horizontal axis of a figure.

    Attributes:
        label: Its name.
        over: What it counts: ``update``, ``round``, ``threshold``, ``parameters``, ``setting`` or
            ``category``.
        log: Whether it is logarithmic.
    """

    label: str
    over: str
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A table or figure.

    Attributes:
        id: Its name, such as ``comap-t1``.
        paper: ``CoMap`` or ``PaW``.
        published: What it is called there, such as ``Table 1``.
        kind: ``table`` or ``figure``.
        title: What it shows.
        about: Where it is specified, and what ours measures, in a sentence or two.
        backbones: The slots of language models that methods are run with; a scale says which models
            stand in them.
        methods: Its rows or curves, in order.
        columns: Its columns or panels, in order.
        axis: The horizontal axis of a figure.
        footnotes: What a reader should know, by name; cited rows refer to them.
        seeds: False where nothing is drawn, so that one seed is all.
    """

    id: str
    paper: str
    published: str
    kind: Literal["table", "figure"]
    title: str
    about: str
    backbones: tuple[str, ...]
    methods: tuple[Method, ...]
    columns: tuple[Column, ...]
    axis: Axis | None = None
    footnotes: Mapping[str, str]
    seeds: bool = True

    def column(self, metric: str, env: str | None, split: str | None) -> Column | None:
        """Return the column that shows a measure; None where no column does.

        A column without an environment or a split takes those of every one.
        """
        for column in self.columns:
            if column.average or column.metric != metric:
                continue
            if column.env in (None, env) and column.split in (None, split):
                return column
        return None


def experiment_ids() -> tuple[str, ...]:
    """Return the names of all experiments, CoMap's tables first.

    Example:
        >>> experiment_ids()[0]
        'comap-t1'
    """
    names = [path.stem for path in _folder().iterdir() if path.suffix == ".json"]
    return tuple(sorted(names, key=_order))


def experiment(name: str) -> Experiment:
    """Return the experiment of a name.

    Raises:
        OptionError: There is none.
        DataCorrupt: Its file is no definition.

    Example:
        >>> experiment("comap-t2").published
        'Table 2'
    """
    known = experiment_ids()
    if name not in known:
        raise OptionError(f"there is no experiment {name!r:.80}; {suggest(name, list(known))}")
    path = _folder() / f"{name}.json"
    try:
        return _read(json.loads(path.read_text("utf-8")))
    except (KeyError, TypeError, ValueError) as error:
        raise DataCorrupt(f"expected the definition of {name} in {path}, found {error}") from error


def _folder() -> Any:
    return files(__package__) / _FOLDER


def _order(name: str) -> tuple[str, bool, int, str]:
    paper, _, rest = name.partition("-")
    digits = "".join(letter for letter in rest if letter.isdigit())
    return paper, not rest.startswith("t"), int(digits or 0), rest


def _read(data: dict[str, Any]) -> Experiment:
    methods = tuple(
        Method(**{**one, **{k: tuple(one[k]) for k in ("backbones", "envs") if k in one}})
        for one in data["methods"]
    )
    return Experiment(
        **{
            **data,
            "backbones": tuple(data["backbones"]),
            "methods": methods,
            "columns": tuple(Column(**one) for one in data["columns"]),
            "axis": None if data.get("axis") is None else Axis(**data["axis"]),
            "footnotes": data.get("footnotes", {}),
        }
    )
