"""The runner: many episodes at once, in batches, and nothing depends on how many."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Generator, Sequence
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import (
    Decision,
    ExpertAgent,
    Imagine,
    RandomAgent,
    View,
    run_episode,
    run_episodes,
    stream_episodes,
)
from comap.agents.config import AgentConfig
from comap.errors import LanguageModelError, OptionError
from comap.lm import (
    CAPABILITIES,
    Completion,
    Encode,
    Encoding,
    Generate,
    Message,
    Sampling,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
)
from comap.trajectory import Trajectory
from comap.worldmodel import ImaginedEnv, NullWorldModel, OracleWorldModel, Prediction, Query


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", **options)


def short() -> gym.Env[str, str]:
    return real(max_episode_steps=6)


TASKS: tuple[str, ...] = real().unwrapped.tasks.ids[:40]  # type: ignore[attr-defined]


def number_of(request: Any) -> int:
    """A number that depends on nothing but the request."""
    return int.from_bytes(hashlib.sha256(repr(request).encode()).digest()[:4], "big")


class ScriptedLM:
    """Answers by the request alone, and notes the size of every batch."""

    name = "scripted"
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self.usage = Usage()
        self.sizes: list[tuple[str, int]] = []

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        self.sizes.append(("generate", len(requests)))
        return [
            Completion(str(number_of(r)), (1, 2), (-0.5, float("-inf")), "stop", 10, 2)
            for r in requests
        ]

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        self.sizes.append(("score", len(requests)))
        return [
            Scores(tuple((-float(number_of((r, c)) % 97),) for c in r.completions), 5)
            for r in requests
        ]

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        self.sizes.append(("words", len(requests)))
        return [WordProbabilities((0.0, 1.0)[: len(r.words)], 3) for r in requests]

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        self.sizes.append(("encode", len(requests)))
        return [Encoding((0.5,), 3) for _ in requests]

    def count_tokens(self, text: str) -> int:
        return 7 * len(text)

    def config(self) -> dict[str, Any]:
        return {"kind": "scripted"}


class Thinker:
    """Asks for everything there is, and acts by what it is told and by what it remembers."""

    name = "thinker"

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        told = (Message("user", f"{view.task} {view.step} {view.history[-1].observation}"),)
        actions = view.admissible_actions or ("look",)
        said = yield Generate(told, Sampling(4), purpose="draft")
        scores, probabilities, seen = yield [
            Score(told, actions, purpose="score"),
            Words(told, (" KEEP", " DROP"), purpose="gate"),
            Imagine(actions[int(said.text) % len(actions)]),
        ]
        view.memory["sum"] = view.memory.get("sum", 0) + int(said.text)
        place = (view.memory["sum"] + scores.best) % len(actions)
        notes = {
            "place": place,
            "gate": probabilities.probabilities,
            "tokens": view.count_tokens("a"),
        }
        return Decision(actions[place], seen if place % 2 else None, notes)


def lines(trajectories: Sequence[Trajectory]) -> dict[str, str]:
    return {t.task: json.dumps(t.to_json(), allow_nan=False) for t in trajectories}


@pytest.mark.parametrize("world_model", [None, "null", {"id": "noisy", "error_rate": 0.5}], ids=str)
def test_nothing_depends_on_how_many_are_live(world_model: Any) -> None:
    def play(tasks: Sequence[str], live: int) -> list[Trajectory]:
        return run_episodes(
            short, Thinker(), tasks, lm=ScriptedLM(), live=live, world_model=world_model
        )

    alone = play(TASKS[:20], 1)
    assert [t.task for t in alone] == list(TASKS[:20]) and not any(t.error for t in alone)
    assert len({s.action for t in alone for s in t.steps}) > 20
    assert lines(play(TASKS[:20], 32)) == lines(alone)
    mixed = random.Random(0).sample(TASKS[:20], 20)
    assert lines(play(mixed, 7)) == lines(alone)
    single = run_episode(
        short(), Thinker(), task=TASKS[3], lm=ScriptedLM(), world_model=world_model
    )
    assert lines([single])[TASKS[3]] == lines(alone)[TASKS[3]]


def test_requests_of_all_episodes_are_one_batch_a_kind() -> None:
    lm = ScriptedLM()
    run_episodes(short, Thinker(), TASKS[:24], lm=lm, live=8, world_model="null")
    assert lm.sizes[:3] == [("generate", 8), ("score", 8), ("words", 8)]
    assert len(lm.sizes) <= 3 * (24 / 8 + 1) * 6
    alone = ScriptedLM()
    run_episodes(short, Thinker(), TASKS[:2], lm=alone, live=1)
    assert {size for _, size in alone.sizes} == {1}


class CountingModel(NullWorldModel):
    """Notes the size of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        self.sizes.append(len(queries))
        return super().predict(queries)


