"""`ImaginedEnv`: equal to the real thing with the oracle, rebuildable, mixed, and unbreakable."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec

from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.envs import restore, snapshot
from comap.errors import NoEpisode, SnapshotError
from comap.facts import diff
from comap.worldmodel import (
    CachedWorldModel,
    ImaginedEnv,
    NoisyWorldModel,
    NullWorldModel,
    Prediction,
    Query,
    ask,
)


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", **options)


TASKS = real().unwrapped.tasks.ids  # type: ignore[attr-defined]


def without_flag(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != "imagined"}


class Says:
    """A world model that answers as a function of the action."""

    def __init__(self, answer: Callable[[str], Any]):
        self.answer = answer

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        answers = [self.answer(query.action) for query in queries]
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers


def test_the_first_observation_can_be_imagined_too() -> None:
    model = Says(lambda action: Prediction(f"You see a desk 1 after {action}."))
    env = ImaginedEnv(real(), model, horizon=2, imagined_start=True)
    observation, info = env.reset(options={"task": TASKS[0]})
    assert observation == "You see a desk 1 after start." and info["imagined"] is True
    assert info["facts"] == env.unwrapped.canonicalizer.initial(info["goal"], observation)  # type: ignore[attr-defined]
    assert [turn.observation for turn in env.history()] == [observation]
    assert env.step("look")[0] == "You see a desk 1 after look." and env.step("look")[3] is True


@pytest.mark.parametrize("model", ["oracle", {"id": "noisy", "error_rate": 0.0}], ids=str)
@pytest.mark.parametrize(
    "agent", [ExpertAgent(), RandomAgent(seed=5, mixed=0.2)], ids=["expert", "random"]
)
def test_with_the_oracle_an_imagined_episode_equals_the_real_one(model: Any, agent: Any) -> None:
    env, imagined = real(), ImaginedEnv(real(), model)
    for task in TASKS[:6]:
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
    env = ImaginedEnv(real(), Says(lambda action: Prediction(text)))
    env.reset(options={"task": task})
    observation, reward, terminated, truncated, info = env.step("wish")
    assert (observation, reward, terminated, truncated) == (text, 1.0, True, False)
    assert info["success"] and info["score"] == 1.0, "the facts say that the goal is reached"


def _goal(task: str) -> Any:
    env = real()
    env.reset(options={"task": task})
    return env.unwrapped.game.goal  # type: ignore[attr-defined]


def test_it_ends_by_the_predictions_own_word() -> None:
    over = Prediction("Nothing happens.", terminated=True)
    env = ImaginedEnv(real(), Says(lambda action: over))
    env.reset(seed=0)
    _, _, terminated, truncated, info = env.step("look")
    assert (terminated, truncated, info["success"]) == (True, False, False)


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


@pytest.mark.parametrize(
    "model",
    [
        NoisyWorldModel(0.5, kinds=("drop", "swap"), seed=4),
        CachedWorldModel(NullWorldModel("Well."), max_size=5),
        "oracle",
    ],
    ids=["noisy", "cached", "by id"],
)
def test_it_is_rebuilt_from_its_spec(model: Any) -> None:
    env = ImaginedEnv(real(), model, horizon=20, real_every=4)
    assert env.spec is not None
    text = env.spec.to_json()
    json.loads(text)
    rebuilt = gym.make(EnvSpec.from_json(text))
    assert isinstance(rebuilt, ImaginedEnv)
    assert (rebuilt.horizon, rebuilt.real_every) == (20, 4)
    agent = RandomAgent(seed=1)
    first, second = (run_episode(e, agent, task=TASKS[2]) for e in (env, rebuilt))
    assert [s.observation for s in first.steps] == [s.observation for s in second.steps]


def test_imagination_can_start_in_the_middle_of_a_real_episode() -> None:
    env = real()
    _, info = env.reset(seed=4)
    env.step(info["admissible_actions"][2])
    moment = snapshot(env)
    imagined = ImaginedEnv(real(), "oracle")
    _, info = imagined.restore(moment)
    assert info["step"] == 1 and not info["imagined"]
    assert imagined.step("look")[0] == env.step("look")[0]


# Where things go wrong, or end early.


def test_a_failed_reset_or_restore_leaves_no_episode() -> None:
    env = ImaginedEnv(real(), "null")
    env.reset(seed=0)
    moment = snapshot(env)
    with pytest.raises(LookupError):
        env.reset(options={"task": "none"})
    with pytest.raises(NoEpisode):
        env.step("look")
    restore(env, moment)
    env.step("look")
    broken: Any = replace(moment, real=replace(moment.real, engine=object()))  # type: ignore[type-var]
    with pytest.raises(SnapshotError):
        env.restore(broken)
    with pytest.raises(NoEpisode):
        env.step("look")
    restore(env, moment)
    with pytest.raises(SnapshotError, match="found str"):
        env.restore("yesterday")  # type: ignore[arg-type]
    assert env.step("look")[4]["step"] == 1, "what is no snapshot at all changes nothing"


@pytest.mark.parametrize(
    "prediction",
    [
        Prediction("x", reward="much"),  # type: ignore[arg-type]
        Prediction("x", info={"score": "high"}),
        Prediction("x", info={"admissible_actions": 3}),
        Prediction("x", info="text"),  # type: ignore[arg-type]
        Prediction("x" * 32_769),
        Prediction(3),  # type: ignore[arg-type]
        None,
        RuntimeError("no idea"),
    ],
    ids=range(8),
)
def test_faults_of_the_model_end_the_episode_and_no_other(prediction: Any) -> None:
    predictions = {"look": prediction, "wait": Prediction("\ud83d\x00")}
    env = ImaginedEnv(real(), Says(predictions.get))
    _, before = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("look")
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert info["error"] and info["step"] == 1 and info["facts"] == before["facts"]
    with pytest.raises(NoEpisode):
        env.step("look")
    env.reset(seed=0)
    assert env.step("wait")[0] == "\ud83d\x00", "any text is an observation"


def test_what_a_model_tells_is_put_into_shape() -> None:
    prediction = Prediction("Hm.", reward=1, info={"score": 7, "admissible_actions": ["a", "b"]})
    env = ImaginedEnv(real(), Says(lambda action: prediction))
    env.reset(seed=0)
    _, reward, _, _, info = env.step("look")
    assert type(reward) is float and info["score"] == 1.0
    assert info["admissible_actions"] == ("a", "b")


def test_where_the_real_episode_ends_on_the_way_the_imagined_one_ends_with_it() -> None:
    real_env = real()
    real_env.reset(options={"task": TASKS[0]})
    actions = []
    over = False
    while not over:
        actions.append(real_env.get_wrapper_attr("expert_action")())
        over = real_env.step(actions[-1])[2]
    env = ImaginedEnv(real(), "null", real_every=len(actions) + 2)
    env.reset(options={"task": TASKS[0]})
    for action in (*actions, "look"):
        assert env.step(action)[2:4] == (False, False), "the null model does not see it"
    *_, terminated, truncated, info = env.step("look")
    assert (terminated, truncated, info["success"], info["imagined"]) == (True, False, True, False)


def test_an_engine_fault_in_a_real_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ImaginedEnv(real(), "null", real_every=2)
    env.reset(seed=0)

    def broken(action: str) -> Any:
        raise RuntimeError("engine on strike")

    monkeypatch.setattr(env.unwrapped, "_act", broken)
    assert "error" not in env.step("look")[4]
    observation, _, terminated, truncated, info = env.step("look")
    assert (observation, terminated, truncated) == ("", False, True)
    assert info["error"].startswith("RuntimeError: engine on strike (test_imagined.py, line ")
    with pytest.raises(NoEpisode):
        env.step("look")
    monkeypatch.undo()
    env.reset(seed=0)
    env.step("look")


def test_the_whole_environment_can_be_pickled_in_the_middle() -> None:
    env = ImaginedEnv(real(), NoisyWorldModel(0.4), real_every=4)
    _, info = env.reset(seed=3)
    places = [a for a in info["admissible_actions"] if a.startswith("go to")]
    for action in places[:2]:
        env.step(action)
    twin = pickle.loads(pickle.dumps(env))
    for action in places[2:7]:
        assert env.step(action) == twin.step(action)


# Predictions that were asked in a batch.


class Numbering(NullWorldModel):
    """Counts what it is asked, and answers by the query alone."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        self.asked += len(queries)
        return [Prediction(f"You see {len(q.history)} {q.action}.") for q in queries]


