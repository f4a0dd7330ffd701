"""The report of a PaW training, and what is shown meanwhile: right numbers, and nothing but text."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.paw_curves import (
    evaluation_plots,
    further_plots,
    phase_plots,
    policy_plots,
    reward_plots,
    world_plots,
)
from comap.benchmarks.paw_display import PaWShown, paw_progress
from comap.benchmarks.paw_record import PaWRecord, read_paw
from comap.benchmarks.paw_report import write_report
from comap.benchmarks.paw_tables import phase_table, results_table, setting_tables
from comap.benchmarks.training_page import report_command
from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, DataNotFound
from comap.trainers.paw.config import PaWTraining

KIT = load(f"{Path(__file__).with_name('training_page_kit.py')}:KIT")
HOSTILE = KIT.HOSTILE
UPDATES: list[dict[str, Any]] = [
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
EVALUATIONS: list[dict[str, Any]] = [
    {"update": 0, "split": "valid_seen", "n": 10, "success": 0.2, "score": 0.25},
    {"update": 0, "split": HOSTILE, "n": 4, "success": 0.5, "score": None},
    {"update": 2, "split": "valid_seen", "n": 10, "success": 0.8, "score": 0.875},
    {"update": 3, "split": "valid_seen", "n": 10, "success": 0.6, "score": 0.625},
]


def write_lines(path: Path, lines: list[dict[str, Any]], cut: str = "") -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "run"
    place.mkdir()
    repeated = [UPDATES[0], {**UPDATES[1], "success": 0.99}, *UPDATES[1:]]  # killed after update 2
    write_lines(place / "metrics.jsonl", repeated, cut='{"update": 4, "succ')
    write_lines(place / "evaluations.jsonl", EVALUATIONS)
    described = {
        "method": "paw",
        "config": PaWTraining(adaptive=False, seed=7).describe(),
        **{"preset": "alfworld", "row": "w/o Ada. Coef."},
        **{"env": {"id": HOSTILE}, "model": {"name": "Qwen/Qwen2.5-1.5B-Instruct"}},
    }
    session = {"started": "2026-01-01T00:00:00Z", "versions": {"comap": "0.1.0"}}
    run = {"format": "comap training 1", "described": described, "sessions": [session]}
    (place / "run.json").write_text(json.dumps(run))
    return place


def test_what_is_read_of_a_paw_training(folder: Path) -> None:
    record = read_paw(folder)
    assert [line["update"] for line in record.updates] == [1, 2, 3]
    assert record.curve("success", 100) == ((1, 2, 3), (25.0, 75.0, 50.0))  # the later line counts
    assert record.curve("grad_norm") == record.curve("no such measure") == ((), ())
    assert record.splits() == ["valid_seen", HOSTILE]
    found = record.evaluated("valid_seen")
    assert [(update, rate.value, rate.n, score) for update, rate, score in found] == [
        (0, 0.2, 10, 0.25),
        (2, 0.8, 10, 0.875),
        (3, 0.6, 10, 0.625),
    ]
    told = record.summary()
    assert (told["algorithm"], told["seed"], told["updates"]) == ("w/o Ada. Coef.", "7", "3")


def test_tables_of_a_paw_training(folder: Path) -> None:
    record = read_paw(folder)
    rollouts, seen, score, hostile = results_table(record).rows
    assert rollouts == (
        "rollouts",
        "25.0 % (update 1)",
        "50.0 % (update 3)",
        "75.0 % (update 2)",
    )
    assert seen == (
        "valid_seen",
        "20.0 % [5.7, 51.0] (n=10) (update 0)",
        "60.0 % [31.3, 83.2] (n=10) (update 3)",
        "80.0 % [49.0, 94.3] (n=10) (update 2)",
    )
    assert score == ("valid_seen, mean score", "0.250", "0.625", "0.875")
    assert hostile[0] == HOSTILE
    phases = {str(row[0]): row[1:] for row in phase_table(record).rows}
    assert phases["rollouts"] == ("5.00", "66.7 %", "10.0", 2)  # 6 and 4 of 15 seconds
    assert phases["update"] == ("2.00", "26.7 %", "4.0", 2)
    assert phases["all"] == ("7.50", "100.0 %", "15.0", 2)
    assert "Peak memory 1.00 GiB" in phase_table(record).note
    settings = setting_tables(record)[0].rows
    assert ("adaptive", "false", "true") in settings and ("alpha", "0.75", "") in settings


def test_plots_of_figures_10_and_11(folder: Path) -> None:
    record = read_paw(folder)
    drawn = {
        plot.title: {series.name: (series.x, series.y) for series in plot.series}
        for make in (reward_plots, policy_plots, world_plots, phase_plots, further_plots)
        for plot in make(record)
    }
    assert drawn["Success of rollouts"]["success"] == ((1, 2, 3), (25.0, 75.0, 50.0))
    assert drawn["Reward"]["return of an episode"] == ((1, 2), (2.5, 7.5))
    assert drawn["Policy loss"]["policy loss"] == ((1,), (-0.5,))
    assert drawn["Clipped ratios"]["clipped"] == ((1,), (25.0,))
    assert drawn["Adaptive weight λ"]["λ"] == ((1, 2), (0.75, 0.25))
    assert drawn["Loss on observations"]["loss"] == ((1, 2), (0.75, 0.5))
    assert drawn["Tokens left out (p > ρ)"]["left out"] == ((1,), (10.0,))
    assert set(drawn["Time by phase"]) == {
        "rollouts",
        "old log-probabilities",
        "advantages",
        "update",
    }
    assert drawn["Peak memory"]["peak"] == ((1,), (1.0,))
    assert drawn["ratio"] == {"ratio": ((1, 3), (1.0, 1.5))}  # a measure that is not known here
    assert "Norm of the gradient" not in drawn and "Critic" not in drawn
    success, scores = evaluation_plots(record)
    assert [one.name for one in success.series] == ["valid_seen (n=10)", f"{HOSTILE} (n=4)"]
    assert success.series[0].y == (20.0, 80.0, 60.0)
    assert success.series[0].low is not None
    assert success.series[0].low[1] == pytest.approx(49.0, abs=0.05)
    assert len(scores.series) == 1 and scores.series[0].y == (0.25, 0.875, 0.625)


def test_a_plain_algorithm_has_no_plots_of_observations() -> None:
    record = PaWRecord(updates=({"update": 1, "success": 0.5, "policy_loss": 1.0},))
    assert world_plots(record) == [] and phase_plots(record) == [] == further_plots(record)
    assert phase_table(record).rows == () and results_table(record).rows[0][0] == "rollouts"


def test_the_page_of_a_paw_training_is_whole_and_nothing_in_it_runs(folder: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    report = write_report(folder)
    source = report.read_text("utf-8")
    page = KIT.read_page(source)
    plots = page.tags.count("figure") - page.tags.count("table")
    assert page.tags.count("svg") == plots >= 15
    for said in ("w/o Ada. Coef.", "80.0 % [49.0, 94.3] (n=10)", "Qwen/Qwen2.5-1.5B-Instruct"):
        assert said in page.text, said
    assert str(folder.parent) not in source
    assert write_report(folder).read_text("utf-8") == source


def test_a_paw_training_that_has_just_begun_has_a_report(folder: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    (folder / "metrics.jsonl").unlink()
    (folder / "evaluations.jsonl").unlink()
    assert "Nothing yet." not in write_report(folder).read_text("utf-8").partition("Success")[0]
    assert read_paw(folder).updates == ()
    (folder / "run.json").unlink()
    write_lines(folder / "metrics.jsonl", UPDATES[:1])  # without a description
    assert "unknown" in write_report(folder).read_text("utf-8")


@pytest.mark.parametrize("value", [None, "x", math.nan, True, -1e300])
def test_strange_measures_are_no_fault_of_the_report(folder: Path, value: object) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    for name, lines in (("metrics.jsonl", UPDATES), ("evaluations.jsonl", EVALUATIONS)):
        strange = [{**dict.fromkeys(line, value), "update": line["update"]} for line in lines]
        write_lines(folder / name, strange)
    run = {"described": value, "sessions": value}
    (folder / "run.json").write_text(json.dumps(run))
    assert write_report(folder).is_file()


def test_what_is_no_paw_training_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DataNotFound, match=r"found no metrics\.jsonl"):
        read_paw(tmp_path / "nothing")
    assert report_command("paw_report", write_report, [str(tmp_path / "nothing")]) == 1
    assert capsys.readouterr().err.startswith("comap: expected a training")
    assert report_command("paw_report", write_report, []) == 2
    for name, text in (
        ("metrics.jsonl", '{"loss": 1}\n{"update": 2}\n'),
        ("metrics.jsonl", 'no JSON\n{"update": 2}\n'),
        ("run.json", "{"),
    ):
        (folder / name).write_text(text)
        with pytest.raises(DataCorrupt, match=name.replace(".", r"\.")):
            read_paw(folder)
        write_lines(folder / "metrics.jsonl", UPDATES)


# -- what is shown meanwhile ---------------------------------------------------------------------

EVENTS: list[dict[str, Any]] = [
    {"event": "demonstration", "done": 2, "of": 2, "won": 1},
    *({"event": "warmup", "done": n, "of": 40, "loss": 2.0} for n in range(1, 41)),
    {"event": "evaluation", "update": 0, "split": "valid_seen"},
    {"event": "evaluated", **EVALUATIONS[0]},
    *({"event": "episode", "update": 1, "done": n, "of": 50, "won": 5} for n in range(1, 51)),
    {"event": "update", "of": 2, **UPDATES[0]},
    {"event": "episode", "update": 2, "done": 1, "of": 50, "won": 0},
    {"event": "update", "of": 2, "update": 2},
]


def test_lines_of_a_paw_training_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    clock = iter(range(0, 100_000, 11))  # each look at it is 11 s later
    monkeypatch.setattr("comap.benchmarks.training_display.time.monotonic", lambda: next(clock))
    with paw_progress() as shown:
        for event in EVENTS:
            print("{'loss': 1.0}")
            shown.tell(event)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "warm-up: 4 of 40 tokens, loss 2.000"
    told = "evaluation after update 0: valid_seen 20.0 % [5.7, 51.0] (n=10), score 0.250"
    assert said[9:11] == [told, "update 1: 5 of 50 episodes, success 100.0 %"]
    assert said[-2:] == [
        "update 1 of 2: success 25.0 %, return 2.500, loss -0.500, observation loss 0.750",
        "update 2 of 2",
    ]
    assert not [line for line in said if "{" in line]


def test_bars_of_a_paw_training_on_a_terminal() -> None:
    progress = pytest.importorskip("rich.progress")
    console = pytest.importorskip("rich.console")
    screen = io.StringIO()
    terminal = console.Console(file=screen, force_terminal=True, width=100)
    shown = PaWShown(terminal)
    with progress.Progress(console=terminal) as shown.live:
        for event in EVENTS[:-2]:
            shown.tell(event)
        (updates,) = shown.live.tasks  # each part took its bar away
        assert (updates.completed, updates.total) == (1, 2)
        assert updates.description.startswith("success 25.0 %")
        shown.tell(EVENTS[-2])
        assert len(shown.live.tasks) == 2
        shown.tell(EVENTS[-1])
        assert len(shown.live.tasks) == 1 and updates.finished
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "evaluation after update 0: valid_seen 20.0 %" in plain


def test_other_processes_of_a_paw_training_show_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with paw_progress() as shown:
        for event in EVENTS:
            shown.tell(event)
    assert capsys.readouterr() == ("", "")
