"""Figures as grids of numbers: the first, the best and the last point of each curve, or all bars."""

from __future__ import annotations

from collections.abc import Sequence

from ..marks import one_line
from .aggregate import Cell
from .cited_grids import cited_list
from .definition import Column
from .grid import Grid, GridRow, Written
from .panels import Curve, Panel, Point
from .quoted import Quotes
from .wording import Notes, usual, value

__all__ = ["figure_grids"]


def figure_grids(panels: Sequence[Panel], quotes: Quotes) -> list[Grid]:
    """Return the grids of a figure: one a panel, and what the paper says in numbers.

    Example:
        >>> figure_grids([], Quotes(table=None))
        []
    """
    grids = [_bars(panel) if panel.kind == "bar" else _line(panel) for panel in panels]
    rows = [one.row for one in quotes.placed] + list(quotes.others)
    return grids + ([cited_list(quotes, rows)] if rows else [])


def _line(panel: Panel) -> Grid:
    column, notes = panel.column, Notes()
    better = column.better is not None
    titles = ["first", *(["best"] if better else []), "last"]
    rows = []
    for curve in panel.curves:
        marks = tuple(notes.mark(one.cell.reason) for one in curve.lost if one.cell.reason)
        name = Written(one_line(curve.name, 60), marks=marks)
        points = _ends(curve, column)
        shown = [Written(_at(point, column)) for point in points] or [Written("–")] * len(titles)
        told = usual(point.cell.measured for point in curve.points)
        count = Written(f"{len(curve.points):,}")
        rows.append(GridRow((name, *shown, count, Written(told or "–"))))
    unit = f" ({column.unit})" if column.unit and column.unit != "share" else ""
    return Grid(
        title=one_line(column.label) + unit,
        head=(
            "curve",
            *(f"{one} ({one_line(panel.axis or 'x', 40)})" for one in titles),
            "points",
            "each of",
        ),
        rows=tuple(rows),
        footnotes=notes.told(),
    )


def _ends(curve: Curve, column: Column) -> list[Point]:
    """Return the first, the best and the last point of a curve."""
    if not curve.points:
        return []
    points = [curve.points[0], curve.points[-1]]
    if column.better is not None:
        sign = 1 if column.better == "more" else -1
        points.insert(1, max(curve.points, key=lambda point: sign * (point.cell.value or 0.0)))
    return points


def _at(point: Point, column: Column) -> str:
    return f"{value(point.cell, column.unit)} ({point.x:g})"


def _bars(panel: Panel) -> Grid:
    column, notes = panel.column, Notes()
    told = usual(point.cell.measured for curve in panel.curves for point in curve.points)
    rows = []
    for place, label in enumerate(panel.labels):
        cells = [Written(one_line(label, 60))]
        for curve in panel.curves:
            found = _bar(curve, place)
            if found is None:
                cells.append(Written("–"))
                continue
            reasons = [found.reason] if found.reason else []
            if found.value is not None and found.measured not in ("", told):
                reasons.append(found.measured)
            marks = (notes.mark("; ".join(reasons)),) if reasons else ()
            cells.append(Written(value(found, column.unit), marks=marks))
        rows.append(GridRow(tuple(cells)))
    unit = f" ({column.unit})" if column.unit and column.unit != "share" else ""
    said = [f"Each value: {told}, unless a footnote says otherwise." if told else ""]
    return Grid(
        title=one_line(column.label) + unit,
        head=("", *(one_line(curve.name, 60) for curve in panel.curves)),
        rows=tuple(rows),
        notes=tuple(one for one in said if one),
        footnotes=notes.told(),
    )


def _bar(curve: Curve, place: int) -> Cell | None:
    cells = {point.x: point.cell for point in curve.points}
    lost = {one.x: one.cell for one in curve.lost}
    return cells.get(place) or lost.get(place)
