"""`comap bench experts stabletoolbench`: the expert solves all tasks, and its failing would show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.benchmarks import tool_experts
from comap.cli import main
from comap.envs.stabletoolbench import StableToolBenchEnv
from comap.envs.stabletoolbench.canonicalizer import ToolCanonicalizer
from comap.facts import State

pytest.importorskip("jsonschema")


def test_the_command_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "experts.json"
    words = ["bench", "experts", "stabletoolbench", "--every", "20"]
    assert main([*words, "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    total = result["total"]
    assert total["tasks"] == total["won"] == 50
    assert total["beliefs"] > 0 and total["false beliefs"] == total["goals told wrongly"] == 0
    assert result["splits"]["train"]["tasks"] == 20 and result["splits"]["G1_tool"]["tasks"] == 5
    assert "false beliefs" in capsys.readouterr().out


def test_lost_tasks_and_false_beliefs_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = '{"name": "Finish", "arguments": {"return_type": "give_up_and_restart"}}'
    with monkeypatch.context() as patch:
        patch.setattr(StableToolBenchEnv, "expert_action", lambda env: lost)
        assert tool_experts.run(every=200)["total"]["won"] == 0
        assert main(["bench", "experts", "stabletoolbench", "--every", "200"]) == 1
    right = ToolCanonicalizer.update

    def wrong(self: ToolCanonicalizer, state: State, action: str, text: str) -> State:
        found = right(self, state, action, text)
        facts = {f for f in found.facts if f[0] != "db"} | {("db", "a", "b", "c", "d")}
        return State(frozenset(facts), found.parsed)

    monkeypatch.setattr(ToolCanonicalizer, "update", wrong)
    total = tool_experts.run(every=50)["total"]
    assert total["false beliefs"] == total["beliefs"] == total["steps"] > 0
    assert total["untold changes"] > 0 and total["goals told wrongly"] > 0


def test_options_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "experts", "stabletoolbench"]
    assert main([*words, "--data-dir", str(tmp_path)]) == 1
    assert "leave --data-dir out" in capsys.readouterr().err
    assert main([*words, "--every", "0"]) == 1
