"""Tables and figures as neutral data, which text, LaTeX and HTML lay out.

Rows of several seeds come to a `Cell`. A `Table` holds cells as they are written, with their footnotes; a
`Panel` holds the curves or bars of a figure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from string import ascii_lowercase
from typing import Literal

from ...metrics import wilson
from ..tables import one_line
from .definition import Column, Experiment, Method, ResultRow

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228) + (
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)  # the 97.5 % quantile of Student's t for 1 to 30 degrees of freedom
_NORMAL = 1.960
_SUCCESSES = {"accuracy", "adoption", "brp", "exact_match", "hrr", "sopr", "success", "urr"}
_BOUNDED = {"delta_f1", "score"}
_LARGEST = {"%": 100.0, "share": 1.0}
DIGITS = {"%": 1, "points": 1, "s": 1, "count": 0, "GiB": 2, "GB": 2}
"""How many decimals a value of a unit is shown with; others by their size."""
_LABEL, _TEXT, _REASON = 60, 120, 400  # how long a text may be


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What stands in one cell of a table, or at one point of a curve."""

    status: Literal["value", "text", "failed", "missing"]
    value: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str = ""
    """what kind of interval it is"""
    seeds: tuple[int | None, ...] = ()
    counts: tuple[int | None, ...] = ()
    values: tuple[float, ...] = ()
    """the value of each seed"""
    text: str | None = None
    reason: str = ""
    """why there is no value, or what is to know of it"""
    rows: tuple[ResultRow, ...] = ()

    @property
    def n(self) -> str:
        known = sorted({count for count in self.counts if count is not None})
        return "" if not known else f"{known[0]:,}" + (f"–{known[-1]:,}" if known[1:] else "")

    @property
    def seed_names(self) -> str:
        return ", ".join(str(seed) for seed in self.seeds if seed is not None)

    @property
    def caution(self) -> str:
        """What is to be known before it is reported: that an oracle was asked."""
        return "; ".join(dict.fromkeys(row.caution for row in self.rows if row.caution))

    @property
    def measured(self) -> str:
        """How many tasks and which seeds the value is of, in words."""
        parts = [f"n = {self.n}" if self.n else "", _seeds(self.seed_names)]
        return ", ".join(part for part in parts if part)


def cell(rows: Sequence[ResultRow]) -> Cell:
    """Return the cell that rows of one method, language model and column (or point) make."""
    kept = list({(row.seed, row.env, row.split): row for row in rows}.values())
    seeds = sorted({row.seed for row in kept}, key=lambda seed: -1 if seed is None else seed)
    pooled = [(seed, _pooled([row for row in kept if row.seed == seed])) for seed in seeds]
    done = [(seed, found) for seed, found in pooled if found is not None]
    reason = "; ".join(dict.fromkeys(row.error for row in kept if row.error is not None))
    if done:
        found = Cell(
            status="value",
            value=fmean(value for _, (value, _) in done),
            seeds=tuple(seed for seed, _ in done),
            counts=tuple(count for _, (_, count) in done),
            values=tuple(value for _, (value, _) in done),
            reason=reason and f"{len(done)} of {len(pooled)} seeds; the rest: {reason}",
            rows=tuple(kept),
        )
        return _with_interval(found)
    texts = dict.fromkeys(row.text for row in kept if row.text is not None)
    if texts:
        return Cell(status="text", text="; ".join(texts), seeds=tuple(seeds), rows=tuple(kept))
    failed = any(row.job is not None and row.error is not None for row in kept)
    status: Literal["failed", "missing"] = "failed" if failed else "missing"
    return Cell(status=status, reason=reason, seeds=tuple(seeds), rows=tuple(kept))


