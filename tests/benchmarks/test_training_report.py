"""The report of a training: right numbers, each with its n, and nothing but text."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.training_costs import cost_tables, fault_table, settings_tables
from comap.benchmarks.training_curves import counted, gate_plots, loss_plots, result_plots
from comap.benchmarks.training_display import TrainingShown, stage_line, training_progress
from comap.benchmarks.training_page import report_command
from comap.benchmarks.training_record import flat_metrics, read_training
from comap.benchmarks.training_report import METRICS, write_metrics, write_report
from comap.benchmarks.training_tables import (
    gate_table,
    prediction_table,
    results_table,
    revision_table,
    sample_table,
)
from comap.checksums import unseal
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, DataNotFound
from comap.trainers.config import CoMapTraining
from comap.trainers.run_folder import RunFolder

KIT = load(f"{Path(__file__).with_name('training_page_kit.py')}:KIT")
HOSTILE = KIT.HOSTILE


def split(success: float, n: int) -> dict[str, Any]:
    return {"episodes": n, "success": success, "success_low": 0.1, "success_high": 0.9}


def scored(value: float) -> dict[str, Any]:
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


def evaluation(number: int, success: float) -> dict[str, Any]:
    return {
        "round": number,
        "splits": {"valid_seen": split(success, 16)},
        "world_model": {"frozen": scored(50.0 + 10 * number), "on_policy": scored(99.5)},
        "revisions": {
            "n": 8,
            "failed": 1,
            "revised": 4,
            "drafts_succeed": 5,
            "urr": 0.4,
            "hrr": 0.2,
            "brp": 0.25,
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


def learned(role: str, updates: int, samples: dict[str, int], **lines: list[float]) -> Any:
    rows = zip(*lines.values(), strict=True)
    log = [dict(zip(lines, row, strict=True)) for row in rows]
    told = {"role": role, "updates": updates, "rows": 9, "tokens": 1234, "log": log}
    return {**told, "samples": samples}


STAGES: list[tuple[str, dict[str, Any] | None]] = [
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    described = {
        "config": CoMapTraining(wmsd=False, tau_wm=0.6).describe(),
        "preset": "paper",
        "env": {"id": HOSTILE},
        "model": {"name": "Qwen/Qwen3-4B"},
    }
    session = {"versions": {"comap": "0.1.0"}, "hardware": {"processes": 2, "gpus": ["H", "H"]}}
    place = tmp_path / "run"
    with RunFolder(place).open(described, session) as run:
        for number, (name, result) in enumerate(STAGES):
            stage = run.stage(number, name)
            if name == "round-1-rollouts":
                _write_episodes(stage.path)
            if result is not None:
                stage.finish(result, 1800.0)
    return place


def _write_episodes(stage: Path) -> None:
    asked = {"all": {"calls": 10, "prompt_tokens": 100, "completion_tokens": 7}}
    for rank in (0, 1):
        place = stage / "episodes" / f"rank-{rank}-of-2"
        place.mkdir(parents=True)
        told = {"n": 8, "language_model": asked, "world_model": asked, "errors": {"KeyError": 1}}
        told["first_errors"] = {"KeyError": HOSTILE}
        (place / "summary.json").write_text(json.dumps(told))


def test_results_have_their_numbers_and_n(folder: Path) -> None:
    training = read_training(folder)
    assert results_table(training).rows == (
        (0, "25.0 % [10.0, 90.0] (n=16)", "50.0 ± 2.0 (n=40)", "99.5 ± 2.0 (n=40)", "—"),
        (
            1,
            "50.0 % [10.0, 90.0] (n=16)",
            "60.0 ± 2.0 (n=40)",
            "99.5 ± 2.0 (n=40)",
            "75.0 % (n=80)",
        ),
    )
    first = prediction_table(training).rows[0]
    assert first[:4] == (0, "frozen", "50.0 ± 2.0 (n=40)", "50.0 ± 2.0 (n=30)")
    assert first[4:] == ("50.0 ± 2.0 (n=25)", "—", "12.5 (n=40)", "5.0 (n=40)", "1.500 (n=120)")
    told = (0, 8, 1, "40.0 % (n=5)", "20.0 % (n=5)", "25.0 % (n=4)")
    assert revision_table(training).rows[0] == told
    gates = gate_table(training).rows
    assert len(gates) == 1 and gates[0][:4] == ("round-1-rollouts", 90, 80, "10.0 % (n=80)")
    counts = {row[:2]: row[2] for row in sample_table(training).rows}
    assert counts["policy", "warm-up"] == 6 and counts["policy", "HQ"] == 1
    assert counts["world model", "warm-up"] == 7 and counts["world model", "self-distillation"] == 5


def test_curves_have_their_points_and_n(folder: Path) -> None:
    training = read_training(folder)
    plots = {plot.title: plot for plot in result_plots(training)}
    (success,) = plots["Success over rounds"].series
    assert success.name == "valid_seen (n=16)" and success.y == (25.0, 50.0)
    assert success.low == (10.0, 10.0) and success.high == (90.0, 90.0)
    every, changed, predictable = plots["Delta-F1 over rounds: frozen transitions"].series
    assert every.name == "all (n=40)" and every.y == (50.0, 60.0) and changed.name.endswith("n=30)")
    assert every.low is not None and every.low[0] == pytest.approx(50 - 1.959964 * 2)
    assert predictable.name == "predictable (n=25)"  # no line for what there is nothing of
    own = plots["Delta-F1 over rounds: the agent's own transitions"].series[0]
    assert own.high == (100.0, 100.0)
    (gates,) = gate_plots(training)
    assert [(one.name, one.y) for one in gates.series] == [
        ("τ = 0.4 (n=80)", (90.0,)),
        ("τ = 0.6 (n=80)", (75.0,)),
        ("τ = 0.8 (n=80)", (25.0,)),
    ]
    losses = {plot.title: plot.series for plot in loss_plots(training)}
    warm, later = losses["World model: negative log-likelihood"]
    assert (warm.x, warm.y, later.x, later.y) == ((2, 4), (6.0, 5.0), (6,), (3.0,))
    assert losses["Policy: refinement probability (cross-entropy)"][0].y == (0.7,)
    assert counted([None, 3.0, 9]) == "n=3–9"


def test_cost_and_faults_are_told(folder: Path) -> None:
    training = read_training(folder)
    phases, stages = cost_tables(training)
    assert ("evaluation", "evaluation", "3,600.0", "2.000") in phases.rows  # 2 x 1800 s on 2 GPUs
    assert phases.rows[-1] == ("all", "", "10,800.0", "6.000")
    rows = {row[0]: row[1:] for row in stages.rows}
    assert rows["round-1-rollouts"][:5] == ("1,800.0", "16", "40", "400", "28")
    assert rows["warmup-world-model"][-3:] == ("4", "9", "1,234")
    assert rows["round-2-rollouts"][0] == "not done"
    faults = [row[:4] for row in fault_table(training).rows]
    assert ("round-1-rollouts", "episodes that failed", 2, 16) in faults
    assert ("round-0-evaluation", "decisions whose branches failed", 1, 9) in faults
    assert ("round-1-evaluation", "frozen transitions that could not be scored", 1, 42) in faults
    settings = settings_tables(training)[0]
    assert ("wmsd", "false", "true") in settings.rows and ("eta", "0.5", "") in settings.rows


def test_the_page_is_whole_and_nothing_in_it_runs(folder: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    source = write_report(folder).read_text("utf-8")
    page = KIT.read_page(source)
    plots = page.tags.count("figure") - page.tags.count("table")
    assert page.tags.count("svg") == plots >= 8
    for said in ("w/o WMSD", "25.0 % [10.0, 90.0] (n=16)", "6 done, 1 begun", "Qwen/Qwen3-4B"):
        assert said in page.text, said
    assert (folder / METRICS).read_bytes() == write_metrics(folder).read_bytes()


def test_metrics_are_flat_lines(folder: Path) -> None:
    write_metrics(folder)
    lines = [json.loads(line) for line in (folder / METRICS).read_text("ascii").splitlines()]
    assert [line["stage"] for line in lines] == [name for name, result in STAGES if result]
    assert lines[1]["splits/valid_seen/success"] == 0.25
    assert lines[2]["gates/adoption/0.8"] == 0.25 and lines[2]["number"] == 2
    assert lines[4]["samples/keep_draft"] == 4
    for line in lines:
        assert not any(isinstance(value, list | dict) for value in line.values())
    assert lines == flat_metrics(read_training(folder))


@pytest.mark.parametrize("value", [None, "x", [], math.nan, True])
def test_a_strange_result_is_no_fault_of_the_report(folder: Path, value: object) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    for file in sorted(folder.glob("stages/*/done.json")):
        told = unseal(file.read_bytes())
        kept = {"stage": told["stage"], "role": told.get("role")}
        file.write_text(json.dumps({**dict.fromkeys(told, value), **kept}))
    assert write_report(folder).is_file()


def test_what_is_no_training_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataNotFound, match=r"found no run\.json"):
        read_training(tmp_path / "nothing")
    assert report_command("training_report", write_report, [str(tmp_path / "nothing")]) == 1
    assert capsys.readouterr().err.startswith("comap: expected a training")
    done = folder / "stages" / "00-warmup-world-model" / "done.json"
    done.write_text(json.dumps({"stage": "other"}))
    with pytest.raises(DataCorrupt, match="remove that file"):
        read_training(folder)
    for said in ("[]", "{", '{"format": "comap training 1", "sessions": []}'):
        (folder / "run.json").write_text(said)
        with pytest.raises(DataCorrupt):
            read_training(folder)


# -- what is shown meanwhile ---------------------------------------------------------------------

EVENTS: list[dict[str, Any]] = [
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


def test_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 100_000, 11))  # each look at it is 11 s later
    monkeypatch.setattr("comap.benchmarks.training_display.time.monotonic", lambda: next(clock))
    with training_progress() as shown:
        for event in EVENTS:
            print("{'loss': 1.0}")
            shown.tell(event)
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [
        "demonstrations: 1 of 2 1 succeeded",
        "[1/3] warmup-policy: done before",
        "[2/3] round-1-rollouts: 5 of 50 episodes, success 40.0 %",
    ]
    assert len([line for line in said if " of 50 " in line]) == 9
    assert "[2/3] round-1-rollouts: 50.0 % of 16 episodes succeeded, 2.0 s" in said
    assert said[-2:] == [
        "[3/3] round-1-policy: 1 of 2 updates, loss 1.250",
        "[3/3] round-1-policy: 2 updates of agent",
    ]
    assert not [line for line in said if "{" in line]


def test_a_bar_on_a_terminal() -> None:
    progress = pytest.importorskip("rich.progress")
    console = pytest.importorskip("rich.console")
    screen = io.StringIO()
    terminal = console.Console(file=screen, force_terminal=True, width=100)
    shown = TrainingShown(terminal)
    with progress.Progress(console=terminal) as shown.live:
        for event in EVENTS:
            shown.tell(event)
        assert not shown.live.tasks  # each stage took its bar away
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "[2/3] round-1-rollouts: 50.0 % of 16 episodes succeeded" in plain


def test_only_the_first_process_shows_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with training_progress() as shown:
        for event in EVENTS:
            shown.tell(event)
    assert capsys.readouterr() == ("", "")


def test_a_stage_is_told_in_a_line() -> None:
    assert stage_line(evaluation(1, 0.5)) == "valid_seen 50.0 % of 16 succeeded"
    assert (
        stage_line({"labels": 3, "branches": 8, "seconds": 1}) == "3 labels from 8 branches, 1.0 s"
    )
    assert stage_line({"states": 6, "episodes": 2}) == "drafts in 6 states of 2 episodes"
