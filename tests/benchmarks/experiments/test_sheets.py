"""Tables and figures from rows: what stands where, and what does not stand among ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.experiments.cited import CitedRow, cited_ids, load_cited
from comap.benchmarks.experiments.definition import Axis, Column, Method, experiment
from comap.benchmarks.experiments.grids import our_grid, sheet_grids
from comap.benchmarks.experiments.panels import panels
from comap.benchmarks.experiments.quoted import Quotes
from comap.benchmarks.experiments.results import results_of
from comap.benchmarks.experiments.sheets import pairs, sheet
from comap.envs.conformance.transcripts import load

KIT = load(f"{Path(__file__).with_name('reports_kit.py')}:KIT")
TABLE, CURVES, BARS, row = KIT.TABLE, KIT.CURVES, KIT.BARS, KIT.row


def table(rows: list[Any] | None = None, quotes: Quotes | None = None) -> Any:
    return sheet(TABLE, KIT._table_rows() if rows is None else rows, quotes)


def test_blocks_lines_and_the_best() -> None:
    found = table()
    assert [block.backbone for block in found.ours] == ["tiny-S", "tiny-M"]
    small, medium = found.ours
    assert [line.method for line in small.lines] == ["ReAct", "RAP", "CoMap"]
    react, rap, comap = small.lines
    assert [round(cell.value, 6) for cell in react.cells] == [50.0, 31.0, 21.0, 34.0]
    assert [cell.status for cell in rap.cells] == ["failed", "failed", "missing", "missing"]
    assert comap.best == {0, 1, 2, 3} and not react.best and not rap.best
    assert [line.cells[3].value for line in medium.lines if line.method == "CoMap"] == [
        pytest.approx((85 + 71.25 + 30) / 3)
    ]
    assert dict(found.not_run) == {
        "Prompted": "the scale tiny has no model in the slot api-1",
        "Only there": "cited only",
    }


def test_less_can_be_better() -> None:
    time = replace(
        TABLE,
        columns=(Column(label="time", metric="seconds", unit="s", better="less"),),
    )
    rows = [
        row(method=name, metric="seconds", unit="s", value=value, backbone="b", seed=0)
        for name, value in (("ReAct", 3.0), ("CoMap", 5.0))
    ]
    lines = sheet(time, rows).ours[0].lines
    assert [bool(line.best) for line in lines if line.cells[0].value] == [True, False]


def test_a_row_that_says_why_is_about_its_split_alone_if_it_names_one() -> None:
    told = {"backbone": "b", "seed": 0, "job": "j", "env": KIT.AW, "error": "killed"}
    whole = table([row(**told)]).ours[0].lines[0].cells
    assert [cell.status for cell in whole] == ["failed", "failed", "missing", "missing"]
    part = table([row(**told, split="valid_seen")]).ours[0].lines[0].cells
    assert [cell.status for cell in part] == ["failed", "missing", "missing", "missing"]


def test_cited_values_have_blocks_of_their_own() -> None:
    quotes = Quotes.of(TABLE, KIT.cited(TABLE.id))
    found = table(quotes=quotes)
    (block,) = found.cited
    assert block.backbone == "Qwen3-4B"
    by_name = {line.method: [cell.value for cell in line.cells] for line in block.lines}
    assert by_name == {
        "ReAct": [11.11, None, None, None],
        "CoMap": [88.88, None, None, 77.77],  # the average as printed, not computed
        "Only there": [None, None, 66.66, None],
    }
    assert [one.metric for one in quotes.others] == ["gain"]
    printed = {value for values in by_name.values() for value in values if value is not None}
    ours = {cell.value for b in found.ours for line in b.lines for cell in line.cells}
    assert not printed & ours


def test_cited_rows_among_the_results_are_not_ours() -> None:
    rows = [
        *KIT._table_rows(),
        row(cited=True, value=99.9, env=KIT.AW, split="valid_seen", backbone="Q"),
    ]
    (shown,) = results_of(rows, [TABLE], lambda name: None).shown
    assert shown.sheet is not None and [b.backbone for b in shown.sheet.cited] == ["Q"]
    assert all(b.backbone != "Q" for b in shown.sheet.ours)


def test_blocks_are_paired_in_order_and_by_name() -> None:
    told = {"metric": "success_rate", "unit": "%", "env": KIT.AW, "split": "valid_seen"}
    names = {"API": ["Prompted"], "4B": ["ReAct"], "8B": ["ReAct", "CoMap"]}
    rows = tuple(
        CitedRow(method=method, backbone=backbone, value=1.0, **told)
        for backbone, methods in names.items()
        for method in methods
    )
    printed = replace(KIT.cited(TABLE.id), rows=rows)

    def paired(ours: list[Any]) -> list[tuple[str | None, str | None]]:
        found = sheet(TABLE, ours, Quotes.of(TABLE, printed))
        return [(a and a.backbone, b and b.backbone) for a, b in pairs(found)]

    both = KIT._table_rows()
    assert paired(both) == [("tiny-S", "4B"), ("tiny-M", "8B"), (None, "API")]
    small = [one for one in both if one.backbone == "tiny-S"]
    assert paired(small) == [("tiny-S", "8B"), (None, "API"), (None, "4B")]
    own = [replace(one, backbone="4B") for one in small]
    assert paired(own)[0] == ("4B", "4B")


def test_footnotes_say_how_a_cell_differs_from_most() -> None:
    rows = KIT._table_rows()
    rows += [row(method="RAP", backbone="tiny-M", env=KIT.WS, split="test", value=5.0, seed=7, n=3)]
    grid = our_grid(table(rows))
    marks = {text: letter for letter, text in grid.footnotes}
    assert set(marks) == {
        "failed: EngineError: out of memory after 3 tasks",
        "seed 0",
        "n = 3; seed 7",
    }
    counts = [row for row in grid.rows if row.kind == "counts"]
    assert [cell.text for cell in counts[0].cells] == ["n", "140", "134", "200", "474"]
    assert any("Seeds 0, 1, 2" in note for note in grid.notes)


@pytest.mark.parametrize("name", [name for name in cited_ids() if "-t" in name])
def test_every_published_table_finds_its_columns(name: str) -> None:
    """Each cited value is shown once: in a column, or in the list."""
    published = load_cited(name)
    assert published is not None
    found = sheet(experiment(name), [], Quotes.of(experiment(name), published))
    shown = [cell for b in found.cited for line in b.lines for cell in line.cells]
    placed = sum(cell.value is not None for cell in shown)
    assert placed + len(found.quotes.others) == len(published.rows)
    assert all(grid.cited for grid in sheet_grids(found))


# -- figures ---------------------------------------------------------------------------------------


def test_curves_over_seeds() -> None:
    nll, success = panels(CURVES, KIT._figure_rows())
    assert (nll.kind, nll.axis, success.column.label) == ("line", "update", "success")
    sft, wmsd = nll.curves
    assert (sft.name, wmsd.name) == ("SFT", "WMSD")
    assert [point.x for point in sft.points] == [0.0, 10.0, 20.0]
    assert [point.cell.value for point in sft.points] == pytest.approx([3.05, 2.55, 2.05])
    assert sft.points[0].cell.sd == pytest.approx(0.0707, abs=1e-4)


def test_bars_of_methods() -> None:
    (panel,) = panels(BARS, KIT._figure_rows())
    assert panel.kind == "bar" and panel.labels == ("CoMap", "Frozen WM")
    assert [(curve.name, len(curve.points)) for curve in panel.curves] == [
        ("tiny-S", 2),
        ("tiny-M", 1),
    ]
    (lost,) = panel.curves[1].lost
    assert (lost.x, lost.cell.status) == (1.0, "failed")


def test_bars_of_many_columns_stand_side_by_side() -> None:
    columns = tuple(
        Column(label=f"phase {i}", metric=f"seconds.{i}", unit="s", better="less") for i in range(4)
    )
    memory = Column(label="memory", metric="memory", unit="GiB", better="less")
    figure = replace(BARS, columns=(*columns, memory))
    rows = [
        row(experiment=BARS.id, method=name, metric=one.metric, unit=one.unit, value=2.0, seed=0)
        for name in ("CoMap", "Frozen WM")
        for one in figure.columns
    ]
    seconds, other = panels(figure, rows)
    assert seconds.labels == ("phase 0", "phase 1", "phase 2", "phase 3")
    assert [(curve.name, len(curve.points)) for curve in seconds.curves] == [
        ("CoMap", 4),
        ("Frozen WM", 4),
    ]
    assert other.column is memory


def test_sizes_of_models_are_an_axis_and_no_curves() -> None:
    figure = replace(CURVES, axis=Axis(label="parameters", over="parameters", log=True))
    sizes = (("a", 1e5), ("b", 1e6))
    rows = [
        row(
            experiment=CURVES.id,
            method="SFT",
            env=KIT.AW,
            value=v / 1e5,
            x=v,
            backbone=name,
            seed=0,
        )
        for name, v in sizes
    ]
    panel = panels(figure, rows)[-1]
    assert panel.log and [len(curve.points) for curve in panel.curves] == [2]
    zero = [replace(one, x=0.0) for one in rows[:1]]
    assert not panels(figure, [*zero, *rows])[-1].log


def test_settings_on_an_axis_make_curves_by_series() -> None:
    methods = tuple(Method(name=f"a = {x}", recipe="r", series="a", x=x) for x in (0.75, 0.25))
    figure = replace(CURVES, methods=methods, axis=Axis(label="setting", over="setting"))
    rows = [
        row(experiment=CURVES.id, method=one.name, env=KIT.AW, value=1.0, seed=0) for one in methods
    ]
    (curve,) = panels(figure, rows)[-1].curves
    assert curve.name == "a" and [point.x for point in curve.points] == [0.25, 0.75]