def _pooled(rows: Sequence[ResultRow]) -> tuple[float, int | None] | None:
    """Return one seed's value and count; None where a part of it has none."""
    whole = [row for row in rows if row.split is None and row.value is not None]
    parts = whole if whole and len(rows) > 1 else rows
    values = [row.value for row in parts if row.value is not None]
    if len(values) < len(parts):
        return None
    counts = [row.n for row in parts if row.n]
    if len(counts) < len(parts):
        return fmean(values), None
    total = sum(counts)
    return sum(v * n for v, n in zip(values, counts, strict=True)) / total, total


def _with_interval(found: Cell) -> Cell:
    """Return a cell with its 95 % interval: over seeds, as its row says, or Wilson's."""
    first = found.rows[0]
    name = first.metric.partition(".")[0]  # what follows says which tasks, or a threshold
    is_success = name in _SUCCESSES or name.endswith(("success_rate", "pass_rate"))
    largest = _LARGEST.get(first.unit) if is_success or first.metric in _BOUNDED else None
    if len(found.values) > 1:
        low, high = t_interval(found.values)
        if largest is not None:
            low, high = max(0.0, low), min(largest, high)
        return replace(found, sd=stdev(found.values), low=low, high=high, interval="t over seeds")
    known = [row for row in found.rows if row.value is not None]
    if len(known) == 1 and known[0].low is not None and known[0].high is not None:
        return replace(found, low=known[0].low, high=known[0].high, interval="over tasks")
    (value,), (n,) = found.values, found.counts
    if largest is None or not n or not is_success or not 0 <= value <= largest:
        return found
    rate = wilson(value / largest, n)
    return replace(found, low=largest * rate.low, high=largest * rate.high, interval="Wilson")


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % interval for the mean of two or more values."""
    degrees = len(values) - 1
    quantile = _T[degrees - 1] if degrees <= len(_T) else _NORMAL
    half = quantile * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def average(cells: Sequence[Cell]) -> Cell:
    """Return the mean of the cells of a row; it is missing where one of them is.

    With several seeds its deviation and interval are those of each seed's own mean, where all cells
    have the same seeds.
    """
    values = [one.value for one in cells if one.value is not None]
    if not cells or len(values) < len(cells):
        return Cell(status="missing")
    if len({one.seeds for one in cells}) != 1:
        reason = "the columns that it is the mean of have different seeds"
        return Cell(status="value", value=fmean(values), reason=reason)
    by_seed = zip(*(one.counts for one in cells), strict=True)
    counts = tuple(None if None in some else sum(n or 0 for n in some) for some in by_seed)
    means = tuple(fmean(some) for some in zip(*(one.values for one in cells), strict=True))
    found = Cell(
        status="value", value=fmean(values), seeds=cells[0].seeds, values=means, counts=counts
    )
    if len(means) < 2:
        return found
    low, high = t_interval(means)
    return replace(found, sd=stdev(means), low=low, high=high, interval="t over seeds")


def best(cells: Sequence[Cell], better: str | None, digits: int = 1) -> frozenset[int]:
    """Return the indices of the best of some cells; none where there is nothing to choose from."""
    known = [(i, round(one.value, digits)) for i, one in enumerate(cells) if one.value is not None]
    shown = {value for _, value in known}
    if better is None or len(shown) < 2:
        return frozenset()
    target = max(shown) if better == "more" else min(shown)
    return frozenset(i for i, value in known if value == target)


def number(value: float, unit: str) -> str:
    """Return a number as it is shown: per cent with one decimal, counts whole."""
    digits = DIGITS.get(unit)
    if digits is None:
        size = abs(value)
        if 0 < size < 0.001:
            return f"{value:.1e}"
        digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    elif unit == "count" and value != round(value):
        digits = 1
    written = f"{value:,.{digits}f}"
    return written.lstrip("-") if float(written.replace(",", "")) == 0 else written


def interval(cell: Cell, unit: str) -> str:
    """Return the 95 % interval and what it is; "" where there is none."""
    if cell.low is None or cell.high is None:
        return ""
    return f"{number(cell.low, unit)} to {number(cell.high, unit)} ({cell.interval})"


def _seeds(names: str) -> str:
    return names and f"seed{'s' if ',' in names else ''} {names}"


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
        return self._letters.setdefault(one_line(text, _REASON), _letter(len(self._letters)))

    def written(self) -> tuple[tuple[str, str], ...]:
        return tuple((letter, text) for text, letter in self._letters.items())


def _letter(i: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    return ("" if i < 26 else _letter(i // 26 - 1)) + ascii_lowercase[i % 26]


def label(text: str) -> Entry:
    return Entry(one_line(text, _LABEL))


def entry(cell: Cell, unit: str, best: bool = False, marks: tuple[str, ...] = ()) -> Entry:
    spread = ""
    if cell.value is not None:
        mean, spread = number(cell.value, unit), "" if cell.sd is None else number(cell.sd, unit)
    elif cell.status == "text":
        mean = one_line(cell.text or "", _TEXT)
    else:
        mean = "failed" if cell.status == "failed" else "–"
    return Entry(mean, spread, cell.status, best, marks, cell)


def head(column: Column, columns: Sequence[Column]) -> str:
    """Return what stands above a column: its label, and its unit where units differ."""
    shown = one_line(column.label, _LABEL)
    units = {one.unit for one in columns if not one.average}
    unit = "" if column.average else column.unit
    return f"{shown} ({unit})" if unit and unit != "share" and len(units) > 1 else shown


def with_unit(column: Column) -> str:
    shown = one_line(column.label, _LABEL)
    return f"{shown} ({column.unit})" if column.unit not in ("", "share") else shown


def measured_table(experiment: Experiment, rows: Iterable[ResultRow]) -> Table | None:
    """Return what we measured of a table; None where nothing was run."""
    own, columns = list(rows), experiment.columns
    run = dict.fromkeys(row.backbone for row in own if not _only_says_why(row))
    found = [(name, _measured(experiment, [r for r in own if r.backbone == name])) for name in run]
    found = [(name, lines) for name, lines in found if lines]
    if not found:
        return None
    by_column = list(zip(*(cells for _, lines in found for _, cells in lines), strict=True))
    usual_n = [usual(one.n for one in some) for some in by_column]
    usual_seeds = usual(
        one.seed_names for some in by_column for one in some if one.value is not None
    )
    footnotes = Footnotes()

    def written(one: Cell, i: int, is_best: bool) -> Entry:
        notes = [text for text in (one.reason, one.caution) if text]
        if one.value is not None:
            notes += [f"n = {one.n}"] if one.n not in ("", usual_n[i]) else []
            notes += [_seeds(one.seed_names)] if one.seed_names not in ("", usual_seeds) else []
        marks = (footnotes.mark("; ".join(notes)),) if notes else ()
        return entry(one, columns[i].unit, is_best, marks)

    blocks = []
    for name, lines in found:
        bests = [
            best([cells[i] for _, cells in lines], one.better, DIGITS.get(one.unit, 3))
            for i, one in enumerate(columns)
        ]
        block, group = [], lines[0][0].group
        for number_, (method, cells) in enumerate(lines):
            entries = [written(one, i, number_ in bests[i]) for i, one in enumerate(cells)]
            block.append(Row((label(method.name), *entries), rule=method.group != group))
            group = method.group
        blocks.append(Block(None if name is None else one_line(name), tuple(block)))
    shown = {method.name for _, lines in found for method, _ in lines}
    numbers = any(one.value is not None for some in by_column for one in some)
    spread = any(one.sd is not None for some in by_column for one in some)
    about = "Mean ± standard deviation over seeds. " if spread else ""
    about += f"{_seeds(usual_seeds).capitalize()}, unless a footnote says otherwise."
    kind, further = _tasks_of(own)
    notes = (
        *(_caption(columns), further),
        *(about if usual_seeds else "", _not_run(experiment, own, shown)),
    )
    return Table(
        title=f"Measured here{f', on {kind}' if kind else ''}",
        head=("method", *(head(one, columns) for one in columns)),
        blocks=tuple(blocks),
        counts=tuple(usual_n) if any(usual_n) else (),
        notes=tuple(note for note in notes if note),
        footnotes=footnotes.written(),
        texts=1 if numbers else 1 + len(columns),
    )


def _tasks_of(rows: Iterable[ResultRow]) -> tuple[str, str]:
    """Return of which kind the tasks of all rows are, or else a note on those that are generated."""
    values = [row for row in rows if row.value is not None]
    kinds = {row.tasks for row in values}
    if len(kinds) == 1:
        return kinds.pop() or "", ""
    listed = dict.fromkeys(f"{row.env or row.method} ({row.tasks})" for row in values if row.tasks)
    return "", f"Not the benchmarks' own: {', '.join(listed)}." if listed else ""


def differences_table(experiment: Experiment, rows: Iterable[ResultRow]) -> Table | None:
    """Return how methods differ in the first column, paired by seed; None where no two were run."""
    own, column, blocks = list(rows), experiment.columns[0], []
    for backbone in dict.fromkeys(row.backbone for row in own):
        lines = _measured(experiment, [row for row in own if row.backbone == backbone])
        of = {
            method.name: dict(zip(cells[0].seeds, cells[0].values, strict=False))
            for method, cells in lines
        }
        found = tuple(row for one in experiment.compared for row in _differences(one, of))
        blocks += [Block(None if backbone is None else one_line(backbone), found)] if found else []
    if not blocks:
        return None
    return Table(
        title=f"Differences in {one_line(column.label, _LABEL)}, paired by seed",
        head=("difference", "mean", "95 % interval", "half-width", "seeds"),
        blocks=tuple(blocks),
        notes=("Student's t over the seeds' differences; not corrected for several comparisons.",),
    )


def _differences(
    compared: Sequence[str], of: Mapping[str, Mapping[int | None, float]]
) -> Iterator[Row]:
    """Yield a method's difference from each of those that share a seed with it."""
    name, *others = compared
    for other in others:
        one, two = of.get(name, {}), of.get(other, {})
        gains = [value - two[seed] for seed, value in one.items() if seed in two]
        if not gains:
            continue
        shown = ["–", "–"]
        if len(gains) > 1:
            low, high = t_interval(gains)
            shown = [f"{low:+.1f} to {high:+.1f}", f"{(high - low) / 2:.1f}"]
        texts = (f"{name} against {other}", f"{fmean(gains):+.1f}", *shown, str(len(gains)))
        yield Row(tuple(map(Entry, texts)), rule=other == others[0])


