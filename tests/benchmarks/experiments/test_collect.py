"""What jobs measured becomes rows: curves where a figure has an axis, ends where a table has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.experiments.aggregate import cell
from comap.benchmarks.experiments.collect import collect
from comap.benchmarks.experiments.commands import Places, folder_of
from comap.benchmarks.experiments.definition import experiment
from comap.benchmarks.experiments.jobs import Job, Plan, plan
from comap.benchmarks.experiments.measures import measures_of
from comap.benchmarks.experiments.rows import ResultRow, read_rows, write_rows
from comap.benchmarks.experiments.scale import scale_named
from comap.errors import DataCorrupt, DataNotFound
from comap.facts import State
from comap.trajectory import Trajectory, write_trajectories

AW = "comap/ALFWorld-v0"


def planned(name: str) -> Plan:
    return plan([experiment(name)], scale_named("tiny"))


def job_named(found: Plan, start: str) -> Job:
    return next(job for name, job in found.jobs.items() if name.startswith(start))


def done(places: Places, job: Job) -> Path:
    """Write the record of a job that has ended; return where its commands wrote."""
    folder = folder_of(places, job.id)
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "config_hash": job.config_hash,
        "status": "done",
        "why": None,
        "env": None,
        "code": "0.1.0+abc",
        "hardware": {"cpu": "chip", "cores": 2},
        "cost": {"seconds": 4.0, "cpu_seconds": 3.5},
    }
    (folder.parent / "job.json").write_text(json.dumps(record))
    return folder


def evaluation(place: int, won: float, f1: float) -> dict[str, Any]:
    group = {"n": 50, "delta_f1": f1, "stderr": 2.0}
    return {
        "stage": f"round-{place}-evaluation",
        "seconds": 1.0,
        "round": place,
        "splits": {"valid_seen": {"episodes": 4, "success": won, "score": won, "steps": 9}},
        "world_model": {
            "frozen": {
                "all": group,
                "nonempty": group,
                "change_token_nll": {"nll": 1.5, "tokens": 9},
            }
        },
        "revisions": {"urr": 0.5, "drafts_succeed": 4, "hrr": 0.25, "brp": None, "revised": 0},
    }


def training(folder: Path) -> None:
    (folder / "run.json").write_text(
        json.dumps({"format": "comap training 1", "described": {"env": {"id": AW}}, "sessions": []})
    )
    gates = {"adoption": {"0.4": 0.75, "0.6": 0.5, "0.8": None, "run": 0.5}}
    stages = [
        evaluation(0, 0.25, 40.0),
        {"stage": "round-1-rollouts", "seconds": 2.0, "steps": 8, "gates": gates},
        {
            "stage": "round-1-world-model",
            "seconds": 3.0,
            "role": "wm",
            "samples": {"world_model": 7},
        },
        {"stage": "round-1-policy", "seconds": 4.0, "role": "agent", "samples": {"keep_draft": 5}},
        evaluation(1, 0.5, 60.0),
    ]
    for number, stage in enumerate(stages):
        place = folder / "stages" / f"{number:02}-{stage['stage']}"
        place.mkdir(parents=True)
        (place / "done.json").write_text(json.dumps(stage))


def rows_of(name: str, tmp_path: Path) -> list[ResultRow]:
    found, places = planned(name), Places(tmp_path)
    training(done(places, job_named(found, "comap-alfworld")))
    return [r for r in collect(found, [experiment(name)], places) if r.error is None]


def test_a_table_takes_the_last_round(tmp_path: Path) -> None:
    (row,) = rows_of("comap-t2", tmp_path)
    assert (row.method, row.env, row.metric, row.value, row.n) == (
        "CoMap",
        AW,
        "delta_f1",
        60.0,
        50,
    )
    assert row.low == pytest.approx(60 - 1.96 * 2, abs=0.01) and row.x is None
    assert row.cost == {"cpu_seconds": 3.5} and row.seconds == 4.0
    assert row.code_version == "0.1.0+abc" and row.hardware == "chip, 2 cores"


def test_a_figure_takes_every_round(tmp_path: Path) -> None:
    rows = rows_of("comap-f4", tmp_path)
    curve = {(row.metric, row.x): row.value for row in rows if row.method == "CoMap"}
    assert curve == {
        ("success_rate", 0.0): 25.0,
        ("success_rate", 1.0): 50.0,
        ("delta_f1", 0.0): 40.0,
        ("delta_f1", 1.0): 60.0,
    }


def test_adoption_is_told_for_each_threshold_that_was_measured(tmp_path: Path) -> None:
    rows = rows_of("comap-f5", tmp_path)
    assert {(row.metric, row.x, row.value, row.n) for row in rows} == {
        ("adoption.0.4", 1.0, 75.0, 8),
        ("adoption.0.6", 1.0, 50.0, 8),
    }


def test_a_rate_of_nothing_is_left_out(tmp_path: Path) -> None:
    rows = [row for row in rows_of("comap-t3", tmp_path) if row.method == "ALFWorld"]
    assert {(row.metric, row.value, row.n) for row in rows} == {
        ("urr", 0.5, 4),
        ("hrr", 0.25, 4),
        ("revisions.drafts_succeed", 4.0, None),
        ("revisions.revised", 0.0, None),
    }


def test_samples_and_costs_are_counted_by_role(tmp_path: Path) -> None:
    samples = {row.metric: row.value for row in rows_of("comap-f7", tmp_path)}
    assert samples["samples.policy.keep"] == 5 and samples["samples.wm.self-distillation"] == 7
    costs = {r.metric: r.value for r in rows_of("comap-t6", tmp_path / "2") if r.method == "CoMap"}
    assert costs["seconds.coevolution.wm"] == 3 and costs["seconds.coevolution.policy"] == 4
    assert costs["seconds.evaluation.all"] == 2 and costs["seconds.all"] == 11


def test_a_point_is_placed_by_parameters_or_by_its_method(tmp_path: Path) -> None:
    rows = rows_of("comap-f8", tmp_path)
    assert {row.x for row in rows} == {300_000.0}
    places = Places(tmp_path / "2")
    found = planned("paw-f6")
    job = job_named(found, "grpo+paw-alpha-0.25")
    folder = done(places, job)
    (folder / "run.json").write_text(
        json.dumps({"format": "comap paw training 1", "described": {"config": {}}, "sessions": []})
    )
    line = {
        "update": 4,
        "split": "test",
        "n": 2,
        "success": 0.5,
        "won": {"a": 1, "b": 0},
        "score": 0.7,
    }
    (folder / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "metrics.jsonl").write_text(
        json.dumps({"update": 1, "success": 0.1, "return": 1.0}) + "\n"
    )
    rows = [r for r in collect(found, [experiment("paw-f6")], places) if r.error is None]
    assert {(r.metric, r.x, r.value) for r in rows} == {
        ("success_rate", 0.25, 50.0),
        ("score", 0.25, 70.0),
    }


def test_search_is_told_by_data_set(tmp_path: Path) -> None:
    found, places = plan([experiment("paw-t2")], scale_named("paper"), [0]), Places(tmp_path)
    folder = done(places, job_named(found, "grpo+paw-searchqa"))
    (folder / "run.json").write_text(
        json.dumps({"format": "comap paw training 1", "described": {"config": {}}, "sessions": []})
    )
    won = {"nq/test_1": 1, "nq/test_2": 0, "musique/2hop": 1, "popqa/1": 0}
    line = {"update": 4, "split": "test", "n": 4, "success": 0.5, "won": won, "score": 0.5}
    (folder / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    rows = [r for r in collect(found, [experiment("paw-t2")], places) if r.error is None]
    assert {(r.metric, r.split, r.value, r.n) for r in rows} == {
        ("exact_match", "nq", 50.0, 2),
        ("exact_match", "musique", 100.0, 1),
        ("exact_match", "popqa", 0.0, 1),
        ("exact_match", "test", 50.0, 4),
    }


def test_tools_are_told_by_the_judge(tmp_path: Path) -> None:
    found, places = plan([experiment("comap-t1")], scale_named("paper"), [0]), Places(tmp_path)
    job = job_named(found, "play-react-stabletoolbench-Qwen3-4B")
    folder, one = done(places, job), experiment("comap-t1")
    assert job.place is not None
    per_step = {"calls": 1.0, "prompt_tokens": 9.0, "completion_tokens": 9.0}
    summary = {
        "n": 10,
        "success": {"value": 0.0},
        "score": 0.0,
        "language_model": {"per_step": per_step},
    }
    episode = Trajectory("comap/StableToolBench-v0", "1", "", "", "react", "", State())
    for place, split in enumerate(job.place.splits):
        (folder / split).mkdir()
        (folder / split / "summary.json").write_text(json.dumps(summary))
        write_trajectories(folder / split / "trajectories.jsonl", [episode] * 10)
        sopr = {"mean": 0.35 if place else 0.5, "low": 0.2, "high": 0.6, "n": 30 if place else 10}
        (folder / f"{split}-judged.json").write_text(json.dumps({"sopr": sopr}))
    rows = [row for row in collect(found, [one], places) if row.error is None]
    assert [row.value for row in rows] == [50.0] + [35.0] * 5
    assert cell(rows).value == pytest.approx((10 * 50 + 150 * 35) / 160)  # by queries
    (folder / "G1_tool-judged.json").write_text('{"sopr": null}')
    (row,) = (row for row in collect(found, [one], places) if row.job == job.id)
    assert "expected SoPR with its interval" in str(row.error)


def test_what_is_not_there_says_why(tmp_path: Path) -> None:
    found, places = planned("comap-t2"), Places(tmp_path)
    rows = collect(found, [experiment("comap-t2")], places)
    assert {row.error for row in rows} == {"not run yet"} and {row.value for row in rows} == {None}
    done(places, job_named(found, "sft-alfworld"))  # whose folder is empty
    rows = collect(found, [experiment("comap-t2")], places)
    (row,) = [row for row in rows if row.method == "SFT" and row.env == AW]
    assert str(row.error).startswith("failed: expected a training")


@pytest.mark.parametrize("content", ["{", "[]", '{"n": "x"}', '{"n": 2, "success": 3}'])
def test_results_that_are_not_understood_fail_their_cell_alone(
    tmp_path: Path, content: str
) -> None:
    found, places = planned("comap-t1"), Places(tmp_path)
    job = job_named(found, "play-react-alfworld")
    folder = done(places, job) / "valid_seen"
    folder.mkdir()
    (folder / "summary.json").write_text(content)
    rows = collect(found, [experiment("comap-t1")], places)
    assert any(row.job == job.id and str(row.error).startswith("failed") for row in rows)


def test_facts_need_no_run() -> None:
    found = planned("comap-t5")
    measures = measures_of(next(iter(found.jobs.values())), Path("nowhere"))
    told = {one.method: one.text for one in measures}
    assert told["tau_p, tau_q"] == "0.5, 0.6" and told["eta, mu, tau_wm"] == "0.5, 0.99, 0.6"
    sizes = planned("comap-t4")
    alfworld = measures_of(job_named(sizes, "statistics-alfworld"), Path("nowhere"))
    assert {one.metric for one in alfworld} == {"tasks.train", "tasks.seen", "tasks.unseen"}
    assert all(one.value and one.value > 0 for one in alfworld)


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [
        ResultRow(
            experiment="x", method="\u202e<b>", metric="m", value=1.5, cost={"cpu_seconds": 1}
        ),
        ResultRow(experiment="x", method="y", metric="m", error="failed: \ud800"),
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    assert list(read_rows(tmp_path / "rows.jsonl")) == rows
    with pytest.raises(DataNotFound, match="comap bench run"):
        list(read_rows(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    "line", ["{", "3", '{"experiment": "x"}', '{"experiment":"x","method":"y","metric":"z","a":1}',
             '{"experiment":"x","method":"y","metric":"z","value":NaN}',
             '{"experiment":"x","method":"y","metric":"z","value":true}',
             '{"experiment":"x","method":"y","metric":"z","cited":true,"job":"j"}']
)  # fmt: skip
def test_a_line_that_is_no_row_is_told_with_its_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataCorrupt, match="line 1"):
        list(read_rows(path))
