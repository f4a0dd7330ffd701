"""The report of a training, and what is shown meanwhile: right numbers, each with its n, and only text."""

from __future__ import annotations

import io
import json
import math
import re

import pytest

from comap.benchmarks.display import TrainingDisplay, training_progress
from comap.benchmarks.training_record import flat_metrics, read_training
from comap.benchmarks.training_report import (
    cost_table,
    fault_table,
    gate_table,
    plots_of,
    prediction_table,
    results_table,
    revision_table,
    sample_table,
    settings_tables,
    write_report,
)
from comap.errors import DataCorrupt, DataNotFound
from comap.trainers.baselines.config import BASELINES
from comap.trainers.comap.config import CoMapTraining
from comap.trainers.paw.config import PaWTraining, WorldModelLoss
from comap.trainers.run_folder import FORMAT, RunFolder
from comap.worldmodel.naming import NOT_TO_REPORT
from kits.episode_pages import Page

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

HOSTILE = "</td><script>alert(1)</script>\x1b[2J\u202e{{ 7*7 }}"


def split(success, n):
    return {"episodes": n, "success": success, "success_low": 0.1, "success_high": 0.9}


def scored(value):
    group = {"n": 40, "delta_f1": value, "stderr": 2.0, "exact_text": 12.5}
    return {
        "transitions": 42,
        "n": 40,
        "dropped": 2,
        "parse_failure_rate": 0.05,
        "all": group,
        "nonempty": {**group, "n": 30},
        "predictable": {**group, "n": 25},
        "unpredictable": {"n": 0, "delta_f1": None, "stderr": None},
        "change_token_nll": {"nll": 1.5, "tokens": 120, "transitions": 30, "failed": 1},
    }


def evaluation(number, success):
    return {
        "round": number,
        "splits": {"valid_seen": split(success, 16)},
        "world_model": {"frozen": scored(50.0 + 10 * number), "on_policy": scored(99.5)},
        "revisions": {
            **{"n": 8, "failed": 1, "revised": 4, "drafts_succeed": 5},
            **{"urr": 0.4, "hrr": 0.2, "brp": 0.25},
        },
    }


ROLLOUTS = {
    "episodes": 16,
    "success": 0.5,
    "gates": {
        "steps": 90,
        "paths": {"reflected": 80},
        "agreement": {"n": 80, "mean": 0.7, "histogram": [8] * 10},
        "adoption": {"0.4": 0.9, "0.6": 0.75, "0.8": 0.25, "run": 0.75},
        "opened": 0.1,
        "changed": 0.2,
        "unparsed": {"drafts": 0.1, "reflections": 0.0, "students": 0.0, "teachers": 0.0},
        "invalid_actions": 0.3,
    },
}


def learned(role, updates, samples, **lines):
    rows = zip(*lines.values(), strict=True)
    log = [dict(zip(lines, row, strict=True)) for row in rows]
    summary = {"role": role, "updates": updates, "rows": 9, "tokens": 1234, "log": log}
    return {**summary, "samples": samples}


STAGES = [
    ("warmup-world-model", learned("wm", 4, {"warmup": 7}, step=[2, 4], loss=[6.0, 5.0])),
    ("round-0-evaluation", evaluation(0, 0.25)),
    ("round-1-rollouts", ROLLOUTS),
    (
        "round-1-world-model",
        learned("wm", 3, {"world_model": 5, "reading": 2}, step=[2], nll=[3.0], loss=[9.0]),
    ),
    (
        "round-1-policy",
        learned("agent", 2, {"anchor": 6, "keep_draft": 4, "hq_reflect": 1}, step=[2], bce=[0.7]),
    ),
    ("round-1-evaluation", evaluation(1, 0.5)),
    ("round-2-rollouts", None),
]


