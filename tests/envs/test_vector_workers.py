"""Processes of vector environments that are killed: their episodes are told, the others go on."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from comap.envs.conformance.transcripts import load
from comap.errors import EngineError

make = load(f"{Path(__file__).with_name('toys.py')}:make")
TOY = "comap-test/Toy-v0"
LOOK = ("look",) * 3

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by signals")


@pytest.fixture
def vector(request: pytest.FixtureRequest) -> Any:
    """A function that makes a vector of three, closed at the end."""

    def made(**options: Any) -> Any:
        envs = gymnasium.make_vec(TOY, num_envs=3, **options)
        request.addfinalizer(envs.close)
        return envs

    return made


def kill(envs: Any, index: int = 1) -> None:
    process = envs.processes[index]
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def test_a_killed_process_ends_its_episode_and_no_other(vector: Any) -> None:
    envs = vector()
    envs.reset(options={"tasks": ["toy/0", "toy/1", "toy/2"]})
    envs.step(LOOK)
    kill(envs)
    texts, rewards, ends, cuts, infos = envs.step(LOOK)
    assert texts == ("Nothing changed.", "", "Nothing changed.")
    assert (ends.any(), cuts.tolist(), rewards.tolist()) == (False, [False, True, False], [0.0] * 3)
    assert "signal 9, SIGKILL" in infos["error"][1] and not infos["_error"][[0, 2]].any()
    assert (list(infos["task"]), list(infos["step"])) == (["toy/0", "toy/1", "toy/2"], [2, 2, 2])
    texts, _, _, cuts, infos = envs.step(LOOK)
    assert texts[1].startswith("You see") and not cuts.any() and infos["step"].tolist() == [3, 0, 3]
    texts = envs.step(LOOK)[0]
    assert texts[1] == "Nothing changed."
    _, infos = envs.reset(options={"task": "toy/3"})
    assert list(infos["task"]) == ["toy/3"] * 3


def test_what_a_new_process_draws_follows_from_the_seed(vector: Any) -> None:
    drawn = []
    for _ in range(2):
        envs = vector()
        envs.reset(seed=4)
        tasks = []
        for _ in range(2):
            kill(envs)
            envs.step(LOOK)
            tasks.append(envs.step(LOOK)[-1]["task"][1])
        drawn.append(tasks)
    assert drawn[0] == drawn[1]


def test_every_way_to_begin_anew(vector: Any) -> None:
    same = vector(autoreset_mode=AutoresetMode.SAME_STEP)
    same.reset(seed=0)
    kill(same)
    texts, _, _, cuts, infos = same.step(LOOK)
    assert cuts.tolist() == [False, True, False] and texts[1].startswith("You see")
    assert "SIGKILL" in infos["final_info"]["error"][1] and infos["step"][1] == 0
    by_hand = vector(autoreset_mode=AutoresetMode.DISABLED)
    by_hand.reset(seed=0)
    kill(by_hand)
    assert by_hand.step(LOOK)[3].tolist() == [False, True, False]
    mask = np.array([False, True, False])
    by_hand.reset(options={"reset_mask": mask})
    assert by_hand.step(LOOK)[-1]["step"].tolist() == [2, 1, 2]


def test_deaths_at_reset_between_episodes_and_at_calls(vector: Any) -> None:
    envs = vector(max_episode_steps=1, max_concurrency=1)
    kill(envs)
    assert "error" not in envs.reset(seed=1)[1]
    envs.step(LOOK)
    kill(envs)
    _, _, _, cuts, infos = envs.step(LOOK)
    assert not cuts.any() and "error" not in infos, "between two episodes none is lost"
    kill(envs)
    assert envs.call("metadata")[1]["render_modes"] == ["ansi"]
    _, _, _, cuts, infos = envs.step(LOOK)
    assert cuts.all() and "SIGKILL" in infos["error"][1]
    for _ in range(4):  # no permit was lost
        envs.step(LOOK)
    kill(envs)
    envs.close()


def test_a_process_that_dies_again_and_again_is_told(
    vector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = vector()
    envs.reset(seed=0)
    replace = type(envs).replace

    def dying(self: Any, index: int, working: bool) -> Any:
        told = replace(self, index, working)
        kill(self, index)
        return told

    monkeypatch.setattr(type(envs), "replace", dying)
    kill(envs)
    _, infos = envs.reset(options={"tasks": ["toy/0", "toy/1", "toy/2"]})
    assert infos["task"][1] == "toy/1" and "SIGKILL" in infos["error"][1]
    assert envs.step(LOOK)[3].tolist() == [False, True, False]
    with pytest.raises(EngineError, match="environment 1"):
        envs.call("metadata")
    monkeypatch.undo()
