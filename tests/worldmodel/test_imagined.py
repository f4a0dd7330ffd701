"""`ImaginedEnv`: equal to the real thing with the oracle, rebuildable, mixed, and unbreakable."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.envs import restore, snapshot
from comap.errors import (
    InvalidAction,
    NoEpisode,
    OptionError,
    SnapshotError,
    WorldModelError,
)
from comap.facts import diff
from comap.worldmodel import (
    CachedWorldModel,
    ImaginedEnv,
    NoisyWorldModel,
    NullWorldModel,
    OracleWorldModel,
    Prediction,
    Query,
)


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", **options)


TASKS = real().unwrapped.tasks.ids  # type: ignore[attr-defined]


def without_flag(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != "imagined"}


class Scripted:
    """A world model that answers with one fixed thing."""

    def __init__(self, answer: Any):
        self.answer = answer

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if isinstance(self.answer, list) else [self.answer] * len(queries)


@pytest.mark.parametrize(
    "model",
    ["oracle", {"id": "cached", "model": "oracle"}, {"id": "noisy", "error_rate": 0.0}],
    ids=["oracle", "cached", "noiseless"],
)
@pytest.mark.parametrize(
    "agent", [ExpertAgent(), RandomAgent(seed=5, mixed=0.2)], ids=["expert", "random"]
)
def test_with_the_oracle_an_imagined_episode_equals_the_real_one(model: Any, agent: Any) -> None:
    env, imagined = real(), ImaginedEnv(real(), model)
    for task in TASKS[:12]:
        actions = [step.action for step in run_episode(env, agent, task=task).steps]
        observation, info = env.reset(options={"task": task})
        dreamt, dream = imagined.reset(options={"task": task})
        assert (observation, info) == (dreamt, dream), "reset is real"
        for action in actions:
            answer, dreamt_answer = env.step(action), imagined.step(action)
            assert answer[:4] == dreamt_answer[:4]
            assert without_flag(answer[4]) == without_flag(dreamt_answer[4])
            assert dreamt_answer[4]["imagined"] and not answer[4]["imagined"]


def test_it_ends_at_the_horizon_and_by_goal_facts() -> None:
    env = ImaginedEnv(real(), "null", horizon=3)
    env.reset(options={"task": TASKS[0]})
    assert [env.step("look")[3] for _ in range(3)] == [False, False, True]
    with pytest.raises(NoEpisode):
        env.step("look")

    goal_text = "You move the {thing} to the {place}."
    task = next(t for t in TASKS if _goal(t).family == "pick_and_place_simple")
    goal = _goal(task)
    text = goal_text.format(thing=f"{goal.object_kind} 1", place=f"{goal.target_kind} 1")
    env = ImaginedEnv(real(), Scripted(Prediction(text)))
    env.reset(options={"task": task})
    observation, reward, terminated, truncated, info = env.step("wish")
    assert (observation, reward, terminated, truncated) == (text, 1.0, True, False)
    assert info["success"] and info["score"] == 1.0, "the facts say that the goal is reached"


def _goal(task: str) -> Any:
    env = real()
    env.reset(options={"task": task})
    return env.unwrapped.game.goal  # type: ignore[attr-defined]


def test_it_ends_by_the_predictions_own_word() -> None:
    env = ImaginedEnv(real(), Scripted(Prediction("Nothing happens.", terminated=True)))
    env.reset(seed=0)
    _, _, terminated, truncated, info = env.step("look")
    assert (terminated, truncated, info["success"]) == (True, False, False)


def test_the_default_horizon_is_the_environments_limit() -> None:
    assert ImaginedEnv(real(), "null").horizon == 50
    assert ImaginedEnv(real(max_episode_steps=7), "null").horizon == 7


def test_real_every_mixes_and_catches_up() -> None:
    env, mixed = real(), ImaginedEnv(real(), NoisyWorldModel(0.8, seed=1), real_every=3)
    task = TASKS[3]
    actions = [s.action for s in run_episode(env, RandomAgent(seed=2), task=task).steps][:12]
    _, info = env.reset(options={"task": task})
    mixed.reset(options={"task": task})
    before = info["facts"]
    differs = 0
    for number, action in enumerate(actions, 1):
        answer, mixture = env.step(action), mixed.step(action)
        assert mixture[4]["imagined"] == (number % 3 != 0)
        assert mixture[4]["step"] == number
        assert mixture[4]["delta"] == diff(before, mixture[4]["facts"])
        before = mixture[4]["facts"]
        if number % 3 == 0:
            assert mixture[0] == answer[0] and mixture[4]["facts"] == answer[4]["facts"]
        else:
            differs += mixture[0] != answer[0]
    assert differs, "at this error rate some imagined texts are wrong"


def test_all_steps_real_is_the_real_environment() -> None:
    env, mixed = real(), ImaginedEnv(real(), "null", real_every=1)
    agent = RandomAgent(seed=9)
    first = run_episode(env, agent, task=TASKS[1])
    second = run_episode(mixed, agent, task=TASKS[1])
    assert [s.observation for s in first.steps] == [s.observation for s in second.steps]
    assert not second.imagined


@pytest.mark.parametrize(
    "model",
    [
        OracleWorldModel(),
        NoisyWorldModel(0.5, kinds=("drop", "swap"), seed=4),
        CachedWorldModel(NullWorldModel("Well."), max_size=5),
        "oracle",
    ],
    ids=["oracle", "noisy", "cached", "by id"],
)
def test_it_is_rebuilt_from_its_spec(model: Any) -> None:
    env = ImaginedEnv(real(), model, horizon=20, real_every=4)
    assert env.spec is not None
    text = env.spec.to_json()
    json.loads(text)
    again = gym.make(EnvSpec.from_json(text))
    assert isinstance(again, ImaginedEnv)
    assert (again.horizon, again.real_every) == (20, 4)
    agent = RandomAgent(seed=1)
    first, second = (run_episode(e, agent, task=TASKS[2]) for e in (env, again))
    assert [s.observation for s in first.steps] == [s.observation for s in second.steps]


def test_a_live_model_without_config_is_kept_in_the_spec() -> None:
    model = Scripted(Prediction("Nothing happens."))
    env = ImaginedEnv(real(), model)
    assert env.spec is not None
    again = gym.make(env.spec)
    assert isinstance(again, ImaginedEnv)
    again.reset(seed=0)
    assert again.step("look")[0] == "Nothing happens."


def make_member() -> gym.Env[str, str]:
    return ImaginedEnv(real(), {"id": "noisy", "error_rate": 0.3})


@pytest.mark.parametrize("shared_memory", [True, False])
def test_it_works_in_vectors(shared_memory: bool) -> None:
    makers = [make_member] * 2
    together = SyncVectorEnv(makers)
    apart = AsyncVectorEnv(makers, shared_memory=shared_memory)
    try:
        seeds = [3, 8]
        first, second = together.reset(seed=seeds), apart.reset(seed=seeds)
        assert tuple(first[0]) == tuple(second[0])
        for action in ("look", "inventory", "help"):
            first, second = together.step([action] * 2), apart.step([action] * 2)  # type: ignore[arg-type]
            assert tuple(first[0]) == tuple(second[0])
            assert list(first[4]["facts"]) == list(second[4]["facts"])
            assert all(first[4]["imagined"])
    finally:
        together.close()
        apart.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ValueError("the GPU is on fire"), "the GPU is on fire"),
        ([], "expected a list of 1 predictions from Scripted.predict, found 0"),
        (Prediction(None), "whose observation is text"),  # type: ignore[arg-type]
        (Prediction("x" * 40_000), "at most 32768 characters"),
        ("not a prediction", "WorldModelError: expected Predictions"),
    ],
    ids=["raises", "no answer", "no text", "too long", "no prediction"],
)
def test_a_faulty_world_model_ends_the_episode_and_is_told(answer: Any, expected: str) -> None:
    env = ImaginedEnv(real(), Scripted(answer))
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("look")
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert expected in info["error"]
    env.reset(seed=0)


@pytest.mark.parametrize(
    "text",
    ["", "\x00\x1b[2J", "<script>alert(1)</script>", "\ud800", "{0} [in <0>] %s", "a" * 9000],
)
def test_hostile_predictions_are_only_text(text: str) -> None:
    env = ImaginedEnv(real(), Scripted(Prediction(text)))
    _, before = env.reset(seed=0)
    observation, _, terminated, truncated, info = env.step("look")
    assert observation == text and not terminated and not truncated
    assert info["facts"].facts == before["facts"].facts and not info["facts"].parsed


def test_snapshots_of_imagined_moments() -> None:
    env = ImaginedEnv(real(), NoisyWorldModel(0.4), real_every=4)
    _, info = env.reset(seed=11)
    actions = [info["admissible_actions"][n] for n in (0, 3, 5, 1, 2, 4)]
    for action in actions[:2]:
        env.step(action)
    moment = pickle.loads(pickle.dumps(snapshot(env)))
    wanted = [env.step(action)[:4] for action in actions[2:]]
    env.reset(seed=12)
    restore(env, moment)
    assert [env.step(action)[:4] for action in actions[2:]] == wanted
    fresh = ImaginedEnv(real(), NoisyWorldModel(0.4), real_every=4)
    restore(fresh, moment)
    assert [fresh.step(action)[:4] for action in actions[2:]] == wanted
    with pytest.raises(SnapshotError):
        env.restore("yesterday")  # type: ignore[arg-type]


def test_imagination_can_start_in_the_middle_of_a_real_episode() -> None:
    env = real()
    _, info = env.reset(seed=4)
    env.step(info["admissible_actions"][2])
    here = snapshot(env)
    imagined = ImaginedEnv(real(), "oracle")
    _, info = imagined.restore(here)
    assert info["step"] == 1 and not info["imagined"]
    assert imagined.step("look")[0] == env.step("look")[0]


def test_bad_input_is_explained() -> None:
    with pytest.raises(OptionError, match="horizon"):
        ImaginedEnv(real(), "null", horizon=0)
    with pytest.raises(OptionError, match="real_every"):
        ImaginedEnv(real(), "null", real_every=-1)
    with pytest.raises(WorldModelError, match="did you mean 'oracle'"):
        ImaginedEnv(real(), "oracel")
    with pytest.raises(WorldModelError, match="environment of comap"):
        ImaginedEnv(gym.make("CartPole-v1"), "null")  # type: ignore[arg-type]
    env = ImaginedEnv(real(), "null")
    with pytest.raises(NoEpisode):
        env.step("look")
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match="int"):
        env.step(3)  # type: ignore[arg-type]
