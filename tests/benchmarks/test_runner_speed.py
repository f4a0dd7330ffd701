"""What the runner costs is measured, and is little."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from comap.agents.corpus import tiny_folder
from comap.benchmarks import runner_speed
from comap.benchmarks.runner_parts import ConstantLanguageModel, OneCallAgent
from comap.benchmarks.runner_speed import overhead, run
from comap.cli import main
from comap.envs.alfworld import ALFWorldEnv
from comap.errors import OptionError


def test_a_decision_costs_little() -> None:
    assert min(overhead(8, live) for live in (1, 8, 1, 8)) < 0.001  # 0.00004 on an idle machine


def test_the_making_of_environments_and_their_steps_are_not_the_runners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gymnasium, "make", slow(gymnasium.make))
    monkeypatch.setattr(ALFWorldEnv, "reset", slow(ALFWorldEnv.reset))
    assert overhead(2, 2) < 0.002


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def slow(method: Any) -> Any:
    def slowly(*args: Any, **options: Any) -> Any:
        burn(0.2)
        return method(*args, **options)

    return slowly


def test_the_two_ways_take_turns_in_being_first(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []
    played = runner_speed._play

    def noted(lm: Any, agent: Any, episodes: int, live: int, **options: Any) -> Any:
        order.append(live)
        return played(lm, agent, episodes, live, **options)

    monkeypatch.setattr(runner_speed, "_play", noted)
    kind = runner_speed._Comparison(ConstantLanguageModel(), OneCallAgent(), 3, 3, 2)
    for first in (True, False):
        kind.measure(many_first=first)
    assert order == [3, 1, 1, 3] and kind.result()["same"]


def test_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    folder = tiny_folder(tmp_path / "model", parameters=200_000, episodes=1)
    out = tmp_path / "result.json"
    words = ["--episodes", "2", "--live", "2", "--repeats", "1", "--steps", "2"]
    words += ["--react-steps", "1", "--model", str(folder), "--out", str(out)]
    assert main(["bench", "runner", *words]) == 0
    told = capsys.readouterr().out
    assert "us a decision" in told and "one-call: ratio " in told and "react: ratio " in told
    assert "react_brief: ratio " in told
    assert told.count("trajectories the same") == 3
    result = json.loads(out.read_text("utf-8"))
    for found in (result, result["react"], result["react_brief"]):
        assert set(found["episodes_per_second"]) == {"live 2", "live 1"}
        assert found["same"] is True and found["ratio"]["median"] > 0
    assert result["overhead_microseconds"]["median"] > 0 and result["versions"]["torch"]
    assert str(tmp_path) not in out.read_text("utf-8")


def test_wrong_numbers_are_told() -> None:
    with pytest.raises(OptionError, match="repeats must be at least 1"):
        run(repeats=0)
