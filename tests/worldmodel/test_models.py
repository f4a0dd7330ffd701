"""The world models that come with comap, each by what it promises."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import ExpertAgent, RandomAgent, run_episode
from comap.envs import snapshot
from comap.errors import DataCorrupt, DataNotFound, OptionError, WorldModelError
from comap.facts import State, diff
from comap.metrics import delta_f1_report
from comap.worldmodel import (
    ERROR_KINDS,
    CachedWorldModel,
    ImaginedEnv,
    NoisyWorldModel,
    NullWorldModel,
    OracleWorldModel,
    Prediction,
    Query,
    RetrievalWorldModel,
    Transition,
    create_world_model,
    imagine,
    transitions_of,
)


def real(split: str = "valid_seen", **options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split=split, source="generated", **options)


TASKS = real().unwrapped.tasks.ids  # type: ignore[attr-defined]


def scored(model: Any, tasks: Sequence[str] = TASKS[:10]) -> Any:
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


def test_the_oracle_restores_even_when_the_engine_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    env = real()
    env.reset(seed=2)
    before = snapshot(env)

    def broken(action: str) -> Any:
        raise RuntimeError("engine on strike")

    monkeypatch.setattr(env.unwrapped, "_act", broken)
    with pytest.raises(WorldModelError, match="engine on strike"):
        imagine(env, "look")
    monkeypatch.undo()
    assert snapshot(env) == before


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
    told = imagined.world_model.predict(queries[::-1])
    assert [p.observation for p in told] == [env.step(a)[0] for a in actions][::-1]


def test_an_oracle_that_was_told_nothing_says_so() -> None:
    query = Query("comap/ALFWorld-v0", "goal", (), State(), "look")
    with pytest.raises(WorldModelError, match="ground"):
        OracleWorldModel().predict([query])


# The noisy model.


def test_noise_makes_delta_f1_fall_from_one() -> None:
    means = [scored(NoisyWorldModel(rate, seed=7)).mean for rate in (0.0, 0.1, 0.3, 0.6, 1.0)]
    assert means[0] == 1.0
    assert all(more > less for more, less in pairwise(means)), means
    assert means[-1] < 0.6


@pytest.mark.parametrize("kind", ERROR_KINDS)
def test_each_kind_of_error_does_what_it_says(kind: str) -> None:
    env, found = real(), 0
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
                found += missing
            elif kind == "invent":
                found += extra
            else:
                found += min(missing, extra)
            info = env.step(action)[4]
    assert found


def test_errors_do_not_depend_on_order_or_process() -> None:
    code = (
        "import gymnasium as gym, comap, json\n"
        "from comap.worldmodel import ImaginedEnv, NoisyWorldModel\n"
        "env = ImaginedEnv(gym.make('comap/ALFWorld-v0', source='generated'), "
        "NoisyWorldModel(0.5, seed=3))\n"
        "_, info = env.reset(seed=1)\n"
        "texts = []\n"
        "for _ in range(12):\n"
        "    text, *_, info = env.step(info['admissible_actions'][-1 - _ % 3])\n"
        "    texts.append(text)\n"
        "print(json.dumps(texts))\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(told) == 1

    env = ImaginedEnv(real(), NoisyWorldModel(0.5))
    _, info = env.reset(seed=0)
    queries = [env.query(action) for action in info["admissible_actions"]]
    forward, backward = env.world_model.predict(queries), env.world_model.predict(queries[::-1])
    assert forward == backward[::-1]


def test_noise_needs_words_for_facts() -> None:
    model = NoisyWorldModel(1.0, model=NullWorldModel())
    with pytest.raises(WorldModelError, match="Describer"):
        model.predict([Query("id", "goal", (), State(), "look")])


@pytest.mark.parametrize(
    "options",
    [{"error_rate": 2}, {"error_rate": -0.1}, {"kinds": []}, {"kinds": ["typo"]}],
    ids=str,
)
def test_bad_noise_is_explained(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        NoisyWorldModel(**options)


# The retrieval model.


def learnt(count: int = 40) -> RetrievalWorldModel:
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


def test_retrieval_puts_the_querys_names_in() -> None:
    known = State(frozenset({("in", "mug 1", "desk 1"), ("at", "agent", "desk 1")}))
    asked = State(frozenset({("in", "mug 7", "desk 3"), ("at", "agent", "desk 3")}))
    model = RetrievalWorldModel()
    query = Query("id", "goal", (), known, "take mug 1 from desk 1")
    model.fit([Transition(query, "You pick up the mug 1 from the desk 1.")])
    (told,) = model.predict([Query("id", "goal", (), asked, "take mug 7 from desk 3")])
    assert told.observation == "You pick up the mug 7 from the desk 3."
    assert told.source == "retrieval" and told.confidence == 1.0


def test_retrieval_fills_lists_from_the_belief() -> None:
    def at(place: str, *things: str) -> State:
        facts = {("at", "agent", place), ("seen", place), *(("in", o, place) for o in things)}
        return State(frozenset(facts))

    model = RetrievalWorldModel()
    text = "On the shelf 1, you see a cup 2, and a cup 1."
    known = Query("id", "goal", (), at("shelf 1", "cup 1", "cup 2"), "examine shelf 1")
    model.fit([Transition(known, text)])
    asked = Query("id", "goal", (), at("shelf 4", "pen 1"), "examine shelf 4")
    assert model.predict([asked])[0].observation == "On the shelf 4, you see a pen 1."
    empty = Query("id", "goal", (), at("shelf 5"), "examine shelf 5")
    assert model.predict([empty])[0].observation == "On the shelf 5, you see nothing."


def test_retrieval_is_saved_and_loaded_as_a_plain_file(tmp_path: Path) -> None:
    model = learnt(5)
    path = tmp_path / "deep" / "model.jsonl"
    assert model.config() is None
    model.save(path)
    for line in path.read_text("utf-8").splitlines():
        json.loads(line)
    again = create_world_model(model.config())  # type: ignore[arg-type]
    assert isinstance(again, RetrievalWorldModel) and len(again) == len(model)
    env = ImaginedEnv(real(), model)
    _, info = env.reset(seed=5)
    queries = [env.query(action) for action in (*info["admissible_actions"], "sing a song", "")]
    assert model.predict(queries) == again.predict(queries)
    again.save(tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\xff\xfe", b'{"format": "other"}', b"[" * 50_000, b"null\n[1]"],
    ids=repr,
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(DataCorrupt, match=r"RetrievalWorldModel\.save"):
        RetrievalWorldModel(path)
    with pytest.raises(DataNotFound):
        RetrievalWorldModel(tmp_path / "none")


def test_retrieval_does_not_depend_on_the_order_of_learning() -> None:
    env = real("train")
    found: list[Transition] = []
    for task in env.unwrapped.tasks.ids[:6]:  # type: ignore[attr-defined]
        found += transitions_of(run_episode(env, RandomAgent(1, 0.3), task=task))
    forward, backward = RetrievalWorldModel(), RetrievalWorldModel()
    forward.fit(found)
    backward.fit(reversed(found))
    env = ImaginedEnv(real(), forward)
    _, info = env.reset(seed=5)
    queries = [env.query(action) for action in info["admissible_actions"]]
    assert forward.predict(queries) == backward.predict(queries)


@pytest.mark.parametrize("text", ["{0} {9} {x}", "[in <0>] and [nothing]", "a {", "\ud800", ".*(+"])
def test_hostile_texts_come_back_as_text(text: str) -> None:
    model = RetrievalWorldModel()
    state = State(frozenset({("in", "a+b (1", ".* 2"), ("at", "agent", ".* 2")}))
    query = Query("id", "goal", (), state, "take a+b (1 from .* 2")
    model.fit([Transition(query, text)])
    assert isinstance(model.predict([query])[0].observation, str)


def test_an_empty_model_says_so() -> None:
    with pytest.raises(WorldModelError, match="fit"):
        RetrievalWorldModel().predict([Query("id", "goal", (), State(), "look")])


# The cache, and making models.


class Counting:
    def __init__(self) -> None:
        self.asked: list[Query] = []

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        self.asked += queries
        return [Prediction(query.action.upper()) for query in queries]


def test_the_cache_asks_once_and_counts() -> None:
    model = Counting()
    cached = CachedWorldModel(model, max_size=2)
    a, b, c = (Query("id", "goal", (), State(), action) for action in "abc")
    assert [p.observation for p in cached.predict([a, b, a])] == ["A", "B", "A"]
    assert (cached.statistics().hits, cached.statistics().misses) == (1, 2)
    cached.predict([a])
    cached.predict([c])
    assert cached.statistics().size == 2
    cached.predict([a, c])
    assert [query.action for query in model.asked] == ["a", "b", "c"]
    cached.predict([b])
    assert model.asked[-1] is b, "the least recently used went first"
    with pytest.raises(OptionError):
        CachedWorldModel(model, max_size=0)


def test_configs_make_equal_models() -> None:
    model = CachedWorldModel(NoisyWorldModel(0.25, ["drop"], 9, OracleWorldModel()), max_size=7)
    config = json.loads(json.dumps(model.config()))
    again = create_world_model(config)
    assert isinstance(again, CachedWorldModel) and again.config() == model.config()
    assert pickle.loads(pickle.dumps(again)).config() == model.config()


@pytest.mark.parametrize(
    "config",
    [
        "orakel",
        {},
        {"id": 3},
        {"id": "noisy", "rate": 1},
        {"id": "no.such:Thing"},
        {"id": "json:loads"},
    ],
    ids=str,
)
def test_bad_configs_are_explained(config: Any) -> None:
    with pytest.raises(WorldModelError):
        create_world_model(config)


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
