"""Whatever an agent does wrong is on record, and ends only its own episode."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import Decision, Imagine, ReplayAgent, View, run_episode
from comap.errors import OptionError
from comap.worldmodel import ImaginedEnv, NullWorldModel, transitions_of


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", **options)


class Agent:
    """Looks once, then does what it is told to do wrong."""

    name = "agent"

    def __init__(self, wrong: Any):
        self.wrong = wrong

    def decide(self, view: View) -> Generator[Any, Any, Any]:
        yield from ()
        if view.step == 0:
            return Decision("look")
        answer = self.wrong(view)
        return (yield from answer) if isinstance(answer, Generator) else answer


def yields(request: Any) -> Generator[Any, Any, Decision]:
    reply = yield request
    return Decision("look", reply)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda view: None, "InvalidAction: expected a Decision from agent.decide, found None"),
        (lambda view: "look", "expected a Decision from agent.decide, found 'look'"),
        (lambda view: Decision(3), "which is text (str), or None; found 3"),
        (lambda view: Decision("look", "a guess"), "reply to Imagine, or None; found 'a guess'"),
        (lambda view: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda view: yields("look"), "InvalidAction: expected a request from the agent"),
        (lambda view: yields(None), "expected a request from the agent (Generate"),
        (lambda view: yields([Imagine("look"), 3]), "found 3"),
        (lambda view: yields(Imagine(3)), "InvalidAction: an action is text"),  # type: ignore[arg-type]
    ],
    ids=range(9),
)
def test_mistakes_are_recorded(wrong: Any, told: str) -> None:
    trajectory = run_episode(real(), Agent(wrong), seed=0)
    assert trajectory.error is not None and told in trajectory.error
    assert [step.action for step in trajectory.steps] == ["look"]
    assert not trajectory.success


def test_an_agent_that_is_no_generator_is_recorded() -> None:
    class Plain:
        name = "plain"

        def decide(self, view: View) -> Any:
            return Decision("look")

    trajectory = run_episode(real(), Plain(), seed=0)
    assert trajectory.error is not None and trajectory.steps == ()


def test_faults_of_world_models_are_recorded() -> None:
    class Broken:
        def predict(self, queries: Any) -> Any:
            raise RuntimeError("no idea")

    agent = Agent(lambda view: yields(Imagine("look")))
    asked = run_episode(real(), agent, seed=0, world_model=Broken())
    assert asked.error == "RuntimeError: no idea" and len(asked.steps) == 1
    lived = run_episode(ImaginedEnv(real(), Broken()), agent, seed=0)
    assert lived.error == "RuntimeError: no idea" and lived.steps[-1].truncated
    assert lived.world_model == "Broken"


def test_faults_of_wrappers_are_recorded() -> None:
    class Trap(gym.Wrapper[str, str, str, str]):
        def step(self, action: str) -> Any:
            raise RuntimeError("a trap")

    trajectory = run_episode(Trap(real()), Agent(None), seed=0)
    assert trajectory.error == "RuntimeError: a trap" and trajectory.steps == ()


def test_giving_up_is_no_fault() -> None:
    trajectory = run_episode(real(), Agent(lambda view: Decision(None)), seed=0)
    assert trajectory.error is None and len(trajectory.steps) == 1


def test_who_predicted_is_on_record() -> None:
    agent = Agent(lambda view: yields(Imagine("look")) if view.step < 3 else Decision(None))
    told = run_episode(real(), agent, seed=0, world_model=NullWorldModel())
    assert told.world_model == "NullWorldModel"
    assert [step.prediction is None for step in told.steps] == [True, False, False]
    quiet = Agent(lambda view: Decision(None))
    assert run_episode(real(), quiet, seed=0, world_model=NullWorldModel()).world_model is None


def test_a_step_that_a_fault_cut_short_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    env = real()
    act, count = env.unwrapped._act, 0  # type: ignore[attr-defined]

    def breaks(action: str) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise RuntimeError("engine on strike")
        return act(action)

    monkeypatch.setattr(env.unwrapped, "_act", breaks)
    trajectory = run_episode(env, Agent(lambda view: Decision("look")), seed=0)
    assert len(trajectory.steps) == 3 and trajectory.error is not None
    assert len(list(transitions_of(trajectory))) == 2


def test_imagined_steps_teach_nothing_but_are_history() -> None:
    agent = Agent(lambda view: Decision("look") if view.step < 6 else Decision(None))
    trajectory = run_episode(ImaginedEnv(real(), "null", real_every=3), agent, seed=0)
    found = list(transitions_of(trajectory))
    assert [len(transition.query.history) for transition in found] == [3, 6]


def test_environments_of_others_are_refused() -> None:
    with pytest.raises(OptionError, match=r"found CartPoleEnv"):
        run_episode(gym.make("CartPole-v1"), Agent(None))  # type: ignore[arg-type]


def test_a_replay_stops_where_the_record_does_and_where_the_world_ends() -> None:
    agent = Agent(lambda view: Decision("help") if view.step < 4 else Decision(None))
    first = run_episode(real(), agent, seed=0)
    again = run_episode(real(), ReplayAgent(first), task=first.task)
    assert again.steps == first.steps and again.error is None and again.agent == "agent"
    short = run_episode(real(max_episode_steps=2), ReplayAgent(first), task=first.task)
    assert len(short.steps) == 2 and short.steps[-1].truncated
