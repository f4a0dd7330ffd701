"""The noisy model, measured through a channel that says facts exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest

from comap.errors import OptionError, WorldModelError
from comap.facts import State, diff
from comap.worldmodel import (
    ERROR_KINDS,
    ImaginedEnv,
    NoisyWorldModel,
    NullWorldModel,
    OracleWorldModel,
    Prediction,
    Query,
    RetrievalWorldModel,
)

BEFORE = State(
    frozenset(
        {
            *(("exists", f"desk {n}") for n in (1, 2, 3)),
            *(("in", f"mug {n}", "desk 1") for n in (1, 2)),
            ("at", "agent", "desk 1"),
            ("closed", "desk 2"),
            ("closed", "desk 3"),
        }
    )
)
AFTER = State(
    (BEFORE.facts - {("in", "mug 1", "desk 1"), ("closed", "desk 2")})
    | {("holding", "mug 1"), ("open", "desk 2")}
)


class Exact:
    """A canonicalizer whose observations are the facts themselves."""

    version = "exact"

    def update(self, state: State, action: str, observation: str) -> State:
        return State.from_text(observation)

    def initial(self, goal: str, observation: str) -> State:
        return State.from_text(observation)

    def action(self, text: str) -> str:
        return text

    def describe(self, before: State, action: str, after: State) -> str:
        return after.to_text()


class Knows:
    """Predicts that the belief becomes `after`, and knows more than it says."""

    def __init__(self, after: State):
        self.after = after

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        info = {"success": True, "score": 1.0}
        return [Prediction(self.after.to_text(), 1.0, 1.0, False, "knows", info) for _ in queries]


def noisy(rate: float, after: State = AFTER, **options: Any) -> NoisyWorldModel:
    model = NoisyWorldModel(rate, model=Knows(after), **options)
    model._canonicalizer = Exact()
    return model


def query(number: int = 0) -> Query:
    return Query("id", f"goal {number}", (), BEFORE, "act")


def told(model: NoisyWorldModel, number: int = 0) -> Any:
    (prediction,) = model.predict([query(number)])
    return diff(BEFORE, State.from_text(prediction.observation))


TRUTH = diff(BEFORE, AFTER)
CHANGES = {*((f, 1) for f in TRUTH.added), *((f, 0) for f in TRUTH.removed)}


def signed(delta: Any) -> set[Any]:
    return {*((fact, 1) for fact in delta.added), *((fact, 0) for fact in delta.removed)}


@pytest.mark.parametrize("number", range(20))
def test_dropping_everything_leaves_nothing(number: int) -> None:
    assert not signed(told(noisy(1.0, kinds=["drop"]), number))


@pytest.mark.parametrize("number", range(20))
def test_inventing_keeps_every_change_that_happens(number: int) -> None:
    said = signed(told(noisy(1.0, kinds=["invent"]), number))
    assert said >= CHANGES
    for fact, _ in said - CHANGES:
        assert any(fact[0] == true[0] for true, _ in CHANGES), "another such fact"


@pytest.mark.parametrize("number", range(20))
def test_swapping_predicts_others_in_their_place(number: int) -> None:
    said = signed(told(noisy(1.0, kinds=["swap"]), number))
    known = {name for fact in BEFORE.facts | AFTER.facts for name in fact[1:]}
    assert not said & CHANGES, "none of the true changes is left"
    assert len(said) <= len(CHANGES)
    assert all(name in known for fact, _ in said for name in fact[1:])


def test_swaps_and_inventions_do_happen() -> None:
    for kind in ("swap", "invent"):
        changes = [signed(told(noisy(1.0, kinds=[kind]), n)) - CHANGES for n in range(20)]
        assert sum(map(bool, changes)) > 15, kind


def test_where_nothing_changes_only_inventions_are_made() -> None:
    for kind in ERROR_KINDS:
        model = noisy(1.0, BEFORE, kinds=[kind])
        made = [len(told(model, number)) for number in range(20)]
        assert set(made) <= ({0, 1} if kind == "invent" else {0})
        assert any(made) == (kind == "invent")


def test_errors_of_a_lower_rate_are_among_those_of_a_higher_one() -> None:
    rates = (0.1, 0.3, 0.6, 1.0)
    for kind in ("drop", "invent"):
        for number in range(40):
            wrong = [signed(told(noisy(rate, kinds=[kind]), number)) ^ CHANGES for rate in rates]
            assert all(less <= more for less, more in pairwise(wrong))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_rate_is_the_share_of_changes_that_are_spoilt(rate: float) -> None:
    model = noisy(rate, kinds=["drop"])
    kept = sum(len(told(model, number)) for number in range(500))
    assert kept / (500 * len(CHANGES)) == pytest.approx(1 - rate, abs=0.04)


def test_seeds_make_different_errors_and_the_same_ones_again() -> None:
    def errors(seed: int) -> list[str]:
        model = noisy(0.5, seed=seed)
        return [prediction.observation for prediction in model.predict([*map(query, range(30))])]

    assert errors(1) == errors(1) != errors(2)


def test_what_is_known_beyond_the_text_is_not_passed_on() -> None:
    for rate in (0.01, 1.0):
        (said,) = noisy(rate).predict([query()])
        assert (said.info, said.reward, said.source) == (None, None, "noisy")
    (said,) = noisy(0.0).predict([query()])
    assert said.source == "knows" and said.info == {"success": True, "score": 1.0}


def test_success_in_a_wrong_belief_is_what_its_facts_say() -> None:
    env = ImaginedEnv(
        gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated"),
        NoisyWorldModel(0.3),
    )
    ends = 0
    for seed in range(12):
        env.reset(seed=seed)
        real: Any = gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated")
        real.reset(seed=seed)
        over = False
        while not over and (action := real.unwrapped.expert_action()) is not None:
            real.step(action)
            *_, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            assert info["success"] == env.unwrapped.goal_reached(info["facts"])  # type: ignore[attr-defined]
            ends += terminated
    assert ends


def test_noise_upon_noise_and_upon_other_models() -> None:
    inner = noisy(0.5, kinds=["drop"], seed=1)
    outer = NoisyWorldModel(0.5, ["drop"], 2, inner)
    outer.ground(SimpleNamespace(unwrapped=None))  # type: ignore[arg-type]
    outer._canonicalizer = Exact()
    kept = [len(told(outer, number)) for number in range(200)]
    assert sum(kept) / (200 * len(CHANGES)) == pytest.approx(0.25, abs=0.06)
    config = NoisyWorldModel(0.5, model=NoisyWorldModel(0.1, model=OracleWorldModel())).config()
    assert config is not None and config["model"]["model"] == {"id": "oracle"}
    assert NoisyWorldModel(0.5, model=RetrievalWorldModel()).config() is None


def test_one_kind_may_be_named_alone_and_wrong_arguments_are_explained() -> None:
    assert NoisyWorldModel(kinds="drop").kinds == ("drop",)
    with pytest.raises(OptionError, match="did you mean 'invent'"):
        NoisyWorldModel(kinds="invented")
    with pytest.raises(OptionError, match="from 0 to 1"):
        NoisyWorldModel(float("nan"))
    with pytest.raises(WorldModelError, match="expected a world model"):
        NoisyWorldModel(0.1, model="oracle")  # type: ignore[arg-type]


def test_errors_are_the_same_in_any_process() -> None:
    code = (
        "import gymnasium as gym, comap, hashlib\n"
        "from comap.worldmodel import *\n"
        "env = ImaginedEnv(gym.make('comap/ALFWorld-v0', source='generated'), "
        "NoisyWorldModel(1.0, seed=3))\n"
        "_, info = env.reset(seed=1)\n"
        "said = env.world_model.predict([env.query(a) for a in info['admissible_actions']])\n"
        "print(hashlib.sha256(repr([p.observation for p in said]).encode()).hexdigest())\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(told) == 1


def test_without_errors_no_canonicalizer_is_needed() -> None:
    assert NoisyWorldModel(0.0, model=NullWorldModel()).predict([query()])[0].source == "null"
