"""IWM: ReAct at inference, and the exploration that its training learns from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import ExpertAgent, run_episode
from comap.agents.base import View
from comap.agents.iwm import IWMConfig, explore, sample_alternatives
from comap.errors import EngineError, OptionError
from comap.worldmodel import ImaginedEnv, NullWorldModel, Transition
from kits.scripted import drive, view


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", source="generated", split="valid_seen", **options)


def explored(env: Any, expert: Any, policy: Any, **options: Any) -> list[Transition]:
    """Explore with a plain function that proposes actions."""

    def propose(current_view: View) -> Any:
        yield from ()
        return policy(current_view)

    transitions: list[Transition] = drive(explore(env, expert, propose, **options), []).result
    return transitions


TASK = real().unwrapped.tasks.ids[0]  # type: ignore[attr-defined]
EXPERT = [step.action for step in run_episode(real(), ExpertAgent(), task=TASK).steps]


def test_every_expert_state_is_explored_and_restored() -> None:
    visited: list[tuple[int, int]] = []

    def policy(current_view: View) -> Sequence[str]:
        visited.append((current_view.step, len(current_view.history)))
        return ["inventory", "fly", "Inventory.", EXPERT[current_view.step].upper(), "look", "help"]

    env = real()
    transitions = explored(env, EXPERT, policy, k=3, task=TASK)
    assert visited == [(step, step + 1) for step in range(len(EXPERT))]
    groups = [transitions[start : start + 4] for start in range(0, len(transitions), 4)]
    assert len(groups) == len(EXPERT)
    plain = run_episode(real(), ExpertAgent(), task=TASK)
    for group, step, action in zip(groups, plain.steps, EXPERT, strict=True):
        assert [t.query.action for t in group] == [action, "inventory", "fly", "look"]
        assert group[0].observation == step.observation  # the alternatives left no trace
        assert all(t.query.history == group[0].query.history for t in group)
        assert group[2].observation == "Nothing happens."
    assert run_episode(real(), ExpertAgent(), task=TASK) == plain


def test_actions_are_sampled_from_the_policy() -> None:
    config = IWMConfig(alternatives=3)
    talk = drive(sample_alternatives(view(), config), ["Action: look", "Hm.", "Action: wait"])
    assert talk.result == ("look", "wait")
    assert len({r.sampling.seed for r in talk.requests}) == 3
    assert {r.sampling.temperature for r in talk.requests} == {1.0}


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
    transitions = explored(env, ["look"], lambda current_view: ["fly", "help"], task=TASK)
    assert [t.query.action for t in transitions] == ["look", "help"]
    with pytest.raises(EngineError, match="expert's action 'fly'"):
        explored(env, ["fly"], lambda current_view: [], task=TASK)
    with pytest.raises(OptionError, match="imagined"):
        imagined = ImaginedEnv(real(), NullWorldModel())
        explored(imagined, ["look"], lambda current_view: ["help"], task=TASK)
