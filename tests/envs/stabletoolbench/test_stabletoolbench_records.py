"""Which backend answered is kept in records of episodes, and told of every run."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.agents import Decision, run_episode
from comap.agents.run import Run, run_to
from comap.agents.scripted import ExpertAgent
from comap.benchmarks.view import summary_table
from comap.envs.stabletoolbench import tasks as generate
from comap.envs.stabletoolbench.scoring import attempt_of
from comap.trajectory import ENV_INFO, Trajectory, read_trajectories

ENV = partial(gym.make, "comap/StableToolBench-v0", source="generated", split="G1_instruction")


class Says:
    """An agent with a script, and notes of its own."""

    name = "says"

    def __init__(self, *actions: str, notes: dict[str, Any] | None = None):
        self._actions, self._notes = actions, notes or {}

    def decide(self, view):
        yield []
        return Decision(self._actions[view.step], notes=self._notes)


GIVE_UP = '{"name": "Finish", "arguments": {"return_type": "give_up_and_restart"}}'


def good_call(number: int = 0) -> str:
    name, arguments = generate.generated_task("G1_instruction", number).plan[0]
    return json.dumps({"name": name, "arguments": arguments})


def play(*actions: str, notes: dict[str, Any] | None = None, env: Any = None) -> Trajectory:
    agent = Says(*actions, notes=notes)
    return run_episode(env or ENV(), agent, task="generated/G1_instruction/0")


def test_steps_keep_the_source_and_nothing_where_none_was_asked():
    found = play(good_call(), "no call at all", GIVE_UP, notes={"why": "so"})
    assert found.error is None
    assert [step.notes for step in found.steps] == [
        {"why": "so", ENV_INFO: {"tool_source": "local"}},
        {"why": "so"},
        {"why": "so"},
    ]
    assert [dict(step.env_info) for step in found.steps] == [{"tool_source": "local"}, {}, {}]
    assert attempt_of(found).sources == ("local", "")
    assert Trajectory.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_faults_of_backends_are_kept(tmp_path):
    cache = tmp_path / "tool_response_cache" / "Data" / "t_for_Data"
    cache.mkdir(parents=True)
    (tmp_path / "test_instruction").mkdir()
    api = {
        "category_name": "Data",
        "tool_name": "t",
        "api_name": "a",
        "api_description": "",
        "required_parameters": [],
        "optional_parameters": [],
        "method": "GET",
    }
    query = {"query_id": 1, "query": "?", "api_list": [api], "relevant APIs": [["t", "a"]]}
    (tmp_path / "test_instruction" / "G1_instruction.json").write_text(json.dumps([query]))
    with gym.make("comap/StableToolBench-v0", split="G1_instruction", data_dir=tmp_path) as env:
        env.reset()
        name = env.unwrapped.functions[0]["name"]
        call = json.dumps({"name": name, "arguments": {}})
        (cache / "a.json").write_text("{")
        found = run_episode(env, Says(call, GIVE_UP))
    told = found.steps[0].env_info
    assert told["tool_source"] == "none" and "cache" in told["tool_faults"][0]


@pytest.mark.parametrize("live", [1, 3])
def test_every_run_tells_coverage(tmp_path, live):
    tasks = [f"generated/G1_instruction/{number}" for number in range(3)]
    summary = run_to(
        tmp_path, Run(make_env=ENV, agent=ExpertAgent(), tasks=tasks), concurrency=live
    )
    played = list(read_trajectories(tmp_path / "trajectories.jsonl"))
    calls = sum(len(one.steps) - 1 for one in played)
    assert summary["told"] == {"tool_source": {"local": calls}}
    rows = dict(summary_table("run", summary).rows)
    assert rows["tool source"] == f"local 100.0 % (n={calls})"
