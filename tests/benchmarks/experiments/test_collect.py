"""What jobs measured becomes rows: curves where a figure has an axis, ends where a table has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.benchmarks.experiments.cells import cell
from comap.benchmarks.experiments.collect import collect, measures_of
from comap.benchmarks.experiments.definition import (
    ResultRow,
    experiment,
    read_rows,
    scale_named,
    write_rows,
)
from comap.benchmarks.experiments.plan import Paths, plan
from comap.errors import DataCorrupt, DataNotFound
from comap.facts import State
from comap.trajectory import Trajectory, write_trajectories
from comap.worldmodel.naming import NOT_TO_REPORT

AW = "comap/ALFWorld-v0"


def planned(name, scale="tiny"):
    return plan([experiment(name)], scale_named(scale), [0])


def job_named(job_plan, start):
    return next(job for name, job in job_plan.jobs.items() if name.startswith(start))


def end_job(paths, job):
    """Write the record of a job that has ended; return where its commands wrote."""
    folder = paths.of(job.id)
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "config_hash": job.config_hash,
        "status": "done",
        "code": "0.1.0+abc",
        "hardware": {"cpu": "chip", "cores": 2, "gpus": ["card"]},
        "cost": {"seconds": 4.0, "cpu_seconds": 3.5},
    }
    (folder.parent / "job.json").write_text(json.dumps(record))
    return folder


def measured(job_plan, name, paths):
    return [row for row in collect(job_plan, [experiment(name)], paths) if row.error is None]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) + "\n")


def evaluation(index, success, f1):
    group = {"n": 50, "delta_f1": f1, "stderr": 2.0}
    nll = {"nll": 1.5, "tokens": 9}
    return {
        "stage": f"round-{index}-evaluation",
        "seconds": 1.0,
        "splits": {"valid_seen": {"episodes": 4, "success": success, "score": success}},
        "world_model": {"frozen": {"all": group, "nonempty": group, "change_token_nll": nll}},
        "revisions": {"urr": 0.5, "drafts_succeed": 4, "hrr": 0.25, "brp": None, "revised": 0},
    }


def training(folder, stages, gpus=()):
    hardware = {"processes": max(len(gpus), 1), "gpus": gpus}
    run = {"format": "comap training 2", "described": {"env": {"id": AW}}}
    write(folder / "run.json", {**run, "sessions": [{"hardware": hardware}]})
    for number, stage in enumerate(stages):
        write(folder / "stages" / f"{number:02}-{stage['stage']}" / "done.json", stage)


def rows_of(name, out, gpus=()):
    """The rows of an experiment for which a CoMap training of one round has ended."""
    job_plan, paths = planned(name), Paths(out)
    job = job_named(job_plan, "comap-alfworld")
    warmup = [
        {"stage": "warmup-policy", "role": "agent", "samples": {"warmup": 9}, "seconds": 360.0},
        {"stage": "warmup-world-model", "role": "wm", "samples": {"warmup": 8}, "seconds": 720.0},
    ]
    training(paths.of(job.needs["sft"]), warmup, gpus)
    gates = {"adoption": {"0.4": 0.75, "0.6": 0.5, "0.8": None}}
    learned = [
        {"stage": "reflection-init", "role": "agent", "samples": {"keep_draft": 6, "anchor": 6}},
        {"stage": "round-1-world-model", "role": "wm", "samples": {"world_model": 7}},
        {"stage": "round-1-policy", "role": "agent", "samples": {"keep_draft": 5, "anchor": 5}},
    ]
    stages = [
        evaluation(0, 0.25, 40.0),
        {"stage": "round-1-rollouts", "seconds": 36.0, "steps": 8, "gates": gates},
        *({**stage, "seconds": 72.0} for stage in learned),
        evaluation(1, 0.5, 60.0),
    ]
    training(end_job(paths, job), stages, gpus)
    return measured(job_plan, name, paths)


def test_a_table_has_the_last_round_and_a_figure_every_one(tmp_path):
    (row,) = rows_of("comap-t2", tmp_path)
    assert (row.method, row.env, row.metric, row.value) == ("CoMap", AW, "delta_f1", 60.0)
    assert row.low == pytest.approx(60 - 1.96 * 2, abs=0.01) and row.n == 50 and row.x is None
    assert row.cost == {"cpu_seconds": 3.5} and row.seconds == 4.0
    assert row.code_version == "0.1.0+abc" and row.hardware == "chip, 2 cores, card"
    rows = [row for row in rows_of("comap-f4", tmp_path / "2") if row.split is None]
    curve, ends = (
        [row for row in rows if (row.method == "CoMap") == is_curve] for is_curve in (1, 0)
    )
    assert {(row.metric, row.x, row.value) for row in curve} == {
        *(("success_rate", 0.0, 25.0), ("success_rate", 1.0, 50.0)),
        *(("delta_f1", 0.0, 40.0), ("delta_f1", 1.0, 60.0)),
    }
    assert {(row.method, row.metric, row.x, row.value) for row in ends} == {
        ("policy: co-evolving", "success_rate", None, 50.0),
        ("world model: co-evolving", "delta_f1", None, 60.0),
    }


def test_a_column_of_a_group_does_not_judge_other_methods(tmp_path):
    rows = rows_of("comap-f3", tmp_path)
    assert {row.metric for row in rows} == {"success_rate", "delta_f1"}  # CoMap has no group
    figure = experiment("comap-f3")
    assert figure.column("w/o WMSD", "delta_f1", AW, None) is not None
    assert figure.column("w/o WMSD", "success_rate", AW, None) is None
    assert figure.column("w/o Action Gate", "delta_f1", AW, None) is None


REVISIONS = {("revisions.drafts_succeed", 4.0, None), ("revisions.revised", 0.0, None)}
SAMPLES = {  # of the warm-up that it began with, and of its rounds
    *(("samples.policy.keep", 5.0, None), ("samples.wm.self-distillation", 7.0, None)),
    *(("samples.policy.warm-up", 9.0, None), ("samples.wm.warm-up", 8.0, None)),
}


@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("comap-f5", "", {("adoption.0.4", 75.0, 8), ("adoption.0.6", 50.0, 8)}),
        ("comap-t3", "ALFWorld", {("urr", 0.5, 4), ("hrr", 0.25, 4), *REVISIONS}),
        ("comap-f7", "", SAMPLES),
    ],
)
def test_diagnostics_samples_and_costs(name, method, expected, tmp_path):
    """A rate of nothing is left out."""
    rows = [row for row in rows_of(name, tmp_path) if method in ("", row.method)]
    measures = {(row.metric, row.value, row.n) for row in rows}
    assert expected <= measures and (name == "comap-f7" or measures == expected)


def test_costs_are_of_phases_and_modules_without_evaluations(tmp_path):
    hours = {
        **{"Warm-up: world model": 0.2, "Warm-up: agent policy": 0.12, "Warm-up: subtotal": 0.32},
        **{"Co-evolving: world model": 0.02, "Co-evolving: agent policy": 0.03},
        **{"Co-evolving: subtotal": 0.05, "Total": 0.37},
    }
    for gpus in ([], ["A100"] * 4):
        rows = rows_of("comap-t6", tmp_path / str(len(gpus)), gpus)
        costs = {(row.method, row.metric): row.value for row in rows}
        expected = {(name, "wall_clock"): value for name, value in hours.items()}
        expected |= {(name, "gpu_hours"): 4 * value for name, value in hours.items() if gpus}
        assert costs == pytest.approx(expected)


def test_a_point_is_placed_by_parameters_or_by_its_method(tmp_path):
    assert {(row.method, row.x) for row in rows_of("comap-f8", tmp_path)} == {
        ("CoMap, world model", 300_000.0)
    }
    job_plan, paths = planned("paw-f6"), Paths(tmp_path / "2")
    paw_training(end_job(paths, job_named(job_plan, "grpo+paw-alpha-0.25")), {"a": 1, "b": 0}, 0.7)
    assert {(r.metric, r.x, r.value) for r in measured(job_plan, "paw-f6", paths)} == {
        ("success_rate", 0.25, 50.0),
        ("score", 0.25, 70.0),
    }


def paw_training(folder, wins, score):
    config = {"config": {"algorithm": "grpo"}}
    write(folder / "run.json", {"format": "comap training 2", "described": config, "sessions": []})
    line = {
        "update": 4,
        "split": "test",
        "n": len(wins),
        "success": 0.5,
        "won": wins,
        "score": score,
    }
    write(folder / "evaluations.jsonl", line)
    lines = [
        {"update": 1, "success": 0.1, "return": 1.0, "peak_memory": 2**31, "mean_memory": 2**30},
        {"update": 2, "success": 0.1, "return": 1.0, "peak_memory": 2**30, "mean_memory": 2**29},
    ]
    names = ("rollout", "old_logps", "advantages", "update")
    for line in lines:
        line |= {f"seconds_{name}": i * line["update"] for i, name in enumerate(names, 1)}
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)


def test_a_step_of_training_has_its_rollouts_and_memory(tmp_path):
    job_plan, paths = planned("paw-f5"), Paths(tmp_path)
    paw_training(end_job(paths, job_named(job_plan, "grpo-alfworld")), {"a": 1}, 0.7)
    rows = {row.metric: (row.value, row.unit) for row in measured(job_plan, "paw-f5", paths)}
    assert rows == {
        **{"seconds.rollout": (1.5, "s"), "seconds.old_logps": (3.0, "s")},
        **{"seconds.advantages": (4.5, "s"), "seconds.update": (6.0, "s")},
        **{"seconds.step": (15.0, "s"), "peak_memory": (2.0, "GiB"), "mean_memory": (0.75, "GiB")},
    }


def test_search_is_shown_by_data_set(tmp_path):
    job_plan, paths = planned("paw-t2", "paper"), Paths(tmp_path)
    wins = {"nq/test_1": 1, "nq/test_2": 0, "musique/2hop": 1, "popqa/1": 0}
    paw_training(end_job(paths, job_named(job_plan, "grpo+paw-searchqa")), wins, 0.5)
    rows = measured(job_plan, "paw-t2", paths)
    assert {row.metric for row in rows} == {"exact_match"}
    assert {(row.split, row.value, row.n) for row in rows} == {
        *(("nq", 50.0, 2), ("musique", 100.0, 1), ("popqa", 0.0, 1), ("test", 50.0, 4))
    }


def test_success_on_tools_is_the_judges(tmp_path):
    job_plan, paths = planned("comap-t1", "paper"), Paths(tmp_path)
    job = job_named(job_plan, "play-react-stabletoolbench-Qwen3-4B")
    folder = end_job(paths, job)
    summary = {"n": 10, "success": {"value": 0.0}, "score": 0.0}
    summary |= {"steps": {"all": 10}, "invalid_actions": 0.5}
    episode = Trajectory("comap/StableToolBench-v0", "1", "", "", "react", "", State())
    for i, split in enumerate(job.setup.splits):
        write(folder / split / "summary.json", summary)
        write_trajectories(folder / split / "trajectories.jsonl", [episode] * 10)
        sopr = {"mean": 0.35 if i else 0.5, "low": 0.2, "high": 0.6, "n": 30 if i else 10}
        write(folder / f"{split}-judged.json", {"sopr": sopr})
    rows = measured(job_plan, "comap-t1", paths)
    assert [row.value for row in rows] == [50.0] + [35.0] * 5
    assert cell(rows).value == pytest.approx((10 * 50 + 150 * 35) / 160)  # by queries
    write(folder / "G1_tool-judged.json", {"sopr": None})
    all_rows = collect(job_plan, [experiment("comap-t1")], paths)
    (row,) = (row for row in all_rows if row.job == job.id)
    assert "expected SoPR with its interval" in str(row.error)


def test_replies_and_tokens_of_play_are_measured(tmp_path):
    plan, paths = planned("lab-sft-real", "lab-real"), Paths(tmp_path)
    job = job_named(plan, "real-play-sft")
    folder = end_job(paths, job) / "valid_unseen"
    summary = {"n": 1, "success": {"value": 0.0}, "score": 0.0, "steps": {"all": 8}}
    summary |= {"invalid_actions": 0.25, "unread_replies": {"without_action": {"all": 2, "of": 8}}}
    tokens = {"prompt_tokens": 120.5, "completion_tokens": 9.0}
    summary["language_model"] = {"per_step": {"calls": 1.0, **tokens}}
    write(folder / "summary.json", summary)
    episode = Trajectory(AW, "1", "", "", "react", "", State())
    write_trajectories(folder / "trajectories.jsonl", [episode])

    values = {row.metric: row.value for row in measured(plan, "lab-sft-real", paths)}
    assert values["unreadable"] == values["refused"] == 25.0
    assert (values["tokens_read"], values["tokens_written"]) == (120.5, 9.0)


def test_what_is_not_there_says_why(tmp_path):
    job_plan, paths = planned("comap-t2"), Paths(tmp_path)
    rows = collect(job_plan, [experiment("comap-t2")], paths)
    assert {row.error for row in rows} == {"not run yet"} and {row.value for row in rows} == {None}
    end_job(paths, job_named(job_plan, "wm-sft-alfworld"))  # whose folder is empty
    rows = collect(job_plan, [experiment("comap-t2")], paths)
    (row,) = [row for row in rows if row.method == "SFT" and row.env == AW]
    assert str(row.error).startswith("failed: expected a training")


@pytest.mark.parametrize("content", ["{", "[]", '{"n": "x"}', '{"n": 2, "success": 3}'])
def test_results_that_are_not_understood_fail_their_cell_alone(tmp_path, content):
    job_plan, paths = planned("comap-t1"), Paths(tmp_path)
    job = job_named(job_plan, "play-react-alfworld")
    folder = end_job(paths, job) / "valid_seen"
    folder.mkdir()
    (folder / "summary.json").write_text(content)
    rows = collect(job_plan, [experiment("comap-t1")], paths)
    assert any(row.job == job.id and str(row.error).startswith("failed") for row in rows)


@pytest.mark.parametrize("episodes", [None, "4", [], float("nan")])
def test_a_damaged_number_of_a_training_fails_its_cell_and_is_named(tmp_path, episodes):
    job_plan, paths = planned("comap-t2"), Paths(tmp_path)
    job = job_named(job_plan, "comap-alfworld")
    training(paths.of(job.needs["sft"]), [])
    stage = evaluation(0, 0.25, 40.0)
    stage["splits"]["valid_seen"]["episodes"] = episodes
    training(end_job(paths, job), [stage])
    rows = collect(job_plan, [experiment("comap-t2")], paths)
    (row,) = (row for row in rows if row.job == job.id)
    assert str(row.error).startswith("failed: expected the episodes of valid_seen")


@pytest.mark.parametrize("won", [None, {"a": 1, "b": "x"}])
def test_damaged_outcomes_of_tasks_are_no_rate(tmp_path, won):
    line = {"update": 4, "split": "test", "n": 2, "tasks": 2, "success": 0.5, "won": won}
    (tmp_path / "metrics.jsonl").write_text('{"update": 4}\n')
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(DataCorrupt, match="tasks of test"):
        measures_of(job_named(planned("paw-t1"), "grpo"), tmp_path)


def test_facts_need_no_run():
    settings = measures_of(next(iter(planned("comap-t5").jobs.values())), Path("nowhere"))
    texts = {measure.method: measure.text for measure in settings}
    assert set(texts) == {method.name for method in experiment("comap-t5").methods}
    assert texts["Agent policy: reflection-confidence threshold"] == "0.6"
    assert texts["World model: EMA momentum μ"] == "0.99"
    sizes = measures_of(job_named(planned("comap-t4"), "statistics-alfworld"), Path("nowhere"))
    assert {measure.metric for measure in sizes} == {"tasks.train", "tasks.seen", "tasks.unseen"}
    assert all(measure.value and measure.value > 0 for measure in sizes)


def test_rows_come_back_from_their_file(tmp_path):
    fields = {"experiment": "x", "metric": "m"}
    rows = [
        ResultRow(**fields, method="\u202e<b>", value=1.5, cost={"cpu_seconds": 1}),
        ResultRow(**fields, method="y", error="failed: \ud800"),
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    assert list(read_rows(tmp_path / "rows.jsonl")) == rows
    with pytest.raises(DataNotFound, match="comap bench run"):
        list(read_rows(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    "damage", ['"metric":3', '"a":1', '"value":NaN', '"value":true', '"x":"y"']
)
def test_a_line_that_is_no_row_is_named(tmp_path, damage):
    path = tmp_path / "rows.jsonl"
    for line in ("{", "3", '{"experiment":"x"}', f'{{"experiment":"x","method":"y",{damage}}}'):
        path.write_text(line + "\n")
        with pytest.raises(DataCorrupt, match="line 1"):
            list(read_rows(path))


def test_rows_say_that_tasks_were_generated_and_that_an_oracle_was_asked(tmp_path):
    job_plan, paths = planned("comap-t1"), Paths(tmp_path)
    name, job = next((n, j) for n, j in job_plan.jobs.items() if j.recipe.kind == "play")
    folder = end_job(paths, job)
    episode = Trajectory(AW, "1", "", "", "react", "", State())

    def rows(generated, world_models):
        for split in job.setup.splits:
            played = {"number": 4, "generated": generated, "sha256": ""}
            write(folder / split / "run.json", {"environment": {"split": split}, "tasks": played})
            summary = {"n": 4, "success": {"value": 0.5}, "score": 0.5, "steps": {"all": 9}}
            summary |= {"invalid_actions": 0.0, "world_models": world_models}
            write(folder / split / "summary.json", summary)
            write_trajectories(folder / split / "trajectories.jsonl", [episode] * 4)
        return [row for row in measured(job_plan, "comap-t1", paths) if row.job == name]

    oracle = f"the oracle, {NOT_TO_REPORT}"
    (row, *_) = rows(4, {"oracle": oracle, "retrieval": "retrieval"})
    assert (row.tasks, row.caution) == ("generated tasks", oracle)
    (row, *_) = rows(1, {"retrieval": "retrieval"})
    assert (row.tasks, row.caution) == ("partly generated tasks", None)
    (row, *_) = rows(0, {})
    assert (row.tasks, row.caution) == (None, None)


def test_rows_of_a_training_say_that_its_tasks_were_generated(tmp_path):
    job_plan, paths = planned("comap-t2"), Paths(tmp_path)
    job = job_named(job_plan, "comap-alfworld")
    training(paths.of(job.needs["sft"]), [])
    training(end_job(paths, job), [evaluation(0, 0.25, 40.0)])
    run = json.loads((paths.of(job.id) / "run.json").read_text())
    run["described"]["env"]["tasks"] = {"train": "9 generated tasks", "dev": "2 generated tasks"}
    write(paths.of(job.id) / "run.json", run)
    (row,) = measured(job_plan, "comap-t2", paths)
    assert row.tasks == "generated tasks"
