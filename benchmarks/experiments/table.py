"""Tables and figures as neutral data, which text, LaTeX and HTML lay out.

Three steps lead from rows to a table: `cells.pool` makes one mean of the rows of each seed, `cells.cell`
makes a `Cell` of the seeds, and `measured_table` lays cells out as a `Table`, with their footnotes.
A `Panel` holds the curves or bars of a figure, whose points are cells too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from string import ascii_lowercase
from typing import Literal, NamedTuple

from ...metrics import t_interval
from ..tables import one_line
from .cells import (
    Cell,
    MethodCells,
    average,
    best,
    cell,
    cells_of_methods,
    methods_of,
    only_says_why,
    seeds_in_words,
    shows,
)
from .definition import Column, Experiment, Method, ResultRow

DIGITS = {"%": 1, "points": 1, "s": 1, "count": 0, "GiB": 2, "GB": 2}
"""How many decimals a value of a unit is shown with; others by their size."""

# How long a text may be.
_LABEL = 60
_TEXT = 120
_REASON = 400


def number(value: float, unit: str) -> str:
    """Return a number as it is shown: per cent with one decimal, counts whole."""
    if 0 < abs(value) < 0.001 and unit not in DIGITS:
        return f"{value:.1e}"

    # A small loss would be printed as -0.0.
    text = f"{value:,.{_decimals(value, unit)}f}"
    is_zero = float(text.replace(",", "")) == 0
    return text.lstrip("-") if is_zero else text


def _decimals(value: float, unit: str) -> int:
    """Return how many decimals a number is shown with: those of its unit, else by its size."""
    if unit == "count" and value != round(value):
        return 1
    if unit in DIGITS:
        return DIGITS[unit]

    size = abs(value)
    if size >= 1000:
        return 0
    if size >= 100:
        return 1
    return 2 if size >= 10 else 3


def interval(cell: Cell, unit: str) -> str:
    """Return the 95 % interval and what it is; "" where there is none."""
    if cell.low is None or cell.high is None:
        return ""
    return f"{number(cell.low, unit)} to {number(cell.high, unit)} ({cell.interval})"


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell as it is written."""

    mean: str = ""
    spread: str = ""
    status: str = "none"
    best: bool = False
    marks: tuple[str, ...] = ()
    cell: Cell | None = None
    """what is known of it, where we measured it"""

    @property
    def text(self) -> str:
        return f"{self.mean} ± {self.spread}" if self.spread else self.mean


@dataclass(frozen=True, slots=True)
class Row:
    """A row; its first entry is the method."""

    entries: tuple[Entry, ...]
    rule: bool = False
    """whether a rule stands above it"""

    @property
    def name(self) -> str:
        return self.entries[0].mean


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of one language model."""

    name: str | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table."""

    title: str
    head: tuple[str, ...]
    blocks: tuple[Block, ...]
    counts: tuple[str, ...] = ()
    """how many tasks the values of each column are of"""
    notes: tuple[str, ...] = ()
    footnotes: tuple[tuple[str, str], ...] = ()
    texts: int = 1
    """how many columns at the left hold text"""

    def lines(self) -> Iterator[tuple[Literal["block", "line", "ruled", "counts"], Row]]:
        """Yield the lines from top to bottom, each with what kind of line it is."""
        for block in self.blocks:
            if block.name is not None:
                yield "block", Row((Entry(block.name),))
            for row in block.rows:
                yield "ruled" if row.rule else "line", row

        if any(self.counts):
            yield "counts", Row(tuple(map(Entry, ("n", *self.counts))))


