"""Tables and plots of results: the same in the terminal and on pages."""

from __future__ import annotations

import base64
import io
import math
import re
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, Literal

from ..errors import needs_extra

_MISSING = "—"
_NUMBER = re.compile(r"[-+−~<≤]?\d[\d\s.,:%±()\[\]/<n=–−+-]*")  # "45.0 % [40.1, 50.0] (n=200)"
_MAX_DECIMALS = 3


@dataclass(frozen=True, slots=True)
class Table:
    """A table."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    note: str = ""


def format_cells(table: Table) -> list[list[str]]:
    """Return the rows as text; the numbers of a column have the same number of decimals."""
    columns = [_format_column([row[i] for row in table.rows]) for i in range(len(table.columns))]
    return [list(cells) for cells in zip(*columns, strict=True)]


def numeric_columns(table: Table) -> list[bool]:
    """Return for each column whether it holds numbers, which are aligned to the right."""
    cells = format_cells(table)
    result = []
    for i in range(len(table.columns)):
        written = [row[i] for row in cells if row[i] not in (_MISSING, "")]
        result.append(bool(written) and all(_NUMBER.fullmatch(cell) for cell in written))
    return result


def _format_column(values: Sequence[object]) -> list[str]:
    reals = [
        value for value in values if isinstance(value, Real) and not isinstance(value, Integral)
    ]
    decimals = _decimals([float(value) for value in reals if math.isfinite(value)])
    return [_format(value, decimals) for value in values]


def _decimals(values: Sequence[float]) -> int:
    """Return the fewest decimals that lose nothing a reader would want."""
    largest = max((abs(value) for value in values), default=0.0)
    most = _MAX_DECIMALS if largest < 10 else 2 if largest < 100 else 1
    for few in range(1, most):
        if all(round(value, few) == round(value, most) for value in values):
            return few
    return most


def _format(value: object, decimals: int) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Real) and not isinstance(value, Integral):
        number = float(value)
        small = number != 0 and round(number, decimals) == 0
        return f"{number:.1e}" if small else f"{number:.{decimals}f}"
    return str(value)


_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_KEPT = {"\n", "\t"}


def _is_hidden(char: str) -> bool:
    code = ord(char)
    noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return noncharacter or (char not in _KEPT and unicodedata.category(char) in _HIDDEN)


def pieces(text: str) -> Iterator[tuple[bool, str]]:
    r"""Yield the runs of plain text (False) and the name of each hidden character (True)."""
    start = 0
    for position, char in enumerate(text):
        if _is_hidden(char):
            if start < position:
                yield False, text[start:position]
            yield True, f"U+{ord(char):04X}"
            start = position + 1
    if start < len(text):
        yield False, text[start:]


def visible(text: str) -> str:
    r"""Return `text` with each hidden character as its code point in brackets."""
    return "".join(f"[{piece}]" if hidden else piece for hidden, piece in pieces(text))


def one_line(text: str, limit: int = 120) -> str:
    r"""Return `visible` text on one line of at most `limit` characters."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


SYMBOLS = "●■▲◆▼✚"
"""The marker of each series as text, for a legend; after these, colors and markers repeat."""

