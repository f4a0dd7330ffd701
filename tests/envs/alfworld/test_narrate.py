from __future__ import annotations

import gymnasium
import pytest

from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.envs import state_text
from comap.envs.alfworld.narrate import narrate, narrate_scene
from comap.facts import State
from comap.trajectory import Trajectory, Turn

ENV = "comap/ALFWorld-v0"


def state(*facts: str) -> State:
    return State.from_text("\n".join(facts))


KITCHEN = state(
    *(f"exists({name} {n})" for name in ("cabinet", "fridge") for n in (1, 2, 10)),
    "seen(fridge 1)",
    "at(agent, fridge 1)",
    "open(fridge 1)",
    "closed(cabinet 2)",
    "in(mug 1, fridge 1)",
    "in(mug 3, fridge 1)",
    "in(egg 2, fridge 1)",
    "clean(mug 3)",
    "holding(egg 1)",
    "hot(egg 1)",
)


def test_an_agent_is_told_what_the_goal_is_about() -> None:
    failed = Turn("go to fridge 10", "Nothing happens.")
    history = (Turn(None, "Welcome."), failed, Turn("open fridge 1", "You open the fridge 1."))
    assert narrate("put a clean mug in cabinet.", history, KITCHEN).splitlines() == [
        "goal: put a clean mug in cabinet.",
        "held: egg 1 (hot)",
        "here: fridge 1 (open)",
        "known: fridge 1 (open) has mug 3 (clean), mug 1",
        "closed: cabinet 2",
        "new: cabinet 1 10 fridge 2",
        "last: go to fridge 10 (nothing happened); open fridge 1",
    ]


def test_a_world_model_is_told_what_the_action_is_about() -> None:
    told = narrate_scene("put a clean mug in cabinet.", (), KITCHEN, "go to cabinet 2")
    assert told.splitlines()[3:] == [
        "scene: cabinet 2 (closed); fridge 1 (open) has egg 2, mug 3 (clean), mug 1"
    ]


def test_what_the_goal_needs_stays_known_when_it_is_empty() -> None:
    seen = state("exists(sinkbasin 1)", "seen(sinkbasin 1)", "exists(bed 1)", "seen(bed 1)")
    assert "known: sinkbasin 1 has nothing" in narrate("put a clean mug in shelf.", (), seen)
    assert "bed" not in narrate("put a clean mug in shelf.", (), seen)


def test_an_unknown_goal_and_odd_facts_are_told_as_well() -> None:
    odd = state("exists(desk 1)", "in(pen)", "near(x)", "warm(pen 1)")
    assert narrate("dance!", (), odd).splitlines()[0] == "goal: dance!"


@pytest.fixture(scope="module")
def episodes() -> list[Trajectory]:
    env = gymnasium.make(ENV)
    agents = (ExpertAgent(), RandomAgent(1, mixed=0.3))
    return [run_episode(env, agent, seed=seed) for agent in agents for seed in range(5)]


def test_every_state_of_an_episode_has_a_text_that_is_short_and_the_same_again(
    episodes: list[Trajectory],
) -> None:
    for episode in episodes:
        turns = [Turn(None, episode.observation)]
        for facts, step in episode.transitions():
            for action in (None, step.action):
                text = state_text(ENV, episode.goal, turns, facts, action)
                assert text == state_text(ENV, episode.goal, turns, State(facts.facts), action)
                assert text.startswith(f"goal: {episode.goal}\n") and len(text) < 1500
            turns.append(Turn(step.action, step.observation))


def test_an_environment_without_words_gets_plain_facts() -> None:
    text = state_text("nobody/Nothing-v0", "Win.", (Turn(None, "Hi."),), state("b(2)", "a(1)"))
    assert text == "goal: Win.\nfacts: a(1); b(2)"