UPDATES = [
    {
        "update": 1,
        **{"success": 0.25, "return": 2.5, "invalid": 0.5, "rows": 40, "steps": 12.5},
        **{"policy_loss": -0.5, "clip_fraction": 0.25, "kl": 0.0, "entropy": 1.5},
        **{"wm_loss": 0.75, "wm_lambda": 0.75, "wm_clipped_ratio": 0.1, "wm_probability": 0.2},
        **{"entropy_correlation": 0.5, "entropy_overlap": None, "wm_rows": 30},
        **{"seconds_rollout": 6.0, "seconds_old_logps": 1.0, "seconds_advantages": 0.0},
        **{"seconds_update": 3.0, "peak_memory": 2**30, "ratio": 1.0, "grad_norm": None},
    },
    {"update": 2, "success": 0.75, "return": 7.5, "wm_loss": 0.5, "wm_lambda": 0.25},
    {"update": 3, "success": 0.5, "seconds_rollout": 4.0, "seconds_update": 1.0, "ratio": 1.5},
]
EVALUATIONS = [
    {"update": 0, "split": "valid_seen", "n": 10, "success": 0.2, "score": 0.25},
    {"update": 0, "split": HOSTILE, "n": 4, "success": 0.5, "score": None},
    {"update": 2, "split": "valid_seen", "n": 10, "success": 0.8, "score": 0.875},
    {"update": 3, "split": "valid_seen", "n": 10, "success": 0.6, "score": 0.625},
]


def write_lines(path, lines, cut=""):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)


@pytest.fixture
def comap(tmp_path):
    described = {
        "config": CoMapTraining(wmsd=False, tau_wm=0.6).describe(),
        "preset": "paper",
        "env": {"id": HOSTILE},
        "model": {"name": "Qwen/Qwen3-4B"},
    }
    session = {"versions": {"comap": "0.1.0"}, "hardware": {"processes": 2, "gpus": ["H", "H"]}}
    place = tmp_path / "comap"
    with RunFolder(place).open(described, session) as run:
        for number, (name, result) in enumerate(STAGES):
            stage = run.stage(number, name)
            if name == "round-1-rollouts":
                _write_episodes(stage.path)
            if result is not None:
                stage.finish(result, 1800.0)
    return place


