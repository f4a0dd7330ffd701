"""A figure's panels as data for the script that draws them, and as pictures where it does not run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any
from xml.etree import ElementTree

from ..marks import one_line
from ..plots import COLOURS, SYMBOLS, Plot, Series, render_plot
from .panels import Curve, Panel, Point
from .wording import interval, value

__all__ = ["chart", "chart_table", "picture", "plot_of", "svg_file"]

_LEGEND = 15
_NAME = "plot-63d1c8e07b"


def chart(panel: Panel) -> dict[str, Any]:
    """Return what the script of the page draws a panel from.

    Texts are plain: the script escapes what its library would read as markup.

    Example:
        >>> from comap.benchmarks.experiments.definition import Column
        >>> found = chart(Panel(column=Column(label="reward", unit=""), kind="line", curves=()))
        >>> found["kind"], found["y"], found["curves"]
        ('line', 'reward', [])
    """
    return {
        "kind": panel.kind,
        "x": one_line(panel.axis, 60),
        "y": _ylabel(panel),
        "log": panel.log,
        "labels": [one_line(label, 40) for label in panel.labels],
        "curves": [_curve(curve, panel) for curve in panel.curves],
    }


def chart_table(panel: Panel) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return all points of a panel as a table: head and rows.

    Example:
        >>> from comap.benchmarks.experiments.definition import Column
        >>> chart_table(Panel(column=Column(label="reward"), kind="line", curves=()))[1]
        []
    """
    unit = panel.column.unit
    head = (panel.axis or "x" if panel.kind == "line" else "method", "curve", "mean ± sd")
    rows = list[tuple[str, ...]]()
    for curve in panel.curves:
        for point in curve.points:
            where = panel.labels[int(point.x)] if panel.labels else f"{point.x:g}"
            rows.append(
                (
                    one_line(where),
                    one_line(curve.name),
                    value(point.cell, unit),
                    interval(point.cell, unit),
                    point.cell.measured,
                )
            )
    return (*head, "95 % interval", "of"), rows


def plot_of(panel: Panel) -> Plot:
    """Return a panel as a plot that matplotlib draws.

    Example:
        >>> from comap.benchmarks.experiments.definition import Column
        >>> plot_of(Panel(column=Column(label="reward", unit=""), kind="line", curves=())).ylabel
        'reward'
    """
    curves = [curve for curve in panel.curves if curve.points]
    drawn = tuple(_series(curve, panel) for curve in curves)
    labels = panel.labels if panel.kind == "bar" and drawn else None
    if panel.log and drawn:  # at equal distances for equal ratios, by their names
        drawn = tuple(replace(one, x=tuple(map(math.log10, one.x))) for one in drawn)
        labels = tuple(_brief(10**x) for x in sorted({x for one in drawn for x in one.x}))
    return Plot(panel.column.label, panel.axis, _ylabel(panel), drawn, panel.kind, labels)


def picture(panel: Panel, name: str) -> str:
    """Return a panel as an SVG element, for a page without a script.

    Args:
        panel: What to draw.
        name: What the ids inside start with.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    return _drawn(plot_of(panel)).replace(_NAME, name)


@lru_cache(maxsize=256)
def _drawn(plot: Plot) -> str:
    """Return a plot's picture, whose ids begin with a name that nothing else holds."""
    return render_plot(plot, _NAME)


def svg_file(panel: Panel) -> str:
    """Return a panel as an SVG file that stands by itself, with a legend and a light ground.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    root = ElementTree.fromstring(picture(panel, "plot"))
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    names = [one_line(curve.name, 70) for curve in panel.curves if curve.points]
    lines = names if len(names) > 1 or panel.kind == "line" else []
    tall = height + _LEGEND * len(lines) + (6 if lines else 0)
    root.set("viewBox", f"0 0 {width:g} {tall:g}")
    root.set("xmlns", "http://www.w3.org/2000/svg")
    root.set("width", f"{width * 1.25:g}")
    root.set("height", f"{tall * 1.25:g}")
    root.set("font-family", "system-ui, Helvetica, Arial, sans-serif")
    ground = {"width": f"{width:g}", "height": f"{tall:g}", "fill": "#ffffff"}
    root.insert(0, ElementTree.Element("rect", ground))
    for place, name in enumerate(lines):
        y = height + _LEGEND * (place + 0.5)
        colour = COLOURS[place % len(COLOURS)]
        symbol = "■" if panel.kind == "bar" else SYMBOLS[place % len(SYMBOLS)]
        for x, fill, told in ((44, colour, symbol), (60, "#2b3038", name)):
            text = {"x": f"{x}", "y": f"{y:g}", "fill": fill, "font-size": "10px"}
            ElementTree.SubElement(root, "text", text).text = told
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _brief(number: float) -> str:
    """Return a large number in few letters."""
    for size, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.1 * size:
            return f"{number / size:.3g}{name}"
    return f"{number:.3g}"


def _ylabel(panel: Panel) -> str:
    unit = panel.column.unit
    label = one_line(panel.column.label, 60)
    return f"{label} ({unit})" if unit and unit != "share" else label


def _curve(curve: Curve, panel: Panel) -> dict[str, Any]:
    low, high = _band(curve.points)
    return {
        "name": one_line(curve.name, 60),
        "x": [point.x for point in curve.points],
        "y": [point.cell.value for point in curve.points],
        "low": low,
        "high": high,
        "text": [_told(point, panel) for point in curve.points],
    }


def _band(points: Sequence[Point]) -> tuple[list[float | None], list[float | None]]:
    """Return the ends of mean ± sd; None where there is one seed only."""
    ends: list[tuple[float | None, float | None]] = []
    for point in points:
        mean, sd = point.cell.value, point.cell.sd
        ends.append((None, None) if mean is None or sd is None else (mean - sd, mean + sd))
    return [low for low, _ in ends], [high for _, high in ends]


def _told(point: Point, panel: Panel) -> str:
    unit = panel.column.unit
    within = interval(point.cell, unit)
    parts = [value(point.cell, unit), within and f"95 %: {within}", point.cell.measured]
    return "; ".join(part for part in parts if part)


def _series(curve: Curve, panel: Panel) -> Series:
    """Return a curve for matplotlib; bars have a place for every label."""
    found = {point.x: point.cell for point in curve.points}
    xs = sorted(found) if panel.kind == "line" else [float(i) for i in range(len(panel.labels))]

    def ends(sign: int) -> tuple[float, ...]:
        told = []
        for x in xs:
            cell = found.get(x)
            mean = math.nan if cell is None or cell.value is None else cell.value
            told.append(mean + sign * ((cell.sd if cell else None) or 0.0))
        return tuple(told)

    spread = any(cell.sd is not None for cell in found.values())
    low, high = (ends(-1), ends(1)) if spread else (None, None)
    return Series(curve.name, tuple(xs), ends(0), low, high)
