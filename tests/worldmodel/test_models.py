"""The world models that come with comap, each by what it promises."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.envs import snapshot
from comap.errors import CoMapError, WorldModelError
from comap.facts import State, diff
from comap.metrics import delta_f1_report
from comap.trajectory import Turn
from comap.worldmodel import (
    ERROR_KINDS,
    WORLD_MODELS,
    CachedWorldModel,
    ImaginedEnv,
    NoisyWorldModel,
    NullWorldModel,
    OracleWorldModel,
    Prediction,
    Query,
    RetrievalWorldModel,
    Transition,
    WorldModel,
    create_world_model,
    imagine,
    transitions_of,
)


def real(split: str = "valid_seen", **options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split=split, source="generated", **options)


TASKS = real().unwrapped.tasks.ids  # type: ignore[attr-defined]


def scored(model: Any, tasks: Sequence[str] = TASKS[:5]) -> Any:
    """Return a model's Delta-F1 on random play."""
    env, rows = real(), []
    for task in tasks:
        actions = [s.action for s in run_episode(env, RandomAgent(3, 0.2), task=task).steps][:20]
        _, info = env.reset(options={"task": task})
        for action in actions:
            before, guess = info["facts"], imagine(env, action, model)
            info = env.step(action)[4]
            rows.append((before, guess.facts, info["facts"]))
    return delta_f1_report(rows)


# The oracle.


def test_the_oracle_leaves_the_real_episode_as_it_was() -> None:
    env = real()
    _, info = env.reset(seed=2)
    env.step(info["admissible_actions"][1])
    before, history = snapshot(env), env.unwrapped.history()  # type: ignore[attr-defined]
    luck = env.unwrapped.np_random.bit_generator.state
    for action in (*info["admissible_actions"], "nonsense"):
        imagine(env, action)
    assert snapshot(env) == before
    assert env.unwrapped.history() == history  # type: ignore[attr-defined]
    assert env.unwrapped.np_random.bit_generator.state == luck
    assert env.get_wrapper_attr("_elapsed_steps") == 1


def test_the_oracle_answers_batches_in_order_and_follows_histories() -> None:
    env = real()
    _, info = env.reset(options={"task": TASKS[0]})
    imagined = ImaginedEnv(real(), "oracle")
    imagined.reset(options={"task": TASKS[0]})
    actions = [a for a in info["admissible_actions"] if a.startswith("go to")][:4]
    queries = []
    for action in actions:
        queries.append(imagined.query(action))
        imagined.step(action)
    predictions = imagined.world_model.predict(queries[::-1])
    assert [p.observation for p in predictions] == [env.step(a)[0] for a in actions][::-1]


def grounded(env: gym.Env[str, str]) -> OracleWorldModel:
    model = OracleWorldModel()
    model.ground(env)
    return model


def query_of(env: gym.Env[str, str], *actions: str) -> Query:
    """Return a query for the last action, after the others in imagination."""
    inner: Any = env.unwrapped
    history = (*inner.history(), *(Turn(action, "imagined") for action in actions[:-1]))
    return Query(inner.env_id, inner.goal, history, inner.state_facts(), actions[-1])


def test_a_fault_in_the_middle_of_a_replay_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = real(render_mode="ansi")
    _, info = env.reset(seed=5)
    env.step(info["admissible_actions"][0])
    model, inner = grounded(env), env.unwrapped
    before, rendering, facts = snapshot(env), env.render(), env.get_wrapper_attr("state_facts")()
    luck = inner.np_random.bit_generator.state
    act, count = inner._act, 0  # type: ignore[attr-defined]

    def breaks(action: str) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise RuntimeError("engine on strike")
        return act(action)

    monkeypatch.setattr(inner, "_act", breaks)
    query = query_of(env, "look", "inventory", "help")
    with pytest.raises(WorldModelError, match="engine on strike"):
        model.predict([query])
    monkeypatch.undo()
    assert (snapshot(env), env.render()) == (before, rendering)
    assert env.get_wrapper_attr("state_facts")() == facts
    assert inner.np_random.bit_generator.state == luck
    assert env.get_wrapper_attr("_elapsed_steps") == 1
    assert model.predict([query])[0].observation.startswith("Available commands")
    assert env.step("look")[4]["step"] == 2


