"""``comap bench speed``: what it measures, compares and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.benchmarks.speed import run
from comap.cli import main
from comap.errors import OptionError


def test_an_environment_is_measured_in_processes_of_their_own(tmp_path, capsys):
    out = tmp_path / "speed.json"
    words = ["bench", "speed", "webshop", "--episodes", "2", "--processes", "1"]
    checkout = Path(__file__).parents[2]
    if checkout.name == "comap":  # a checkout beside this one: itself
        words += ["--against", str(checkout.parent)]
    assert main([*words, "--out", str(out)]) == 0
    result = json.loads(out.read_text("utf-8"))
    assert (result["env"], result["episodes"], result["processes"]) == ("comap/WebShop-v0", 2, 1)
    ours = result["measured"]["ours"]
    assert set(ours) == {"open", "reset", "first", "again"}
    assert 0 < ours["again"]["min"] <= ours["again"]["median"] <= ours["again"]["max"] < 1
    assert {"date", "versions", "hardware"} <= set(result)
    assert "ours: open" in capsys.readouterr().out
    for same, answers in result["same_answers"].values():
        assert same == answers


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(OptionError, match="did you mean 'webshop'"):
        run("webshpo")
    with pytest.raises(OptionError, match="add --data-dir"):
        run("alfworld", peer=True)
    with pytest.raises(OptionError, match="at least 1"):
        run("webshop", episodes=0)