class Footnotes:
    """Footnotes under a table: letters, one for each text."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """Return the letter of a text, a new one for a new text."""
        return self._letters.setdefault(one_line(text, _REASON), _letter(len(self._letters)))

    def marks(self, remarks: Sequence[str]) -> tuple[str, ...]:
        """Return the mark of a cell: one footnote holds all remarks; no mark where there are none."""
        if not remarks:
            return ()
        return (self.mark("; ".join(remarks)),)

    def written(self) -> tuple[tuple[str, str], ...]:
        return tuple((letter, text) for text, letter in self._letters.items())


def _letter(i: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    if i < 26:
        return ascii_lowercase[i]
    return _letter(i // 26 - 1) + ascii_lowercase[i % 26]


def label(text: str) -> Entry:
    return Entry(one_line(text, _LABEL))


def entry(cell: Cell, unit: str, best: bool = False, marks: tuple[str, ...] = ()) -> Entry:
    """Return a cell as it is written: a number, a text, "failed", or a dash for what was not run."""
    spread = ""
    if cell.value is not None:
        mean = number(cell.value, unit)
        spread = "" if cell.sd is None else number(cell.sd, unit)
    elif cell.status == "text":
        mean = one_line(cell.text or "", _TEXT)
    elif cell.status == "failed":
        mean = "failed"
    else:
        mean = "–"
    return Entry(mean, spread, cell.status, best, marks, cell)


def head(column: Column, columns: Sequence[Column]) -> str:
    """Return what stands above a column: its label, and its unit where units differ."""
    name = one_line(column.label, _LABEL)
    if column.average or column.unit in ("", "share"):
        return name
    units = {column.unit for column in columns if not column.average}
    return f"{name} ({column.unit})" if len(units) > 1 else name


def with_unit(column: Column) -> str:
    """Return a column's label with its unit, where it has one that is written."""
    name = one_line(column.label, _LABEL)
    if column.unit in ("", "share"):
        return name
    return f"{name} ({column.unit})"


def block_name(backbone: str | None) -> str | None:
    """Return what stands above the rows of a language model; None where methods need none."""
    return None if backbone is None else one_line(backbone)


class BackboneCells(NamedTuple):
    """The cells of all methods for one language model: a block of a table."""

    backbone: str | None
    lines: list[MethodCells]


@dataclass(frozen=True, slots=True)
class Usual:
    """What most cells of a table are of; a footnote says where one differs."""

    counts: tuple[str, ...]
    """how many tasks, by column"""
    seeds: str

    def differences(self, measured: Cell, column_index: int) -> list[str]:
        """Return in words how a cell differs; nothing where it has no value."""
        if measured.value is None:
            return []
        differences = []
        if measured.n not in ("", self.counts[column_index]):
            differences.append(f"n = {measured.n}")
        if measured.seed_names not in ("", self.seeds):
            differences.append(seeds_in_words(measured.seed_names))
        return differences


def usual(texts: Iterable[str]) -> str:
    """Return the most frequent text, the first of equally frequent ones; "" for nothing."""
    counts = Counter(filter(None, texts))
    return max(counts, key=lambda text: counts[text], default="")


def _usual_count(cells: Sequence[Cell]) -> str:
    return usual(measured.n for measured in cells)


def measured_table(experiment: Experiment, rows: Iterable[ResultRow]) -> Table | None:
    """Return what we measured of a table; None where nothing was run."""
    all_rows = list(rows)
    backbones = _cells_of_backbones(experiment, all_rows)
    if not backbones:
        return None

    all_lines = list(chain.from_iterable(block.lines for block in backbones))
    cells_by_column = list(zip(*(line.cells for line in all_lines), strict=True))
    cells = list(chain.from_iterable(cells_by_column))
    with_value = [measured for measured in cells if measured.value is not None]

    # What is the same in most cells is said once, and each other cell has a footnote.
    usual_counts = tuple(map(_usual_count, cells_by_column))
    usual_seeds = usual(measured.seed_names for measured in with_value)
    usual_cell = Usual(usual_counts, usual_seeds)

    columns = experiment.columns
    footnotes = Footnotes()
    blocks = tuple(_block(block, columns, usual_cell, footnotes) for block in backbones)

    has_spread = any(measured.sd is not None for measured in cells)
    kind, other_tasks = _tasks_of(all_rows)
    method_names = {line.method.name for line in all_lines}
    notes = (
        _caption(columns),
        other_tasks,
        _seeds_note(usual_seeds, has_spread),
        _not_run(experiment, all_rows, method_names),
    )
    return Table(
        title=f"Measured here, on {kind}" if kind else "Measured here",
        head=("method", *(head(column, columns) for column in columns)),
        blocks=blocks,
        counts=usual_counts if any(usual_counts) else (),
        notes=tuple(filter(None, notes)),
        footnotes=footnotes.written(),
        texts=1 if with_value else 1 + len(columns),
    )


