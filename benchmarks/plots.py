"""Plots as SVG that can stand inside a page with a strict content security policy.

matplotlib draws, `comap.benchmarks.svg` makes what it wrote fit for a page.
"""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from typing import Any

from ..errors import MissingExtra, OptionError
from .marks import one_line
from .svg import embeddable

__all__ = ["COLOURS", "SYMBOLS", "Plot", "Series", "render_plot"]

SYMBOLS = "●■▲◆▼✚"
"""The marker of each series as text, for a legend; after these, colours and markers repeat."""

_MARKERS = "os^DvP"
COLOURS = ("#0b62a8", "#b84a00", "#08755a", "#93408a", "#7a5f00", "#4d5a68")
"""The colour of each series; after these they repeat."""
_INK, _GRID, _HALO = "#2b3038", "#dcdfe4", "#fefefe"
_CLASSES = {colour: f"series-{i}" for i, colour in enumerate(COLOURS)} | {
    _INK: "ink",
    _GRID: "grid",
    _HALO: "halo",
}
_KINDS = ("line", "bar")


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one colour of bars.

    Attributes:
        name: Its name in the legend.
        x: Positions.
        y: Values, as many as positions; NaN leaves a gap.
        low: Lower ends of the intervals around the values, if they have any.
        high: Upper ends.

    Raises:
        OptionError: The lengths differ, or only one end of the intervals is given.

    Example:
        >>> Series("react", (1.0, 2.0), (0.4, 0.5), low=(0.3, 0.4), high=(0.5, 0.6)).name
        'react'
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        lengths = {
            len(values) for values in (self.x, self.y, self.low, self.high) if values is not None
        }
        if len(lengths) != 1 or (self.low is None) != (self.high is None):
            raise OptionError(
                f"expected x, y, and both or neither of low and high of one length in the series "
                f"{self.name!r}, found lengths {sorted(lengths)}"
            )


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot.

    Attributes:
        title: What it shows.
        xlabel: Name of the horizontal axis.
        ylabel: Name of the vertical axis.
        series: What is drawn.
        kind: "line", or "bar" for bars side by side at each position.
        labels: Names of the positions, from left to right, instead of numbers.

    Raises:
        OptionError: The kind is unknown, or there are not as many labels as positions.

    Example:
        >>> Plot("Success", "", "%", (Series("a", (0, 1), (40, 60)),), "bar", ("easy", "hard")).kind
        'bar'
    """

    title: str
    xlabel: str
    ylabel: str
    series: tuple[Series, ...]
    kind: str = "line"
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise OptionError(f"expected a plot of kind 'line' or 'bar', found {self.kind!r}")
        if self.labels is not None and len(self.labels) != len(self.positions):
            raise OptionError(
                f"expected one label for each of the {len(self.positions)} positions of the plot "
                f"{self.title!r}, found {len(self.labels)}"
            )

    @property
    def positions(self) -> list[float]:
        """The positions of all series, from left to right."""
        return sorted({x for series in self.series for x in series.x})


def render_plot(plot: Plot, name: str = "plot") -> str:
    """Return a plot as an SVG element, the same bytes for the same plot.

    Args:
        plot: What to draw. Its title and its series' names are left to the page.
        name: What the ids inside start with: different for each plot on a page.

    Raises:
        MissingExtra: matplotlib is not installed.

    Example:
        >>> svg = render_plot(Plot("Success", "round", "%", (Series("react", (1, 2), (40, 60)),)))
        >>> svg[:4], "style=" in svg
        ('<svg', False)
    """
    try:
        import matplotlib.style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra.of("viz", "drawing a plot") from error
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "comap",
        "text.parse_math": False,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.edgecolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "grid.color": _GRID,
    }
    drawn = io.BytesIO()
    with matplotlib.style.context(["default", settings]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = Figure(figsize=(5.6, 3.3), layout="constrained")
        _draw(figure.add_subplot(), plot)
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    names = "; ".join(one_line(series.name, 60) for series in plot.series)
    description = f"{one_line(plot.title)}: {names}"
    return embeddable(drawn.getvalue(), name, description, _CLASSES)


def _draw(axes: Any, plot: Plot) -> None:
    """Draw the axes and every series of a plot."""
    axes.set_xlabel(one_line(plot.xlabel, 60))
    axes.set_ylabel(one_line(plot.ylabel, 60))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y")
    if plot.labels is not None:
        axes.set_xticks(plot.positions, [one_line(label, 24) for label in plot.labels])
        if len(plot.labels) * max(map(len, plot.labels), default=0) > 60:  # they would touch
            for text in axes.get_xticklabels():
                text.set(rotation=30, horizontalalignment="right", rotation_mode="anchor")
    gaps = [b - a for a, b in zip(plot.positions, plot.positions[1:], strict=False)]
    width = 0.8 * min(gaps, default=1.0) / max(1, len(plot.series))
    for i, series in enumerate(plot.series):
        if plot.kind == "bar":
            _draw_bars(axes, series, i, (i - (len(plot.series) - 1) / 2) * width, width)
        else:
            _draw_line(axes, series, i)


def _finite(values: tuple[float, ...] | None) -> list[float]:
    return [float(v) if math.isfinite(v) else math.nan for v in values or ()]


def _draw_line(axes: Any, series: Series, i: int) -> None:
    colour = COLOURS[i % len(COLOURS)]
    if series.low is not None:
        axes.fill_between(
            series.x, _finite(series.low), _finite(series.high), color=colour, alpha=0.18, lw=0
        )
    dashes = ("-", "--", ":", "-.")[i // len(COLOURS) % 4]
    marker = _MARKERS[i % len(_MARKERS)] if len(series.x) <= 40 else None
    axes.plot(series.x, _finite(series.y), dashes, marker=marker, ms=5, color=colour)


def _draw_bars(axes: Any, series: Series, i: int, shift: float, width: float) -> None:
    colour = COLOURS[i % len(COLOURS)]
    x, y = [x + shift for x in series.x], _finite(series.y)
    axes.bar(x, y, width=0.92 * width, color=colour)
    if series.low is not None:
        low, high = _finite(series.low), _finite(series.high)
        axes.vlines(x, low, high, colors=_HALO, lw=3.2)  # so that it is seen on the bar too
        axes.vlines(x, low, high, colors=_INK, lw=1.2)
