"""The reliability benchmark: its parts find nothing, and find what is broken on purpose."""

from __future__ import annotations

import json
import mmap
import os
from functools import partial

import pytest

from comap.benchmarks import reliability
from comap.benchmarks.reliability import growth_mb, held_mb, in_processes, play
from comap.cli import main
from comap.envs.alfworld.engine import NativeEngine
from comap.errors import OptionError

ALFWORLD = {"comap/ALFWorld-v0": 1}


# -- actions and load ----------------------------------------------------------------------------


def test_actions_of_all_kinds_lose_nothing():
    found, again = (play(ALFWORLD, 0, True, 150) for _ in range(2))
    assert found["lost"] == 0 and found["counts"]["actions"] == 150
    assert {"hostile", "mutated", "random", "of the expert"} <= set(found["counts"])
    assert found["counts"] == again["counts"] and found["reported"] == again["reported"]


def test_an_engine_that_breaks_is_a_loss(monkeypatch):
    act = NativeEngine.act

    def breaking(self, action):
        if "\x1b" in action or "<" in action:
            raise RuntimeError("odd")
        return act(self, action)

    monkeypatch.setattr(NativeEngine, "act", breaking)
    found = play(ALFWORLD, 0, True, 150)
    assert found["lost"] > 0 and "RuntimeError: odd" in found["losses"][0]


def test_growth_is_that_of_the_second_half():
    assert growth_mb([50.0 * (n < 50) * n for n in range(100)]) == 0.0
    assert growth_mb([0.5 * n for n in range(100)]) == pytest.approx(24.5)
    assert growth_mb([1.0]) is None


def test_memory_follows_what_is_held():
    if not (before := held_mb()):
        pytest.skip("this system does not say")
    with mmap.mmap(-1, 64 * 2**20) as held:  # an array could get memory that was held before
        held.write(b"\1" * len(held))
        assert held_mb()[0] - before[0] > 32


def test_a_process_that_dies_is_a_finding():
    dead, failed = in_processes(os._exit, (3,)), in_processes(int, ("x",))
    assert "BrokenProcessPool" in dead[0]["losses"][0] and "ValueError" in failed[0]["losses"][0]


# -- the command ---------------------------------------------------------------------------------


def test_the_command(tmp_path, monkeypatch, capsys):
    def part(lost, scale, seed, progress):
        return {"counts": {}, "lost": lost, "losses": ["a run"] * lost}

    stand_ins = {"actions": partial(part, 0), "load": partial(part, 1)}
    monkeypatch.setattr(reliability, "PARTS", stand_ins)
    result = tmp_path / "reliability.json"
    words = ["bench", "reliability", "--scale", "0.1", "--out", str(tmp_path)]
    assert main([*words, "--parts", "actions"]) == 0
    assert json.loads(result.read_text())["parts"]["actions"]["scale"] == 0.1
    assert main(words) == 1
    assert "lost: a run" in capsys.readouterr().out
    assert main(["bench", "reliability", "--parts", "actions", "--out", str(tmp_path)]) == 0
    kept = json.loads(result.read_text())
    assert {name: one["scale"] for name, one in kept["parts"].items()} == {
        "actions": 1.0,
        "load": 0.1,
    }
    assert kept["lost"] == 1
    result.write_text('{"benchmark": "speed"}')
    assert main([*words, "--parts", "actions"]) == 1
    assert "expected figures of comap bench reliability" in capsys.readouterr().err
    with pytest.raises(OptionError, match="there is no part 'action'; did you mean 'actions'"):
        reliability.run_reliability(1.0, ["action"])
    with pytest.raises(OptionError, match="--scale"):
        reliability.run_reliability(0.0)
