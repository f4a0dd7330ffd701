"""The seeds of episodes: two episodes of one task differ by them, and only by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym

from comap.agents import RandomAgent, View, run_episodes
from comap.agents.acting import seed_for
from comap.agents.config import AgentConfig
from comap.agents.create import create_agent
from comap.agents.reflexion import ReflexionAgent
from comap.envs.conformance.transcripts import load
from comap.facts import State
from comap.trajectory import Trajectory

HERE = Path(__file__).with_name("scripted.py")
drive, view = load(f"{HERE}:drive"), load(f"{HERE}:view")
HashedModel = load(f"{HERE}:HashedModel")


def make() -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=6)


TASK = make().unwrapped.tasks.ids[0]  # type: ignore[attr-defined]


def test_a_view_without_a_seed_has_the_seeds_of_always() -> None:
    assert View("id", "task", "goal", (), State(), None, 0, lambda: None).seed == 0
    assert seed_for(AgentConfig(), view()) == 1212992722  # as before episodes had seeds
    seeds = {seed_for(AgentConfig(), replace(view(), seed=number)) for number in range(50)}
    assert len(seeds) == 50 and all(0 <= seed < 2**31 for seed in seeds)


def played(agent: Any, seeds: list[int]) -> list[list[str]]:
    found = run_episodes(make, agent, [TASK] * len(seeds), seed=seeds, lm=HashedModel())
    assert not any(trajectory.error for trajectory in found)
    return [[step.action for step in trajectory.steps] for trajectory in found]


def test_a_group_of_episodes_of_one_task_differs_by_its_seeds() -> None:
    for agent in (create_agent("react", decoding="masked"), RandomAgent(1)):
        group = played(agent, [0, 1, 2, 3, 1, 0])
        assert len({tuple(actions) for actions in group[:4]}) == 4
        assert group[4] == group[1] and group[5] == group[0]
        assert played(agent, [3, 2]) == [group[3], group[2]]


def test_greedy_episodes_do_not_differ() -> None:
    first, second = played(create_agent("react", temperature=0.0), [1, 2])
    assert first == second


def test_a_review_has_the_seed_of_its_episode() -> None:
    episode = Trajectory(
        "comap/ALFWorld-v0", "task", "train", "goal", "reflexion", "A room.", State()
    )
    asked = [
        drive(ReflexionAgent().review(replace(episode, seed=seed), {}), ["x"]).requests[0]
        for seed in (None, 0, 1)
    ]
    assert asked[0] == asked[1] != asked[2]