def _write_episodes(stage):
    usage = {"all": {"calls": 10, "prompt_tokens": 100, "completion_tokens": 7}}
    for rank in (0, 1):
        place = stage / "episodes" / f"rank-{rank}-of-2"
        place.mkdir(parents=True)
        summary = {"n": 8, "language_model": usage, "world_model": usage, "errors": {"KeyError": 1}}
        summary["first_errors"] = {"KeyError": HOSTILE}
        (place / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def paw(tmp_path):
    place = tmp_path / "paw"
    place.mkdir()
    repeated = [UPDATES[0], {**UPDATES[1], "success": 0.99}, *UPDATES[1:]]  # killed after update 2
    write_lines(place / "metrics.jsonl", repeated, cut='{"update": 4, "succ')
    write_lines(place / "evaluations.jsonl", EVALUATIONS)
    fault = {"update": 1, "episode": 3, "task": "t", "error": "EngineError: it broke"}
    write_lines(place / "faults.jsonl", [fault])
    described = {
        "method": "paw",
        "config": PaWTraining(loss=WorldModelLoss(adaptive=False), seed=7).describe(),
        **{"preset": "alfworld", "row": "w/o Ada. Coef."},
        **{"env": {"id": HOSTILE}, "model": {"name": "Qwen/Qwen2.5-1.5B-Instruct"}},
    }
    session = {"started": "2026-01-01T00:00:00Z", "versions": {"comap": "0.1.0"}}
    run = {"format": FORMAT, "described": described, "sessions": [session]}
    (place / "run.json").write_text(json.dumps(run))
    return place


BOTH = pytest.mark.parametrize("name", ["comap", "paw"])


@pytest.fixture
def folder(name, request):
    return request.getfixturevalue(name)


def test_results_have_their_numbers_and_n(comap):
    training = read_training(comap)
    table = results_table(training)
    heads = [f"Delta-F1 of changes, {label}" for label in ("frozen", "on-policy")]
    assert table.columns == ("round", "success, valid_seen", *heads, "predictions adopted")
    assert table.rows == (
        (0, "25.0 % [10.0, 90.0] (n=16)", "50.0 ± 2.0 (n=30)", "99.5 ± 2.0 (n=30)", "—"),
        (
            1,
            "50.0 % [10.0, 90.0] (n=16)",
            "60.0 ± 2.0 (n=30)",
            "99.5 ± 2.0 (n=30)",
            "75.0 % (n=80)",
        ),
    )
    first = prediction_table(training).rows[0]
    assert first[:4] == (0, "frozen transitions", "50.0 ± 2.0 (n=30)", "50.0 ± 2.0 (n=40)")
    assert first[4:] == ("50.0 ± 2.0 (n=25)", "—", "12.5 (n=40)", "5.0 % (n=40)", "1.500 (n=120)")
    expected_row = (0, 8, 1, "40.0 % (n=5)", "20.0 % (n=5)", "25.0 % (n=4)")
    assert revision_table(training).rows[0] == expected_row
    gates = gate_table(training).rows
    assert len(gates) == 1 and gates[0][:4] == ("round-1-rollouts", 90, 80, "10.0 % (n=80)")
    samples = sample_table(training).rows
    assert ("policy", "round-1-policy", "keep draft", 4) in samples and len(samples) == 6
    assert ("world model", "warmup-world-model", "warmup", 7) in samples


def test_evaluations_on_generated_tasks_are_called_so(tmp_path):
    def table(name, *kinds):
        results = [
            {"success": 0.5, "episodes": 4, "score": 0.5, "tasks": 4, "generated_tasks": generated}
            for generated in kinds
        ]
        with RunFolder(tmp_path / name).open({"config": {}}, {}) as run:
            stage = run.stage(1, "evaluation")
            splits = {f"split-{number}": result for number, result in enumerate(results)}
            stage.finish({"splits": splits}, 1.0)
        training = read_training(tmp_path / name)
        (plot,) = [
            candidate for candidate in plots_of(training)["Results"] if "Success" in candidate.title
        ]
        return results_table(training), [series.name for series in plot.series]

    alike, names = table("alike", 4, 4)
    assert alike.title == "Evaluations on generated tasks"
    assert alike.columns[1] == "success, split-0" and "generated tasks" in names[0]
    mixed, names = table("mixed", 4, 0, 1)
    assert mixed.title == "Evaluations" and mixed.columns[1] == "success, split-0, generated tasks"
    assert mixed.columns[3] == "success, split-1" and "partly generated" in mixed.columns[5]
    official, names = table("official", 0)
    assert "generated" not in str((official, names))


def test_updates_of_before_tell_generated_tasks_by_their_ids(tmp_path):
    line = {"update": 1, "split": "s", "n": 2, "success": 0.5, "score": 0.5}
    write_lines(
        tmp_path / "evaluations.jsonl", [{**line, "won": {"generated/a": 1, "generated/b": 0}}]
    )
    write_lines(tmp_path / "metrics.jsonl", [{"update": 1}])
    assert results_table(read_training(tmp_path)).title == "Evaluations on generated tasks"


def test_a_report_begins_with_the_tasks_and_the_world_models_that_were_asked(tmp_path):
    described = {"config": {}, "env": {"id": "e", "tasks": {"train": "9 generated tasks"}}}
    result = {"success": 0.5, "episodes": 4, "score": 0.5, "world_models": ["oracle"]}
    with RunFolder(tmp_path).open(described, {}) as run:
        run.stage(1, "evaluation").finish({"splits": {"dev": result}}, 1.0)
    markup = write_report(tmp_path).read_text("utf-8")
    assert "train: 9 generated tasks" in markup and f"the oracle, {NOT_TO_REPORT}" in markup


def test_curves_have_their_points_and_n(comap):
    training = read_training(comap)
    plots = {plot.title: plot for plot in plots_of(training)["Results"]}
    (success,) = plots["Success of evaluations, with 95 % intervals"].series
    assert success.name == "valid_seen (n=16)" and success.y == (25.0, 50.0)
    assert success.low == (10.0, 10.0) and success.high == (90.0, 90.0)
    changed, overall, predictable = plots["Delta-F1: frozen transitions"].series
    assert (
        overall.name == "all (n=40)"
        and overall.y == (50.0, 60.0)
        and changed.name.endswith("n=30)")
    )
    assert overall.low is not None and overall.low[0] == pytest.approx(50 - 1.959964 * 2)
    assert predictable.name == "predictable (n=25)"  # no line for what there is nothing of
    own_transitions = plots["Delta-F1: the agent's own transitions"].series[0]
    assert own_transitions.high == (100.0, 100.0)
    (gates,) = plots_of(training)["Gates"]
    assert [(series.name, series.y) for series in gates.series] == [
        ("τ = 0.4 (n=80)", (90.0,)),
        ("τ = 0.6 (n=80)", (75.0,)),
        ("τ = 0.8 (n=80)", (25.0,)),
        ("this training's τ (n=80)", (75.0,)),
    ]
    losses = {plot.title: plot.series for plot in plots_of(training)["Losses"]}
    warm, later = losses["World model: negative log-likelihood"]
    assert (warm.x, warm.y, later.x, later.y) == ((2, 4), (6.0, 5.0), (6,), (3.0,))
    assert losses["Policy: refinement probability (cross-entropy)"][0].y == (0.7,)


def test_cost_and_faults_are_told(comap):
    training = read_training(comap)
    phases = cost_table(training)
    shares = ("3,600.0", "33.3 %", "2.000")  # 2 x 1800 s on 2 GPUs
    assert ("evaluation", "evaluation", *shares) in phases.rows
    assert phases.rows[-1] == ("all", "", "10,800.0", "100.0 %", "6.000")
    faults = [row[:4] for row in fault_table(training).rows]
    assert ("round-1-rollouts", "episodes that failed", 2, 16) in faults
    assert ("round-0-evaluation", "decisions whose branches failed", 1, 9) in faults
    assert ("round-1-evaluation", "frozen transitions that could not be scored", 1, 42) in faults
    settings = settings_tables(training)[0].rows
    assert ("wmsd", "false", "true") in settings and ("distillation / eta", "0.5", "") in settings


def test_failed_states_are_counted_among_states(tmp_path):
    """Six of nine states have a label. Four have two branches each, the others none."""
    labeling = {"branches": 8, "labels": 6, "counts": {"unparsed": 2, "failed": 1}}
    with RunFolder(tmp_path).open({"config": {}}, {}) as run:
        run.stage(1, "reflection-labels").finish(labeling, 1.0)
    (fault,) = fault_table(read_training(tmp_path)).rows
    assert fault[1:4] == ("states whose branches failed", 1, 9)


def test_tables_of_a_paw_training(paw):
    record = read_training(paw)
    table = results_table(record)
    heads = ("update", "success, valid_seen", "score, valid_seen", f"success, {HOSTILE}")
    assert table.columns == (*heads, "success, rollouts")
    assert table.rows == (
        (0, "20.0 % [5.7, 51.0] (n=10)", "0.250", "50.0 % [15.0, 85.0] (n=4)", "—"),
        (2, "80.0 % [49.0, 94.3] (n=10)", "0.875", "—", "75.0 %"),
        (3, "60.0 % [31.3, 83.2] (n=10)", "0.625", "—", "50.0 %"),
    )
    (fault,) = fault_table(record).rows
    assert fault == ("updates", "episodes that failed", 1, None, "EngineError: it broke")
    phases = {row[:2]: row[2:] for row in cost_table(record).rows}
    assert phases["update", "rollouts"] == ("10.0", "66.7 %", None)  # 6 and 4 of 15 seconds
    assert phases["update", "update"] == ("4.0", "26.7 %", None)
    assert phases["all", ""] == ("15.0", "100.0 %", None)
    settings = settings_tables(record)[0].rows
    assert ("loss / adaptive", "false", "true") in settings
    assert ("loss / alpha", "0.75", "") in settings


def test_plots_of_figures_10_and_11(paw):
    record = read_training(paw)
    points_by_plot = {
        plot.title: {series.name: (series.x, series.y) for series in plot.series}
        for plots in plots_of(record).values()
        for plot in plots
    }
    expected = {
        "Success of rollouts": ("success", ((1, 2, 3), (25.0, 75.0, 50.0))),
        "Reward of an episode": ("return", ((1, 2), (2.5, 7.5))),
        "Policy loss": ("policy loss", ((1,), (-0.5,))),
        "Clipped ratios": ("clipped", ((1,), (25.0,))),
        "Adaptive weight λ": ("λ", ((1, 2), (0.75, 0.25))),
        "Loss on observations": ("loss", ((1, 2), (0.75, 0.5))),
        "Tokens left out (p > ρ)": ("left out", ((1,), (10.0,))),
    }
    assert {title: points_by_plot[title][name] for title, (name, _) in expected.items()} == {
        title: points for title, (_, points) in expected.items()
    }
    phases = {"rollouts", "old log-probabilities", "advantages", "update"}
    assert set(points_by_plot["Time by phase"]) == phases
    assert points_by_plot["Memory"]["peak"] == ((1,), (1.0,))
    assert points_by_plot["ratio"] == {
        "ratio": ((1, 3), (1.0, 1.5))
    }  # a measure that is not known here
    assert "Norm of the gradient" not in points_by_plot and "Critic" not in points_by_plot
    success, scores = plots_of(record)["Results"]
    assert [series.name for series in success.series] == ["valid_seen (n=10)", f"{HOSTILE} (n=4)"]
    assert success.series[0].y == (20.0, 80.0, 60.0)
    assert success.series[0].low is not None
    assert success.series[0].low[1] == pytest.approx(49.0, abs=0.05)
    assert len(scores.series) == 1 and scores.series[0].y == (0.25, 0.875, 0.625)


@pytest.mark.parametrize("method", BASELINES)
def test_a_baseline_has_a_report(method, tmp_path):
    described = {"method": method, "config": BASELINES[method](seed=7).describe()}
    with RunFolder(tmp_path).open(described, {}) as run:
        splits = {"dev": split(0.5, 2), "test": {**split(0.25, 4), "score": 0.5}}
        run.stage(0, "policy").finish({**learned("agent", 2, {}), "cpu_seconds": 9.0}, 5.0)
        run.stage(1, "evaluation").finish({"splits": splits}, 1.0)
    training = read_training(tmp_path)
    table = results_table(training)
    assert table.columns == ("method", "success, dev", "success, test", "score, test")
    rates = ("50.0 % [10.0, 90.0] (n=2)", "25.0 % [10.0, 90.0] (n=4)")
    assert table.rows == ((method, *rates, "0.500"),)
    assert cost_table(training).rows[0][:3] == ("training", "policy", "5.0")
    assert ("seed", "7", "0") in settings_tables(training)[0].rows
    assert "50.0 % [10.0, 90.0] (n=2)" in write_report(tmp_path).read_text("utf-8")


def test_what_was_measured_once_is_a_table_and_no_plot(paw):
    lines = (paw / "metrics.jsonl").read_text().splitlines(keepends=True)
    (paw / "metrics.jsonl").write_text(lines[0])
    lines = (paw / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (paw / "evaluations.jsonl").write_text(lines[0])
    page = Page(write_report(paw).read_text("utf-8"))
    ((_, text),) = page.all("html")
    assert not page.all("img")
    assert "Measured once" in text and "Policy loss" in text and "update 1" in text
    assert "20.0 % [5.7, 51.0] (n=10)" in text  # an evaluation, with its interval


def test_the_title_names_the_method_and_short_names_are_spelled_out(comap, paw):
    for folder, method in ((comap, "CoMap"), (paw, "PaW")):
        ((_, title),) = Page(write_report(folder).read_text("utf-8")).all("h1")
        assert title.strip() == f"{method} training: {folder.name}"
    table = revision_table(read_training(comap))
    for word in ("unnecessary", "harmful", "beneficial"):
        assert any(word in head for head in table.columns) and word in table.note.lower()
    assert results_table(read_training(comap)).title != "Results", "as its section is called"


@BOTH
def test_the_page_is_whole_and_nothing_in_it_runs(folder, name):
    source = write_report(folder).read_text("utf-8")
    page = Page(source)
    page.check_safe()
    assert not page.all("script") and "default-src 'none'" in source
    assert "\x1b" not in source and "\u202e" not in source
    ((_, text),) = page.all("html")
    assert "alert(1)" in text and "{{ 7*7 }}" in text
    plots = len(page.all("figure")) - len(page.all("table"))
    assert len(page.all("img")) == plots >= 5
    expected_texts = {
        "comap": ("w/o WMSD", "25.0 % [10.0, 90.0] (n=16)", "6 done, 1 begun", "Qwen/Qwen3-4B"),
        "paw": ("w/o Ada. Coef.", "80.0 % [49.0, 94.3] (n=10)", "Qwen/Qwen2.5-1.5B-Instruct"),
    }
    for expected_text in expected_texts[name]:
        assert expected_text in text, expected_text
    assert str(folder.parent) not in source
    assert write_report(folder).read_text("utf-8") == source


def test_metrics_of_stages_are_flat_lines(comap):
    write_report(comap)
    lines = [json.loads(line) for line in (comap / "metrics.jsonl").read_text("ascii").splitlines()]
    assert [line["stage"] for line in lines] == [name for name, result in STAGES if result]
    assert lines[1]["splits/valid_seen/success"] == 0.25
    assert lines[2]["gates/adoption/0.8"] == 0.25 and lines[2]["number"] == 2
    assert lines[4]["samples/keep_draft"] == 4
    for line in lines:
        assert not any(isinstance(value, list | dict) for value in line.values())
    assert lines == flat_metrics(read_training(comap))


def test_a_training_that_has_just_begun_has_a_report(paw):
    for name in ("metrics.jsonl", "evaluations.jsonl", "faults.jsonl"):
        (paw / name).unlink()
    assert "No fault is on record." in write_report(paw).read_text("utf-8")
    assert read_training(paw).updates == () and results_table(read_training(paw)).rows == ()
    (paw / "run.json").unlink()
    write_lines(paw / "metrics.jsonl", UPDATES[:1])  # without a description
    assert "unknown" in write_report(paw).read_text("utf-8")


@pytest.mark.parametrize("value", [None, "x", [], math.nan, True, -1e300])
def test_strange_results_are_no_fault_of_the_report(comap, paw, value):
    for file in sorted(comap.glob("stages/*/done.json")):
        record = json.loads(file.read_bytes())
        stage_fields = {"stage": record["stage"], "role": record.get("role")}
        file.write_text(json.dumps({**dict.fromkeys(record, value), **stage_fields}))
    for name, lines in (("metrics.jsonl", UPDATES), ("evaluations.jsonl", EVALUATIONS)):
        strange = [{**dict.fromkeys(line, value), "update": line["update"]} for line in lines]
        write_lines(paw / name, strange)
    run = {"format": FORMAT, "described": {"config": value}, "sessions": value}
    (paw / "run.json").write_text(json.dumps(run))
    assert write_report(comap).is_file() and write_report(paw).is_file()


def test_what_is_no_training_is_refused(comap, paw, tmp_path):
    with pytest.raises(DataNotFound, match=r"found no run\.json"):
        read_training(tmp_path / "nothing")
    for name, text in (
        ("metrics.jsonl", '{"loss": 1}\n{"update": 2}\n'),
        ("metrics.jsonl", 'no JSON\n{"update": 2}\n'),
        ("run.json", "{"),
        ("run.json", "[]"),
        ("run.json", json.dumps({"format": FORMAT, "sessions": []})),
    ):
        before = (paw / name).read_text()
        (paw / name).write_text(text)
        with pytest.raises(DataCorrupt, match=name.replace(".", r"\.")):
            read_training(paw)
        (paw / name).write_text(before)
    done_file = comap / "stages" / "00-warmup-world-model" / "done.json"
    done_file.write_text(json.dumps({"stage": "other"}))
    with pytest.raises(DataCorrupt, match="remove that file"):
        read_training(comap)


STAGE_EVENTS = [
    {"event": "demonstration", "done": 1, "of": 2, "won": 1},
    {"event": "known", "stage": "warmup-policy", "number": 1, "of": 3},
    {"event": "stage", "stage": "round-1-rollouts", "number": 2, "of": 3},
    *({"event": "episode", "done": n, "of": 50, "won": n // 2} for n in range(1, 51)),
    {"event": "done", "stage": "round-1-rollouts", "result": {**ROLLOUTS, "seconds": 2}},
    {"event": "stage", "stage": "round-1-policy", "number": 3, "of": 3},
    {"event": "suffix", "done": 3, "of": 9},
    {"event": "update", "stage": "round-1-policy", "loss": 1.25, "step": 1, "steps": 2},
    {"event": "done", "stage": "round-1-policy", "result": STAGES[4][1]},
]


UPDATE_EVENTS = [
    {"event": "demonstration", "done": 2, "of": 2, "won": 1},
    *({"event": "warmup", "done": n, "of": 40, "loss": 2.0} for n in range(1, 41)),
    {"event": "evaluation", "update": 0, "split": "valid_seen"},
    {"event": "evaluated", **EVALUATIONS[0]},
    *({"event": "episode", "update": 1, "done": n, "of": 50, "won": 5} for n in range(1, 51)),
    {"event": "update", "of": 2, **UPDATES[0]},
    {"event": "episode", "update": 2, "done": 1, "of": 50, "won": 0},
    {"event": "update", "of": 2, "update": 2},
]


@pytest.fixture
def lines(capsys, monkeypatch):
    """Return what is shown of events without a terminal; each look at the clock is 11 s later."""
    clock = iter(range(0, 100_000, 11))
    monkeypatch.setattr("comap.benchmarks.display.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("comap.benchmarks.display._BEAT", 1e6)  # a test is not silent for long

    def shown_of(events):
        with training_progress() as training_display:
            for event in events:
                print("{'loss': 1.0}")
                training_display.show(event)
        printed = capsys.readouterr().out.splitlines()
        assert not [line for line in printed if "{" in line]
        return printed

    return shown_of


def test_lines_without_a_terminal(lines):
    printed = lines(STAGE_EVENTS)
    assert printed[:3] == [
        "demonstrations: 1 of 2 1 succeeded",
        "[1/3] warmup-policy: done before",
        "[2/3] round-1-rollouts: 5 of 50 episodes, success 40.0 %",
    ]
    assert len([line for line in printed if " of 50 " in line]) == 9
    assert "[2/3] round-1-rollouts: 50.0 % of 16 episodes succeeded, 2.0 s" in printed
    assert printed[-2:] == [
        "[3/3] round-1-policy: 1 of 2 updates, loss 1.250",
        "[3/3] round-1-policy: 2 updates of agent",
    ]
    printed = lines(UPDATE_EVENTS)
    assert printed[0] == "warm-up: 4 of 40 tokens, loss 2.000"
    evaluation_line = "evaluation after update 0: valid_seen 20.0 % [5.7, 51.0] (n=10), score 0.250"
    assert printed[9:11] == [evaluation_line, "update 1: 5 of 50 episodes, success 100.0 %"]
    assert printed[-2:] == [
        "update 1 of 2: success 25.0 %, return 2.500, loss -0.500, observation loss 0.750",
        "update 2 of 2",
    ]


def test_bars_on_a_terminal():
    progress = pytest.importorskip("rich.progress")
    console = pytest.importorskip("rich.console")
    screen = io.StringIO()
    terminal = console.Console(file=screen, force_terminal=True, width=100)
    training_display = TrainingDisplay(terminal)
    with progress.Progress(console=terminal) as training_display.bars:
        for event in STAGE_EVENTS:
            training_display.show(event)
        assert not training_display.bars.tasks  # each stage took its bar away
        for event in UPDATE_EVENTS[:-2]:
            training_display.show(event)
        (updates,) = training_display.bars.tasks
        assert (updates.completed, updates.total) == (1, 2)
        assert updates.description.startswith("success 25.0 %")
        training_display.show(UPDATE_EVENTS[-2])
        assert len(training_display.bars.tasks) == 2
        training_display.show(UPDATE_EVENTS[-1])
        assert len(training_display.bars.tasks) == 1 and updates.finished
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "[2/3] round-1-rollouts: 50.0 % of 16 episodes succeeded" in plain
    assert "evaluation after update 0: valid_seen 20.0 %" in plain


def test_only_the_first_process_shows_anything(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with training_progress() as training_display:
        for event in (*STAGE_EVENTS, *UPDATE_EVENTS):
            training_display.show(event)
    assert capsys.readouterr() == ("", "")