def _measured(experiment: Experiment, rows: Sequence[ResultRow]) -> list[tuple[Method, list[Cell]]]:
    lines = []
    with_rows = {row.method for row in rows}
    for method in _methods(experiment, rows).values():
        usual_method = method.recipe is not None and method.backbones is None
        if method.name not in with_rows and not usual_method:
            continue
        own = [row for row in rows if row.method == method.name]
        cells: list[Cell] = []
        for column in experiment.columns:
            if column.average:
                cells.append(average(cells[-len(experiment.averaged(column)) :]))
            else:
                cells.append(cell([row for row in own if _shows(experiment, column, row)]))
        lines.append((method, cells))
    return lines


def _methods(experiment: Experiment, rows: Iterable[ResultRow]) -> dict[str, Method]:
    found = {one.name: one for one in experiment.methods}
    for row in rows:
        found.setdefault(row.method, Method(name=row.method))
    return found


def _only_says_why(row: ResultRow) -> bool:
    return row.value is None and row.text is None and row.job is None


def _shows(experiment: Experiment, column: Column, row: ResultRow) -> bool:
    if row.value is None and row.text is None and row.split is None:
        env = column.env if row.env is None else row.env
        return experiment.judges(column, row.method, env)
    return experiment.column(row.method, row.metric, row.env, row.split) is column