def _cells_of_backbones(experiment: Experiment, rows: Sequence[ResultRow]) -> list[BackboneCells]:
    """Return the cells of each language model with which anything was run."""
    # A model that was only left out has no block of dashes.
    run_backbones = dict.fromkeys(row.backbone for row in rows if not only_says_why(row))
    backbones = []
    for backbone in run_backbones:
        lines = cells_of_methods(experiment, [row for row in rows if row.backbone == backbone])
        if lines:
            backbones.append(BackboneCells(backbone, lines))
    return backbones


def _block(
    cells: BackboneCells, columns: Sequence[Column], usual_cell: Usual, footnotes: Footnotes
) -> Block:
    """Return the rows of a language model, the best of each column marked, a rule between groups."""
    # The best is found among methods with one language model: other models are no fair comparison.
    best_lines = []
    for column_index, column in enumerate(columns):
        column_cells = [line.cells[column_index] for line in cells.lines]
        best_lines.append(best(column_cells, column.better, DIGITS.get(column.unit, 3)))

    rows = []
    group = cells.lines[0].method.group
    for line_index, line in enumerate(cells.lines):
        entries = [label(line.method.name)]
        for column_index, measured in enumerate(line.cells):
            remarks = measured.remarks + usual_cell.differences(measured, column_index)
            is_best = line_index in best_lines[column_index]
            unit = columns[column_index].unit
            entries.append(entry(measured, unit, is_best, footnotes.marks(remarks)))

        rows.append(Row(tuple(entries), rule=line.method.group != group))
        group = line.method.group

    return Block(block_name(cells.backbone), tuple(rows))


def _tasks_of(rows: Iterable[ResultRow]) -> tuple[str, str]:
    """Return of which kind the tasks of all rows are, or else a note on those that are generated."""
    with_value = [row for row in rows if row.value is not None]
    kinds = {row.tasks for row in with_value}
    if len(kinds) == 1:
        return kinds.pop() or "", ""

    names = dict.fromkeys(
        f"{row.env or row.method} ({row.tasks})" for row in with_value if row.tasks
    )
    return "", f"Not the benchmarks' own: {', '.join(names)}." if names else ""


def _caption(columns: Sequence[Column]) -> str:
    """Return a note on the unit that all columns share; "" where they share none."""
    units = {column.unit for column in columns if not column.average}
    unit = units.pop() if len(units) == 1 else ""
    captions = {"": "", "share": "All values are shares of 1.", "count": "All values are counts."}
    return captions.get(unit, f"All values in {unit}.")


def _seeds_note(seeds: str, has_spread: bool) -> str:
    """Return a note on the seeds that most values are of; "" where no value names a seed."""
    if not seeds:
        return ""
    note = f"{seeds_in_words(seeds).capitalize()}, unless a footnote says otherwise."
    return f"Mean ± standard deviation over seeds. {note}" if has_spread else note


def _not_run(
    experiment: Experiment, rows: Sequence[ResultRow], shown_methods: Iterable[str]
) -> str:
    """Return a note on the methods that the table has no line for, and why."""
    reasons = {row.method: row.error or "" for row in rows if only_says_why(row)}
    absent = []
    for method in experiment.methods:
        if method.name in shown_methods:
            continue
        reason = reasons.get(method.name)
        if not reason and method.recipe is None:
            reason = "cited only"
        name = f"{method.name} ({reason})" if reason else method.name
        absent.append(one_line(name, _TEXT))

    return f"Not run here: {'; '.join(absent)}." if absent else ""


def differences_table(experiment: Experiment, rows: Iterable[ResultRow]) -> Table | None:
    """Return how methods differ in the first column, paired by seed; None where no two were run."""
    all_rows = list(rows)
    column = experiment.columns[0]
    blocks = []
    for backbone in dict.fromkeys(row.backbone for row in all_rows):
        backbone_rows = [row for row in all_rows if row.backbone == backbone]
        lines = cells_of_methods(experiment, backbone_rows)
        values_by_method = {}
        for method, cells in lines:
            # A cell without a value has seeds all the same, and then no values.
            values_by_method[method.name] = dict(zip(cells[0].seeds, cells[0].values, strict=False))

        differences: list[Row] = []
        for compared in experiment.compared:
            differences += _differences(compared, values_by_method)
        if differences:
            blocks.append(Block(block_name(backbone), tuple(differences)))

    if not blocks:
        return None
    return Table(
        title=f"Differences in {one_line(column.label, _LABEL)}, paired by seed",
        head=("difference", "mean", "95 % interval", "half-width", "seeds"),
        blocks=tuple(blocks),
        notes=("Student's t over the seeds' differences; not corrected for several comparisons.",),
    )