class Foreseeing:
    """Imagines chains of actions and keeps what it is told of them."""

    name = "foreseeing"

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        path: tuple[Any, ...] = ()
        texts = []
        for _ in range(3):
            options = (path[-1] if path else view).admissible_actions or ("look",)
            found = yield [Imagine(options[0], path), Imagine(options[-1], path)]
            texts.append(found[1].observation)
            path = (*path, found[1])
        return Decision(path[0].action, path[0], {"texts": texts})


def test_a_world_model_is_asked_once_a_round() -> None:
    model = CountingModel()
    done = run_episodes(short, Foreseeing(), TASKS[:4], live=4, world_model=model)
    assert model.sizes[:3] == [8, 8, 8] and not any(t.error for t in done)
    assert {t.world_model for t in done} == {"CountingModel"}


@pytest.mark.parametrize("live", [1, 4])
def test_chains_imagined_by_the_oracle_come_true(live: int) -> None:
    done = run_episodes(short, Foreseeing(), TASKS[:4], live=live, world_model="oracle")
    for trajectory in done:
        assert trajectory.error is None and len(trajectory.steps) == 6
        env = real()
        env.reset(options={"task": trajectory.task})
        for step in trajectory.steps:
            assert step.prediction is not None and step.prediction.observation == step.observation
            assert step.notes["texts"][0] == step.observation
            env.step(step.action)


def test_one_oracle_given_as_an_object_serves_all_episodes() -> None:
    shared = run_episodes(short, Foreseeing(), TASKS[:4], live=4, world_model=OracleWorldModel())
    own = run_episodes(short, Foreseeing(), TASKS[:4], live=4, world_model="oracle")
    assert lines(shared) == lines(own)


def test_imagined_steps_are_batched_and_change_nothing() -> None:
    model = CountingModel()
    agent = RandomAgent(3)

    def imagined() -> gym.Env[str, str]:
        return ImaginedEnv(short(), model, real_every=3)

    many = run_episodes(imagined, agent, TASKS[:8], live=8)
    assert max(model.sizes) == 8 and not any(t.error for t in many)
    assert lines(many) == lines([run_episode(imagined(), agent, task=task) for task in TASKS[:8]])
    assert [s.imagined for s in many[0].steps] == [True, True, False] * 2


@pytest.mark.parametrize("model", ["oracle", "null", {"id": "cached", "model": "null"}], ids=str)
def test_imagined_environments_of_every_kind(model: Any) -> None:
    def imagined() -> gym.Env[str, str]:
        return ImaginedEnv(real(), model)

    many = run_episodes(imagined, ExpertAgent(), TASKS[:6], live=6)
    assert lines(many) == lines(run_episodes(imagined, ExpertAgent(), TASKS[:6], live=1))
    assert [t.success for t in many] == [model == "oracle"] * 6


def test_what_is_kept_of_calls() -> None:
    kept = {
        keep: run_episode(
            short(),
            Thinker(),
            task=TASKS[0],
            lm=ScriptedLM(),
            keep=keep,
        )
        for keep in ("replies", "prompts", "tokens")
    }
    replies, prompts, tokens = (t.steps[0].calls for t in kept.values())
    assert [(c.kind, c.purpose) for c in replies] == [
        ("generate", "draft"),
        ("score", "score"),
        ("words", "gate"),
    ]
    assert replies[0].messages is None and replies[0].token_ids is None
    assert (replies[0].prompt_tokens, replies[0].completion_tokens) == (10, 2)
    assert replies[1].text
    assert replies[2].text == " DROP"
    assert prompts[0].messages is not None and prompts[0].messages[0][0] == "user"
    assert prompts[0].token_ids is None
    assert tokens[0].token_ids == (1, 2) and tokens[0].logprobs == (-0.5, -1e9)
    assert tokens[1].logprobs is not None and len(tokens[1].logprobs) > 2
    for trajectory in kept.values():
        text = json.dumps(trajectory.to_json(), allow_nan=False)
        assert Trajectory.from_json(json.loads(text)) == trajectory
    with pytest.raises(OptionError, match="keep must be one of"):
        run_episode(short(), Thinker(), lm=ScriptedLM(), keep="all")  # type: ignore[arg-type]