def usual(texts: Iterable[str]) -> str:
    """Return the most frequent text, the first of equally frequent ones; "" for nothing."""
    counts = Counter(one for one in texts if one)
    return max(counts, key=lambda one: counts[one], default="")


def _caption(columns: Sequence[Column]) -> str:
    units = {one.unit for one in columns if not one.average}
    unit = units.pop() if len(units) == 1 else ""
    words = {"": "", "share": "All values are shares of 1.", "count": "All values are counts."}
    return words.get(unit, f"All values in {unit}.")


def _not_run(experiment: Experiment, rows: Sequence[ResultRow], shown: set[str]) -> str:
    reasons = {row.method: row.error or "" for row in rows if _only_says_why(row)}
    found = []
    for method in experiment.methods:
        if method.name not in shown:
            why = reasons.get(method.name) or ("cited only" if method.recipe is None else "")
            found.append(one_line(f"{method.name} ({why})" if why else method.name, _TEXT))
    return f"Not run here: {'; '.join(found)}." if found else ""


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
            for column, one in zip(columns, row.entries[1:], strict=True):
                if one.cell is not None and (one.cell.rows or one.cell.value is not None):
                    within = interval(one.cell, column.unit)
                    yield Value(one, one.cell, method, column, within)


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
        return with_unit(self.column) + (f", on {self.tasks}" if self.tasks else "")

    def at(self, x: float) -> str:
        """Return what stands below a point."""
        return self.labels[int(x)] if self.labels else f"{x:g}"


