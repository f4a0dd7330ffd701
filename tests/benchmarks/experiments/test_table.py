"""Cells over seeds, tables and figures: by values computed by hand, and cited values apart from ours."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from comap.benchmarks.experiments.cells import Cell, average, best, cell
from comap.benchmarks.experiments.cited import CitedRow, cited_tables
from comap.benchmarks.experiments.definition import Axis, Column, Method
from comap.benchmarks.experiments.report import pairs, results_of
from comap.benchmarks.experiments.table import measured_table, panel_table, panels
from comap.metrics import t_interval, wilson
from kits.reports import AW, BARS, CURVES, TABLE, WS, cited, figure_rows, row, table_rows


def seed_rows(*values, **fields):
    return [row(value=value, seed=seed, **fields) for seed, value in enumerate(values)]


def value(number, seeds=(0,), **fields):
    usual = {"values": (number,) * len(seeds), "counts": (10,) * len(seeds)}
    return Cell(**{"status": "value", "value": number, "seeds": seeds, **usual, **fields})


def test_three_seeds_by_hand():
    seeds_cell = cell(seed_rows(40.0, 48.0, 50.0, n=100)[::-1])
    assert seeds_cell.value == pytest.approx(46.0)
    assert seeds_cell.sd == pytest.approx(math.sqrt((36 + 4 + 16) / 2))
    half = 4.303 * seeds_cell.sd / math.sqrt(3)  # 97.5 % of Student's t with two degrees of freedom
    assert seeds_cell.low == pytest.approx(
        46 - half, abs=2e-3
    )  # the printed quantile has three decimals
    assert seeds_cell.high == pytest.approx(46 + half, abs=2e-3)
    assert seeds_cell.interval == "t over seeds" and seeds_cell.values == (40.0, 48.0, 50.0)
    assert seeds_cell.measured == "n = 100, seeds 0, 1, 2"


def test_a_share_does_not_leave_its_range():
    for metric in ("success_rate", "refused", "refusals.precision"):
        share = cell(seed_rows(99.0, 100.0, metric=metric))
        assert share.high == 100.0 and share.low is not None and share.low < 99.0
    loss = cell(seed_rows(0.1, 0.9, metric="loss", unit="nats"))
    assert loss.low is not None and loss.low < 0


def test_one_seed_has_its_own_interval_or_wilsons():
    rate = wilson(0.75, 4)
    for metric in ("success_rate", "success_rate.Pick"):
        rate_cell = cell(seed_rows(75.0, n=4, metric=metric))
        assert (rate_cell.low, rate_cell.high) == (100 * rate.low, 100 * rate.high)
        assert rate_cell.interval == "Wilson" and rate_cell.sd is None
    rate_cell = cell(seed_rows(75.0, n=4, low=70.0, high=80.0))
    assert (rate_cell.low, rate_cell.high, rate_cell.interval) == (70.0, 80.0, "over tasks")


@pytest.mark.parametrize(
    "more", [{"metric": "delta_f1"}, {"unit": "s"}, {"n": None}, {"value": 120.0}]
)
def test_no_interval_where_none_is_known(more):
    rate_cell = cell([row(**{"value": 50.0, "seed": 0, "n": 4, **more})])
    assert (rate_cell.low, rate_cell.high, rate_cell.interval) == (None, None, "")


def test_splits_are_pooled_by_their_tasks():
    rows = [row(value=50.0, n=30, seed=0, split="a"), row(value=90.0, n=10, seed=0, split="b")]
    assert cell(rows).value == pytest.approx(60.0) and cell(rows).counts == (40,)
    assert cell([replace(seed_row, n=None) for seed_row in rows]).value == 70.0
    assert cell([*rows, row(value=61.0, n=40, seed=0)]).value == 61.0
    assert cell([rows[0], row(error="killed", job="j", seed=0, split="b")]).status == "failed"
    assert cell([row(value=1.0, seed=0), row(value=2.0, seed=0)]).value == 2.0  # the last counts


def test_failed_seeds_are_named():
    lost = row(seed=1, job="j", error="killed")
    partial_cell = cell([row(value=40.0, seed=0), lost, row(value=60.0, seed=2)])
    assert partial_cell.value == 50.0 and partial_cell.seeds == (0, 2)
    assert partial_cell.reason == "2 of 3 seeds; the rest: killed" and lost in partial_cell.rows
    assert (cell([lost]).status, cell([lost]).reason) == ("failed", "killed")
    assert cell([row(seed=1, error="left out")]).status == cell([]).status == "missing"
    assert cell([row(text="2e-5", seed=None)]).text == "2e-5"


def test_average_by_hand():
    parts = [
        value(50.0, (0, 1), values=(40.0, 60.0), counts=(10, 10)),
        value(20.0, (0, 1), values=(10.0, 30.0), counts=(30, 30)),
    ]
    mean_cell = average(parts)
    assert (
        mean_cell.value == 35.0
        and mean_cell.values == (25.0, 45.0)
        and mean_cell.counts == (40, 40)
    )
    assert mean_cell.sd == pytest.approx(math.sqrt(200))
    assert (mean_cell.low, mean_cell.high) == t_interval((25.0, 45.0))
    assert average([value(50.0), Cell(status="failed")]).status == average([]).status == "missing"
    unlike = average([value(50.0, (0, 1)), value(20.0, (0,))])
    assert unlike.value == 35.0 and unlike.sd is None and "different seeds" in unlike.reason


def test_best():
    cells = [value(50.04), value(50.01), value(49.9), Cell(status="failed")]
    assert best(cells, "more") == {0, 1}  # both are shown as 50.0
    assert best(cells, "less") == {2}
    assert best(cells, None) == frozenset()
    assert best([value(1.0)], "more") == best([value(1.0), value(1.0)], "more") == frozenset()


def test_blocks_rows_and_the_best():
    table = measured_table(TABLE, table_rows())
    assert table is not None and [block.name for block in table.blocks] == ["tiny-S", "tiny-M"]
    small, medium = table.blocks
    assert [line.name for line in small.rows] == ["ReAct", "RAP", "CoMap"]
    react, rap, comap = (line.entries[1:] for line in small.rows)
    assert [entry.mean for entry in react] == ["50.0", "31.0", "21.0", "34.0"]
    assert [entry.status for entry in rap] == ["failed", "failed", "missing", "missing"]
    assert all(entry.best for entry in comap) and not any(entry.best for entry in (*react, *rap))
    (average_,) = (line.entries[4].cell for line in medium.rows if line.name == "CoMap")
    assert average_ is not None and average_.value == pytest.approx((85 + 71.25 + 30) / 3)
    assert "Prompted (the scale tiny has no model in the slot api-1)" in table.notes[-1]
    assert "Only there (cited only)" in table.notes[-1]


def test_an_error_is_about_its_split_alone_if_it_names_one():
    fields = {"backbone": "b", "seed": 0, "job": "j", "env": AW, "error": "killed"}
    for split_field, failed in (({}, 2), ({"split": "valid_seen"}, 1)):
        table = measured_table(TABLE, [row(**fields, **split_field)])
        entries = table.blocks[0].rows[0].entries[1:]
        assert [entry.status for entry in entries] == ["failed"] * failed + ["missing"] * (
            4 - failed
        )


def test_footnotes_say_how_a_cell_differs_from_most():
    rows = table_rows()
    rows += [row(method="RAP", backbone="tiny-M", env=WS, split="test", value=5.0, seed=7, n=3)]
    table = measured_table(TABLE, rows)
    assert {text for _, text in table.footnotes} == {
        "failed: EngineError: out of memory after 3 tasks",
        "seed 0",
        "n = 3; seed 7",
    }
    assert table.counts == ("140", "134", "200", "474")
    assert any("Seeds 0, 1, 2" in note for note in table.notes)


def test_cited_values_have_tables_of_their_own():
    cited_table, others = cited_tables(TABLE, cited(TABLE.id))
    (block,) = cited_table.blocks
    assert block.name == "Qwen3-4B"
    assert {line.name: [entry.text for entry in line.entries[1:]] for line in block.rows} == {
        "ReAct": ["11.11", "–", "–"],
        "CoMap": ["88.88 ± 1.5", "–", "77.77"],  # the average as printed, not computed
        "Only there": ["–", "66.66", "–"],
    }
    assert [line.entries[3].mean for line in others.blocks[0].rows] == ["gain"]
    printed = row(cited=True, value=99.9, env=AW, split="valid_seen", backbone="Q")
    (section,) = results_of([*table_rows(), printed], [TABLE], lambda name: None).sections
    assert section.measured is not None and section.cited is None
    assert all(block.name != "Q" for block in section.measured.blocks)


def test_blocks_are_paired_in_order_and_by_name():
    fields = {"metric": "success_rate", "unit": "%", "env": AW, "split": "valid_seen"}
    names = {"API": ["Prompted"], "4B": ["ReAct"], "8B": ["ReAct", "CoMap"]}
    rows = tuple(
        CitedRow(method=method, backbone=backbone, value=1.0, **fields)
        for backbone, methods in names.items()
        for method in methods
    )
    printed, _ = cited_tables(TABLE, replace(cited(TABLE.id), rows=rows))

    def paired(ours):
        block_pairs = pairs(measured_table(TABLE, ours), printed)
        return [(a.name if a else None, b.name if b else None) for a, b in block_pairs]

    all_rows = table_rows()
    assert paired(all_rows) == [("tiny-S", "4B"), ("tiny-M", "8B"), (None, "API")]
    small = [result_row for result_row in all_rows if result_row.backbone == "tiny-S"]
    assert paired(small) == [("tiny-S", "4B"), (None, "API"), (None, "8B")]
    assert paired([replace(result_row, backbone="4B") for result_row in small])[0] == ("4B", "4B")


def test_curves_over_seeds():
    nll, success = panels(
        CURVES, [figure_row for figure_row in figure_rows() if figure_row.experiment == CURVES.id]
    )
    assert (nll.kind, nll.axis, success.column.label) == ("line", "update", "success")
    sft, wmsd = nll.curves
    assert (sft.name, wmsd.name) == ("SFT", "WMSD")
    assert [x for x, _ in sft.points] == [0.0, 10.0, 20.0]
    assert [point_cell.value for _, point_cell in sft.points] == pytest.approx([3.05, 2.55, 2.05])
    assert sft.points[0][1].sd == pytest.approx(0.0707, abs=1e-4)


def test_bars_of_methods():
    (panel,) = panels(
        BARS, [figure_row for figure_row in figure_rows() if figure_row.experiment == BARS.id]
    )
    assert panel.kind == "bar" and panel.labels == ("CoMap", "Frozen WM")
    assert [(curve.name, len(curve.points)) for curve in panel.curves] == [
        ("tiny-S", 2),
        ("tiny-M", 1),
    ]
    ((x, lost),) = panel.curves[1].lost
    assert (x, lost.status) == (1.0, "failed")


def test_sizes_of_models_are_an_axis_and_no_curves():
    figure = replace(CURVES, axis=Axis(label="parameters", over="parameters", log=True))
    fields = {"experiment": CURVES.id, "method": "SFT", "env": AW, "value": 1.0, "seed": 0}
    rows = [row(**fields, x=x, backbone=name) for name, x in (("a", 1e5), ("b", 1e6))]
    panel = panels(figure, rows)[-1]
    assert panel.log and [len(curve.points) for curve in panel.curves] == [2]
    assert not panels(figure, [replace(rows[0], x=0.0), *rows])[-1].log


def test_a_figure_draws_a_column_of_averages_alone():
    parts = [Column(label=env, metric="success_rate", env=env) for env in (AW, WS)]
    other_column = Column(label="other", metric="delta_f1", env=AW, group="elsewhere")
    means = [Column(label=name, average=True) for name in ("success", "Delta-F1")]
    axis = Axis(label="parameters", over="parameters")
    columns = (*parts, means[0], other_column, means[1])
    figure = replace(CURVES, columns=columns, axis=axis)
    fields = {"experiment": CURVES.id, "method": "SFT", "seed": 0, "n": 10}
    rows = [
        row(**fields, env=AW, x=1e5, value=20.0),
        row(**fields, env=WS, x=1e5, value=40.0),
        row(**fields, env=AW, x=1e6, value=90.0),
        row(**fields, env=WS, x=1e6, error="not run yet"),
    ]
    (panel,) = panels(figure, rows)
    ((curve),) = panel.curves
    assert panel.column.label == "success"
    assert [(x, point_cell.value, point_cell.counts) for x, point_cell in curve.points] == [
        (1e5, 30.0, (20,))
    ]
    assert [(x, point_cell.reason) for x, point_cell in curve.lost] == [(1e6, "not run yet")]


def test_settings_on_an_axis_make_curves_by_series():
    methods = tuple(Method(name=f"a = {x}", recipe="r", series="a", x=x) for x in (0.75, 0.25))
    figure = replace(CURVES, methods=methods, axis=Axis(label="setting", over="setting"))
    fields = {"experiment": CURVES.id, "env": AW, "value": 1.0, "seed": 0}
    (curve,) = panels(figure, [row(**fields, method=method.name) for method in methods])[-1].curves
    assert curve.name == "a" and [x for x, _ in curve.points] == [0.25, 0.75]


def test_differences_are_paired_by_seed():
    """Gains of 30, 25 and 20 points: 25 with a half-width of 4.303 * 5 / sqrt(3); one seed has none."""
    (table,) = results_of(table_rows(), [TABLE], lambda name: None).sections
    small, medium = table.differences.blocks
    assert [entry.mean for row in small.rows for entry in row.entries] == (
        ["CoMap against ReAct", "+25.0", "+12.6 to +37.4", "12.4", "3"]
    )
    assert [entry.mean for entry in medium.rows[0].entries][1:] == ["+30.0", "–", "–", "1"]


def test_tables_on_generated_tasks_are_called_so():
    rows = [replace(result_row, tasks="generated tasks") for result_row in table_rows()]
    table = measured_table(TABLE, rows)
    assert table.title == "Measured here, on generated tasks"
    mixed = [
        replace(result_row, tasks=None) if result_row.env == WS else result_row
        for result_row in rows
    ]
    table = measured_table(TABLE, mixed)
    assert table.title == "Measured here"
    assert any(f"{AW} (generated tasks)" in note for note in table.notes)
    assert measured_table(TABLE, table_rows()).title == "Measured here"
    figure = [replace(result_row, tasks="generated tasks") for result_row in figure_rows()]
    for experiment in (CURVES, BARS):
        for panel in panels(
            experiment,
            [result_row for result_row in figure if result_row.experiment == experiment.id],
        ):
            assert panel_table(panel).title.endswith("on generated tasks")


def test_a_cell_for_which_an_oracle_was_asked_has_a_footnote():
    rows = [
        replace(result_row, caution="the oracle, it is")
        if result_row.method == "CoMap"
        else result_row
        for result_row in table_rows()
    ]
    table = measured_table(TABLE, rows)
    marks = {
        line.name: [entry.marks for entry in line.entries[1:4]]
        for line in table.blocks[0].rows
        if line.name != "RAP"
    }
    assert all(marks["CoMap"]) and not any(marks["ReAct"])
    assert "the oracle, it is" in dict(table.footnotes).values()
