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
from itertools import pairwise
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
    columns = []
    for column_index in range(len(table.columns)):
        columns.append(_format_column([row[column_index] for row in table.rows]))
    return [list(cells) for cells in zip(*columns, strict=True)]


def numeric_columns(table: Table) -> list[bool]:
    """Return for each column whether it holds numbers, which are aligned to the right."""
    rows = format_cells(table)
    are_numeric = []
    for column_index in range(len(table.columns)):
        cells = [row[column_index] for row in rows]
        filled_cells = [cell for cell in cells if cell not in (_MISSING, "")]
        are_numbers = all(_NUMBER.fullmatch(cell) for cell in filled_cells)
        are_numeric.append(bool(filled_cells) and are_numbers)
    return are_numeric


def _format_column(values: Sequence[object]) -> list[str]:
    """Return a column's values as text, the real numbers among them with as many decimals each."""
    reals = []
    for value in values:
        if isinstance(value, Real) and not isinstance(value, Integral) and math.isfinite(value):
            reals.append(float(value))
    decimals = _decimals(reals)
    return [_format(value, decimals) for value in values]


def _decimals(values: Sequence[float]) -> int:
    """Return the fewest decimals that lose nothing a reader would want."""
    # Four digits of the largest value are enough to compare by.
    largest = max((abs(value) for value in values), default=0.0)
    most = 1
    if largest < 10:
        most = _MAX_DECIMALS
    elif largest < 100:
        most = 2

    for decimals in range(1, most):
        if all(round(value, decimals) == round(value, most) for value in values):
            return decimals
    return most


def _format(value: object, decimals: int) -> str:
    if value is None:
        return _MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Real) and not isinstance(value, Integral):
        number = float(value)
        is_tiny = number != 0 and round(number, decimals) == 0  # it would read as 0
        return f"{number:.1e}" if is_tiny else f"{number:.{decimals}f}"
    return str(value)


_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Control and format characters, surrogates, and separators of lines: of Unicode's categories."""

_LAYOUT = {"\n", "\t"}
"""Control characters that texts are laid out with."""


def _is_hidden(char: str) -> bool:
    """Return whether a reader would not see a character, or a terminal would obey it."""
    code = ord(char)
    is_noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    if is_noncharacter:
        return True
    return char not in _LAYOUT and unicodedata.category(char) in _HIDDEN_CATEGORIES


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
_INK = "#2b3038"  # of texts and axes
_GRID = "#dcdfe4"
_HALO = "#fefefe"  # around intervals, which lie on bars of any color


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
    description = f"{one_line(plot.title)}: {names}"
    source = base64.b64encode(svg_of(plot)).decode("ascii")
    return Markup('<img src="data:image/svg+xml;base64,{}" alt="{}">').format(source, description)


