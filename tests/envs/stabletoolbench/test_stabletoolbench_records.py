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
from comap.envs.stabletoolbench.scoring import attempt_of
from comap.envs.stabletoolbench.tasks import generated_task
from comap.trajectory import ENV_INFO, Trajectory, read_trajectories
from kits import stabletoolbench

ENV = partial(gym.make, "comap/StableToolBench-v0", source="generated", split="G1_instruction")


class Says:
    """An agent with a script, and notes of its own."""

    name = "says"

    def __init__(self, *actions: str, notes: dict[str, Any] | None = None):
        self._actions, self._notes = actions, notes or {}

    def decide(self, view):
        yield []
        return Decision(self._actions[view.step], notes=self._notes)


GIVE_UP = stabletoolbench.call("Finish", return_type="give_up_and_restart")


def test_steps_keep_the_source_and_nothing_where_none_was_asked():
    name, arguments = generated_task("G1_instruction", 0).plan[0]
    agent = Says(
        stabletoolbench.call(name, **arguments), "no call at all", GIVE_UP, notes={"why": "so"}
    )
    episode = run_episode(ENV(), agent, task="generated/G1_instruction/0")
    assert episode.error is None
    assert [step.notes for step in episode.steps] == [
        {"why": "so", ENV_INFO: {"tool_source": "local"}},
        {"why": "so"},
        {"why": "so"},
    ]
    assert [dict(step.env_info) for step in episode.steps] == [{"tool_source": "local"}, {}, {}]
    assert attempt_of(episode).sources == ("local", "")
    assert Trajectory.from_json(json.loads(json.dumps(episode.to_json()))) == episode


def test_faults_of_backends_are_kept(tmp_path):
    folder = stabletoolbench.write_query(tmp_path, stabletoolbench.api("a"))
    cache = tmp_path / "tool_response_cache" / "Food" / "drinks_for_Food"
    cache.mkdir(parents=True)
    (cache / "a.json").write_text("{")
    with gym.make("comap/StableToolBench-v0", split="G1_tool", data_dir=folder) as env:
        env.reset()
        call = stabletoolbench.call(env.unwrapped.functions[0]["name"])
        episode = run_episode(env, Says(call, GIVE_UP))
    env_info = episode.steps[0].env_info
    assert env_info["tool_source"] == "none" and "cache" in env_info["tool_faults"][0]


@pytest.mark.parametrize("live", [1, 3])
def test_every_run_tells_coverage(tmp_path, live):
    tasks = [f"generated/G1_instruction/{number}" for number in range(3)]
    summary = run_to(
        tmp_path, Run(make_env=ENV, agent=ExpertAgent(), tasks=tasks), concurrency=live
    )
    played = list(read_trajectories(tmp_path / "trajectories.jsonl"))
    calls = sum(len(episode.steps) - 1 for episode in played)
    assert summary["told"] == {"tool_source": {"local": calls}}
    rows = dict(summary_table("run", summary).rows)
    assert rows["tool source"] == f"local 100.0 % (n={calls})"
