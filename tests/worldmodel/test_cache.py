"""The cache: what it counts, keeps and forgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest

from comap.errors import WorldModelError
from comap.facts import State
from comap.trajectory import Turn
from comap.worldmodel import CachedWorldModel, Prediction, Query


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
        predictions = cached.predict([query(action) for action in batch])
        assert [p.observation for p in predictions] == [f"{action}:0" for action in batch]
    assert cached.statistics() == (6, 3, 3)
    assert sum(cached.statistics()[:2]) == sum(map(len, batches))
    assert model.asked == 3


def test_it_never_holds_more_than_it_may_and_a_large_batch_is_still_answered() -> None:
    cached = CachedWorldModel(Echo(), max_size=10)
    actions = [str(number) for number in range(1000)]
    predictions = cached.predict([query(action) for action in actions])
    assert [p.observation for p in predictions] == [f"{action}:0" for action in actions]
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
    for model, kept_count in ((Echo(), 1), (Grounding(), 0)):
        cached = CachedWorldModel(model)
        cached.predict([query("a")])
        cached.ground(env)
        assert cached.statistics().size == kept_count
        assert getattr(model, "grounded", env) is env


def belief(history: tuple[Turn, ...], *facts: tuple[str, ...], parsed: bool = True) -> Query:
    return Query("comap/ALFWorld-v0", "goal", history, State(frozenset(facts), parsed), "look")


def test_a_belief_is_the_same_however_one_got_there() -> None:
    short_history, long_history = (Turn(None, "a"),), (Turn(None, "a"), Turn("look", "b"))
    lit, dark = ("lit", "lamp 1"), ("closed", "safe 1")
    queries = [
        belief(short_history, lit),
        belief(long_history, lit),
        belief(long_history, dark),
        belief(long_history, lit, dark),
    ]
    cached = CachedWorldModel(Echo(), key="belief")
    observations = [answer.observation for answer in cached.predict(queries)]
    assert observations == ["look:1", "look:1", "look:2", "look:2"]
    assert cached.statistics() == (1, 3, 3)
    cached.predict([belief(short_history, parsed=False), belief(long_history, parsed=False)])
    assert cached.statistics() == (1, 5, 5)  # what could not be read is no belief
    other_goals = [
        Query("comap/ALFWorld-v0", goal, short_history, State(), "look") for goal in ("a", "b")
    ]
    assert (
        CachedWorldModel(Echo(), key="belief").predict(other_goals * 2) and cached.key == "belief"
    )
    exact = CachedWorldModel(Echo())
    exact.predict(queries)
    assert exact.statistics() == (0, 4, 4)
