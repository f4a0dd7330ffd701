"""The real library runs our environment, against a stand-in of an OpenAI-compatible server."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import gymnasium as gym
import pytest

from comap.envs.conformance.transcripts import load
from comap.integrations.verifiers import load_environment

vf = pytest.importorskip("verifiers")
hostile = load(f"{Path(__file__).parents[1] / 'lm' / 'hostile_server.py'}:KIT")

ALFWORLD, TOOLS = "comap/ALFWorld-v0", "comap/StableToolBench-v0"
GENERATED = {"source": "generated"}


def says(text):
    """Answer as OpenAI's server does."""
    return hostile.sends(hostile.completion(text) | {"created": 0, "model": "a model"})


class Experts:
    """Answers chats as experts would: each chat's own, found by the first observation."""

    def __init__(self, env_id, split, written, tasks):
        self._env = gym.make(env_id, split=split, **GENERATED)
        self._written, self._starts = written, dict[str, str]()
        self._lock = threading.Lock()
        for task in tasks:
            observation, _ = self._env.reset(options={"task": task})
            self._starts[observation] = task

    def __call__(self, handler):
        with self._lock:
            text = self._said(handler.body["messages"])
        says(self._written.replace("ACTION", text))(handler)

    def _said(self, said):
        first = said[1]["content"].partition("\n\nAvailable actions:")[0]
        self._env.reset(options={"task": self._starts[first]})
        for message in said[2:]:
            if message["role"] == "assistant":
                self._env.step(self._env.unwrapped.expert_action())
        return str(self._env.unwrapped.expert_action())


def evaluate(env, url, **how):
    from verifiers.types import ClientConfig

    config = ClientConfig(api_base_url=url, api_key_var="NO_SUCH_KEY", max_retries=0, timeout=20)
    return env.evaluate_sync(config, "a model", max_concurrent=4, **how)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("NO_SUCH_KEY", "none")


@pytest.mark.parametrize(
    ("env_id", "split", "written"),
    [(ALFWORLD, "valid_seen", "Hm. <action>ACTION</action>"), (TOOLS, "G1_tool", "ACTION")],
)
def test_experts_solve_all_tasks(env_id, split, written):
    env = load_environment(
        env_id, eval_split=split, num_eval_examples=3, reward="success", **GENERATED
    )
    assert isinstance(env, vf.MultiTurnEnv)
    rows = env.get_eval_dataset()
    infos = [row["info"] for row in rows]
    tasks = [(json.loads(i) if isinstance(i, str) else i)["task_id"] for i in infos]
    assert len(set(tasks)) == 3
    with hostile.HostileServer(Experts(env_id, split, written, tasks)) as server:
        results = evaluate(env, server.url, rollouts_per_example=2, state_columns=["comap"])
    outputs = results["outputs"]
    assert [one["reward"] for one in outputs] == [1.0] * 6
    for one in outputs:
        assert one["error"] is None and one["metrics"]["score"] == 1.0
        assert one["metrics"]["num_turns"] == one["metrics"]["steps"] == one["comap"]["steps"] > 1
        assert one["comap"]["facts"] and one["comap"]["task"] in tasks


def test_what_is_no_action_is_told_and_counted():
    env = load_environment(
        ALFWORLD, num_eval_examples=1, max_turns=3, reward="score", show_actions=False, **GENERATED
    )
    with hostile.HostileServer(says("I had rather not.")) as server:
        (one,) = evaluate(env, server.url)["outputs"]
        assert server.requests[1]["messages"][-1]["content"] == "Nothing happens."
    assert one["reward"] < 1 and one["metrics"]["invalid_actions"] == 2.0
    assert one["metrics"]["success"] == 0.0


def test_a_fault_is_the_rollouts_error(monkeypatch):
    from comap.envs.alfworld.env import ALFWorldEnv

    def broken(self, action):
        raise RuntimeError("the engine broke")

    env = load_environment(ALFWORLD, num_eval_examples=2, **GENERATED)
    with hostile.HostileServer(says("<action>look</action>")) as server:
        monkeypatch.setattr(ALFWorldEnv, "_act", broken)
        outputs = evaluate(env, server.url)["outputs"]
    assert len(outputs) == 2
    assert all("the engine broke" in str(one["error"]) for one in outputs)


def test_the_rows_to_train_on():
    env = load_environment(ALFWORLD, num_train_examples=5, **GENERATED)
    rows = env.get_dataset()
    assert len(rows) == 5 and rows[0]["prompt"][0]["role"] == "system"
    assert "<action>" in rows[0]["prompt"][0]["content"]