def _differences(
    compared: Sequence[str], values_by_method: Mapping[str, Mapping[int | None, float]]
) -> Iterator[Row]:
    """Yield a method's difference from each of those that share a seed with it."""
    name, *baselines = compared
    values = values_by_method.get(name, {})
    for baseline in baselines:
        # What a seed decides for both, such as weights and tasks, drops out of their difference.
        baseline_values = values_by_method.get(baseline, {})
        gains = []
        for seed, value in values.items():
            if seed in baseline_values:
                gains.append(value - baseline_values[seed])
        if not gains:
            continue

        interval_text = "–"
        half_width = "–"
        if len(gains) > 1:
            low, high = t_interval(gains)
            interval_text = f"{low:+.1f} to {high:+.1f}"
            half_width = f"{(high - low) / 2:.1f}"

        texts = (
            f"{name} against {baseline}",
            f"{fmean(gains):+.1f}",
            interval_text,
            half_width,
            str(len(gains)),
        )
        yield Row(tuple(map(Entry, texts)), rule=baseline == baselines[0])


@dataclass(frozen=True, slots=True)
class Value:
    """All that is known of a cell that we measured."""

    entry: Entry
    cell: Cell
    method: str
    column: Column
    interval: str


def values(table: Table, columns: Sequence[Column]) -> Iterator[Value]:
    """Yield the cells of a measured table that rows stand behind."""
    for block in table.blocks:
        for row in block.rows:
            method = row.name if block.name is None else f"{row.name}, {block.name}"
            for column, column_entry in zip(columns, row.entries[1:], strict=True):
                measured = column_entry.cell
                if measured is not None and (measured.rows or measured.value is not None):
                    interval_text = interval(measured, column.unit)
                    yield Value(column_entry, measured, method, column, interval_text)


# Figures: the same cells, as points of curves or as bars.


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A curve, or the bars of one color."""

    name: str
    points: tuple[tuple[float, Cell], ...]
    """x and value, from left to right"""
    lost: tuple[tuple[float | None, Cell], ...] = ()
    """points without a value"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot of a figure."""

    column: Column
    kind: Literal["line", "bar"]
    curves: tuple[Curve, ...]
    labels: tuple[str, ...] = ()
    """names of the bars, at 0, 1, ..."""
    axis: str = ""
    log: bool = False
    tasks: str = ""
    """that the tasks are generated, in words, if they are"""

    @property
    def title(self) -> str:
        title = with_unit(self.column)
        return f"{title}, on {self.tasks}" if self.tasks else title

    def at(self, x: float) -> str:
        """Return what stands below a point."""
        return self.labels[int(x)] if self.labels else f"{x:g}"


def panels(experiment: Experiment, rows: Iterable[ResultRow]) -> tuple[Panel, ...]:
    """Return a figure's panels, one a column that has a row; many bars of a unit share one.

    A column of averages stands for those that it is the mean of.
    """
    # Curves and bars stand in the definition's order, whatever order jobs ended in.
    all_rows = list(rows)
    methods = methods_of(experiment, all_rows)
    method_names = list(methods)
    all_rows.sort(key=lambda row: method_names.index(row.method))

    averaged: set[Column] = set()
    for column in experiment.columns:
        if column.average:
            averaged |= set(experiment.averaged(column))
    columns_by_unit: dict[str, list[Column]] = {}
    for column in experiment.columns:
        if column not in averaged:
            columns_by_unit.setdefault(column.unit, []).append(column)

    # Bars of few methods in many columns would be as many small panels: they share one.
    is_category = experiment.axis is not None and experiment.axis.over == "category"
    groups: list[list[Column]] = []
    for columns in columns_by_unit.values():
        if is_category and len(columns) > max(2, len(methods)):
            groups.append(columns)
        else:
            groups += [[column] for column in columns]

    every_panel = (_panel(experiment, columns, methods, all_rows) for columns in groups)
    return tuple(panel for panel in every_panel if panel.curves)


