"""From rows of several seeds to the cells of tables and the points of curves: pure functions.

A cell's value is the mean over its seeds. With several seeds its interval is Student's t interval of
that mean, which covers what another seed would change; with one seed it is the row's own interval
over tasks, or for a share of successes Wilson's, which covers what other tasks would change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from ...metrics import wilson
from .rows import ResultRow

__all__ = ["Cell", "average", "best", "cell", "t_interval"]

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228) + (
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)  # the 97.5 % quantile of Student's t for 1 to 30 degrees of freedom
_NORMAL = 1.960
_SUCCESSES = {"accuracy", "adoption", "brp", "exact_match", "hrr", "sopr", "success", "urr"}
_BOUNDED = {"delta_f1", "delta_f1_on_policy", "f1", "score"}
_LARGEST = {"%": 100.0, "share": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What stands in one place of a table, or at one point of a curve.

    Attributes:
        status: ``value``, ``text``, ``failed``, or ``missing`` for what was not run.
        value: The mean over seeds.
        sd: The standard deviation over seeds (of a sample); None with one seed.
        low: Lower end of the 95 % interval.
        high: Its upper end.
        interval: What the interval is: ``t over seeds``, ``over tasks`` or ``Wilson``; "" for none.
        seeds: The seeds that `value` is the mean of; None for one without a seed.
        counts: How many tasks or transitions each seed's value is the mean of, where it is known.
        values: Each seed's value.
        text: What stands there where it is no number.
        reason: Why a seed, or the whole cell, has no value.
        rows: What it was made of; those that failed as well.

    Example:
        >>> Cell(status="missing").value is None
        True
    """

    status: Literal["value", "text", "failed", "missing"]
    value: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str = ""
    seeds: tuple[int | None, ...] = ()
    counts: tuple[int | None, ...] = ()
    values: tuple[float, ...] = ()
    text: str | None = None
    reason: str = ""
    rows: tuple[ResultRow, ...] = ()

    @property
    def measured(self) -> str:
        """How many tasks and which seeds the value is of, in words.

        Example:
            >>> Cell(status="value", value=1.0, seeds=(0, 1), counts=(140, 140)).measured
            'n = 140, seeds 0, 1'
        """
        known = sorted({count for count in self.counts if count is not None})
        told = []
        if known:
            told.append(f"n = {known[0]:,}" + (f"–{known[-1]:,}" if len(known) > 1 else ""))
        named = [str(seed) for seed in self.seeds if seed is not None]
        if named:
            told.append(("seed " if len(named) == 1 else "seeds ") + ", ".join(named))
        return ", ".join(told)


def cell(rows: Sequence[ResultRow]) -> Cell:
    """Return the cell that rows of one method, backbone and column (or point) make.

    Of rows that differ in nothing the last counts. Where one seed has rows of several splits, and the
    column asks for none, its value is their mean, weighted by how many tasks each has.

    Args:
        rows: The rows; those of failed seeds as well.

    Example:
        >>> rows = [
        ...     ResultRow(experiment="e", method="m", metric="success_rate", value=v, seed=s, n=10)
        ...     for s, v in enumerate([40.0, 50.0, 60.0])
        ... ]
        >>> found = cell(rows)
        >>> found.value, found.sd, round(found.low, 2), found.interval
        (50.0, 10.0, 25.16, 't over seeds')
    """
    kept = list({(row.seed, row.env, row.split): row for row in rows}.values())
    seeds = sorted({row.seed for row in kept}, key=lambda seed: -1 if seed is None else seed)
    parts = [[row for row in kept if row.seed == seed] for seed in seeds]
    pooled = [(seed, _pooled(part)) for seed, part in zip(seeds, parts, strict=True)]
    done = [(seed, found) for seed, found in pooled if found is not None]
    reason = "; ".join(_reasons(kept))
    if not done:
        return _without_value(kept, reason)
    values = tuple(value for _, (value, _) in done)
    found = Cell(
        status="value",
        value=fmean(values),
        seeds=tuple(seed for seed, _ in done),
        counts=tuple(count for _, (_, count) in done),
        values=values,
        reason=reason and f"{len(done)} of {len(pooled)} seeds; the rest: {reason}",
        rows=tuple(kept),
    )
    return _with_interval(found, kept)


