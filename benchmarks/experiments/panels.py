"""A figure as it is drawn: panels of curves over seeds, or of bars where the axis has no numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .aggregate import Cell, cell
from .definition import Column, Experiment, Method
from .rows import ResultRow
from .sheets import shows

__all__ = ["Curve", "Lost", "Panel", "Point", "panels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a curve, or a bar.

    Attributes:
        x: Its position.
        cell: Its value over seeds.
    """

    x: float
    cell: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A point that has no value.

    Attributes:
        x: Its position, where it has one.
        cell: Why it has none.
    """

    x: float | None
    cell: Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A curve, or the bars of one colour.

    Attributes:
        name: Its name; with the language model where there are several.
        points: Its points, from left to right; those without a value are left out.
        lost: Points that failed or were not run.
    """

    name: str
    points: tuple[Point, ...]
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot.

    Attributes:
        column: What it shows.
        kind: ``line`` or ``bar``.
        curves: Its curves.
        labels: Names of the positions 0, 1, ... of bars; empty for a line.
        axis: What stands below it.
        log: Whether its horizontal axis is logarithmic.
    """

    column: Column
    kind: Literal["line", "bar"]
    curves: tuple[Curve, ...]
    labels: tuple[str, ...] = ()
    axis: str = ""
    log: bool = False


def panels(experiment: Experiment, rows: Iterable[ResultRow]) -> tuple[Panel, ...]:
    """Return a figure's panels, one a column that has a row.

    Args:
        experiment: The figure.
        rows: Its rows, of our runs.

    Example:
        >>> from comap.benchmarks.experiments.definition import Axis
        >>> figure = Experiment(
        ...     id="f", paper="PaW", published="Figure 4", kind="figure", title="", about="",
        ...     backbones=("small",), methods=(Method(name="GRPO", recipe="grpo"),),
        ...     columns=(Column(label="reward", metric="reward", unit=""),), footnotes={},
        ...     axis=Axis(label="update", over="update"),
        ... )
        >>> rows = [
        ...     ResultRow(experiment="f", method="GRPO", metric="reward", value=x / 2, x=x, seed=0)
        ...     for x in (2.0, 1.0)
        ... ]
        >>> [(point.x, point.cell.value) for point in panels(figure, rows)[0].curves[0].points]
        [(1.0, 0.5), (2.0, 1.0)]
    """
    own = [row for row in rows if not row.cited and row.experiment == experiment.id]
    methods = {one.name: one for one in experiment.methods}
    for row in own:
        methods.setdefault(row.method, Method(name=row.method))
    columns = [one for one in experiment.columns if not one.average]
    over = None if experiment.axis is None else experiment.axis.over
    found = []
    for group in _together(columns, methods if over == "category" else None):
        if len(group) > 1:
            found.append(_across(experiment, group, methods, own))
        else:
            found.append(_panel(experiment, group[0], methods, own))
    return tuple(one for one in found if one is not None)


def _together(
    columns: Sequence[Column], methods: Mapping[str, Method] | None
) -> list[list[Column]]:
    """Return which columns make a panel.

    Each makes its own, but for bars of one unit that are more than the methods: these stand side by
    side, with a colour a method.
    """
    by_unit: dict[str, list[Column]] = {}
    for column in columns:
        by_unit.setdefault(column.unit, []).append(column)
    groups = []
    for of_unit in by_unit.values():
        if methods is not None and len(of_unit) > max(2, len(methods)):
            groups.append(of_unit)
        else:
            groups += [[column] for column in of_unit]
    return groups


def _across(
    experiment: Experiment,
    columns: Sequence[Column],
    methods: Mapping[str, Method],
    rows: Sequence[ResultRow],
) -> Panel | None:
    """Return a panel of bars whose places are columns, and whose colours are methods."""
    curves: dict[str, dict[float | None, list[ResultRow]]] = {}
    backbones = _backbones(rows)
    for place, column in enumerate(columns):
        for row in _ordered(rows, methods):
            if shows(experiment, column, row):
                name = _named(row.method, row, backbones)
                curves.setdefault(name, {}).setdefault(float(place), []).append(row)
    if not curves:
        return None
    first = columns[0]
    return Panel(
        column=Column(label=experiment.title, unit=first.unit, better=first.better),
        kind="bar",
        curves=tuple(_points(name, found) for name, found in curves.items()),
        labels=tuple(column.label for column in columns),
    )


def _panel(
    experiment: Experiment,
    column: Column,
    methods: Mapping[str, Method],
    rows: Sequence[ResultRow],
) -> Panel | None:
    own = [row for row in rows if shows(experiment, column, row)]
    if not own:
        return None
    axis = experiment.axis
    bars = axis is None or axis.over == "category" or all(_x(row, methods) is None for row in own)
    labels = _labels(own, methods) if bars else ()
    backbones = 1 if axis is not None and axis.over == "parameters" else _backbones(own)
    curves: dict[str, dict[float | None, list[ResultRow]]] = {}
    for row in _ordered(own, methods):
        name = _curve(row, methods[row.method], backbones, bars)
        x = float(labels.index(row.method)) if bars else _x(row, methods)
        curves.setdefault(name, {}).setdefault(x, []).append(row)
    positive = all(x is None or x > 0 for found in curves.values() for x in found)
    return Panel(
        column=column,
        kind="bar" if bars else "line",
        curves=tuple(_points(name, found) for name, found in curves.items()),
        labels=labels,
        axis="" if axis is None or bars else axis.label,
        log=axis is not None and axis.log and not bars and positive,
    )


def _points(name: str, found: Mapping[float | None, list[ResultRow]]) -> Curve:
    cells = {x: cell(rows) for x, rows in found.items()}
    drawn = [
        Point(x=x, cell=one) for x, one in cells.items() if x is not None and one.value is not None
    ]
    return Curve(
        name=name,
        points=tuple(sorted(drawn, key=lambda point: point.x)),
        lost=tuple(Lost(x=x, cell=one) for x, one in cells.items() if one.value is None),
    )


def _ordered(rows: Sequence[ResultRow], methods: Mapping[str, Method]) -> list[ResultRow]:
    order = {name: place for place, name in enumerate(methods)}
    return sorted(rows, key=lambda row: order[row.method])


def _x(row: ResultRow, methods: Mapping[str, Method]) -> float | None:
    return methods[row.method].x if row.x is None else row.x


def _labels(rows: Sequence[ResultRow], methods: Mapping[str, Method]) -> tuple[str, ...]:
    with_rows = {row.method for row in rows}
    return tuple(name for name in methods if name in with_rows)


def _backbones(rows: Sequence[ResultRow]) -> int:
    """Return of how many language models there is a value."""
    return len({row.backbone for row in rows if row.value is not None})


def _curve(row: ResultRow, method: Method, backbones: int, bars: bool) -> str:
    """Return the name of the curve that a row is a point of."""
    own = method.series if bars else method.series or method.name
    return row.backbone or "measured" if own is None else _named(own, row, backbones)


def _named(name: str, row: ResultRow, backbones: int) -> str:
    return f"{name} ({row.backbone})" if backbones > 1 and row.backbone else name