def expert_actions(env: gym.Env[str, str], task: str) -> list[str]:
    env.reset(options={"task": task})
    actions: list[str] = []
    over = False
    while not over:
        actions.append(env.get_wrapper_attr("expert_action")())
        over = env.step(actions[-1])[2]
    return actions


def test_after_the_true_end_it_says_that_the_episode_is_over() -> None:
    env = real()
    actions = expert_actions(env, TASKS[0])
    env.reset(options={"task": TASKS[0]})
    model = grounded(env)
    (last,) = model.predict([query_of(env, *actions)])
    assert (last.terminated, last.reward) == (True, 1.0)
    for extra in (["look"], ["look", "inventory"]):
        (prediction,) = model.predict([query_of(env, *actions, *extra)])
        assert (prediction.observation, prediction.terminated, prediction.reward) == (
            last.observation,
            True,
            0.0,
        )
        assert (
            prediction.info is not None
            and prediction.info["success"]
            and prediction.info["invalid_action"]
        )
    assert env.step(actions[0])[4]["step"] == 1


def test_a_question_about_another_episode_is_refused() -> None:
    env, other_env = real(), real()
    env.reset(options={"task": TASKS[0]})
    other_env.reset(options={"task": TASKS[7]})
    model = grounded(env)
    with pytest.raises(WorldModelError, match="does not go on from the real episode"):
        model.predict([query_of(other_env, "look")])
    query = query_of(env, "look")
    env.step("look")
    model.ground(env)
    with pytest.raises(WorldModelError, match="does not go on from the real episode"):
        model.predict([query])


# The noisy model.


def test_noise_makes_delta_f1_fall_from_one() -> None:
    means = [scored(NoisyWorldModel(rate, seed=7)).mean for rate in (0.0, 0.3, 1.0)]
    assert means[0] == 1.0
    assert all(higher > lower for higher, lower in pairwise(means)), means
    assert means[-1] < 0.6


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_each_kind_of_error_does_what_it_says(kind: str) -> None:
    env, error_count = real(), 0
    model, truth = NoisyWorldModel(1.0, kinds=[kind], seed=1), OracleWorldModel()
    for task in TASKS[:8]:
        actions = [s.action for s in run_episode(env, ExpertAgent(), task=task).steps]
        _, info = env.reset(options={"task": task})
        for action in actions:
            before = info["facts"]
            right = diff(before, imagine(env, action, truth).facts)
            wrong = diff(before, imagine(env, action, model).facts)
            missing = len(right.added - wrong.added) + len(right.removed - wrong.removed)
            extra = len(wrong.added - right.added) + len(wrong.removed - right.removed)
            if kind == "drop":
                assert extra == 0, "dropping predicts nothing that is not so"
                error_count += missing
            elif kind == "invent":
                error_count += extra
            else:
                error_count += min(missing, extra)
            info = env.step(action)[4]
    assert error_count


def test_errors_do_not_depend_on_order() -> None:
    env = ImaginedEnv(real(), NoisyWorldModel(0.5))
    _, info = env.reset(seed=0)
    queries = [env.query(action) for action in info["admissible_actions"]]
    forward, backward = env.world_model.predict(queries), env.world_model.predict(queries[::-1])
    assert forward == backward[::-1]


# Noise, measured through a channel that says facts exactly.

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


def change(model: NoisyWorldModel, number: int = 0) -> Any:
    (prediction,) = model.predict([query(number)])
    return diff(BEFORE, State.from_text(prediction.observation))


TRUTH = diff(BEFORE, AFTER)
CHANGES = {*((f, 1) for f in TRUTH.added), *((f, 0) for f in TRUTH.removed)}


