"""Agents and the runner: episodes are recorded whole, faults included."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import Decision, ExpertAgent, Imagine, RandomAgent, ReplayAgent, View, run_episode
from comap.errors import CoMapError, OptionError, TaskNotFound
from comap.facts import State, apply
from comap.trajectory import read_trajectories, write_trajectories
from comap.worldmodel import ImaginedEnv, NullWorldModel


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", **options)


TASKS = real().unwrapped.tasks.ids  # type: ignore[attr-defined]


class Scripted:
    """An agent that does one thing, told by a function of the view."""

    name = "scripted"

    def __init__(self, act: Any):
        self.act = act

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        answer = self.act(view)
        if isinstance(answer, Generator):
            return (yield from answer)
        return Decision(answer)


def test_experts_win_and_are_recorded(tmp_path: Path) -> None:
    for expert in ("plan", "explore"):
        env = real(expert=expert)
        for task in TASKS[:6]:
            trajectory = run_episode(env, ExpertAgent(), task=task)
            assert trajectory.success and trajectory.score == 1.0 and trajectory.error is None
            assert (trajectory.task, trajectory.split) == (task, "valid_seen")
            assert trajectory.steps[-1].terminated and not trajectory.imagined
            state = trajectory.facts
            for before, step in trajectory.transitions():
                assert before == state
                state = apply(before, step.delta)
                assert State(state.facts) == State(step.facts.facts)
            path = tmp_path / "episode.jsonl"
            write_trajectories(path, [trajectory])
            assert list(read_trajectories(path)) == [trajectory]


def test_random_agents_depend_on_seed_task_and_step_alone() -> None:
    env = real()
    first = run_episode(env, RandomAgent(3), task=TASKS[0])
    run_episode(env, RandomAgent(3), task=TASKS[1])
    again = run_episode(real(), RandomAgent(3), task=TASKS[0])
    assert [s.action for s in first.steps] == [s.action for s in again.steps]
    other = run_episode(env, RandomAgent(4), task=TASKS[0])
    assert [s.action for s in first.steps] != [s.action for s in other.steps]
    assert not any(s.invalid_action for s in first.steps)
    mixed = run_episode(env, RandomAgent(3, mixed=1.0), task=TASKS[0])
    assert any(s.invalid_action for s in mixed.steps)
    with pytest.raises(OptionError):
        RandomAgent(mixed=1.5)


def test_requests_are_answered_and_predictions_kept() -> None:
    asked: list[Any] = []

    def thinks(view: View) -> Generator[Any, Any, Decision]:
        one = yield Imagine("look")
        both = yield [Imagine("inventory"), Imagine("help")]
        asked.append((one.observation, [reply.observation for reply in both]))
        return Decision("look" if view.step < 2 else None, one)

    trajectory = run_episode(real(), Scripted(thinks), task=TASKS[0])
    assert len(asked) == 3 and len(trajectory.steps) == 2
    for step in trajectory.steps:
        assert step.prediction is not None and step.prediction.source == "oracle"
        assert step.prediction.observation == step.observation
    nothing = run_episode(real(), Scripted(thinks), task=TASKS[0], world_model=NullWorldModel())
    assert nothing.steps[0].prediction.observation == "Nothing happens."  # type: ignore[union-attr]


def test_a_failing_agent_is_recorded_not_raised() -> None:
    def fails(view: View) -> str:
        if view.step == 2:
            raise RuntimeError("out of thoughts")
        return "look"

    trajectory = run_episode(real(), Scripted(fails), task=TASKS[0])
    assert trajectory.error == "RuntimeError: out of thoughts"
    assert len(trajectory.steps) == 2 and not trajectory.success


@pytest.mark.parametrize("decision", [3, b"look", ["look"]], ids=repr)
def test_an_agent_that_returns_no_text_is_recorded(decision: Any) -> None:
    trajectory = run_episode(real(), Scripted(lambda view: decision), task=TASKS[0])
    assert trajectory.error is not None and "text (str)" in trajectory.error


def test_an_engine_fault_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    env = real()

    def broken(action: str) -> Any:
        raise RuntimeError("engine on strike")

    monkeypatch.setattr(env.unwrapped, "_act", broken)
    trajectory = run_episode(env, Scripted(lambda view: "look"), task=TASKS[0])
    assert trajectory.error == "RuntimeError: engine on strike"
    assert trajectory.steps[-1].truncated


def test_replaying_repeats_and_compares() -> None:
    first = run_episode(real(), ExpertAgent(), task=TASKS[4])
    again = run_episode(real(), ReplayAgent(first, imagine=True), task=first.task)
    assert [s.observation for s in again.steps] == [s.observation for s in first.steps]
    assert all(s.prediction is not None for s in again.steps)
    imagined = run_episode(ImaginedEnv(real(), "null"), ReplayAgent(first), task=first.task)
    assert imagined.imagined and not imagined.success and imagined.world_model == "NullWorldModel"


def test_what_cannot_start_raises() -> None:
    with pytest.raises(TaskNotFound):
        run_episode(real(), ExpertAgent(), task="generated/none")
    with pytest.raises(CoMapError, match="environment of comap"):
        run_episode(gym.make("CartPole-v1"), ExpertAgent())  # type: ignore[arg-type]