def panels(experiment: Experiment, rows: Iterable[ResultRow]) -> tuple[Panel, ...]:
    """Return a figure's panels, one a column that has a row; many bars of a unit share one.

    A column of averages stands for those that it is the mean of.
    """
    own = list(rows)
    methods = _methods(experiment, own)
    own.sort(key=lambda row: list(methods).index(row.method))
    means = [one for one in experiment.columns if one.average]
    by_unit: dict[str, list[Column]] = {}
    for column in experiment.columns:
        if not any(column in experiment.averaged(one) for one in means):
            by_unit.setdefault(column.unit, []).append(column)
    category = experiment.axis is not None and experiment.axis.over == "category"
    groups: list[list[Column]] = []
    for columns in by_unit.values():
        together = category and len(columns) > max(2, len(methods))
        groups += [columns] if together else [[column] for column in columns]
    found = (_panel(experiment, columns, methods, own) for columns in groups)
    return tuple(one for one in found if one.curves)


def _panel(
    experiment: Experiment,
    columns: Sequence[Column],
    methods: Mapping[str, Method],
    rows: Sequence[ResultRow],
) -> Panel:
    """Return the panel of a column; of several columns, each is a place for bars of all methods."""
    axis, first = experiment.axis, columns[0]
    parts = experiment.averaged(first) if first.average else columns
    shown = [(c, row) for c in parts for row in rows if _shows(experiment, c, row)]

    def x_of(row: ResultRow) -> float | None:
        return methods[row.method].x if row.x is None else row.x

    bars = axis is None or axis.over == "category" or all(x_of(row) is None for _, row in shown)
    labels = tuple(dict.fromkeys(row.method for _, row in shown)) if bars else ()
    if len(columns) > 1:
        labels = tuple(column.label for column in columns)
    several = len({row.backbone for _, row in shown if row.value is not None}) > 1
    curves: dict[str, dict[float | None, list[tuple[Column, ResultRow]]]] = {}
    for column, row in shown:
        method, x = methods[row.method], x_of(row)
        name = method.series if bars else method.series or method.name
        if len(columns) > 1:
            name, x = method.name, float(columns.index(column))
        elif bars:
            x = float(labels.index(row.method))
        if name is None:
            name = row.backbone or "measured"
        elif several and row.backbone and (axis is None or axis.over != "parameters"):
            name = f"{name} ({row.backbone})"
        curves.setdefault(name, {}).setdefault(x, []).append((column, row))
    positive = all(x is None or x > 0 for points in curves.values() for x in points)
    return Panel(
        column=first if len(columns) == 1 else replace(first, label=experiment.title),
        kind="bar" if bars else "line",
        curves=_curves(curves, parts if first.average else ()),
        labels=labels,
        axis="" if axis is None or bars else axis.label,
        log=axis is not None and axis.log and not bars and positive,
        tasks=_tasks_of(row for _, row in shown)[0],
    )