def signed(delta: Any) -> set[Any]:
    return {*((fact, 1) for fact in delta.added), *((fact, 0) for fact in delta.removed)}


def test_dropping_everything_leaves_nothing() -> None:
    assert not any(signed(change(noisy(1.0, kinds=["drop"]), number)) for number in range(20))


def test_errors_of_a_lower_rate_are_among_those_of_a_higher_one() -> None:
    rates = (0.1, 0.3, 0.6, 1.0)
    for kind in ("drop", "invent"):
        for number in range(40):
            wrong = [signed(change(noisy(rate, kinds=[kind]), number)) ^ CHANGES for rate in rates]
            assert all(smaller <= larger for smaller, larger in pairwise(wrong))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_rate_is_the_share_of_changes_that_are_spoilt(rate: float) -> None:
    model = noisy(rate, kinds=["drop"])
    kept_changes = sum(len(change(model, number)) for number in range(500))
    assert kept_changes / (500 * len(CHANGES)) == pytest.approx(1 - rate, abs=0.04)


def test_seeds_make_different_errors_and_the_same_ones_again() -> None:
    def errors(seed: int) -> list[str]:
        model = noisy(0.5, seed=seed)
        return [prediction.observation for prediction in model.predict([*map(query, range(30))])]

    assert errors(1) == errors(1) != errors(2)


def test_what_is_known_beyond_the_text_is_not_passed_on() -> None:
    for rate in (0.01, 1.0):
        (prediction,) = noisy(rate).predict([query()])
        assert (prediction.info, prediction.reward, prediction.source) == (None, None, "noisy")
    (prediction,) = noisy(0.0).predict([query()])
    assert prediction.source == "knows" and prediction.info == {"success": True, "score": 1.0}


# The retrieval model.


def learnt(count: int = 20) -> RetrievalWorldModel:
    env = real("train", expert="explore")
    model = RetrievalWorldModel()
    for task in env.unwrapped.tasks.ids[:count]:  # type: ignore[attr-defined]
        for agent in (ExpertAgent(), RandomAgent(1, 0.2)):
            model.fit(transitions_of(run_episode(env, agent, task=task)))
    return model


def test_retrieval_learns_what_can_be_known() -> None:
    model = learnt()
    report = scored(model)
    assert report.mean > 0.8 > scored(NullWorldModel()).mean
    assert report.parse_failure_rate == 0.0
    assert report.by_predicate["at"].f1 > 0.9


def test_retrieval_fills_lists_from_the_belief() -> None:
    def belief_at(place: str, *things: str) -> State:
        facts = {("at", "agent", place), ("seen", place), *(("in", o, place) for o in things)}
        return State(frozenset(facts))

    model = RetrievalWorldModel()
    text = "On the shelf 1, you see a cup 2, and a cup 1."
    learned_query = Query(
        "id", "goal", (), belief_at("shelf 1", "cup 1", "cup 2"), "examine shelf 1"
    )
    model.fit([Transition(learned_query, text)])
    new_query = Query("id", "goal", (), belief_at("shelf 4", "pen 1"), "examine shelf 4")
    assert model.predict([new_query])[0].observation == "On the shelf 4, you see a pen 1."
    empty = Query("id", "goal", (), belief_at("shelf 5"), "examine shelf 5")
    assert model.predict([empty])[0].observation == "On the shelf 5, you see nothing."


