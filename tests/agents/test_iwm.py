"""IWM: ReAct at inference, and the exploration that its training learns from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import ExpertAgent, run_episode
from comap.agents.base import View
from comap.agents.exploration import (
    explore,
    explore_alternatives,
    sample_alternatives,
    world_modelling_rows,
)
from comap.agents.iwm import IWMAgent, IWMConfig
from comap.envs import snapshot
from comap.envs.conformance.transcripts import load
from comap.errors import EngineError, OptionError
from comap.worldmodel import ImaginedEnv, NullWorldModel

HERE = Path(__file__).with_name("scripted.py")
converse_with, view = load(f"{HERE}:converse_with"), load(f"{HERE}:view")
drive = load(f"{HERE}:drive")


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", source="generated", split="valid_seen", **options)


TASK = real().unwrapped.tasks.ids[0]  # type: ignore[attr-defined]
EXPERT = [step.action for step in run_episode(real(), ExpertAgent(), task=TASK).steps]


def test_it_acts_as_react() -> None:
    memory: dict[str, Any] = {}
    talk = converse_with(IWMAgent(), view(memory=memory), ["Thought: So.\nAction: look"])
    assert talk.purposes == ["draft"] and talk.decision.action == "look"
    assert IWMAgent.name == "iwm" and memory["replies"] == {0: "Thought: So.\nAction: look"}


def test_every_expert_state_is_explored_and_restored() -> None:
    seen: list[tuple[int, int]] = []

    def policy(there: View) -> Sequence[str]:
        seen.append((there.step, len(there.history)))
        return ["inventory", "fly", "Inventory.", EXPERT[there.step].upper(), "look", "help"]

    env = real()
    found = explore_alternatives(env, EXPERT, policy, k=3, task=TASK)
    assert seen == [(step, step + 1) for step in range(len(EXPERT))]
    each = [found[start : start + 4] for start in range(0, len(found), 4)]
    assert len(each) == len(EXPERT)
    plain = run_episode(real(), ExpertAgent(), task=TASK)
    for group, step, action in zip(each, plain.steps, EXPERT, strict=True):
        assert [t.query.action for t in group] == [action, "inventory", "fly", "look"]
        assert group[0].observation == step.observation  # the alternatives left no trace
        assert all(t.query.history == group[0].query.history for t in group)
        assert group[2].observation == "Nothing happens."
    assert run_episode(real(), ExpertAgent(), task=TASK) == plain


def test_it_goes_on_from_where_the_environment_is() -> None:
    env = real()
    env.reset(options={"task": TASK})
    env.step(EXPERT[0])
    moment = snapshot(env)
    found = explore_alternatives(env, EXPERT[1:2], lambda there: [])
    assert [t.query.action for t in found] == EXPERT[1:2]
    assert found[0].query.history == moment.history


def test_a_step_limit_does_not_count_alternatives() -> None:
    found = explore_alternatives(
        real(max_episode_steps=2), ["look"] * 5, lambda there: ["help", "inventory"], task=TASK
    )
    assert [t.query.action for t in found] == ["look", "help", "inventory"] * 2


def test_actions_are_sampled_from_the_policy() -> None:
    config = IWMConfig(alternatives=3)
    talk = drive(sample_alternatives(view(), config), ["Action: look", "Hm.", "Action: wait"])
    assert talk.result == ("look", "wait")
    assert len({r.sampling.seed for r in talk.requests}) == 3
    assert {r.sampling.temperature for r in talk.requests} == {1.0}
    masked = drive(
        sample_alternatives(view(), IWMConfig(alternatives=2, decoding="masked")),
        ["look", "go to desk 1"],
    )
    assert masked.result == ("look", "go to desk 1")
    assert masked.requests[0].choices and masked.requests[0].prefix == "Action:"


def test_exploring_with_a_models_requests() -> None:
    config = IWMConfig(alternatives=2)
    exploring = explore(
        real(), EXPERT[:2], lambda there: sample_alternatives(there, config), k=2, task=TASK
    )
    talk = drive(exploring, ["Action: look", "Action: help", "Action: fly", "no action"])
    assert [t.query.action for t in talk.result] == [EXPERT[0], "look", "help", EXPERT[1], "fly"]


class Breaking(gym.Wrapper[str, str, str, str]):
    """An environment whose engine breaks at one action."""

    def __init__(self, env: gym.Env[str, str], word: str):
        super().__init__(env)
        self.word = word

    def step(self, action: str) -> Any:
        """Break, or step."""
        if action == self.word:
            answer = self.env.step("look")
            return "", 0.0, False, True, answer[4] | {"error": "EngineError: broke"}
        return self.env.step(action)


def test_faults() -> None:
    env = Breaking(real(), "fly")
    found = explore_alternatives(env, ["look"], lambda there: ["fly", "help"], task=TASK)
    assert [t.query.action for t in found] == ["look", "help"]
    with pytest.raises(EngineError, match="expert's action 'fly'"):
        explore_alternatives(env, ["fly"], lambda there: [], task=TASK)
    with pytest.raises(OptionError, match="imagined"):
        imagined = ImaginedEnv(real(), NullWorldModel())
        explore_alternatives(imagined, ["look"], lambda there: ["help"], task=TASK)


def test_rows_for_training() -> None:
    found = explore_alternatives(real(), EXPERT[:2], lambda there: ["fly"], task=TASK)
    rows = world_modelling_rows(found)
    assert [row.answer for row in rows] == [t.observation for t in found]
    for row, transition in zip(rows, found, strict=True):
        told = "\n".join(message.content for message in row.messages)
        assert transition.query.action in told and transition.query.goal in told
    assert rows[1].answer == "Nothing happens."
    own = world_modelling_rows(found, lambda query: [])
    assert own[0].messages == ()


def test_settings() -> None:
    wrongs: list[dict[str, Any]] = [{"alternatives": 0}, {"exploration_temperature": -1}]
    for wrong in wrongs:
        with pytest.raises(OptionError):
            IWMConfig(**wrong)
