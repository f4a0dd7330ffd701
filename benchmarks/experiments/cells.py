"""Rows of results become cells, in two steps.

`pool` makes one mean of the rows of each seed, and `cell` makes a `Cell` of the seeds, with its interval.
`table` lays cells out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from ...metrics import t_interval, wilson
from .definition import Column, Experiment, Method, ResultRow

_SUCCESSES = {"accuracy", "adoption", "brp", "exact_match", "hrr", "sopr", "success", "urr"}
_BOUNDED = {
    "delta_f1",
    "gate_open",
    "refusals.precision",
    "refusals.recall",
    "refused",
    "score",
    "unreadable",
}
"""Shares that are not of episodes, so that Wilson's interval is none of theirs."""
_LARGEST = {"%": 100.0, "share": 1.0}


@dataclass(frozen=True, slots=True)
class SeedMean:
    """The mean of one seed's rows, and how many tasks it is of."""

    seed: int | None
    value: float
    count: int | None


def seeds_of(rows: Iterable[ResultRow]) -> tuple[int | None, ...]:
    """Return the seeds of rows in order; that of rows without one comes first."""
    seeds = {row.seed for row in rows}
    return tuple(sorted(seeds, key=lambda seed: -1 if seed is None else seed))


def pool(rows: Sequence[ResultRow]) -> list[SeedMean]:
    """Return the mean of each seed; a seed of which a part has no value has none."""
    seed_means = []
    for seed in seeds_of(rows):
        mean = _pooled(seed, [row for row in rows if row.seed == seed])
        if mean is not None:
            seed_means.append(mean)
    return seed_means


def _pooled(seed: int | None, rows: Sequence[ResultRow]) -> SeedMean | None:
    """Return the mean of one seed's rows over all tasks; None where a row has no value."""
    # A row of all splits has what the rows of single splits would count twice.
    rows_of_all_splits = [row for row in rows if row.split is None and row.value is not None]
    parts = rows_of_all_splits or rows

    values = [row.value for row in parts if row.value is not None]
    if len(values) < len(parts):
        return None

    # Where a row does not say how many tasks it is of, all rows count alike.
    counts = [row.n for row in parts if row.n]
    if len(counts) < len(parts):
        return SeedMean(seed, fmean(values), None)

    # Every task counts alike: a split of 140 tasks weighs more than one of 134.
    total = sum(counts)
    weighted = sum(value * count for value, count in zip(values, counts, strict=True))
    return SeedMean(seed, weighted / total, total)


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
        """How many tasks the value of a seed is of, as text; a range where seeds differ."""
        counts = sorted({count for count in self.counts if count is not None})
        if not counts:
            return ""
        if len(counts) == 1:
            return f"{counts[0]:,}"
        return f"{counts[0]:,}–{counts[-1]:,}"

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
        count = f"n = {self.n}" if self.n else ""
        return joined(count, seeds_in_words(self.seed_names))

    @property
    def remarks(self) -> list[str]:
        """What a footnote says of it wherever it stands."""
        return [text for text in (self.reason, self.caution) if text]


def joined(*texts: str) -> str:
    """Return the texts that are not empty, with commas between them."""
    return ", ".join(filter(None, texts))


def seeds_in_words(names: str) -> str:
    """Return "seed 0" or "seeds 0, 1" for the names of seeds; "" for no name."""
    if not names:
        return ""
    return f"seeds {names}" if "," in names else f"seed {names}"


def cell(rows: Sequence[ResultRow]) -> Cell:
    """Return the cell that rows of one method, language model and column (or point) make."""
    # A job that ran again wrote its rows again: the last ones count.
    latest = {(row.seed, row.env, row.split): row for row in rows}
    cell_rows = tuple(latest.values())
    seeds = seeds_of(cell_rows)
    seed_means = pool(cell_rows)
    errors = "; ".join(dict.fromkeys(row.error for row in cell_rows if row.error is not None))

    if seed_means:
        # A seed that failed must not vanish from a mean: its footnote names the error.
        reason = ""
        if errors:
            reason = f"{len(seed_means)} of {len(seeds)} seeds; the rest: {errors}"
        values = tuple(mean.value for mean in seed_means)
        measured = Cell(
            status="value",
            value=fmean(values),
            seeds=tuple(mean.seed for mean in seed_means),
            counts=tuple(mean.count for mean in seed_means),
            values=values,
            reason=reason,
            rows=cell_rows,
        )
        return _with_interval(measured)

    texts = dict.fromkeys(row.text for row in cell_rows if row.text is not None)
    if texts:
        return Cell(status="text", text="; ".join(texts), seeds=seeds, rows=cell_rows)

    # Without a job nothing was tried: the row only says why.
    has_failed = any(row.job is not None and row.error is not None for row in cell_rows)
    status: Literal["failed", "missing"] = "failed" if has_failed else "missing"
    return Cell(status=status, reason=errors, seeds=seeds, rows=cell_rows)


