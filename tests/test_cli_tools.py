"""The commands on tool use: the expert plays, agents play, trainers train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.cli import main
from comap.trajectory import read_trajectories

TOOLS = ["--env", "comap/StableToolBench-v0"]
GENERATED = [*TOOLS, "--env-option", "source=generated"]


def test_an_expert_calls_functions(tmp_path: Path) -> None:
    words = ["--agent", "expert", "--episodes", "3", "--split", "G3_instruction"]
    assert main(["run", *GENERATED, *words, "--out", str(tmp_path / "run")]) == 0
    episodes = list(read_trajectories(tmp_path / "run" / "trajectories.jsonl"))
    assert [(one.split, one.success) for one in episodes] == [("G3_instruction", True)] * 3
    assert main(["view", str(tmp_path / "run"), "--no-open"]) == 0


def test_paw_trains_on_tools(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    words = ["--updates", "1", "--groups", "2", "--members", "2", "--evaluation-tasks", "1"]
    words += ["--warmup-tokens", "0", "--demonstrations", "2", "--max-episode-steps", "2"]
    words += ["--parameters", "200000", *TOOLS, "--preset", "tiny"]
    assert main(["train", "paw", *words, "--out", str(tmp_path)]) == 0
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["wm_rows"] > 0
    assert "G3_instruction" in (tmp_path / "evaluations.jsonl").read_text()


def test_comap_trains_on_tools(tmp_path: Path) -> None:
    for package in ("trl", "peft", "rich", "jinja2", "matplotlib"):
        pytest.importorskip(package)
    words = ["--preset", "tiny", "--parameters", "200000", "--rounds", "1", *TOOLS]
    words += ["--env-option", "max_episode_steps=3", "--demonstrations", "3"]
    words += ["--warmup-rollouts", "1", "--reflection-tasks", "1", "--states-per-episode", "1"]
    words += ["--tasks-per-round", "1", "--evaluation-tasks", "1", "--diagnosed", "1"]
    words += ["--evaluation-splits", "G3_instruction", "--frozen-transitions", "2"]
    words += ["--warmup-epochs", "1", "--logging-steps", "1", "--save-steps", "0"]
    words += ["--draft-tokens", "6", "--reflect-tokens", "6", "--predict-tokens", "8"]
    assert main(["train", "comap", *words, "--out", str(tmp_path)]) == 0
    for name in ("report.html", "metrics.jsonl", "summary.json"):
        assert (tmp_path / name).stat().st_size > 0
