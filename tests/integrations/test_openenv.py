"""OpenEnv's own client plays whole episodes of ALFWorld on our server."""

from __future__ import annotations

import gymnasium as gym
import pytest

from comap.errors import OptionError
from comap.integrations import Offered
from kits.serving import served

pytest.importorskip("openenv")
pytest.importorskip("uvicorn")

ALFWORLD = "comap/ALFWorld-v0"
GENERATED = {"source": "generated"}
TOKEN = "a-token-of-some-length"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def ours():
    """Our module: OpenEnv brings gradio with it, which takes seconds that only this file's worker needs."""
    return pytest.importorskip("comap.integrations.openenv")


@pytest.fixture(scope="module")
def base(ours):
    app = ours.openenv_app(
        Offered([ALFWORLD], GENERATED, ["split"]), host="127.0.0.1", token=TOKEN, limit=3
    )
    with served(app) as url:
        yield url


def client(url, headers=RIGHT):
    from openenv.core.generic_client import GenericEnvClient

    return GenericEnvClient(base_url=url, headers=headers).sync()


def expert_plays(env, **reset_options):
    """Play a task by the expert, and compare each step with our own environment."""
    result, state = env.reset(**reset_options), env.state()
    twin = gym.make(ALFWORLD, split=state["split"], **GENERATED)
    observation, _ = twin.reset(options={"task": state["task"]})
    assert result.observation["observation"] == observation and not result.done
    while not result.done:
        action = twin.unwrapped.expert_action()
        observation, reward, *_, info = twin.step(action)
        result = env.step({"action": action})
        assert result.observation["observation"] == observation and result.reward == reward
        assert env.state()["facts"] == info["facts"].to_text()
        assert result.observation["available_actions"] == list(info["admissible_actions"])
    return result


def test_openenvs_client_solves_tasks(base):
    with client(base) as env:
        result = expert_plays(env, split="valid_unseen", index=4, episode_id="an episode")
        assert result.reward == 1.0
        state = env.state()
        assert state["episode_id"] == "an episode" and state["success"] and state["terminated"]
        assert state["score"] == 1.0 and state["step_count"] > 1
        expert_plays(env, seed=5)
        assert env.state()["split"] == "valid_unseen"


def test_a_policy_sees_no_progress(base):
    """Stacks show the whole observation; what it must not have is in the state."""
    with client(base) as env:
        observation = env.reset(index=0).observation
        assert observation.keys() == {"observation", "available_actions", "metadata"}
        assert not observation["metadata"] and "Your task is to" in observation["observation"]
        assert (
            env.step({"action": observation["available_actions"][0]}).observation.keys()
            == observation.keys()
        )
        assert {"score", "success", "facts", "goal", "task", "error"} <= env.state().keys()


@pytest.mark.parametrize("name", ["ALFWorld", "WebShop", "StableToolBench", "SearchQA", "Web"])
def test_each_environment_is_a_class(name, ours):
    env = getattr(ours, f"{name}Environment")()
    assert env.state.step_count == 0
    first = env.reset(seed=1)
    assert env.get_metadata().name == f"comap/{name}-v0" and not first.done
    env.step(ours.TextAction(action="look"))
    assert env.state.step_count == 1
    env.close()


def task(env, seed):
    env.reset(seed=seed)
    return env.state()["task"]


def test_a_seed_is_a_seed(base):
    with client(base) as first_client, client(base) as second_client:
        first, second = (
            [task(env, seed) for seed in (1, 2, 3)] for env in (first_client, second_client)
        )
        assert first == second and len(set(first)) == 3


@pytest.mark.parametrize(
    ("asked", "phrase"),
    [
        ({"task": "../../etc/passwd"}, "expected a task"),
        ({"index": -1}, "whole number"),
        ({"index": 0, "data_idx": 0}, "found both"),
        ({"split": "../x"}, "split"),
        ({"data_dir": "/etc"}, "found 'data_dir'"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_what_is_wrong_is_told(asked, phrase, base):
    with client(base) as env:
        with pytest.raises(RuntimeError, match=phrase):
            env.reset(**asked)
        with pytest.raises(RuntimeError, match="reset first"):
            env.step({"action": "look"})
        with pytest.raises(RuntimeError):
            env.step({"act": "look"})
        env.reset(index=0)
        assert env.state()["step_count"] == 0


def test_a_limit_and_a_token(base, ours):
    with client(base) as first, client(base) as second, client(base) as third:
        for env in (first, second, third):
            env.reset(index=0)
        with pytest.raises(Exception, match=r"(?i)capacity"), client(base) as four:
            four.reset(index=0)
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(Exception, match=r"403|reject"), client(base, headers):
            pass
    with pytest.raises(OptionError, match="token"):
        ours.openenv_app(Offered([ALFWORLD]), host="0.0.0.0")
