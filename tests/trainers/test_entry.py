"""Entry conditions: numbers by hand, and that a training reports them before all else."""

from __future__ import annotations

import warnings
from dataclasses import replace

import gymnasium as gym
import pytest

from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.trainers.entry import (
    comap_conditions,
    conditions,
    paw_conditions,
    warn_of_collapse,
)


@pytest.fixture(scope="module")
def env():
    return gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=12)


def test_a_condition_says_what_is_wrong_and_what_to_change():
    by_name = conditions("comap", {"success": 12.3456, "ever": None, "wasted": 20.0})
    line = "not met: success of the warmed-up policy, %: 12.3 (wanted: from 30 to 60); choose"
    assert by_name["success"].line.startswith(line)
    assert "unknown (wanted: from 20); a reflection" in by_name["ever"].line
    assert by_name["wasted"].line == "met: steps that changed nothing, %: 20 (wanted: from 20)"
    assert [condition.met for condition in by_name.values()] == [False, False, True]


def test_comap_s_conditions_by_hand(env):
    tasks = env.unwrapped.tasks.ids[:2]
    won_episode, lost = (
        run_episode(env, ExpertAgent(), task=tasks[0]),
        run_episode(env, RandomAgent(), task=tasks[0]),
    )
    assert won_episode.success and not lost.success
    lost_elsewhere = replace(lost, task=tasks[1])
    by_name = comap_conditions([won_episode, lost, lost_elsewhere, lost_elsewhere], 95.0)
    success, ever, wasted, precision = (condition.value for condition in by_name.values())
    steps = [
        step
        for episode in (won_episode, lost, lost_elsewhere, lost_elsewhere)
        for step in episode.steps
    ]
    assert (success, ever, precision) == (25.0, 25.0, 95.0)
    assert wasted == 100 * sum(not step.delta for step in steps) / len(steps)


def test_paw_s_conditions():
    metrics = {"success": 0.2, "solved": 0.5, "wm_nll": 12.0, "wm_moderate": 0.02}
    are_met = [condition.met for condition in paw_conditions(metrics, True).values()]
    assert are_met == [True, True, False, False]
    assert [condition.value for condition in paw_conditions(metrics, False).values()] == [20.0, 2.5]
    unsolved = paw_conditions(metrics | {"success": 0.0, "solved": 0.0}, False)
    assert not unsolved["success"].met


def test_a_policy_that_has_collapsed_is_told_once():
    """The shares are those of a training that lost how a reply ends (real_first_regime.json)."""
    shares = [0.5, 0.5, 0.25, 0.25, 0.25, 0.5, 0.5, 0.25, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    warnings_by_update = []
    for update in range(1, len(shares) + 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_collapse(shares[:update], groups=4)
        warnings_by_update += [(update, str(warning.message)) for warning in caught]
    ((update, text),) = warnings_by_update
    assert update == 13 and "last 4 updates" in text and "39 % of the groups" in text

    # Few wins of few groups end by chance; what never won is told at the start.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_collapse([0.25, 0.0, 0.0, 0.0], groups=4)
        warn_of_collapse([0.0] * 50, groups=4)
        warn_of_collapse([1.0], groups=4)
        warn_of_collapse([0.0, 1.0], groups=16)