_MARKERS = "os^DvP"
COLORS = ("#0b62a8", "#b84a00", "#08755a", "#93408a", "#7a5f00", "#4d5a68")
"""The color of each series; after these they repeat."""
_INK, _GRID, _HALO = "#2b3038", "#dcdfe4", "#fefefe"


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one color of bars."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot.

    ``full`` is the largest value there can be, such as 100 of a share in percent; ``first_color`` the
    place of the first series' color in `COLORS`.
    """

    title: str
    xlabel: str
    ylabel: str
    series: tuple[Series, ...]
    kind: Literal["line", "bar"] = "line"
    labels: tuple[str, ...] | None = None
    full: float | None = None
    first_color: int = 0

    @property
    def positions(self) -> list[float]:
        return sorted({x for series in self.series for x in series.x})


def image_of(plot: Plot) -> Any:
    """Return a plot as an ``<img>`` element of a page: an image runs and loads nothing."""
    from markupsafe import Markup  # a part of jinja2

    names = "; ".join(one_line(series.name, 60) for series in plot.series)
    described = f"{one_line(plot.title)}: {names}"
    source = base64.b64encode(svg_of(plot)).decode("ascii")
    return Markup('<img src="data:image/svg+xml;base64,{}" alt="{}">').format(source, described)


@lru_cache(maxsize=256)
def svg_of(plot: Plot, alone: bool = False) -> bytes:
    """Return a plot as an SVG file; one that stands alone has a legend and a white ground."""
    with needs_extra("viz", "a report"):
        import matplotlib.style
        from matplotlib.figure import Figure
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "comap",
        "text.parse_math": False,
        "font.family": "sans-serif",
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
        axes = figure.add_subplot()
        _draw(axes, plot)
        drawn_series, names = axes.get_legend_handles_labels()
        if alone and (len(names) > 1 or (names and plot.kind == "line")):
            figure.set_figheight(3.3 + 0.2 * len(names))
            figure.legend(drawn_series, names, loc="outside lower left", frameon=False, fontsize=9)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawn, format="svg", transparent=not alone, metadata=nothing)
    return drawn.getvalue()


def _draw(axes: Any, plot: Plot) -> None:
    axes.set_xlabel(one_line(plot.xlabel, 60))
    axes.set_ylabel(one_line(plot.ylabel, 60))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y")
    if all(float(x).is_integer() for x in plot.positions):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if plot.labels is not None:
        axes.set_xticks(plot.positions, [one_line(label, 24) for label in plot.labels])
        if len(plot.labels) * max(map(len, plot.labels), default=0) > 60:  # they would touch
            for text in axes.get_xticklabels():
                text.set(rotation=30, horizontalalignment="right", rotation_mode="anchor")
    gaps = [b - a for a, b in zip(plot.positions, plot.positions[1:], strict=False)]
    width = 0.8 * min(gaps, default=1.0) / max(1, len(plot.series))
    for i, series in enumerate(plot.series):
        if plot.kind == "bar":
            color = COLORS[(i + plot.first_color) % len(COLORS)]
            _draw_bars(axes, series, color, (i - (len(plot.series) - 1) / 2) * width, width)
        else:
            _draw_line(axes, series, i)
    if plot.kind == "line":
        _widen(axes, plot)


def _widen(axes: Any, plot: Plot) -> None:
    """Give values that hardly differ an axis on which they look so."""
    drawn = (part for one in plot.series for part in (one.y, one.low, one.high))
    known = [value for part in drawn for value in _finite(part) if not math.isnan(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    size = max(abs(low), abs(high)) or 1.0
    least = 0.2 * plot.full if plot.full else size if low == high else 0.05 * size
    if high - low >= least:
        return
    bottom = (low + high - least) / 2
    if low >= 0:
        bottom = max(bottom, 0.0)
    if plot.full and high <= plot.full:
        bottom = min(bottom, plot.full - least)
    axes.set_ylim(bottom - 0.05 * least, bottom + 1.05 * least)


def _finite(values: tuple[float, ...] | None) -> list[float]:
    return [float(v) if math.isfinite(v) else math.nan for v in values or ()]


def _draw_line(axes: Any, series: Series, i: int) -> None:
    color = COLORS[i % len(COLORS)]
    if series.low is not None and len(series.x) == 1:  # nothing lies between one point and the next
        _draw_intervals(axes, series.x, series)
    elif series.low is not None:
        axes.fill_between(
            series.x, _finite(series.low), _finite(series.high), color=color, alpha=0.18, lw=0
        )
    dashes = ("-", "--", ":", "-.")[i // len(COLORS) % 4]
    marker = _MARKERS[i % len(_MARKERS)] if len(series.x) <= 40 else None
    label = one_line(series.name, 70)
    axes.plot(series.x, _finite(series.y), dashes, marker=marker, ms=5, color=color, label=label)


def _draw_bars(axes: Any, series: Series, color: str, shift: float, width: float) -> None:
    x, y = [x + shift for x in series.x], _finite(series.y)
    bars = axes.bar(x, y, width=0.92 * width, color=color, label=one_line(series.name, 70))
    if series.low is None and len(x) <= 12:
        axes.bar_label(bars, ["" if math.isnan(v) else f"{v:.3g}" for v in y], fontsize=8)
    if series.low is not None:
        _draw_intervals(axes, x, series)


def _draw_intervals(axes: Any, x: Sequence[float], series: Series) -> None:
    """Draw the ends of intervals and what is between them, so that they are seen on bars too."""
    y = _finite(series.y)
    below = [value - low for value, low in zip(y, _finite(series.low), strict=True)]
    above = [high - value for value, high in zip(y, _finite(series.high), strict=True)]
    for color, line, cap in ((_HALO, 5.0, 7.0), (_INK, 1.8, 5.5)):
        axes.errorbar(
            x,
            y,
            yerr=[below, above],
            fmt="none",
            ecolor=color,
            elinewidth=line,
            capsize=cap,
            capthick=line,
        )
