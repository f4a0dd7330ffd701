"""Reflexion: trials of one task, and what is carried from one to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.agents.reflexion import ReflexionAgent, ReflexionConfig
from comap.agents.runner import run_episodes
from comap.facts import Delta, State
from comap.lm import Completion
from comap.trajectory import Step, Trajectory
from kits.scripted import HashedModel, converse_with, drive, view

ACT = "Thought: Hm.\nAction: look"


def agent(**options: Any) -> ReflexionAgent:
    return ReflexionAgent(ReflexionConfig(**options))


def episode(*turns: tuple[str, str], success: bool = False, **options: Any) -> Trajectory:
    steps = tuple(
        Step(t, action, observation, 0.0, False, False, False, State(), Delta(), success=success)
        for t, (action, observation) in enumerate(turns, 1)
    )
    first = Trajectory(
        "comap/ALFWorld-v0", "generated/x", "train", "Put it in.", "reflexion", "A room.", State()
    )
    return replace(first, steps=steps, **options)


def test_a_failure_is_reviewed_and_told_in_the_next_trial() -> None:
    memory: dict[str, Any] = {}
    actor = agent()
    first = converse_with(actor, view(memory=memory), [ACT])
    assert first.decision.notes["reflections"] == 0
    failed = episode(("look", "A desk."), ("open desk 1", "Nothing happens."))
    talk = drive(actor.review(failed, memory), ["Look into\n the safe next time."])
    assert talk.result is True and talk.purposes == ["reflexion"]
    request = talk.requests[0]
    text = request.messages[-1].content
    for phrase in ("A room.", "> look\nA desk.", "> open desk 1\nNothing happens.", "Put it in."):
        assert phrase in text
    assert request.sampling.max_new_tokens == 128
    assert memory["reflections"] == ["Look into the safe next time."]
    second = converse_with(actor, view(memory=memory, trial=2), [ACT])
    assert second.decision.notes["reflections"] == 1
    system = second.requests[0].messages[0]
    assert system.role == "system" and "- Look into the safe next time." in system.content
    assert second.requests[0].messages[1:] == first.requests[0].messages[1:]
    assert second.requests[0].sampling.seed != first.requests[0].sampling.seed


@pytest.mark.parametrize(
    "over",
    [
        episode(("look", "Solved."), success=True),
        episode(trial=3),
        episode(error="LanguageModelError: down"),
    ],
    ids=["solved", "last", "fault"],
)
def test_when_it_stops(over: Trajectory) -> None:
    memory: dict[str, Any] = {}
    talk = drive(agent().review(over, memory), [])
    assert talk.result is False and memory == {}


@given(
    turns=st.lists(st.tuples(st.text(max_size=40), st.text(max_size=400)), max_size=40),
    notes=st.lists(st.text(min_size=1, max_size=2000), max_size=3),
    length=st.sampled_from([900, 2048]),
)
@settings(max_examples=60, deadline=None)
def test_a_review_fits_and_keeps_goal_and_end(
    turns: list[tuple[str, str]], notes: list[str], length: int
) -> None:
    failed = episode(*turns, ("the end", "It is over."), goal="Mind the goal.")
    review = drive(agent(max_length=length).review(failed, {"reflections": notes}), ["x"])
    messages = review.requests[0].messages
    assert sum(view().count_tokens(m.content) + 8 for m in messages) + 128 <= length
    assert "Mind the goal." in messages[-1].content
    assert "> the end\nIt is over." in messages[-1].content


class Stubborn(HashedModel):  # type: ignore[misc, valid-type]
    """Always looks; notes that it did."""

    def _one(self, request: Any) -> Completion:
        text = "I only looked." if request.purpose == "reflexion" else ACT
        return Completion(text, None, None, "stop", 1, 1)


def test_the_runner_plays_its_trials() -> None:
    def make() -> gym.Env[str, str]:
        return gym.make("comap/ALFWorld-v0", source="generated", max_episode_steps=2)

    tasks = make().unwrapped.tasks.ids[:2]  # type: ignore[attr-defined]
    trials = run_episodes(make, agent(), tasks, lm=Stubborn())
    assert [(t.task, t.trial) for t in trials] == [(task, n) for task in tasks for n in (1, 2, 3)]
    assert [len(t.review) for t in trials] == [1, 1, 0] * 2
    assert trials[0].review[0].text == "I only looked."
    assert [t.steps[0].notes["reflections"] for t in trials] == [0, 1, 2] * 2
    assert not any(t.error for t in trials)


def test_a_trial_that_is_stuck_ends() -> None:
    """One action with one answer, more than three times without a break."""
    turns = [("look", "A desk."), ("wait", "Hm."), *[("look", "A desk.")] * 3]
    talk = converse_with(agent(), view(*turns), [ACT])
    assert talk.decision.action == "look"
    assert converse_with(agent(), view(*turns, ("look", "A desk.")), []).decision.action is None
    changed_turns = (*turns, ("look", "A shelf."))
    assert converse_with(agent(), view(*changed_turns), [ACT]).decision.action == "look"
    assert converse_with(agent(stuck=None), view(*turns, turns[0]), [ACT]).decision.action