def test_retrieval_is_saved_and_loaded_as_a_plain_file(tmp_path: Path) -> None:
    model = learnt(5)
    path = tmp_path / "deep" / "model.jsonl"
    assert model.config() is None
    model.save(path)
    for line in path.read_text("utf-8").splitlines():
        json.loads(line)
    reloaded = create_world_model(model.config())  # type: ignore[arg-type]
    assert isinstance(reloaded, RetrievalWorldModel) and len(reloaded) == len(model)
    env = ImaginedEnv(real(), model)
    _, info = env.reset(seed=5)
    queries = [env.query(action) for action in (*info["admissible_actions"], "sing a song", "")]
    assert model.predict(queries) == reloaded.predict(queries)
    reloaded.save(tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == path.read_bytes()


# The cache, and making models.


def test_configs_make_equal_models() -> None:
    model = CachedWorldModel(NoisyWorldModel(0.25, ["drop"], 9, OracleWorldModel()), max_size=7)
    config = json.loads(json.dumps(model.config()))
    reloaded = create_world_model(config)
    assert isinstance(reloaded, CachedWorldModel) and reloaded.config() == model.config()
    assert pickle.loads(pickle.dumps(reloaded)).config() == model.config()


@pytest.mark.parametrize("name", sorted(WORLD_MODELS))
def test_every_id_makes_a_world_model(name: str) -> None:
    extras = {"cached": {"model": "null"}, "language": {"lm": "http://127.0.0.1:9/v1#nobody"}}
    extra = extras.get(name, {})
    assert isinstance(create_world_model({"id": name, **extra}), WorldModel)


def test_ones_own_class_and_nested_models() -> None:
    model: Any = create_world_model(
        {"id": "cached", "model": {"id": "noisy", "model": "comap.worldmodel.null:NullWorldModel"}}
    )
    assert isinstance(model.model.model, NullWorldModel)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("orcale", "did you mean 'oracle'"),
        (None, "expected a world model's id or config, found None"),
        ({"model": "null"}, "no world model None"),
        ({"id": "null", "tex": "x"}, "its options: text"),
        ({"id": "noisy", "error_rate": "much"}, "cannot make the world model 'noisy'"),
        ({"id": "noisy", "model": {"id": "nosiy"}}, "did you mean 'noisy'"),
        ("comap.worldmodel:Missing", "no attribute 'Missing'"),
        ("no_such_package.module:Model", "No module named"),
        ("comap.facts:State", "expected a world model"),
        ({"id": "retrieval", "path": "a\0b"}, "null"),
    ],
    ids=str,
)
def test_mistakes_are_explained(config: Any, message: str) -> None:
    with pytest.raises(CoMapError) as caught:
        create_world_model(config)
    assert isinstance(caught.value, WorldModelError)
    assert message in str(caught.value)


# One step ahead, and nothing is done.


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
        imagined_moment, moment = imagined.snapshot(), snapshot(env)
        imagine(imagined, "look", NoisyWorldModel(1.0))
        assert (imagined.snapshot(), snapshot(env)) == (imagined_moment, moment)
        assert imagined.step(action)[0] == twin.step(action)[0] == ahead.observation


def test_looking_ahead_says_whether_the_goal_would_be_reached() -> None:
    env = real()
    _, info = env.reset(seed=0)
    while not info["success"]:
        action = env.get_wrapper_attr("expert_action")()
        ahead = imagine(env, action)
        *_, info = env.step(action)
        assert ahead.goal_reached == info["success"]
        assert (ahead.facts, ahead.delta) == (info["facts"], info["delta"])


def test_imagine_looks_ahead_with_any_model_and_environment() -> None:
    env = real()
    _, info = env.reset(seed=1)
    action = next(a for a in info["admissible_actions"] if a.startswith("go to"))
    ahead = imagine(env, action)
    assert ahead.prediction.source == "oracle" and ahead.goal_reached is False
    assert imagine(env, action, "null").observation == "Nothing happens."
    assert imagine(env, action, {"id": "null", "text": "Hm."}).observation == "Hm."
    imagined = ImaginedEnv(env, "null")
    imagined.reset(seed=1)
    assert imagine(imagined, action).observation == "Nothing happens."
    observation, *_, info = env.step(action)
    assert (ahead.observation, ahead.facts, ahead.delta) == (
        observation,
        info["facts"],
        info["delta"],
    )
    with pytest.raises(WorldModelError, match="environment of comap"):
        imagine(gym.make("CartPole-v1"), "look")  # type: ignore[arg-type]
