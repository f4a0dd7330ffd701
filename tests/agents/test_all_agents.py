"""Every agent on every environment, real and imagined, with a language model that makes no sense."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import comap
from comap.agents import run_episode
from comap.agents.create import AGENTS, agent_options, create_agent
from comap.envs.classes import class_of
from comap.envs.conformance.transcripts import load
from comap.envs.registered import engines_kept
from comap.errors import DataNotFound, MissingExtra
from comap.trajectory import Trajectory
from comap.worldmodel import ImaginedEnv

HashedModel = load(f"{Path(__file__).with_name('scripted.py')}:HashedModel")

ENVS = sorted(name for name, spec in gym.registry.items() if spec.namespace == comap.__name__)
STEPS = 3
SMALL: dict[str, dict[str, Any]] = {
    "rap": {"candidates": 2, "depth": 2, "rollouts": 2},
    "comap": {"p_source": "verbalizer"},
}
STYLES: tuple[dict[str, Any], ...] = (
    {},
    {"decoding": "masked", "prompts": "brief", "state_text": "belief"},
    {"decoding": "scored", "examples": 0, "history_turns": 2},
)


@pytest.fixture(scope="module", autouse=True)
def engines() -> Iterator[None]:
    """Engines that are slow to start wait for the next test."""
    with contextlib.ExitStack() as kept:
        for env_id in ENVS:
            kept.enter_context(engines_kept(env_id, 2))
        yield


def played(env_id: str, name: str, imagined: bool, style: dict[str, Any]) -> Trajectory:
    try:
        env = gym.make(env_id, max_episode_steps=STEPS)
        env.reset(seed=3)
    except (MissingExtra, DataNotFound) as error:
        pytest.skip(str(error))
    stage: Any = ImaginedEnv(env, "null", horizon=STEPS) if imagined else env
    options = SMALL.get(name, {}) | style if agent_options(name) is not None else {}
    agent = create_agent(name, **options)
    found = run_episode(stage, agent, seed=3, world_model="null", lm=HashedModel())
    stage.close()
    return found


@pytest.mark.parametrize("imagined", [False, True], ids=["real", "imagined"])
@pytest.mark.parametrize("name", sorted(AGENTS))
@pytest.mark.parametrize("env_id", ENVS)
def test_each_agent_plays(env_id: str, name: str, imagined: bool) -> None:
    several = agent_options(name) is not None and name != "paw"  # which has one style
    slow = getattr(class_of(env_id), "slow", False)  # then one style is played twice, or alone
    for style in STYLES if several and not (slow and imagined) else STYLES[:1]:
        found = played(env_id, name, imagined, style)
        assert found.error is None, f"{style}: {found.error}"
        assert found.agent == name and found.env_id == env_id
        assert 1 <= len(found.steps) <= STEPS or name == "expert"
        assert all(step.imagined for step in found.steps) is imagined or not found.steps
        assert Trajectory.from_json(json.loads(json.dumps(found.to_json()))) == found
        if agent_options(name) is not None:
            assert all(step.calls for step in found.steps)
        if not (slow and style):
            assert played(env_id, name, imagined, style) == found


def test_there_are_environments_and_agents() -> None:
    assert "comap/ALFWorld-v0" in ENVS and len(AGENTS) == 13
