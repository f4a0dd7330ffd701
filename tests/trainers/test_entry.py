"""Entry conditions: numbers by hand, and that a training reports them before all else."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import pytest

from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.trainers.entry import comap_conditions, conditions, paw_conditions


@pytest.fixture(scope="module")
def env():
    return gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=12)


def test_a_condition_says_what_is_wrong_and_what_to_change():
    found = conditions("comap", {"success": 12.3456, "ever": None, "wasted": 20.0})
    line = "not met: success of the warmed-up policy, %: 12.3 (wanted: from 30 to 60); choose"
    assert found["success"].line.startswith(line)
    assert "unknown (wanted: from 20); a reflection" in found["ever"].line
    assert found["wasted"].line == "met: steps that changed nothing, %: 20 (wanted: from 20)"
    assert [one.met for one in found.values()] == [False, False, True]


def test_comap_s_conditions_by_hand(env):
    tasks = env.unwrapped.tasks.ids[:2]
    won, lost = (
        run_episode(env, ExpertAgent(), task=tasks[0]),
        run_episode(env, RandomAgent(), task=tasks[0]),
    )
    assert won.success and not lost.success
    other = replace(lost, task=tasks[1])
    found = comap_conditions([won, lost, other, other], 95.0)
    success, ever, wasted, precision = (one.value for one in found.values())
    steps = [step for episode in (won, lost, other, other) for step in episode.steps]
    assert (success, ever, precision) == (25.0, 25.0, 95.0)
    assert wasted == 100 * sum(not step.delta for step in steps) / len(steps)


def test_paw_s_conditions():
    metrics = {"success": 0.2, "solved": 0.5, "wm_nll": 12.0, "wm_moderate": 0.02}
    met = [one.met for one in paw_conditions(metrics, True).values()]
    assert met == [True, True, False, False]
    assert [one.value for one in paw_conditions(metrics, False).values()] == [20.0, 2.5]
    nothing = paw_conditions(metrics | {"success": 0.0, "solved": 0.0}, False)
    assert not nothing["success"].met
