"""OpenEnv's own client plays whole episodes of ALFWorld on our server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import comap
from comap.envs.conformance.transcripts import load
from comap.errors import OptionError
from comap.integrations import Offered
from comap.integrations.openenv import openenv_app

pytest.importorskip("openenv")
pytest.importorskip("uvicorn")
served: Any = load(f"{Path(__file__).parent / 'serving_kit.py'}:served")

ALFWORLD = "comap/ALFWorld-v0"
GENERATED = {"source": "generated"}
TOKEN = "a-token-of-some-length"
RIGHT = {"Authorization": f"Bearer {TOKEN}"}
ROOT = Path(comap.__file__).parent.parent


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    app = openenv_app(
        Offered([ALFWORLD], GENERATED, ["split"]), host="127.0.0.1", token=TOKEN, limit=3
    )
    with served(app) as url:
        yield url


def client(url: str, headers: Any = RIGHT) -> Any:
    from openenv.core.generic_client import GenericEnvClient

    return GenericEnvClient(base_url=url, headers=headers).sync()


def expert_plays(env: Any, **asked: Any) -> Any:
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


def test_openenvs_client_solves_tasks(base: str) -> None:
    with client(base) as env:
        result = expert_plays(env, split="valid_unseen", index=4, episode_id="an episode")
        assert result.observation["success"] and result.reward == 1.0
        state = env.state()
        assert state["episode_id"] == "an episode" and state["success"]
        assert state["step_count"] == result.observation["step"] > 1
        assert expert_plays(env, seed=5).observation["split"] == "valid_unseen"


def test_a_seed_is_a_seed(base: str) -> None:
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
def test_what_is_wrong_is_told(asked: dict[str, Any], said: str, base: str) -> None:
    with client(base) as env:
        with pytest.raises(RuntimeError, match=said):
            env.reset(**asked)
        with pytest.raises(RuntimeError, match="reset first"):
            env.step({"action": "look"})
        with pytest.raises(RuntimeError):
            env.step({"act": "look"})
        assert env.reset(index=0).observation["step"] == 0


def test_a_limit_and_a_token(base: str) -> None:
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


def ask(url: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
    import httpx

    with httpx.Client(trust_env=False, timeout=20) as web:
        told = {"content-type": "application/json"} | RIGHT | headers
        response = web.request(method, f"{url}{path}", content=body, headers=told)
        assert "Traceback" not in response.text and TOKEN not in response.text
        return response.status_code, response.text


def test_requests_over_http(base: str) -> None:
    assert ask(base, "GET", "/health")[0] == 200
    assert ask(base, "GET", "/health", Authorization="Bearer wrong")[0] == 401
    assert ask(base, "GET", "/health", Origin="http://a.example")[0] == 403
    assert ask(base, "GET", "/health", Host="a.example")[0] == 403
    assert ask(base, "POST", "/reset", b" " * (2**20 + 1))[0] == 413
    assert ask(base, "POST", "/reset", b"{")[0] == 400
    status, told = ask(base, "POST", "/reset", b'{"task": "nowhere"}')
    assert status == 404 and "expected a task" in told
    status, told = ask(base, "POST", "/reset", b'{"seed": 3}')
    assert status == 200 and "Your task is to" in json.loads(told)["observation"]["observation"]
    assert ask(base, "POST", "/step", b'{"action": {"action": "look"}}')[0] == 409
    assert ask(base, "POST", "/step", b'{"action": 3}')[0] == 422
    assert "available_actions" in ask(base, "GET", "/schema")[1]


def test_tasks_are_listed(base: str) -> None:
    from comap.integrations.openenv import openenv_parts

    env = openenv_parts(Offered([ALFWORLD], GENERATED, ["split"])).environment()
    assert "valid_seen" in env.list_splits()
    assert env.num_tasks("valid_seen") == len(env.list_tasks("valid_seen")) == 140
    assert env.get_task("valid_seen", 3) == env.get_task_range("valid_seen", 3, 4)[0]
    alone = openenv_parts(Offered([ALFWORLD], GENERATED)).environment()
    assert alone.list_splits() == ["train"]
    with pytest.raises(OptionError):
        alone.num_tasks("valid_seen")


def test_the_command_serves() -> None:
    words = [sys.executable, "-m", "comap", "serve", "env", "--env", ALFWORLD, "--style", "openenv"]
    process = subprocess.Popen([*words, "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        with client(process.stdout.readline().split()[1], None) as env:
            assert env.reset(index=0).observation["task"].startswith("generated/")
    finally:
        process.terminate()
        process.wait(20)