class Stubborn:
    """Tries a task three times, remembering how often; gives up at once in the first two."""

    name = "stubborn"

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        yield from ()
        assert view.memory == ({} if view.trial == 1 else {"trials": view.trial - 1})
        return Decision(view.expert_action() if view.trial == 3 else None)

    def review(self, trajectory: Trajectory, memory: dict[str, Any]) -> Generator[Any, Any, bool]:
        yield Generate((Message("user", f"What went wrong in {trajectory.task}?"),), purpose="why")
        memory["trials"] = trajectory.trial
        return trajectory.trial < 3


@pytest.mark.parametrize("live", [1, 5])
def test_agents_may_try_again(live: int) -> None:
    done: list[list[Trajectory]] = []
    found = run_episodes(
        real, Stubborn(), TASKS[:5], lm=ScriptedLM(), live=live, on_done=done.append
    )
    assert [(t.task, t.trial) for t in found] == [(t, n) for t in TASKS[:5] for n in (1, 2, 3)]
    assert [t.success for t in found] == [False, False, True] * 5
    assert all([c.purpose for c in t.review] == ["why"] for t in found)
    assert sorted(len(trials) for trials in done) == [3] * 5
    alone = run_episode(real(), Stubborn(), task=TASKS[0], lm=ScriptedLM())
    assert alone.trial == 1 and alone.review == ()


def test_the_memory_is_of_one_task() -> None:
    class Counting:
        name = "counting"

        def decide(self, view: View) -> Generator[Any, Any, Decision]:
            yield from ()
            view.memory[view.task] = view.memory.get(view.task, 0) + 1
            assert view.memory == {view.task: view.step + 1}
            return Decision("look")

    assert not any(t.error for t in run_episodes(short, Counting(), TASKS[:6], live=3))


def test_trajectories_come_as_tasks_end() -> None:
    playing = stream_episodes(real, ExpertAgent(), TASKS[:3], live=2)
    number, trials = next(playing)
    assert number == 0 and trials[0].task == TASKS[0]
    playing.close()


def test_environments_are_used_again_and_closed() -> None:
    made: list[Any] = []

    class Closing(gym.Wrapper[str, str, str, str]):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    def make_env() -> gym.Env[str, str]:
        made.append(Closing(short()))
        env: gym.Env[str, str] = made[-1]
        return env

    run_episodes(make_env, Thinker(), TASKS[:12], lm=ScriptedLM(), live=4)
    assert [env.closed for env in made] == [1] * 4
    playing = stream_episodes(make_env, Thinker(), TASKS[:12], lm=ScriptedLM(), live=3)
    next(playing)
    playing.close()
    assert [env.closed for env in made] == [1] * 7


def test_the_seed_is_recorded() -> None:
    both = run_episodes(short, RandomAgent(), TASKS[:2], seed=[5, 6])
    assert [t.seed for t in both] == [5, 6]
    assert [t.seed for t in run_episodes(short, RandomAgent(), TASKS[:2], seed=4)] == [4, 4]
    with pytest.raises(OptionError, match="one seed for each of 2"):
        run_episodes(short, RandomAgent(), TASKS[:2], seed=[1])


def test_settings_are_recorded() -> None:
    class Configured(RandomAgent):
        config = AgentConfig(decoding="scored")

    trajectory = run_episode(short(), Configured(), task=TASKS[0], lm=ScriptedLM())
    assert trajectory.settings["decoding"] == "scored"
    assert trajectory.settings["model"] == "scripted"
    with pytest.raises(OptionError, match="asks a language model, but none was given"):
        run_episodes(short, Configured(), TASKS[:1])


def test_wrong_options_are_told_up_front() -> None:
    env = short()
    for told, options in {
        "live must be": {"live": 0},
        "expected a language model": {"lm": ScriptedLM},
    }.items():
        with pytest.raises(OptionError, match=told):
            run_episodes(short, RandomAgent(), TASKS[:2], **options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="not the text"):
        run_episodes(short, RandomAgent(), TASKS[0])
    with pytest.raises(OptionError, match="make a new environment each time"):
        run_episodes(lambda: env, Thinker(), TASKS[:2], lm=ScriptedLM())
    oracle = OracleWorldModel()
    with pytest.raises(OptionError, match="one OracleWorldModel"):
        run_episodes(lambda: ImaginedEnv(short(), oracle), Thinker(), TASKS[:2], lm=ScriptedLM())
    assert run_episodes(short, RandomAgent(), []) == []