@pytest.mark.parametrize("real_every", [None, 1, 2, 3])
def test_prepared_steps_are_the_same(real_every: int | None) -> None:
    model, silent = Numbering(), Numbering()
    plain_env, prepared_env = (
        ImaginedEnv(real(), model, real_every=real_every),
        ImaginedEnv(real(), silent, real_every=real_every),
    )
    assert plain_env.reset(seed=1) == prepared_env.reset(seed=1)
    for number in range(8):
        action = "look" if number % 2 else "inventory"
        query = prepared_env.next_query(action)
        engine = real_every is not None and (number + 1) % real_every == 0
        assert (query is None) == engine
        if query is not None:
            prepared_env.prepare(action, ask(Numbering(), [query])[0])
        assert plain_env.step(action) == prepared_env.step(action)
    assert (
        plain_env.history() == prepared_env.history()
        and plain_env.snapshot() == prepared_env.snapshot()
    )
    assert silent.asked == 0 and model.asked == sum(
        t.observation.startswith("You see") for t in plain_env.history()[1:]
    )


def test_a_prepared_answer_is_for_one_step_and_one_action() -> None:
    model = Numbering()
    env = ImaginedEnv(real(), model)
    env.reset(seed=0)
    env.prepare("look", Prediction("prepared"))
    assert env.step("inventory")[0] != "prepared" and model.asked == 1
    assert env.step("look")[0] != "prepared", "a step with another action drops it"
    env.prepare("look", Prediction("prepared"))
    assert env.step("look")[0] == "prepared"
    assert env.step("look")[0] != "prepared"
    env.prepare("look", Prediction("prepared"))
    env.reset(seed=0)
    assert env.step("look")[0] != "prepared", "so does a reset"
    moment = env.snapshot()
    env.prepare("look", Prediction("prepared"))
    env.restore(moment)
    assert env.step("look")[0] != "prepared", "and going back"