def _with_interval(measured: Cell) -> Cell:
    """Return a cell with its 95 % interval: over seeds, as its row says, or Wilson's."""
    first = measured.rows[0]
    metric = first.metric.partition(".")[0]  # what follows says which tasks, or a threshold
    is_success = metric in _SUCCESSES or metric.endswith(("success_rate", "pass_rate"))
    largest = _LARGEST.get(first.unit) if is_success or first.metric in _BOUNDED else None

    # Student's interval knows no bounds: of a success near 100 % it would end above.
    if len(measured.values) > 1:
        low, high = t_interval(measured.values)
        if largest is not None:
            low = max(0.0, low)
            high = min(largest, high)
        sd = stdev(measured.values)
        return replace(measured, sd=sd, low=low, high=high, interval="t over seeds")

    # With one seed, the interval that its row says, over tasks, of which only its job knew the outcomes.
    rows = [row for row in measured.rows if row.value is not None]
    if len(rows) == 1 and rows[0].low is not None and rows[0].high is not None:
        return replace(measured, low=rows[0].low, high=rows[0].high, interval="over tasks")

    # Else Wilson's interval, for which a rate and its number of tasks are enough.
    (value,) = measured.values
    (count,) = measured.counts
    if largest is None or not count or not is_success or not 0 <= value <= largest:
        return measured
    rate = wilson(value / largest, count)
    return replace(measured, low=largest * rate.low, high=largest * rate.high, interval="Wilson")


def average(cells: Sequence[Cell]) -> Cell:
    """Return the mean of the cells of a row; it is missing where one of them is.

    With several seeds its deviation and interval are those of each seed's own mean, where all cells
    have the same seeds.
    """
    values = [part.value for part in cells if part.value is not None]
    if not cells or len(values) < len(cells):
        return Cell(status="missing")

    if len({part.seeds for part in cells}) != 1:
        reason = "the columns that it is the mean of have different seeds"
        return Cell(status="value", value=fmean(values), reason=reason)

    # Mean and number of tasks of each seed, over all columns.
    means = list(map(fmean, zip(*(part.values for part in cells), strict=True)))
    counts = list(map(_total, zip(*(part.counts for part in cells), strict=True)))
    mean_cell = Cell(
        status="value",
        value=fmean(values),
        seeds=cells[0].seeds,
        values=tuple(means),
        counts=tuple(counts),
    )
    if len(means) < 2:
        return mean_cell
    low, high = t_interval(means)
    return replace(mean_cell, sd=stdev(means), low=low, high=high, interval="t over seeds")


def _total(counts: Sequence[int | None]) -> int | None:
    """Return the sum of counts; None where one of them is not known."""
    known_counts = [count for count in counts if count is not None]
    return sum(known_counts) if len(known_counts) == len(counts) else None


def best(cells: Sequence[Cell], better: str | None, digits: int = 1) -> frozenset[int]:
    """Return the indices of the best of some cells; none where there is nothing to choose from."""
    # Values that are printed alike are equally good, so they are compared as printed.
    printed = {
        index: round(measured.value, digits)
        for index, measured in enumerate(cells)
        if measured.value is not None
    }
    if better is None or len(set(printed.values())) < 2:
        return frozenset()

    target = max(printed.values()) if better == "more" else min(printed.values())
    return frozenset(index for index, value in printed.items() if value == target)


class MethodCells(NamedTuple):
    """A method's cells for one language model, one a column."""

    method: Method
    cells: list[Cell]


def cells_of_methods(experiment: Experiment, rows: Sequence[ResultRow]) -> list[MethodCells]:
    """Return the cells of all methods for the language model that rows are of."""
    measured_methods = {row.method for row in rows}
    lines = []
    for method in methods_of(experiment, rows).values():
        # A method that runs with every language model has a line of dashes where nothing was measured.
        runs_everywhere = method.recipe is not None and method.backbones is None
        if method.name in measured_methods or runs_everywhere:
            method_rows = [row for row in rows if row.method == method.name]
            lines.append(MethodCells(method, _cells_of_columns(experiment, method_rows)))
    return lines


def _cells_of_columns(experiment: Experiment, rows: Sequence[ResultRow]) -> list[Cell]:
    cells: list[Cell] = []
    for column in experiment.columns:
        if column.average:
            cells.append(average(cells[-len(experiment.averaged(column)) :]))
        else:
            cells.append(cell([row for row in rows if shows(experiment, column, row)]))
    return cells


def methods_of(experiment: Experiment, rows: Iterable[ResultRow]) -> dict[str, Method]:
    """Return methods by name: the experiment's in their order, then others that rows name."""
    methods = {method.name: method for method in experiment.methods}
    for row in rows:
        methods.setdefault(row.method, Method(name=row.method))
    return methods


def only_says_why(row: ResultRow) -> bool:
    return row.value is None and row.text is None and row.job is None


def shows(experiment: Experiment, column: Column, row: ResultRow) -> bool:
    """Return whether a column shows a row; an error that names no split is shown in all of its columns."""
    if row.value is None and row.text is None and row.split is None:
        env = column.env if row.env is None else row.env
        return experiment.judges(column, row.method, env)
    return experiment.column(row.method, row.metric, row.env, row.split) is column
