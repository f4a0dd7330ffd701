"""OpenEnv's own client plays whole episodes of ALFWorld on our server."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest

from comap.envs.conformance.transcripts import load
from comap.errors import OptionError
from comap.integrations import Offered
from comap.integrations.openenv import openenv_app

pytest.importorskip("openenv")
pytest.importorskip("uvicorn")
served = load(f"{Path(__file__).parent / 'serving_kit.py'}:served")

ALFWORLD = "comap/ALFWorld-v0"
GENERATED = {"source": "generated"}
TOKEN = "a-token-of-some-length"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def base():
    app = openenv_app(
        Offered([ALFWORLD], GENERATED, ["split"]), host="127.0.0.1", token=TOKEN, limit=3
    )
    with served(app) as url:
        yield url


def client(url, headers=RIGHT):
    from openenv.core.generic_client import GenericEnvClient

    return GenericEnvClient(base_url=url, headers=headers).sync()


def expert_plays(env, **asked):
    """Play a task by the expert, and compare each step with our own environment."""
    result = env.reset(**asked)
    twin = gym.make(ALFWORLD, split=result.observation["split"], **GENERATED)
    observation, _ = twin.reset(options={"task": result.observation["task"]})
    assert result.observation["observation"] == observation and not result.done
    while not result.done:
        action = twin.unwrapped.expert_action()
        observation, reward, *_, info = twin.step(action)
        result = env.step({"action": action})
        assert result.observation["observation"] == observation and result.reward == reward
        assert result.observation["facts"] == info["facts"].to_text()
        assert result.observation["available_actions"] == list(info["admissible_actions"])
    return result


def test_openenvs_client_solves_tasks(base):
    with client(base) as env:
        result = expert_plays(env, split="valid_unseen", index=4, episode_id="an episode")
        assert result.observation["success"] and result.reward == 1.0
        state = env.state()
        assert state["episode_id"] == "an episode" and state["success"]
        assert state["step_count"] == result.observation["step"] > 1
        assert expert_plays(env, seed=5).observation["split"] == "valid_unseen"


def test_a_seed_is_a_seed(base):
    with client(base) as one, client(base) as other:
        first = [one.reset(seed=seed).observation["task"] for seed in (1, 2, 3)]
        assert first == [other.reset(seed=seed).observation["task"] for seed in (1, 2, 3)]
        assert len(set(first)) == 3


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"task": "../../etc/passwd"}, "expected a task"),
        ({"index": -1}, "whole number"),
        ({"index": 0, "data_idx": 0}, "found both"),
        ({"split": "../x"}, "split"),
        ({"data_dir": "/etc"}, "found 'data_dir'"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_what_is_wrong_is_told(asked, said, base):
    with client(base) as env:
        with pytest.raises(RuntimeError, match=said):
            env.reset(**asked)
        with pytest.raises(RuntimeError, match="reset first"):
            env.step({"action": "look"})
        with pytest.raises(RuntimeError):
            env.step({"act": "look"})
        assert env.reset(index=0).observation["step"] == 0


def test_a_limit_and_a_token(base):
    with client(base) as one, client(base) as two, client(base) as three:
        for env in (one, two, three):
            env.reset(index=0)
        with pytest.raises(Exception, match=r"(?i)capacity"), client(base) as four:
            four.reset(index=0)
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(Exception, match=r"403|reject"), client(base, headers):
            pass
    with pytest.raises(OptionError, match="token"):
        openenv_app(Offered([ALFWORLD]), host="0.0.0.0")
