"""The cache: what it counts, keeps and forgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest

from comap.errors import OptionError, WorldModelError
from comap.facts import State
from comap.trajectory import Turn
from comap.worldmodel import CachedWorldModel, ImaginedEnv, NullWorldModel, Prediction, Query


class Echo:
    """Says how often it was asked so far, and fails when told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: Any = None

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        self.asked += len(queries)
        if isinstance(self.answers, Exception):
            raise self.answers
        if self.answers is not None:
            return self.answers  # type: ignore[no-any-return]
        return [Prediction(f"{query.action}:{len(query.history)}") for query in queries]


class Grounding(Echo):
    def ground(self, env: gym.Env[str, str]) -> None:
        self.grounded = env


def query(action: str, history: tuple[Turn, ...] = ()) -> Query:
    return Query("id", "goal", history, State(), action)


def test_every_query_is_counted_once() -> None:
    model = Echo()
    cached = CachedWorldModel(model)
    batches = ["ab", "a", "bbc", "", "cab"]
    for batch in batches:
        told = cached.predict([query(action) for action in batch])
        assert [p.observation for p in told] == [f"{action}:0" for action in batch]
    assert cached.statistics() == (6, 3, 3)
    assert sum(cached.statistics()[:2]) == sum(map(len, batches))
    assert model.asked == 3


def test_it_never_holds_more_than_it_may_and_a_large_batch_is_still_answered() -> None:
    cached = CachedWorldModel(Echo(), max_size=10)
    actions = [str(number) for number in range(1000)]
    told = cached.predict([query(action) for action in actions])
    assert [p.observation for p in told] == [f"{action}:0" for action in actions]
    assert cached.statistics() == (0, 1000, 10)
    cached.predict([query("999")])
    assert cached.statistics().hits == 1


def test_queries_that_differ_in_anything_are_different() -> None:
    model = Echo()
    cached = CachedWorldModel(model)
    base = query("a")
    others = [
        query("a", (Turn(None, "x"),)),
        query("a", (Turn(None, "x"), Turn("a", "y"))),
        Query("other", "goal", (), State(), "a"),
        Query("id", "other", (), State(), "a"),
        Query("id", "goal", (), State(parsed=False), "a"),
        Query("id", "goal", (), State(frozenset({("a",)})), "a"),
        Query("id", "goal", (), State(), "a", ("a",)),
        Query("id", "goal", (), State(), "a", ()),
    ]
    cached.predict([base, *others, *others])
    assert model.asked == 1 + len(others)


class Collides(str):
    """A text whose hash is that of all others."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, str(other))


def test_equal_hashes_are_not_equal_queries() -> None:
    cached = CachedWorldModel(Echo(), max_size=40)
    queries = [query(Collides(number)) for number in range(60)]
    for _ in range(2):
        assert [p.observation for p in cached.predict(queries)] == [f"{n}:0" for n in range(60)]


def test_long_histories() -> None:
    history = tuple(Turn(str(number), "text " * 50) for number in range(2000))
    cached = CachedWorldModel(Echo())
    for _ in range(3):
        cached.predict([query("a", history[: n * 100]) for n in range(20)])
    assert cached.statistics() == (40, 20, 20)


def test_a_failing_model_leaves_the_cache_as_it_was() -> None:
    model = Echo()
    cached = CachedWorldModel(model)
    cached.predict([query("a")])
    for answers in (RuntimeError("no"), [], [Prediction("x")] * 3, ["text"]):
        model.answers = answers
        with pytest.raises((RuntimeError, WorldModelError)):
            cached.predict([query("a"), query("b")])
        assert cached.statistics() == (0, 1, 1)
    model.answers = None
    assert cached.predict([query("b")])[0].observation == "b:0"


def test_grounding_forgets_only_what_may_have_changed() -> None:
    env = gym.make("comap/ALFWorld-v0", source="generated")
    env.reset(seed=0)
    for model, kept in ((Echo(), 1), (Grounding(), 0)):
        cached = CachedWorldModel(model)
        cached.predict([query("a")])
        cached.ground(env)
        assert cached.statistics().size == kept
        assert getattr(model, "grounded", env) is env


def test_in_imagination_a_repeated_episode_costs_nothing() -> None:
    model = CachedWorldModel(NullWorldModel())
    env = ImaginedEnv(gym.make("comap/ALFWorld-v0", source="generated"), model)
    for _ in range(3):
        env.reset(seed=4)
        for action in ("look", "inventory", "look"):
            env.step(action)
    assert model.statistics() == (6, 3, 3)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "many", None])
def test_bad_sizes(size: Any) -> None:
    with pytest.raises(OptionError, match="max_size"):
        CachedWorldModel(NullWorldModel(), size)


@pytest.mark.parametrize("model", ["null", None, NullWorldModel, 3])
def test_only_world_models_are_cached(model: Any) -> None:
    with pytest.raises(WorldModelError, match="expected a world model"):
        CachedWorldModel(model)


def belief(history: tuple[Turn, ...], *facts: tuple[str, ...], parsed: bool = True) -> Query:
    return Query("comap/ALFWorld-v0", "goal", history, State(frozenset(facts), parsed), "look")


def test_a_belief_is_the_same_however_one_got_there() -> None:
    here, there = (Turn(None, "a"),), (Turn(None, "a"), Turn("look", "b"))
    lit, dark = ("lit", "lamp 1"), ("closed", "safe 1")
    asked = [belief(here, lit), belief(there, lit), belief(there, dark), belief(there, lit, dark)]
    cached = CachedWorldModel(Echo(), key="belief")
    told = [answer.observation for answer in cached.predict(asked)]
    assert told == ["look:1", "look:1", "look:2", "look:2"]
    assert cached.statistics() == (1, 3, 3)
    cached.predict([belief(here, parsed=False), belief(there, parsed=False)])
    assert cached.statistics() == (1, 5, 5)  # what could not be read is no belief
    other = [Query("comap/ALFWorld-v0", goal, here, State(), "look") for goal in ("a", "b")]
    assert CachedWorldModel(Echo(), key="belief").predict(other * 2) and cached.key == "belief"
    exact = CachedWorldModel(Echo())
    exact.predict(asked)
    assert exact.statistics() == (0, 4, 4)


def test_actions_that_mean_the_same_are_one_in_a_belief() -> None:
    cached = CachedWorldModel(Echo(), key="belief")
    queries = [
        Query("comap/ALFWorld-v0", "goal", (), State(), action)
        for action in ("Go to desk 1.", "go to  desk 1", "go to desk 2")
    ]
    told = [answer.observation for answer in cached.predict(queries)]
    assert told == ["Go to desk 1.:0", "Go to desk 1.:0", "go to desk 2:0"]


def test_there_is_no_other_key() -> None:
    with pytest.raises(OptionError, match="belief"):
        CachedWorldModel(Echo(), key="beleif")  # type: ignore[arg-type]
