"""Environments of others with facts: TextArena's Tower of Hanoi, FrozenLake, hostile ones."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from comap.agents import ExpertAgent, RandomAgent, run_episode, score_world_model
from comap.envs import restore, snapshot
from comap.envs.conformance.transcripts import load
from comap.errors import OptionError, SnapshotError, WorldModelError
from comap.facts import State
from comap.integrations.adapter import Wording, adapt
from comap.integrations.sessions import Session
from comap.metrics import delta_f1_report
from comap.spaces import Unicode
from comap.worldmodel import ImaginedEnv, imagine

EXAMPLE = Path(__file__).parents[2] / "examples" / "adapt_textarena.py"
HANOI = "TowerOfHanoi-v0"


class CellCanonicalizer:
    """Reads ``at(agent, cell N)``."""

    version = "cells-1"

    def initial(self, goal, observation):
        return self.update(State(), "", observation)

    def update(self, state, action, observation):
        match = re.fullmatch(r"You stand on cell (\d+)\.", observation)
        if match is None:
            return State(state.facts, parsed=observation == "Nothing happens.")
        return State(frozenset({("at", "agent", f"cell {match[1]}")}))

    def action(self, text):
        return text.strip().lower()


WAYS = ["left", "down", "right", "up"]
LAKE = Wording(
    goal="Reach cell 15.",
    observe=lambda cell: f"You stand on cell {cell}.",
    act=lambda text: WAYS.index(text.strip().lower()),
    admissible=lambda text, info: WAYS,
    reached=lambda state: ("at", "agent", "cell 15") in state.facts,
)


def lake(**options):
    return adapt(gym.make("FrozenLake-v1", is_slippery=False, **options), CellCanonicalizer(), LAKE)


@pytest.fixture
def hanoi():
    pytest.importorskip("textarena")
    return load(f"{EXAMPLE}:make_env")(HANOI)


def test_a_game_of_textarena_has_facts(hanoi):
    observation, info = hanoi.reset(options={"task": "seeds/3"})
    assert (
        observation.startswith("You are playing Tower of Hanoi") and len(info["facts"].facts) == 3
    )
    played = run_episode(hanoi, ExpertAgent(), task="seeds/3")
    assert played.success and len(played.steps) == 7 and played.steps[-1].reward == 1.0
    for step in played.steps:
        assert len(step.delta.added) == len(step.delta.removed) == 1
        assert "[GAME]" not in step.observation and "playing" not in step.observation
    _, info = hanoi.reset(options={"task": "seeds/3"})
    assert info["admissible_actions"] == ("[A B]", "[A C]") and info["score"] == 0.0
    observation, *_, info = hanoi.step("[B A]")
    assert info["invalid_action"] and info["facts"].parsed and not len(info["delta"])
    second_episode = run_episode(hanoi, RandomAgent(), task="seeds/4")
    assert second_episode == run_episode(hanoi, RandomAgent(), task="seeds/4")


def test_the_oracle_foresees_everything():
    """It goes back and forth in the adapted environment, so that restoring must be exact."""
    env = lake()
    env.reset(seed=0)
    rows = []
    for action in ("right", "right", "down", "fly", "left"):
        before = env.state_facts()
        guess = imagine(env, action, "oracle").facts
        *_, info = env.step(action)
        rows.append((before, guess, info["facts"]))
    assert delta_f1_report(rows).mean == 1.0
    real_again = ImaginedEnv(lake(), "oracle", real_every=2)
    real_again.reset(seed=0)
    imagined_flags = [
        real_again.step(action)[4]["imagined"] for action in ("right", "right", "down")
    ]
    assert imagined_flags == [True, False, True]


def test_a_moment_comes_back():
    env = lake()
    env.reset(seed=0)
    env.step("right")
    moment = snapshot(env)
    after = env.step("down")[0]
    for _ in range(2):
        assert restore(env, moment)[0] == "You stand on cell 1."
        assert env.step("down")[0] == after
    slippery = adapt(Dice(), CellCanonicalizer())
    slippery.reset(seed=0)
    for _ in range(5):
        slippery.step("roll")
    with pytest.raises(SnapshotError, match="not deterministic"):
        slippery.restore(slippery.snapshot())


def test_their_limits_and_ours_truncate():
    env = lake(max_episode_steps=3)
    for _ in range(2):
        env.reset(seed=0)
        ends = [env.step("left")[2:4] for _ in range(3)]
        assert ends == [(False, False), (False, False), (False, True)]
    env = adapt(
        gym.make("FrozenLake-v1", is_slippery=False), CellCanonicalizer(), LAKE, max_episode_steps=2
    )
    env.reset(seed=0)
    assert [env.step("left")[3] for _ in range(2)] == [False, True]


class Dice(gym.Env[str, str]):
    """An environment that pays no heed to its seed, and breaks if it is told to."""

    observation_space = Unicode(100)
    action_space = Unicode(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "You stand on cell 0.", {}

    def step(self, action):
        if action == "break":
            raise RuntimeError("it broke")
        if action == "number":
            return 7, 0.0, False, False, {}
        return f"You stand on cell {random.SystemRandom().random()}.", 0.0, False, False, {}


@pytest.mark.parametrize(
    ("action", "phrase"), [("break", "RuntimeError: it broke"), ("number", "Wording(observe=...)")]
)
def test_a_fault_ends_the_episode_alone(action, phrase):
    env = adapt(Dice(), CellCanonicalizer())
    env.reset(seed=0)
    observation, _, terminated, truncated, info = env.step(action)
    assert (observation, terminated, truncated) == ("", False, True) and phrase in info["error"]
    assert "error" not in env.reset(seed=0)[1]


TABLE = {
    r"stand on (?P<kind>cell) (\d+)": ["-at(agent, *)", "at(agent, {kind} {2})", "seen({2})"],
    r"^You": "-seen(0)",
    "Nothing happens": (),
}


def test_those_who_read_only_texts_are_told_the_goal():
    words = Wording(observe=str, act=int, goal="Reach cell 15.")
    session = Session(
        "", adapt(gym.make("FrozenLake-v1", is_slippery=False), {"0": "at(start)"}, words)
    )
    assert session.reset(seed=0)["observation"] == "0\nReach cell 15."
    assert session.step("1")["observation"] == "4"
    session.close()


def test_a_table_of_patterns_reads_facts():
    env = adapt(gym.make("FrozenLake-v1", is_slippery=False), TABLE, LAKE)
    facts = [env.reset(seed=0)[1]["facts"]]
    facts += [env.step(action)[4]["facts"] for action in ("right", "right", "fly")]
    fact_lists = [sorted(state.facts) for state in facts]
    assert fact_lists[:2] == [
        [("at", "agent", "cell 0")],
        [("at", "agent", "cell 1"), ("seen", "1")],
    ]
    assert (
        fact_lists[2] == fact_lists[3] == [("at", "agent", "cell 2"), ("seen", "1"), ("seen", "2")]
    )
    assert all(state.parsed for state in facts)
    version = env.unwrapped.fingerprint()["facts"]
    assert version != adapt(Dice(), {"a": "b"}).unwrapped.fingerprint()["facts"]
    state = env.canonicalizer.update(facts[3], "look", "Something else.")
    assert state == State(facts[3].facts, parsed=False)


@pytest.mark.parametrize("table", [{"(": "a"}, {"a": "b({1})"}, {"a": "b("}, {"a": "b({)"}])
def test_a_table_that_cannot_be_read_is_refused(table):
    with pytest.raises(OptionError, match="expected a regular expression and facts"):
        adapt(Dice(), table)


def test_a_world_model_is_scored_without_an_expert():
    env = adapt(gym.make("FrozenLake-v1", is_slippery=False), TABLE, LAKE)
    scores = [score_world_model(env, "null", n=20, seed=seed) for seed in (0, 0, 1)]
    assert scores[0] == scores[1] != scores[2] and scores[0].n == 20
    assert scores[0].mean == scores[0].no_op_share > 0
    assert score_world_model(env, "oracle", n=20).mean == 1.0
    with pytest.raises(WorldModelError, match="describe facts"):
        score_world_model(env, "noisy")


def test_without_a_canonicalizer_there_are_no_facts_and_that_is_said():
    with pytest.warns(UserWarning, match="facts are empty"):
        env = adapt(gym.make("FrozenLake-v1", is_slippery=False), words=LAKE)
    observation, info = env.reset(seed=0)
    assert observation == "You stand on cell 0." and info["facts"] == State(parsed=False)
    imagined = run_episode(ImaginedEnv(env, "null", horizon=2), RandomAgent(), task="seeds/1")
    assert [step.observation for step in imagined.steps] == ["Nothing happens."] * 2
    with pytest.raises(OptionError, match="whose canonicalizer reads facts"):
        score_world_model(env, "null", n=4)
    with pytest.raises(WorldModelError, match=r"integrations\.adapter\.adapt"):
        ImaginedEnv(env.adapted, "null")


def test_the_global_random_numbers_are_left_alone():
    pytest.importorskip("textarena")
    from comap.integrations.adapter import TextArenaGame

    random.seed(5)
    expected = random.random()
    random.seed(5)
    games = [TextArenaGame("LightsOut-v0") for _ in range(2)]
    first = [game.reset(seed=3)[0] for game in games]
    assert first[0] == first[1] != games[0].reset(seed=4)[0]
    assert games[0].reset(seed=3)[0] == first[0]
    assert games[0].step("[1 1]")[0] == games[1].step("[1 1]")[0]
    assert random.random() == expected
    with pytest.raises(OptionError, match="NoSuchGame"):
        TextArenaGame("NoSuchGame-v0")
    assert "textarena" in sys.modules