ColumnRow = tuple[Column, ResultRow]
"""A row, and the column that shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placement:
    """Where a panel draws a row: on which curve, and at which x."""

    experiment: Experiment
    columns: Sequence[Column]
    methods: Mapping[str, Method]
    bars: bool
    labels: tuple[str, ...]
    several_backbones: bool

    def curve_name(self, row: ResultRow) -> str:
        """Return the curve, or the color of bars, that a row belongs to."""
        method = self.methods[row.method]
        name: str | None
        if len(self.columns) > 1:
            name = method.name
        elif self.bars:
            name = method.series
        else:
            name = method.series or method.name

        if name is None:
            return row.backbone or "measured"

        # On an axis over parameters, one curve goes through all language models.
        axis = self.experiment.axis
        over_models = axis is not None and axis.over == "parameters"
        if self.several_backbones and row.backbone and not over_models:
            return f"{name} ({row.backbone})"
        return name

    def x(self, column: Column, row: ResultRow) -> float | None:
        """Return where a row stands; bars stand at 0, 1, ..., by column or by method."""
        if len(self.columns) > 1:
            return float(self.columns.index(column))
        if self.bars:
            return float(self.labels.index(row.method))
        return _x_of(row, self.methods)

    def points_by_curve(
        self, drawn: Iterable[ColumnRow]
    ) -> dict[str, dict[float | None, list[ColumnRow]]]:
        """Return by the names of curves, and then by x, the rows that make one point."""
        curves: dict[str, dict[float | None, list[ColumnRow]]] = {}
        for column, row in drawn:
            points = curves.setdefault(self.curve_name(row), {})
            points.setdefault(self.x(column, row), []).append((column, row))
        return curves


def _x_of(row: ResultRow, methods: Mapping[str, Method]) -> float | None:
    """Return a row's own x, as of a point over rounds, else that of its method."""
    return methods[row.method].x if row.x is None else row.x


def _panel(
    experiment: Experiment,
    columns: Sequence[Column],
    methods: Mapping[str, Method],
    rows: Sequence[ResultRow],
) -> Panel:
    """Return the panel of a column; of several columns, each is a place for bars of all methods."""
    axis = experiment.axis
    first = columns[0]
    parts = experiment.averaged(first) if first.average else columns
    drawn = _drawn_rows(experiment, parts, rows)

    # Without an x there is nothing to draw a line over: each method is a bar.
    without_x = all(_x_of(row, methods) is None for _, row in drawn)
    bars = axis is None or axis.over == "category" or without_x
    labels: tuple[str, ...] = ()
    if len(columns) > 1:
        labels = tuple(column.label for column in columns)
    elif bars:
        labels = tuple(dict.fromkeys(row.method for _, row in drawn))

    placement = _Placement(
        experiment=experiment,
        columns=columns,
        methods=methods,
        bars=bars,
        labels=labels,
        several_backbones=len({row.backbone for _, row in drawn if row.value is not None}) > 1,
    )
    points_by_curve = placement.points_by_curve(drawn)

    # On an axis of logarithms 0 has no place.
    xs = chain.from_iterable(points_by_curve.values())
    is_positive = all(x is None or x > 0 for x in xs)
    averaged = parts if first.average else ()
    return Panel(
        column=first if len(columns) == 1 else replace(first, label=experiment.title),
        kind="bar" if bars else "line",
        curves=tuple(_curve(name, points, averaged) for name, points in points_by_curve.items()),
        labels=labels,
        axis="" if axis is None or bars else axis.label,
        log=axis is not None and axis.log and not bars and is_positive,
        tasks=_tasks_of(row for _, row in drawn)[0],
    )


def _drawn_rows(
    experiment: Experiment, columns: Sequence[Column], rows: Sequence[ResultRow]
) -> list[ColumnRow]:
    """Return the rows that columns show, column by column."""
    drawn: list[ColumnRow] = []
    for column in columns:
        for row in rows:
            if shows(experiment, column, row):
                drawn.append((column, row))
    return drawn


