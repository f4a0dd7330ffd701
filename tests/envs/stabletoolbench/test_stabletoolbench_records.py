"""Which backend answered is kept in records of episodes, and told of every run."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.agents import Decision, run_episode
from comap.agents.expert import ExpertAgent
from comap.agents.run import Run, run_to
from comap.benchmarks.run_display import summary_table
from comap.envs.stabletoolbench import generate
from comap.envs.stabletoolbench.attempts import attempt_of
from comap.trajectory import TOLD, Step, Trajectory, read_trajectories
from comap.worldmodel import ImaginedEnv, NullWorldModel

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
        {"why": "so", TOLD: {"tool_source": "local"}},
        {"why": "so"},
        {"why": "so"},
    ]
    assert [dict(step.told) for step in found.steps] == [{"tool_source": "local"}, {}, {}]
    assert attempt_of(found).sources == ("local", "")
    assert Trajectory.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_an_agent_cannot_say_which_backend_answered():
    claimed = {TOLD: {"tool_source": "live"}, "why": "so"}
    found = play(good_call(), "no call", GIVE_UP, notes=claimed)
    assert [dict(step.told) for step in found.steps] == [{"tool_source": "local"}, {}, {}]
    assert all(step.notes["why"] == "so" for step in found.steps)


def test_the_format_on_disk_has_no_new_field():
    """Readers of schema 2 that know nothing of this read it, and it reads what they wrote."""
    (record, *_) = play(good_call(), GIVE_UP).to_json()["steps"]
    assert set(record) == set(Step.__dataclass_fields__)
    older = play(good_call(), GIVE_UP).to_json()
    for step in older["steps"]:
        step["notes"] = {}
    assert all(not step.told for step in Trajectory.from_json(older).steps)
    for strange in ("local", ["local"], None):
        older["steps"][0]["notes"] = {TOLD: strange}
        assert Trajectory.from_json(older).steps[0].told == {}


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
    told = found.steps[0].told
    assert told["tool_source"] == "none" and "cache" in told["tool_faults"][0]


def test_other_environments_keep_nothing():
    env = gym.make("comap/WebShop-v0")
    found = run_episode(env, ExpertAgent(), seed=0)
    assert found.success and all(TOLD not in step.notes for step in found.steps)


def test_imagined_steps_have_no_source():
    env = ImaginedEnv(ENV(), NullWorldModel())
    found = play(good_call(), GIVE_UP, env=env)
    assert found.imagined and not any(step.told for step in found.steps)


@pytest.mark.parametrize("live", [1, 3])
def test_every_run_tells_coverage(tmp_path, live):
    tasks = [f"generated/G1_instruction/{number}" for number in range(3)]
    summary = run_to(tmp_path, Run(make_env=ENV, agent=ExpertAgent(), tasks=tasks), live=live)
    played = list(read_trajectories(tmp_path / "trajectories.jsonl"))
    calls = sum(len(one.steps) - 1 for one in played)
    assert summary["told"] == {"tool_source": {"local": calls}}
    rows = dict(summary_table("run", summary).rows)
    assert rows["tool source"] == f"local 100.0 % (n={calls})"


def test_shares_are_of_the_calls_that_a_backend_was_asked():
    summary = {"told": {"tool_source": {"cache": 3, "none": 1}}}
    from comap.agents.run_summary import Tally

    rows = dict(summary_table("run", Tally().summary() | summary).rows)
    assert rows["tool source"] == "cache 75.0 %, none 25.0 % (n=4)"
    assert "told" not in Tally().summary()
