"""One step ahead, and nothing is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest

from comap.envs import snapshot
from comap.errors import InvalidAction, NoEpisode, WorldModelError
from comap.worldmodel import (
    CachedWorldModel,
    ImaginedEnv,
    NoisyWorldModel,
    NullWorldModel,
    OracleWorldModel,
    Prediction,
    Query,
    imagine,
)


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", **options)


@pytest.mark.parametrize("model", [None, "null", "oracle", {"id": "noisy", "error_rate": 0.5}])
def test_without_an_episode_there_is_nothing_to_foresee(model: Any) -> None:
    with pytest.raises(NoEpisode):
        imagine(real(), "look", model)
    with pytest.raises(NoEpisode):
        imagine(ImaginedEnv(real(), "null"), "look", model)


@pytest.mark.parametrize("action", [None, 3, b"look", ["look"]])
def test_actions_are_text(action: Any) -> None:
    env = real()
    env.reset(seed=0)
    for model in (None, "null"):
        with pytest.raises(InvalidAction, match=type(action).__name__):
            imagine(env, action, model)


@pytest.mark.parametrize("action", ["", "\x00", "\ud83d", "go to nowhere" * 2000])
def test_any_text_may_be_asked_about(action: str) -> None:
    env = real()
    env.reset(seed=0)
    assert imagine(env, action).observation == env.step(action)[0] == "Nothing happens."


@pytest.mark.parametrize("model", ["nul", 3, NullWorldModel, object()], ids=range(4))
def test_what_is_no_world_model_is_refused(model: Any) -> None:
    env = real()
    env.reset(seed=0)
    with pytest.raises(WorldModelError):
        imagine(env, "look", model)


def test_a_model_that_answers_wrongly_is_told_so() -> None:
    class Wrong:
        answer: Any

        def predict(self, queries: Sequence[Query]) -> list[Prediction]:
            return self.answer  # type: ignore[no-any-return]

    env, model = real(), Wrong()
    env.reset(seed=0)
    for answer in (None, [], [Prediction("a"), Prediction("b")], ["text"], [Prediction(b"x")]):  # type: ignore[arg-type]
        model.answer = answer
        with pytest.raises(WorldModelError, match=r"from Wrong\.predict, found"):
            imagine(env, "look", model)


def test_looking_ahead_in_imagination_asks_about_the_imagined_moment() -> None:
    env, twin = real(), real()
    _, info = twin.reset(seed=1)
    imagined = ImaginedEnv(env, "oracle")
    imagined.reset(seed=1)
    for action in [a for a in info["admissible_actions"] if a.startswith("go to")][:3]:
        for model in (None, OracleWorldModel(), CachedWorldModel(OracleWorldModel())):
            ahead = imagine(imagined, action, model)
            assert ahead.observation == imagine(twin, action).observation
        here, moment = imagined.snapshot(), snapshot(env)
        imagine(imagined, "look", NoisyWorldModel(1.0))
        assert (imagined.snapshot(), snapshot(env)) == (here, moment)
        assert imagined.step(action)[0] == twin.step(action)[0] == ahead.observation


def test_the_model_of_an_imagined_episode_may_be_asked_about_the_real_one() -> None:
    env, model = real(), OracleWorldModel()
    imagined = ImaginedEnv(env, model)
    _, info = imagined.reset(seed=2)
    first, second = [a for a in info["admissible_actions"] if a.startswith("go to")][:2]
    there = imagined.step(first)[0]
    assert imagine(env, first, model).observation == there
    twin = real()
    twin.reset(seed=2)
    twin.step(first)
    assert imagined.step(second)[0] == twin.step(second)[0]


def test_looking_ahead_says_whether_the_goal_would_be_reached() -> None:
    env = real()
    _, info = env.reset(seed=0)
    while not info["success"]:
        action = env.get_wrapper_attr("expert_action")()
        ahead = imagine(env, action)
        *_, info = env.step(action)
        assert ahead.goal_reached == info["success"]
        assert (ahead.facts, ahead.delta) == (info["facts"], info["delta"])
