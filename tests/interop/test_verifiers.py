"""verifiers' own code evaluates our environments, against a stand-in of an OpenAI-compatible server.

`make interop` runs this in an environment of its own: verifiers needs mcp 2, and OpenEnv needs mcp 1.
"""

# installs: comap[verifiers]

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium as gym
import pytest

from kits.hostile_server import HostileServer

pytest.importorskip("verifiers", minversion="0.4")
import verifiers.v1 as vf
from verifiers.v1.cli.eval.runner import run_eval
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.utils.loaders import resolve_env_config

ALFWORLD, TOOLS = "comap/ALFWorld-v0", "comap/StableToolBench-v0"
GENERATED = {"source": "generated"}


def says(text):
    """Answer as OpenAI's server does: verifiers' chat harness asks for a stream."""
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "a model"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    parts = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    ]
    lines = [*(json.dumps(chunk | part) for part in parts), "[DONE]"]
    body = "".join(f"data: {line}\n\n" for line in lines).encode()
    return lambda handler: handler.reply(200, body, {"content-type": "text/event-stream"})


class Experts:
    """Answers chats as experts would: each chat's own, found by the first observation."""

    def __init__(self, env_id, split, reply_form, number):
        self._env = gym.make(env_id, split=split, **GENERATED)
        self._reply_form, self._starts = reply_form, dict[str, str]()
        self._lock = threading.Lock()
        for task in self._env.unwrapped.tasks.ids[:number]:
            observation, _ = self._env.reset(options={"task": task})
            self._starts[observation] = task

    def __call__(self, handler):
        with self._lock:
            text = self._expert_action(handler.body["messages"])
        says(self._reply_form.replace("ACTION", text))(handler)

    def _expert_action(self, messages):
        first = messages[1]["content"].partition("\n\nAvailable actions:")[0]
        self._env.reset(options={"task": self._starts[first]})
        for message in messages[2:]:
            if message["role"] == "assistant":
                self._env.step(self._env.unwrapped.expert_action())
        return str(self._env.unwrapped.expert_action())


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """Evaluates: returns the episodes."""
    monkeypatch.setenv("NO_SUCH_KEY", "none")

    def evaluate(url, env_id, *, number, rollouts=1, split=None, **env):
        taskset = {"id": "comap-envs", "env": env_id, "split": split, "options": GENERATED}
        config = EvalConfig(
            env={"taskset": taskset, **env},
            model="a model",
            client={"base_url": url, "api_key_var": "NO_SUCH_KEY"},
            select={"limit": number},
            num_rollouts=rollouts,
            output_dir=tmp_path,
            push=False,
            rich=None,
        )
        return asyncio.run(run_eval(config))

    return evaluate


def test_verifiers_finds_the_package():
    taskset = {"id": "comap-envs", "env": ALFWORLD, "options": GENERATED}
    env = vf.load_environment(resolve_env_config({"taskset": taskset}))
    assert type(env).__name__ == "ComapEnv"
    names = [task.data.name for task in env.taskset.take(3)]
    twin = gym.make(ALFWORLD, **GENERATED)
    assert names == list(twin.unwrapped.tasks.ids[:3])


@pytest.mark.parametrize(
    ("env_id", "split", "reply_form"),
    [(ALFWORLD, "valid_seen", "Hm. <action>ACTION</action>"), (TOOLS, "G1_tool", "ACTION")],
)
def test_experts_solve_all_tasks(env_id, split, reply_form, evaluated):
    with HostileServer(Experts(env_id, split, reply_form, 2)) as server:
        episodes = evaluated(
            server.url, env_id, number=2, rollouts=2, split=split, reward="success"
        )
    assert len(episodes) == 4
    for episode in episodes:
        (trace,) = episode.traces
        assert episode.ok and not episode.errors and trace.reward == 1.0
        assert trace.metrics["score"] == 1.0 and trace.metrics["invalid_actions"] == 0.0
        assert trace.metrics["steps"] == trace.num_turns > 1
        assert trace.info["comap"]["facts"] and trace.info["comap"]["task"] == trace.task.data.name


def test_what_is_no_action_is_told_and_counted(evaluated):
    with HostileServer(says("I had rather not.")) as server:
        (episode,) = evaluated(
            server.url,
            ALFWORLD,
            number=1,
            reward="score",
            show_actions=False,
            agent={"max_turns": 3},
        )
        assert server.requests[1]["messages"][-1]["content"] == "Nothing happens."
    (trace,) = episode.traces
    assert trace.reward < 1 and trace.metrics["success"] == 0.0
    assert trace.metrics["invalid_actions"] == trace.metrics["steps"] == 3.0


def test_a_fault_is_the_episodes_error(evaluated, monkeypatch):
    from comap.envs.alfworld.env import ALFWorldEnv

    def broken(self, action):
        raise RuntimeError("the engine broke")

    monkeypatch.setattr(ALFWorldEnv, "_act", broken)
    with HostileServer(says("<action>look</action>")) as server:
        episodes = evaluated(server.url, ALFWORLD, number=2)
    assert len(episodes) == 2 and not any(episode.ok for episode in episodes)
    assert all("the engine broke" in episode.errors[0].message for episode in episodes)


def test_the_command_of_the_guide(tmp_path, monkeypatch):
    """`vf-eval`, as docs/guides/stacks.md has it."""
    monkeypatch.setenv("NO_SUCH_KEY", "none")
    words = ["comap-envs", "--env.taskset.env", "comap/WebShop-v0", "-n", "1", "--no-push"]
    words += ["--no-rich", "--env.agent.max-turns", "2", "-o", str(tmp_path), "--run.name", "x"]
    words += ["--client.api-key-var", "NO_SUCH_KEY", "-m", "a model"]
    with HostileServer(says("<action>search[mug]</action>")) as server:
        program = [str(Path(sys.executable).with_name("vf-eval"))]
        process = subprocess.run(
            [*program, *words, "--client.base-url", server.url],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert process.returncode == 0, process.stdout + process.stderr
    (line,) = (tmp_path / "x" / "traces.jsonl").read_text("utf-8").splitlines()
    (trace,) = json.loads(line)["traces"]
    assert trace["metrics"]["steps"] == 2.0 and trace["info"]["comap"]["split"]