def average(cells: Sequence[Cell]) -> Cell:
    """Return the mean of the cells of a row; it is missing where one of them is.

    With several seeds its deviation and interval are those of each seed's own mean, where all cells
    have the same seeds.

    Example:
        >>> average([Cell(status="value", value=1.0), Cell(status="value", value=2.0)]).value
        1.5
        >>> average([Cell(status="value", value=1.0), Cell(status="failed")]).status
        'missing'
    """
    values = [one.value for one in cells if one.value is not None]
    if not cells or len(values) < len(cells):
        return Cell(status="missing", reason="a column before it has no value")
    same = {one.seeds for one in cells}
    if len(same) != 1:
        reason = "the columns that it is the mean of have different seeds"
        return Cell(status="value", value=fmean(values), reason=reason)
    found = Cell(status="value", value=fmean(values))
    seeds = cells[0].seeds
    by_seed = zip(*(one.values for one in cells), strict=True)
    means = tuple(fmean(values) for values in by_seed)
    found = replace(found, seeds=seeds, values=means, counts=_summed(cells))
    if len(means) < 2:
        return found
    low, high = t_interval(means)
    return replace(found, sd=stdev(means), low=low, high=high, interval="t over seeds")


def best(cells: Sequence[Cell], better: str | None, digits: int = 1) -> frozenset[int]:
    """Return the places of the best of some cells; none where there is nothing to choose from.

    Args:
        cells: The cells of a column, of one backbone.
        better: ``more`` or ``less``; None where neither is better.
        digits: How many decimals are shown: what looks the same is equally good.

    Example:
        >>> cells = [Cell(status="value", value=v) for v in (1.0, 2.0, 2.01)]
        >>> sorted(best(cells, "more")), sorted(best(cells, "less")), best(cells[:1], "more")
        ([1, 2], [0], frozenset())
    """
    known = [(place, one.value) for place, one in enumerate(cells) if one.value is not None]
    shown = {round(value, digits) for _, value in known}
    if better is None or len(shown) < 2:
        return frozenset()
    target = max(shown) if better == "more" else min(shown)
    return frozenset(place for place, value in known if round(value, digits) == target)


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % interval for the mean of two or more values.

    Example:
        >>> low, high = t_interval([1.0, 2.0, 3.0])
        >>> round(low, 3), round(high, 3)
        (-0.484, 4.484)
    """
    degrees = len(values) - 1
    quantile = _T[degrees - 1] if degrees <= len(_T) else _NORMAL
    half = quantile * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


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


def _with_interval(found: Cell, rows: Sequence[ResultRow]) -> Cell:
    if len(found.values) > 1:
        low, high = _within(t_interval(found.values), rows[0])
        return replace(found, sd=stdev(found.values), low=low, high=high, interval="t over seeds")
    told = [row for row in rows if row.value is not None]
    row = told[0]
    if len(told) == 1 and row.low is not None and row.high is not None:
        return replace(found, low=row.low, high=row.high, interval="over tasks")
    largest, (n,) = _LARGEST.get(row.unit), found.counts
    if largest is None or not n or not _is_success(row) or not 0 <= found.values[0] <= largest:
        return found
    rate = wilson(found.values[0] / largest, n)
    return replace(found, low=largest * rate.low, high=largest * rate.high, interval="Wilson")


def _within(ends: tuple[float, float], row: ResultRow) -> tuple[float, float]:
    """Return an interval without what a share cannot be."""
    largest = _LARGEST.get(row.unit)
    if largest is None or not (_is_success(row) or row.metric in _BOUNDED):
        return ends
    return max(0.0, ends[0]), min(largest, ends[1])


def _is_success(row: ResultRow) -> bool:
    name = row.metric.partition(".")[0]  # what follows tells which tasks, or a threshold
    return name in _SUCCESSES or name.endswith(("success_rate", "pass_rate"))


def _without_value(rows: Sequence[ResultRow], reason: str) -> Cell:
    texts = list(dict.fromkeys(row.text for row in rows if row.text is not None))
    seeds = tuple(dict.fromkeys(row.seed for row in rows))
    if texts:
        return Cell(status="text", text="; ".join(texts), seeds=seeds, rows=tuple(rows))
    failed = any(row.job is not None and row.error is not None for row in rows)
    status: Literal["failed", "missing"] = "failed" if failed else "missing"
    return Cell(status=status, reason=reason, seeds=seeds, rows=tuple(rows))


def _reasons(rows: Sequence[ResultRow]) -> list[str]:
    return list(dict.fromkeys(row.error for row in rows if row.error is not None))


def _summed(cells: Sequence[Cell]) -> tuple[int | None, ...]:
    """Return how many tasks each seed's mean is of, over all cells."""
    totals: list[int | None] = []
    for counts in zip(*(one.counts for one in cells), strict=True):
        known = [count for count in counts if count is not None]
        totals.append(sum(known) if len(known) == len(counts) else None)
    return tuple(totals)