@lru_cache(maxsize=256)
def svg_of(plot: Plot, alone: bool = False) -> bytes:
    """Return a plot as an SVG file; one that stands alone has a legend and a white ground."""
    with needs_extra("viz", "a report"):
        import matplotlib.style
        from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",  # texts stay texts: a reader can search and copy them
        "svg.hashsalt": "comap",  # matplotlib's own ids are drawn anew each time
        "text.parse_math": False,  # names may have a $ in them
        "font.family": "sans-serif",
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.edgecolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "grid.color": _GRID,
    }
    svg = io.BytesIO()
    with matplotlib.style.context(["default", settings]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = Figure(figsize=(5.6, 3.3), layout="constrained")
        axes = figure.add_subplot()
        _draw(axes, plot)

        # On a page the legend is text beside the image.
        handles, names = axes.get_legend_handles_labels()
        if alone and (len(names) > 1 or (names and plot.kind == "line")):
            figure.set_figheight(3.3 + 0.2 * len(names))
            figure.legend(handles, names, loc="outside lower left", frameon=False, fontsize=9)

        # The same plot is the same bytes: no date, no version of matplotlib.
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", transparent=not alone, metadata=no_metadata)
    return svg.getvalue()


def _draw(axes: Any, plot: Plot) -> None:
    """Draw the axes of a plot and its series."""
    axes.set_xlabel(one_line(plot.xlabel, 60))
    axes.set_ylabel(one_line(plot.ylabel, 60))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y")
    _set_ticks(axes, plot)

    if plot.kind == "bar":
        _draw_groups_of_bars(axes, plot)
        return

    for series_index, series in enumerate(plot.series):
        _draw_line(axes, series, series_index)
    _widen(axes, plot)


def _set_ticks(axes: Any, plot: Plot) -> None:
    """Label the positions of a plot; numbers have no decimals where all positions are whole."""
    positions = plot.positions
    if all(float(x).is_integer() for x in positions):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if plot.labels is None:
        return

    axes.set_xticks(positions, [one_line(label, 24) for label in plot.labels])
    longest = max(map(len, plot.labels), default=0)
    if len(plot.labels) * longest > 60:  # letters; beside each other the labels would touch
        for text in axes.get_xticklabels():
            text.set(rotation=30, horizontalalignment="right", rotation_mode="anchor")


def _draw_groups_of_bars(axes: Any, plot: Plot) -> None:
    """Draw the bars of all series side by side at each position, with air before the next one."""
    gaps = [right - left for left, right in pairwise(plot.positions)]
    width = 0.8 * min(gaps, default=1.0) / max(1, len(plot.series))
    middle = (len(plot.series) - 1) / 2
    for series_index, series in enumerate(plot.series):
        color = COLORS[(series_index + plot.first_color) % len(COLORS)]
        shift = (series_index - middle) * width
        _draw_bars(axes, series, color, shift, width)


def _widen(axes: Any, plot: Plot) -> None:
    """Give values that hardly differ an axis on which they look so."""
    values: list[float] = []
    for series in plot.series:
        for part in (series.y, series.low, series.high):
            values += [value for value in _finite(part) if not math.isnan(value)]
    low = min(values, default=0.0)
    high = max(values, default=0.0)

    # The axis shows at least a fifth of all shares, or a twentieth of the largest value.
    size = max(abs(low), abs(high)) or 1.0
    least_height = 0.05 * size
    if plot.full:
        least_height = 0.2 * plot.full
    elif low == high:
        least_height = size
    if high - low >= least_height:
        return

    # The values are in its middle, unless it would show what cannot be: below 0, or above the whole.
    bottom = (low + high - least_height) / 2
    if low >= 0:
        bottom = max(bottom, 0.0)
    if plot.full and high <= plot.full:
        bottom = min(bottom, plot.full - least_height)
    axes.set_ylim(bottom - 0.05 * least_height, bottom + 1.05 * least_height)


def _finite(values: tuple[float, ...] | None) -> list[float]:
    """Return values with NaN for what cannot be drawn, an infinite one."""
    return [float(value) if math.isfinite(value) else math.nan for value in values or ()]


def _draw_line(axes: Any, series: Series, series_index: int) -> None:
    """Draw a line in a color, a dash and a marker of its own, and its interval as a band."""
    color = COLORS[series_index % len(COLORS)]
    if series.low is not None and len(series.x) == 1:  # nothing lies between one point and the next
        _draw_intervals(axes, series.x, series)
    elif series.low is not None:
        axes.fill_between(
            series.x, _finite(series.low), _finite(series.high), color=color, alpha=0.18, lw=0
        )

    dashes = ("-", "--", ":", "-.")[series_index // len(COLORS) % 4]
    marker = None
    if len(series.x) <= 40:  # more markers would hide the line
        marker = _MARKERS[series_index % len(_MARKERS)]
    label = one_line(series.name, 70)
    axes.plot(series.x, _finite(series.y), dashes, marker=marker, ms=5, color=color, label=label)


def _draw_bars(axes: Any, series: Series, color: str, shift: float, width: float) -> None:
    """Draw bars beside their positions, with intervals, or else with numbers where there is room."""
    x = [position + shift for position in series.x]
    y = _finite(series.y)
    bars = axes.bar(x, y, width=0.92 * width, color=color, label=one_line(series.name, 70))
    if series.low is not None:
        _draw_intervals(axes, x, series)
    elif len(x) <= 12:
        numbers = ["" if math.isnan(value) else f"{value:.3g}" for value in y]
        axes.bar_label(bars, numbers, fontsize=8)


def _draw_intervals(axes: Any, x: Sequence[float], series: Series) -> None:
    """Draw the ends of intervals and what is between them, so that they are seen on bars too."""
    y = _finite(series.y)
    down = [value - low for value, low in zip(y, _finite(series.low), strict=True)]
    up = [high - value for value, high in zip(y, _finite(series.high), strict=True)]

    # The wide one in a light color goes first: ink alone is not seen on a dark bar.
    for color, line_width, cap_size in ((_HALO, 5.0, 7.0), (_INK, 1.8, 5.5)):
        axes.errorbar(
            x,
            y,
            yerr=[down, up],
            fmt="none",
            ecolor=color,
            elinewidth=line_width,
            capsize=cap_size,
            capthick=line_width,
        )