def _curves(
    found: Mapping[str, Mapping[float | None, list[tuple[Column, ResultRow]]]],
    averaged: Sequence[Column],
) -> tuple[Curve, ...]:
    def of(pairs: list[tuple[Column, ResultRow]]) -> Cell:
        if not averaged:
            return cell([row for _, row in pairs])
        parts = [cell([row for one, row in pairs if one is column]) for column in averaged]
        reasons = dict.fromkeys(part.reason for part in parts if part.reason)
        return replace(average(parts), reason="; ".join(reasons))

    curves = []
    for name, points in found.items():
        cells = [(x, of(pairs)) for x, pairs in points.items()]
        drawn = [(x, one) for x, one in cells if x is not None and one.value is not None]
        lost = tuple((x, one) for x, one in cells if one.value is None)
        points_ = tuple(sorted(drawn, key=lambda point: point[0]))
        curves.append(Curve(name=name, points=points_, lost=lost))
    return tuple(curves)


def panel_table(panel: Panel) -> Table:
    """Return a panel as a table: all bars, or the first, the best and the last point of each curve."""
    return _bar_table(panel) if panel.kind == "bar" else _line_table(panel)


def _line_table(panel: Panel) -> Table:
    column, footnotes = panel.column, Footnotes()
    titles = ["first", *(["best"] if column.better is not None else []), "last"]
    rows = []
    for curve in panel.curves:
        reasons = dict.fromkeys(one.reason for _, one in curve.lost if one.reason)
        marks = tuple(map(footnotes.mark, reasons))
        shown = [Entry("–")] * len(titles)
        if curve.points:
            ends = [curve.points[0], curve.points[-1]]
            if column.better is not None:
                sign = 1 if column.better == "more" else -1
                ends.insert(1, max(curve.points, key=lambda p: sign * (p[1].value or 0.0)))
            shown = [Entry(f"{entry(one, column.unit).text} ({x:g})") for x, one in ends]
        of = usual(one.measured for _, one in curve.points) or "–"
        name = replace(label(curve.name), marks=marks)
        rows.append(Row((name, *shown, Entry(f"{len(curve.points):,}"), Entry(of))))
    axis = one_line(panel.axis or "x", 40)
    return Table(
        title=panel.title,
        head=("curve", *(f"{one} ({axis})" for one in titles), "points", "each of"),
        blocks=(Block(None, tuple(rows)),),
        footnotes=footnotes.written(),
    )


def _bar_table(panel: Panel) -> Table:
    footnotes, unit = Footnotes(), panel.column.unit
    of = usual(one.measured for curve in panel.curves for _, one in curve.points)

    def written(found: Cell | None) -> Entry:
        if found is None:
            return Entry("–")
        notes = [text for text in (found.reason, found.caution) if text]
        if found.value is not None and found.measured not in ("", of):
            notes.append(found.measured)
        return entry(found, unit, marks=(footnotes.mark("; ".join(notes)),) if notes else ())

    cells = [dict((*curve.lost, *curve.points)) for curve in panel.curves]
    rows = (
        Row((label(name), *(written(of_curve.get(i)) for of_curve in cells)))
        for i, name in enumerate(panel.labels)
    )
    return Table(
        title=panel.title,
        head=("", *(one_line(curve.name, _LABEL) for curve in panel.curves)),
        blocks=(Block(None, tuple(rows)),),
        notes=(f"Each value: {of}, unless a footnote says otherwise.",) if of else (),
        footnotes=footnotes.written(),
    )
