from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.benchmarks import stabletoolbench_speed
from comap.benchmarks.readme_tools import tools_section
from comap.cli import main
from comap.errors import OptionError


def test_a_result_of_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "speed.json"
    result = stabletoolbench_speed.run(episodes=4, processes=2, out=out)
    assert result == json.loads(out.read_text())
    assert result["solved"] == 4 and result["steps"] > 8
    for name in ("open", "reset", "step"):
        found = result["spread"][name]
        assert 0 < found["min"] <= result["ours"][name] <= found["max"]
    assert "cached" not in result["ours"]
    assert "4 solved" in stabletoolbench_speed.table(result)
    scores = {name: {"f1": 0.25} for name in ("status", "retlen", "ret", "entity", "db")}
    demo = {"one_step": {"all": {"null": {"by_predicate": scores}}}}
    section = tools_section(result, "today", demo)
    assert "2 processes" in section and "| null | 25.0 | 25.0 |" in section


def test_wrong_numbers_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="at least 1"):
        stabletoolbench_speed.run(episodes=0)
    assert main(["bench", "speed", "stabletoolbench", "--data-dir", "nowhere"]) == 1
    assert "test_instruction" in capsys.readouterr().err
