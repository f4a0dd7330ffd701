"""Cells over seeds, their intervals, averages and the best: by values computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from comap.benchmarks.experiments.aggregate import Cell, average, best, cell, t_interval
from comap.benchmarks.experiments.rows import ResultRow
from comap.metrics import wilson


def row(**more: Any) -> ResultRow:
    return ResultRow(**{"experiment": "e", "method": "m", "metric": "success_rate", **more})


def value(number: float, seeds: tuple[int, ...] = (0,), **more: Any) -> Cell:
    values = more.pop("values", (number,) * len(seeds))
    counts = more.pop("counts", (10,) * len(seeds))
    told = {"value": number, "seeds": seeds, "values": values, "counts": counts}
    return Cell(status="value", **told, **more)


def test_three_seeds_by_hand() -> None:
    found = cell([row(value=v, seed=s, n=100) for s, v in ((2, 50.0), (0, 40.0), (1, 48.0))])
    assert found.value == pytest.approx(46.0)
    assert found.sd == pytest.approx(math.sqrt((36 + 4 + 16) / 2))
    half = 4.303 * found.sd / math.sqrt(3)  # 97.5 % of Student's t with two degrees of freedom
    assert (found.low, found.high) == (pytest.approx(46 - half), pytest.approx(46 + half))
    assert found.interval == "t over seeds"
    assert found.seeds == (0, 1, 2) and found.values == (40.0, 48.0, 50.0)
    assert found.measured == "n = 100, seeds 0, 1, 2"


def test_a_share_does_not_leave_its_range() -> None:
    found = cell([row(value=v, seed=s) for s, v in enumerate((99.0, 100.0))])
    assert found.high == 100.0 and found.low is not None and found.low < 99.0
    loss = cell(
        [row(metric="loss", unit="nats", value=v, seed=s) for s, v in enumerate((0.1, 0.9))]
    )
    assert loss.low is not None and loss.low < 0


def test_one_seed_has_wilson_s_interval() -> None:
    found = cell([row(value=75.0, seed=0, n=4)])
    rate = wilson(0.75, 4)
    assert (found.low, found.high) == (100 * rate.low, 100 * rate.high)
    assert found.interval == "Wilson" and found.sd is None
    kind = cell([row(metric="success_rate.Pick", value=75.0, seed=0, n=4)])
    assert (kind.low, kind.high) == (found.low, found.high)


def test_a_row_s_own_interval_comes_before_wilson_s() -> None:
    found = cell([row(value=75.0, seed=0, n=4, low=70.0, high=80.0)])
    assert (found.low, found.high, found.interval) == (70.0, 80.0, "over tasks")


@pytest.mark.parametrize(
    "more",
    [
        {"metric": "delta_f1"},  # no share of successes
        {"unit": "s"},
        {"n": None},
        {"value": 120.0},
    ],
)
def test_no_interval_where_none_is_known(more: dict[str, Any]) -> None:
    found = cell([row(**{"value": 50.0, "seed": 0, "n": 4, **more})])
    assert (found.low, found.high, found.interval) == (None, None, "")


def test_splits_are_pooled_by_their_tasks() -> None:
    rows = [row(value=50.0, n=30, seed=0, split="a"), row(value=90.0, n=10, seed=0, split="b")]
    found = cell(rows)
    assert found.value == pytest.approx(60.0) and found.counts == (40,)
    assert (
        cell([row(value=v, seed=0, split=s) for s, v in (("a", 50.0), ("b", 90.0))]).value == 70.0
    )
    whole = cell([*rows, row(value=61.0, n=40, seed=0)])
    assert whole.value == 61.0 and whole.counts == (40,)


def test_of_equal_rows_the_last_counts() -> None:
    assert cell([row(value=1.0, seed=0), row(value=2.0, seed=0)]).value == 2.0


def test_failed_seeds_are_told() -> None:
    lost = row(seed=1, job="j", error="killed")
    found = cell([row(value=40.0, seed=0), lost, row(value=60.0, seed=2)])
    assert found.value == 50.0 and found.seeds == (0, 2)
    assert found.reason == "2 of 3 seeds; the rest: killed" and lost in found.rows
    all_lost = cell([lost])
    assert (all_lost.status, all_lost.value, all_lost.reason) == ("failed", None, "killed")
    not_run = cell([row(seed=1, error="left out")])
    assert (not_run.status, not_run.reason) == ("missing", "left out")
    assert cell([]) == Cell(status="missing")


def test_a_seed_that_lost_a_split_has_no_value() -> None:
    rows = [
        row(value=50.0, n=30, seed=0, split="a"),
        row(error="killed", job="j", seed=0, split="b"),
    ]
    assert cell(rows).status == "failed"


def test_text() -> None:
    found = cell([row(text="2e-5", seed=None)])
    assert (found.status, found.text, found.value) == ("text", "2e-5", None)


def test_average_by_hand() -> None:
    parts = [
        value(50.0, (0, 1), values=(40.0, 60.0), counts=(10, 10)),
        value(20.0, (0, 1), values=(10.0, 30.0), counts=(30, 30)),
    ]
    found = average(parts)
    assert found.value == 35.0 and found.values == (25.0, 45.0) and found.counts == (40, 40)
    assert found.sd == pytest.approx(math.sqrt(200))
    assert (found.low, found.high) == t_interval((25.0, 45.0))


def test_average_is_missing_where_a_part_is() -> None:
    assert average([value(50.0), Cell(status="failed", reason="killed")]).status == "missing"
    assert average([]).status == "missing"


def test_average_over_unlike_seeds_has_no_deviation() -> None:
    found = average([value(50.0, (0, 1)), value(20.0, (0,))])
    assert found.value == 35.0 and found.sd is None and "different seeds" in found.reason


def test_best() -> None:
    cells = [value(50.04), value(50.01), value(49.9), Cell(status="failed")]
    assert best(cells, "more") == {0, 1}  # both are shown as 50.0
    assert best(cells, "less") == {2}
    assert best(cells, None) == frozenset()
    assert best([value(1.0)], "more") == best([value(1.0), value(1.0)], "more") == frozenset()


def test_t_interval_of_many_values() -> None:
    low, high = t_interval([0.0, 1.0] * 20)
    assert high - low == pytest.approx(
        2 * 1.96 * math.sqrt(0.25 * 40 / 39) / math.sqrt(40), rel=1e-3
    )
