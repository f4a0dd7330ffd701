"""A figure as it is drawn: panels of curves over seeds, or of bars where the axis has no numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .aggregate import Cell, cell
from .definition import Column, Experiment, Method
from .rows import ResultRow

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
    found = [_panel(experiment, column, own) for column in experiment.columns]
    return tuple(one for one in found if one is not None)


def _panel(experiment: Experiment, column: Column, rows: Sequence[ResultRow]) -> Panel | None:
    own = [
        row for row in rows if experiment.column(row.metric, row.env, row.split) is column
    ]
    if not own:
        return None
    methods = {one.name: one for one in experiment.methods}
    for row in own:
        methods.setdefault(row.method, Method(name=row.method))
    bars = _has_bars(experiment, own, methods)
    labels = _labels(own, methods) if bars else ()
    backbones = list(dict.fromkeys(row.backbone for row in own if _has_value(row)))
    curves: dict[str, dict[float | None, list[ResultRow]]] = {}
    for row in sorted(own, key=lambda row: list(methods).index(row.method)):
        name = _curve(row, methods[row.method], len(backbones), bars)
        x = float(labels.index(row.method)) if bars else _x(row, methods)
        curves.setdefault(name, {}).setdefault(x, []).append(row)
    axis = experiment.axis
    return Panel(
        column=column,
        kind="bar" if bars else "line",
        curves=tuple(_points(name, found) for name, found in curves.items()),
        labels=labels,
        axis="" if axis is None or bars else axis.label,
        log=axis is not None and axis.log and not bars,
    )


def _points(name: str, found: dict[float | None, list[ResultRow]]) -> Curve:
    cells = {x: cell(rows) for x, rows in found.items()}
    drawn = [
        Point(x=x, cell=one) for x, one in cells.items() if x is not None and one.value is not None
    ]
    return Curve(
        name=name,
        points=tuple(sorted(drawn, key=lambda point: point.x)),
        lost=tuple(Lost(x=x, cell=one) for x, one in cells.items() if one.value is None),
    )


def _has_bars(
    experiment: Experiment, rows: Sequence[ResultRow], methods: dict[str, Method]
) -> bool:
    if experiment.axis is None or experiment.axis.over == "category":
        return True
    return all(_x(row, methods) is None for row in rows)


def _x(row: ResultRow, methods: dict[str, Method]) -> float | None:
    return methods[row.method].x if row.x is None else row.x


def _labels(rows: Sequence[ResultRow], methods: dict[str, Method]) -> tuple[str, ...]:
    with_rows = {row.method for row in rows}
    return tuple(name for name in methods if name in with_rows)


def _curve(row: ResultRow, method: Method, backbones: int, bars: bool) -> str:
    """Return the name of the curve that a row is a point of."""
    own = method.series if bars else method.series or method.name
    if own is None:
        return row.backbone or "measured"
    return f"{own} ({row.backbone})" if backbones > 1 and row.backbone else own


def _has_value(row: ResultRow) -> bool:
    return row.value is not None
