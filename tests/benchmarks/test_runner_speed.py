"""What the runner costs is measured, and is little."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.agents.corpus import tiny_folder
from comap.benchmarks.runner_speed import overhead, run
from comap.cli import main
from comap.errors import OptionError


def test_a_decision_costs_little() -> None:
    assert min(overhead(8, live) for live in (1, 8, 1, 8)) < 0.001  # 0.00004 on an idle machine


def test_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    folder = tiny_folder(tmp_path / "model", parameters=200_000, episodes=1)
    out = tmp_path / "result.json"
    words = ["--episodes", "2", "--live", "2", "--repeats", "1", "--steps", "2"]
    assert main(["bench", "runner", *words, "--model", str(folder), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "us a decision" in told and "ratio: " in told
    result = json.loads(out.read_text("utf-8"))
    assert set(result["episodes_per_second"]) == {"live 2", "live 1"}
    assert result["overhead_microseconds"]["median"] > 0 and result["versions"]["torch"]
    assert str(tmp_path) not in out.read_text("utf-8")


def test_wrong_numbers_are_told() -> None:
    with pytest.raises(OptionError, match="repeats must be at least 1"):
        run(repeats=0)