def _curve(
    name: str, points: Mapping[float | None, Sequence[ColumnRow]], averaged: Sequence[Column]
) -> Curve:
    """Return a curve, its points with a value from left to right."""
    with_value = []
    lost = []
    for x, column_rows in points.items():
        measured = _cell_at(column_rows, averaged)
        if measured.value is None:
            lost.append((x, measured))
        elif x is not None:
            with_value.append((x, measured))

    with_value.sort(key=lambda point: point[0])
    return Curve(name=name, points=tuple(with_value), lost=tuple(lost))


def _cell_at(column_rows: Sequence[ColumnRow], averaged: Sequence[Column]) -> Cell:
    """Return the cell of a point: of its rows, or the mean of the columns that a panel averages."""
    if not averaged:
        return cell([row for _, row in column_rows])

    parts = []
    for column in averaged:
        parts.append(cell([row for row_column, row in column_rows if row_column is column]))
    reasons = dict.fromkeys(part.reason for part in parts if part.reason)
    return replace(average(parts), reason="; ".join(reasons))


def panel_table(panel: Panel) -> Table:
    """Return a panel as a table: all bars, or the first, the best and the last point of each curve."""
    return _bar_table(panel) if panel.kind == "bar" else _line_table(panel)


def _line_table(panel: Panel) -> Table:
    """Return a line for each curve: its first, best and last point, and how many it has."""
    column = panel.column
    footnotes = Footnotes()
    titles = ["first", "last"] if column.better is None else ["first", "best", "last"]

    rows = []
    for curve in panel.curves:
        texts = ["–"] * len(titles)
        if curve.points:
            points = _telling_points(curve, column.better)
            texts = [f"{entry(measured, column.unit).text} ({x:g})" for x, measured in points]

        reasons = dict.fromkeys(measured.reason for _, measured in curve.lost if measured.reason)
        name = replace(label(curve.name), marks=tuple(map(footnotes.mark, reasons)))
        usual_size = usual(measured.measured for _, measured in curve.points) or "–"
        further = [*texts, f"{len(curve.points):,}", usual_size]
        rows.append(Row((name, *map(Entry, further))))

    axis = one_line(panel.axis or "x", 40)
    return Table(
        title=panel.title,
        head=("curve", *(f"{title} ({axis})" for title in titles), "points", "each of"),
        blocks=(Block(None, tuple(rows)),),
        footnotes=footnotes.written(),
    )


def _telling_points(curve: Curve, better: str | None) -> list[tuple[float, Cell]]:
    """Return the first and the last point, and between them the best, where one can be better."""
    first = curve.points[0]
    last = curve.points[-1]
    if better is None:
        return [first, last]

    sign = 1 if better == "more" else -1
    best_point = max(curve.points, key=lambda point: sign * (point[1].value or 0.0))
    return [first, best_point, last]


def _bar_table(panel: Panel) -> Table:
    """Return a line for each label and a column for each color of bars."""
    footnotes = Footnotes()
    all_points = chain.from_iterable(curve.points for curve in panel.curves)
    usual_size = usual(measured.measured for _, measured in all_points)

    def bar_entry(bar: Cell | None) -> Entry:
        if bar is None:
            return Entry("–")
        remarks = bar.remarks
        if bar.value is not None and bar.measured not in ("", usual_size):
            remarks.append(bar.measured)
        return entry(bar, panel.column.unit, marks=footnotes.marks(remarks))

    bars_by_curve = [dict((*curve.lost, *curve.points)) for curve in panel.curves]
    rows = []
    for position, name in enumerate(panel.labels):
        entries = [bar_entry(bars.get(position)) for bars in bars_by_curve]
        rows.append(Row((label(name), *entries)))

    note = f"Each value: {usual_size}, unless a footnote says otherwise."
    return Table(
        title=panel.title,
        head=("", *(one_line(curve.name, _LABEL) for curve in panel.curves)),
        blocks=(Block(None, tuple(rows)),),
        notes=(note,) if usual_size else (),
        footnotes=footnotes.written(),
    )
