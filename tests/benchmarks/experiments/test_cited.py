"""The published numbers: every file is sound, and their arithmetic is what METHODS.md found."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import gymnasium as gym
import pytest

import comap  # noqa: F401  registers the environments
from comap.benchmarks.experiments import cited
from comap.benchmarks.experiments.cited import (
    CitedRow,
    CitedTable,
    cited_ids,
    load_cited,
    read_cited,
)
from comap.benchmarks.experiments.rows import ResultRow
from comap.errors import DataCorrupt

IDS = {
    *(f"comap-t{number}" for number in range(1, 7)),
    *(f"comap-f{number}" for number in range(3, 9)),
    *(f"paw-t{number}" for number in range(1, 6)),
    *(f"paw-f{name}" for name in ("2c", "2d", "4", "5", "6", "10", "11")),
}
SETS = {"nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"}
EACH = pytest.mark.parametrize("name", sorted(IDS))


def table(name: str) -> CitedTable:
    found = load_cited(name)
    assert found is not None
    return found


def raw(name: str) -> dict[str, Any]:
    text = (files("comap.benchmarks.experiments") / "cited" / f"{name}.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def rows(name: str, **held: object) -> list[CitedRow]:
    return [
        row
        for row in table(name).rows
        if all(getattr(row, field) == value for field, value in held.items())
    ]


def one(name: str, **held: object) -> CitedRow:
    (row,) = rows(name, **held)
    return row


def notes(name: str, row: CitedRow) -> list[str]:
    return [note.id for note in table(name).notes(row)]


def test_every_table_and_figure_with_numbers_has_a_file() -> None:
    assert set(cited_ids()) == IDS
    assert load_cited("comap-t9") is None
    assert load_cited("../definitions/comap-t1") is None


@EACH
def test_a_file_says_where_its_numbers_are_from_and_what_is_missing(name: str) -> None:
    found = table(name)
    kind = "Table" if "-t" in name else "Figure"
    assert found.table == f"{kind} {name.partition('-')[2][1:]}"
    assert (found.status == "none") == (not found.rows) == (found.source == "none")
    assert (found.status == "complete") == (found.missing is None)


@EACH
def test_environments_and_splits_are_ours(name: str) -> None:
    for row in table(name).rows:
        assert row.env is None or row.env in gym.registry
        if row.env == "comap/ALFWorld-v0":
            assert row.split in {None, "train", "valid_seen", "valid_unseen"}
        if row.env == "comap/ScienceWorld-v0":
            assert row.split in {None, "dev", "test"}  # which the paper calls seen and unseen
        if row.env == "comap/SearchQA-v0":
            assert (row.split in SETS) == (row.metric == "exact_match")


@EACH
def test_what_is_said_to_be_of_n_tasks_is_a_whole_number_of_them(name: str) -> None:
    for row in table(name).rows:
        if row.n is not None:
            times = row.value * row.n / 100
            # cells are printed to 0.01, and one of them is 0.012 off
            assert abs(times - round(times)) <= 0.0125 * row.n / 100, row


@EACH
def test_the_numbers_are_results_marked_as_cited(name: str) -> None:
    for row in table(name).result_rows():
        assert row.cited
        assert row.experiment == name
        assert ResultRow.from_json(row.to_json()) == row


def test_comaps_relative_gain_is_of_the_averages() -> None:
    ours = one("comap-t1", method="CoMap", metric="average").value
    theirs = one("comap-t1", method="ITP_R", metric="average").value
    gain = one("comap-t1", metric="relative_gain_over_itp_r")
    assert 100 * (ours / theirs - 1) == pytest.approx(gain.value, abs=0.005)
    assert "relative-gain" in notes("comap-t1", gain)


def test_two_cells_fit_no_number_of_140_tasks_and_say_so() -> None:
    seen = rows("comap-t1", split="valid_seen")
    odd = [row for row in seen if abs(row.value * 1.4 - round(row.value * 1.4)) > 0.014]
    assert {row.value for row in odd} == {71.53, 68.14}
    assert all("no-denominator" in notes("comap-t1", row) and row.n is None for row in odd)


def test_webshops_cells_are_flagged_as_probable_scores() -> None:
    cells = rows("comap-t1", env="comap/WebShop-v0")
    assert cells
    for cell in cells:
        assert "ws-score" in notes("comap-t1", cell)
    for n in (200, 500):
        times = [cell.value * n / 100 for cell in cells]
        assert sum(abs(number - round(number)) > 0.01 for number in times) > len(cells) / 2


def test_comaps_8b_row_is_flagged_as_the_other_papers() -> None:
    for row in rows("comap-t1", method="CoMap", backbone="Qwen3-8B"):
        assert "same-as-itp-r" in notes("comap-t1", row)
        printed = one("comap-t1", method="ITP_R", backbone="Qwen3-8B", env=row.env, split=row.split)
        assert printed.value < row.value
        assert "itp-r-differs" in notes("comap-t1", printed)


def test_the_impossible_revision_rates_are_flagged() -> None:
    env = "comap/WebShop-v0"
    every = one("comap-t3", env=env, metric="urr")
    harmful = one("comap-t3", env=env, metric="hrr")
    assert harmful.value > every.value
    for row in (every, harmful):
        assert notes("comap-t3", row)[0] == "hrr-over-urr"


def test_what_the_appendix_calls_the_average_is_alfworlds() -> None:
    for backbone in ("Qwen3-4B", "Qwen3-8B"):
        cell = one("comap-t2", backbone=backbone, metric="delta_f1")
        assert cell.env == "comap/ALFWorld-v0"
        assert one("comap-f8", backbone=backbone).value == cell.value
        assert one("comap-t2", backbone=backbone, metric="average").value < cell.value
        assert "not-the-average" in notes("comap-t2", cell)


def test_training_costs_add_up_but_for_a_hundredth_which_is_flagged() -> None:
    hours = {row.split: row.value for row in rows("comap-t6", metric="wall_clock")}
    total = hours.pop("total")
    assert sum(hours.values()) == pytest.approx(total + 0.01)
    gpu_hours = one("comap-t6", metric="gpu_hours")
    assert gpu_hours.value == pytest.approx(4 * total)
    assert "sum" in notes("comap-t6", gpu_hours)


@pytest.mark.parametrize("method", ["Search-R1", "ZeroSearch"])
@pytest.mark.parametrize("backbone", ["Qwen2.5-3B-Instruct", "Qwen2.5-7B-Instruct"])
def test_search_averages_agree_with_their_cells(method: str, backbone: str) -> None:
    of = {"method": method, "backbone": backbone}
    cells = rows("paw-t2", metric="exact_match", **of)
    assert {row.split for row in cells} == SETS
    average = one("paw-t2", metric="average", **of)
    assert sum(row.value for row in cells) / 7 == pytest.approx(average.value, abs=0.1)
    assert all("copied-row" in notes("paw-t2", row) for row in (*cells, average))


def test_the_average_that_does_not_agree_is_flagged() -> None:
    wrong = one("paw-t2", method="GiGPO", backbone="Qwen2.5-7B-Instruct", metric="average")
    assert wrong.value == 45.8
    assert notes("paw-t2", wrong)[0] == "average-wrong"
    assert rows("paw-t2", note="average-wrong") == [wrong]


def test_paws_overhead_is_the_share_that_it_is_said_to_be() -> None:
    def of(metric: str) -> float:
        return one("paw-f5", metric=metric).value

    share = 100 * of("step_seconds_added") / of("step_seconds")
    assert share == pytest.approx(of("step_seconds_added_share"), abs=0.05)


def test_the_rescue_is_the_same_in_table_and_figure() -> None:
    assert [row.value for row in table("paw-t3").rows] == [4.0, 62.2]
    assert [row.value for row in table("paw-f4").rows] == [4.0, 62.2]


def test_numbers_read_in_notes_about_the_paper_say_so() -> None:
    for row in table("paw-t1").rows:
        assert {"second-hand", "best-row"} & set(notes("paw-t1", row))


def _with(part: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["rows"][0][part] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.pop("source"), "no 'source'"),
        (lambda data: data.update(extra=1), "also 'extra'"),
        (lambda data: data.update(id="comap-t2"), "the id 'comap-t3'"),
        (lambda data: data.update(paper="PaW"), "the paper 'CoMap'"),
        (lambda data: data.update(arxiv="1"), "as arxiv"),
        (lambda data: data.update(status="complete"), "the status 'partial'"),
        (lambda data: data.update(rows={}), "a list of rows"),
        (lambda data: data["rows"].append(data["rows"][0]), "one row for each cell"),
        (lambda data: data["rows"][0].pop("unit"), "no 'unit'"),
        (_with("value", math.nan), "a finite number as value"),
        (_with("value", 10**400), "a finite number as value"),
        (_with("value", True), "a finite number as value"),
        (_with("value", "0.07"), "a finite number as value"),
        (_with("value", 1.2), "0.0 to 1.0 in 'share'"),
        (_with("unit", ["%"]), "as unit"),
        (_with("method", ""), "text as method"),
        (_with("spread", -1), "0 or more or null as spread"),
        (_with("n", 0), "a positive number or null as n"),
        (_with("note", "nowhere"), "a footnote of"),
        (lambda data: data["footnotes"][0].update(applies_to={"colour": 1}), "fields of a row"),
        (lambda data: data["footnotes"].append(data["footnotes"][0]), "different ids"),
        (
            lambda data: data["footnotes"].append(
                {"id": "x", "text": "y", "applies_to": {"method": "SFT"}}
            ),
            "a footnote that is about a row",
        ),
    ],
)
def test_a_wrong_file_is_told_of(change: Callable[[dict[str, Any]], None], said: str) -> None:
    data = copy.deepcopy(raw("comap-t3"))
    assert read_cited(data, "comap-t3") == table("comap-t3")
    change(data)
    with pytest.raises(DataCorrupt, match=r"^cited/comap-t3\.json: expected") as told:
        read_cited(data, "comap-t3")
    assert said in str(told.value)


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_what_is_no_table_is_told_of(data: object) -> None:
    with pytest.raises(DataCorrupt, match="a table as a JSON object"):
        read_cited(data, "comap-t3")


def test_a_file_that_is_no_json_is_told_of(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cited").mkdir()
    (tmp_path / "cited" / "comap-t1.json").write_text("{", "utf-8")
    monkeypatch.setattr(cited, "files", lambda _: tmp_path)
    with pytest.raises(DataCorrupt, match=r"cited/comap-t1\.json: expected JSON"):
        load_cited("comap-t1")
