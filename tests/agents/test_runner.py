"""The runner: many episodes at once, in batches, and nothing depends on how many."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import (
    Decision,
    ExpertAgent,
    Imagine,
    RandomAgent,
    ReplayAgent,
    View,
    run_episode,
    run_episodes,
    stream_episodes,
)
from comap.agents.config import AgentConfig
from comap.agents.create import create_agent
from comap.agents.prompting import seed_for
from comap.errors import LanguageModelError, OptionError
from comap.facts import State, apply
from comap.lm import (
    Completion,
    Generate,
    Message,
    NextWord,
    Sampling,
    Score,
    answer,
)
from comap.trajectory import Trajectory, read_trajectories, write_trajectories
from comap.worldmodel import (
    CachedWorldModel,
    ImaginedEnv,
    LanguageWorldModel,
    NullWorldModel,
    OracleWorldModel,
    Prediction,
    Query,
    transitions_of,
)
from kits.scripted import HashedModel, view


def real(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", **options)


def short() -> gym.Env[str, str]:
    return real(max_episode_steps=6)


TASKS: tuple[str, ...] = real().unwrapped.tasks.ids[:40]  # type: ignore[attr-defined]


class ScriptedLM(HashedModel):  # type: ignore[misc, valid-type]
    """Says a number that follows from the request, and notes the size of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[str, int]] = []

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        self.sizes.append((type(requests[0]).__name__, len(requests)))
        replies: list[Any] = super()._answer(requests)
        return replies

    def _one(self, request: Generate) -> Completion:
        return Completion(str(self._draw(request)), (1, 2), (-0.5, float("-inf")), "stop", 10, 2)


class Thinker:
    """Asks for everything there is, and acts by what it is told and by what it remembers."""

    name = "thinker"

    def decide(self, view: View) -> Generator[Any, Any, Decision]:
        messages = (Message("user", f"{view.task} {view.step} {view.history[-1].observation}"),)
        actions = view.admissible_actions or ("look",)
        completion = yield Generate(messages, Sampling(4), purpose="draft")
        scores, probabilities, imagined = yield [
            Score(messages, actions, purpose="score"),
            NextWord(messages, (" KEEP", " DROP"), purpose="gate"),
            Imagine(actions[int(completion.text) % len(actions)]),
        ]
        view.memory["sum"] = view.memory.get("sum", 0) + int(completion.text)
        place = (view.memory["sum"] + scores.best) % len(actions)
        notes = {
            "place": place,
            "gate": probabilities.probabilities,
            "tokens": view.count_tokens("a"),
        }
        return Decision(actions[place], imagined if place % 2 else None, notes)


def lines(trajectories: Sequence[Trajectory]) -> dict[str, str]:
    return {t.task: json.dumps(t.to_json(), allow_nan=False) for t in trajectories}


@pytest.mark.parametrize("world_model", [None, "null", {"id": "noisy", "error_rate": 0.5}], ids=str)
def test_nothing_depends_on_how_many_are_live(world_model: Any) -> None:
    def play(tasks: Sequence[str], concurrency: int) -> list[Trajectory]:
        return run_episodes(
            short,
            Thinker(),
            tasks,
            lm=ScriptedLM(),
            concurrency=concurrency,
            world_model=world_model,
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
    run_episodes(short, Thinker(), TASKS[:24], lm=lm, concurrency=8, world_model="null")
    assert lm.sizes[:3] == [("Generate", 8), ("Score", 8), ("NextWord", 8)]
    assert len(lm.sizes) <= 3 * (24 / 8 + 1) * 6
    alone = ScriptedLM()
    run_episodes(short, Thinker(), TASKS[:2], lm=alone, concurrency=1)
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
            imagined_steps = yield [Imagine(options[0], path), Imagine(options[-1], path)]
            texts.append(imagined_steps[1].observation)
            path = (*path, imagined_steps[1])
        return Decision(path[0].action, path[0], {"texts": texts})


def test_a_world_model_is_asked_once_a_round() -> None:
    model = CountingModel()
    episodes = run_episodes(short, Foreseeing(), TASKS[:4], concurrency=4, world_model=model)
    assert model.sizes[:3] == [8, 8, 8] and not any(t.error for t in episodes)
    assert {t.world_model for t in episodes} == {"CountingModel"}


def test_imagined_steps_are_batched_and_change_nothing() -> None:
    model = CountingModel()
    agent = RandomAgent(3)

    def imagined() -> gym.Env[str, str]:
        return ImaginedEnv(short(), model, real_every=3)

    episodes = run_episodes(imagined, agent, TASKS[:8], concurrency=8)
    assert max(model.sizes) == 8 and not any(t.error for t in episodes)
    assert lines(episodes) == lines(
        [run_episode(imagined(), agent, task=task) for task in TASKS[:8]]
    )
    assert [s.imagined for s in episodes[0].steps] == [True, True, False] * 2


def test_what_is_kept_of_calls() -> None:
    episodes_by_keep = {
        keep: run_episode(short(), Thinker(), task=TASKS[0], lm=ScriptedLM(), keep=keep)
        for keep in ("replies", "prompts", "tokens")
    }
    replies, prompts, tokens = (t.steps[0].calls for t in episodes_by_keep.values())
    assert [(c.kind, c.purpose) for c in replies] == [
        ("generate", "draft"),
        ("score", "score"),
        ("words", "gate"),
    ]
    assert replies[0].messages is None and replies[0].token_ids is None
    assert (replies[0].prompt_tokens, replies[0].completion_tokens) == (10, 2)
    assert replies[1].text
    assert replies[2].text in (" KEEP", " DROP")
    assert prompts[0].messages is not None and prompts[0].messages[0][0] == "user"
    assert prompts[0].token_ids is None
    assert tokens[0].token_ids == (1, 2) and tokens[0].logprobs == (-0.5, -1e9)
    assert tokens[1].logprobs is not None and len(tokens[1].logprobs) > 2
    for trajectory in episodes_by_keep.values():
        text = json.dumps(trajectory.to_json(), allow_nan=False)
        assert Trajectory.from_json(json.loads(text)) == trajectory
    with pytest.raises(OptionError, match="keep cannot be"):
        run_episode(short(), Thinker(), lm=ScriptedLM(), keep="all")  # type: ignore[arg-type]


def test_environments_are_used_again_and_closed() -> None:
    envs: list[Any] = []

    class Closing(gym.Wrapper[str, str, str, str]):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    def make_env() -> gym.Env[str, str]:
        envs.append(Closing(short()))
        env: gym.Env[str, str] = envs[-1]
        return env

    run_episodes(make_env, Thinker(), TASKS[:12], lm=ScriptedLM(), concurrency=4)
    assert [env.closed for env in envs] == [1] * 4
    playing = stream_episodes(make_env, Thinker(), TASKS[:12], lm=ScriptedLM(), concurrency=3)
    next(playing)
    playing.close()
    assert [env.closed for env in envs] == [1] * 7


def test_the_seed_is_recorded() -> None:
    episodes = run_episodes(short, RandomAgent(), TASKS[:2], seed=[5, 6])
    assert [t.seed for t in episodes] == [5, 6]
    assert [t.seed for t in run_episodes(short, RandomAgent(), TASKS[:2], seed=4)] == [4, 4]
    with pytest.raises(OptionError, match="one seed for each of 2"):
        run_episodes(short, RandomAgent(), TASKS[:2], seed=[1])


def test_wrong_options_are_told_up_front() -> None:
    env = short()
    for message, options in {
        "concurrency must be": {"concurrency": 0},
        "expected a language model": {"lm": ScriptedLM},
    }.items():
        with pytest.raises(OptionError, match=message):
            run_episodes(short, RandomAgent(), TASKS[:2], **options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="must be a list of task ids"):
        run_episodes(short, RandomAgent(), TASKS[0])
    with pytest.raises(OptionError, match="make a new environment each time"):
        run_episodes(lambda: env, Thinker(), TASKS[:2], lm=ScriptedLM())
    oracle = OracleWorldModel()
    with pytest.raises(OptionError, match="one OracleWorldModel"):
        run_episodes(lambda: ImaginedEnv(short(), oracle), Thinker(), TASKS[:2], lm=ScriptedLM())
    assert run_episodes(short, RandomAgent(), []) == []


def test_a_step_that_a_fault_cut_short_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    env = real()
    act, count = env.unwrapped._act, 0  # type: ignore[attr-defined]

    def breaks(action: str) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise RuntimeError("engine on strike")
        return act(action)

    monkeypatch.setattr(env.unwrapped, "_act", breaks)
    trajectory = run_episode(env, RandomAgent(), seed=0)
    assert len(trajectory.steps) == 3 and trajectory.error is not None
    assert len(list(transitions_of(trajectory))) == 2


def test_seeds_of_requests_stay_those_of_earlier_versions() -> None:
    assert seed_for(AgentConfig(), view()) == 1212992722
    seeds = {seed_for(AgentConfig(), replace(view(), seed=number)) for number in range(50)}
    assert len(seeds) == 50 and all(0 <= seed < 2**31 for seed in seeds)


def played(agent: Any, seeds: list[int]) -> list[list[str]]:
    trajectories = run_episodes(short, agent, TASKS[:1] * len(seeds), seed=seeds, lm=HashedModel())
    assert not any(trajectory.error for trajectory in trajectories)
    return [[step.action for step in trajectory.steps] for trajectory in trajectories]


def test_a_group_of_episodes_of_one_task_differs_by_its_seeds() -> None:
    for agent in (create_agent("react", decoding="masked"), RandomAgent(1)):
        group = played(agent, [0, 1, 2, 3, 1, 0])
        assert len({tuple(actions) for actions in group[:4]}) == 4
        assert group[4] == group[1] and group[5] == group[0]
        assert played(agent, [3, 2]) == [group[3], group[2]]


# Agents without a model.


def test_experts_win_and_are_recorded(tmp_path: Path) -> None:
    for expert in ("plan", "explore"):
        env = real(expert=expert)
        for task in TASKS[:6]:
            trajectory = run_episode(env, ExpertAgent(), task=task)
            assert trajectory.success and trajectory.score == 1.0 and trajectory.error is None
            assert (trajectory.task, trajectory.split) == (task, "valid_seen")
            assert trajectory.steps[-1].terminated and not trajectory.imagined
            state = trajectory.facts
            for before, step in trajectory.transitions():
                assert before == state
                state = apply(before, step.delta)
                assert State(state.facts) == State(step.facts.facts)
            path = tmp_path / "episode.jsonl"
            write_trajectories(path, [trajectory])
            assert list(read_trajectories(path)) == [trajectory]


def test_random_agents_depend_on_seed_task_and_step_alone() -> None:
    env = real()
    first = run_episode(env, RandomAgent(3), task=TASKS[0])
    run_episode(env, RandomAgent(3), task=TASKS[1])
    repeated = run_episode(real(), RandomAgent(3), task=TASKS[0])
    assert [s.action for s in first.steps] == [s.action for s in repeated.steps]
    other_seed = run_episode(env, RandomAgent(4), task=TASKS[0])
    assert [s.action for s in first.steps] != [s.action for s in other_seed.steps]
    assert not any(s.invalid_action for s in first.steps)
    mixed = run_episode(env, RandomAgent(3, mixed=1.0), task=TASKS[0])
    assert any(s.invalid_action for s in mixed.steps)
    with pytest.raises(OptionError):
        RandomAgent(mixed=1.5)


def test_replaying_repeats_and_compares() -> None:
    first = run_episode(real(), ExpertAgent(), task=TASKS[4])
    replayed = run_episode(real(), ReplayAgent(first, imagine=True), task=first.task)
    assert [s.observation for s in replayed.steps] == [s.observation for s in first.steps]
    assert all(s.prediction is not None for s in replayed.steps)
    imagined = run_episode(ImaginedEnv(real(), "null"), ReplayAgent(first), task=first.task)
    assert imagined.imagined and not imagined.success and imagined.world_model == "null"


# Overlapped rounds: the same episodes, while two models answer at the same time.

COMAP = create_agent("comap", p_source="verbal", q_source="proxy")


class Meeting(HashedModel):  # type: ignore[misc,valid-type]
    """Waits a moment for another model to be asked at the same time, until that happened thrice."""

    def __init__(self, name: str, barrier: threading.Barrier):
        super().__init__()
        self.name, self.barrier, self.meetings, self.threads = name, barrier, 0, set()

    def generate(self, requests: Sequence[Generate]) -> list[Any]:
        self.threads.add(threading.current_thread().name)
        if self.meetings < 3:
            try:
                self.barrier.wait(timeout=0.1)
                self.meetings += 1
            except threading.BrokenBarrierError:
                self.barrier.reset()
        return super().generate(requests)  # type: ignore[no-any-return]


def play(overlap: bool, concurrency: int = 6, **options: Any) -> list[Any]:
    run_options = {"lm": HashedModel(), "world_model": LanguageWorldModel(HashedModel()), **options}
    played = run_episodes(
        short, COMAP, TASKS[:9], concurrency=concurrency, overlap=overlap, **run_options
    )
    return [trajectory.to_json() for trajectory in played]


@pytest.mark.parametrize("concurrency", [1, 2, 6, 20])
def test_episodes_are_the_same(concurrency: int) -> None:
    assert play(True, concurrency) == play(False)


def test_policy_and_world_model_are_asked_at_the_same_time() -> None:
    barrier = threading.Barrier(2)
    lm, world_lm = Meeting("policy", barrier), Meeting("world", barrier)
    episodes = play(True, lm=lm, world_model=LanguageWorldModel(world_lm))
    assert lm.meetings == world_lm.meetings == 3
    assert lm.threads and all(name.startswith("comap-answers") for name in lm.threads)
    assert len(episodes) == 9 and not any(episode["error"] for episode in episodes)


def test_a_model_that_both_share_is_asked_by_one_thread() -> None:
    class Alone(HashedModel):  # type: ignore[misc,valid-type]
        asking = 0

        def generate(self, requests: Sequence[Generate]) -> list[Any]:
            self.asking += 1
            assert self.asking == 1
            replies = super().generate(requests)
            self.asking -= 1
            return replies  # type: ignore[no-any-return]

    lm = Alone()
    world = CachedWorldModel(LanguageWorldModel(lm))
    assert not any(episode["error"] for episode in play(True, lm=lm, world_model=world))


def test_a_model_that_fails_costs_those_who_asked_it() -> None:
    class Failing:
        def predict(self, queries: Sequence[Query]) -> list[Prediction]:
            if any("drawer" in query.action for query in queries):
                raise LanguageModelError("no answer")
            return [Prediction("Nothing happens.") for _ in queries]

    episodes = play(True, world_model=Failing())
    assert episodes == play(False, world_model=Failing())
    failed = [episode for episode in episodes if episode["error"]]
    assert failed and all("no answer" in str(episode["error"]) for episode in failed)


def test_whoever_stops_listening_leaves_no_thread() -> None:
    before = threading.active_count()
    lm, world = HashedModel(), LanguageWorldModel(HashedModel())
    options: dict[str, Any] = {"lm": lm, "world_model": world, "overlap": True}
    playing = stream_episodes(short, COMAP, TASKS[:9], **options)
    next(playing)
    playing.close()
    assert threading.active_count() == before


# Streamed requests: the same episodes, whatever the order in which their replies come.


class Streamed(HashedModel):  # type: ignore[misc,valid-type]
    """Takes requests one by one, and answers some of them at a time, in an order of its own."""

    def __init__(self, seed: int = 0):
        super().__init__()
        self.random = random.Random(seed)
        self.waiting: dict[int, Any] = {}
        self.submitted = 0
        self.most_waiting = 0
        self.forgotten = 0

    def submit(self, request: Any) -> int:
        self.submitted += 1
        self.waiting[self.submitted] = request
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        return self.submitted

    def step(self) -> list[tuple[int, Any]]:
        count = min(len(self.waiting), self.random.randint(1, 3))
        numbers = self.random.sample(sorted(self.waiting), count)
        return [(number, *answer(self, [self.waiting.pop(number)])) for number in numbers]

    def forget(self, numbers: Sequence[int]) -> None:
        self.forgotten += len(numbers)
        for number in numbers:
            del self.waiting[number]


@pytest.mark.parametrize("concurrency", [1, 2, 6])
@pytest.mark.parametrize("seed", range(3))
def test_streamed_episodes_are_the_same(seed: int, concurrency: int) -> None:
    lm = Streamed(seed)
    assert play(False, concurrency, lm=lm) == play(False)
    assert lm.submitted > 50 and not lm.waiting and not lm.forgotten
    # CoMap asks two questions at once in some steps.
    assert concurrency <= lm.most_waiting <= 2 * concurrency


def test_streamed_requests_are_those_of_batches() -> None:
    class Recorded(Streamed):
        def submit(self, request: Any) -> int:
            requests.append(request)
            return super().submit(request)

        def generate(self, batch: Sequence[Generate]) -> list[Any]:
            generated.extend(batch)
            return super().generate(batch)  # type: ignore[no-any-return]

    class Batched(HashedModel):  # type: ignore[misc,valid-type]
        def generate(self, batch: Sequence[Generate]) -> list[Any]:
            batched.extend(batch)
            return super().generate(batch)  # type: ignore[no-any-return]

    requests: list[Any] = []
    generated: list[Generate] = []
    batched: list[Generate] = []
    play(False, lm=Recorded())
    play(False, lm=Batched())
    streamed = [request for request in requests if isinstance(request, Generate)]
    assert Counter(streamed) == Counter(generated) == Counter(batched)


@pytest.mark.parametrize("shares", [True, False])
def test_a_world_model_of_a_language_model_is_streamed_too(shares: bool) -> None:
    lm = Streamed()
    world_lm = lm if shares else Streamed(1)
    streamed = play(False, lm=lm, world_model=LanguageWorldModel(world_lm))
    assert streamed == play(False)
    assert world_lm.submitted > 10


def test_models_that_answer_in_batches_go_along() -> None:
    world = LanguageWorldModel(HashedModel())
    assert play(False, lm=Streamed(), world_model=world) == play(False)
    cached = CachedWorldModel(LanguageWorldModel(HashedModel()))
    cached_stream = CachedWorldModel(LanguageWorldModel(Streamed()))
    assert play(False, lm=Streamed(), world_model=cached_stream) == play(False, world_model=cached)


def test_a_streamed_request_that_fails_ends_its_own_episode() -> None:
    class Failing(Streamed):
        def step(self) -> list[tuple[int, Any]]:
            return [
                (number, LanguageModelError("cut off") if number % 40 == 0 else reply)
                for number, reply in super().step()
            ]

    episodes = play(False, lm=Failing())
    failed = [episode for episode in episodes if episode["error"]]
    assert 0 < len(failed) < len(episodes)
    assert all("cut off" in str(episode["error"]) for episode in failed)


@pytest.mark.parametrize("fault", ["raises", "says nothing"])
def test_a_stream_that_breaks_ends_the_episodes_under_way(fault: str) -> None:
    class Broken(Streamed):
        def step(self) -> list[tuple[int, Any]]:
            if self.submitted < 60:
                return super().step()
            if fault == "raises":
                raise RuntimeError("the engine died")
            return []

    episodes = play(False, lm=Broken())
    failed = [episode for episode in episodes if episode["error"]]
    message = "the engine died" if fault == "raises" else "expected replies"
    assert failed and all(message in str(episode["error"]) for episode in failed)


def test_a_request_that_cannot_be_handed_over_fails_alone() -> None:
    class Refusing(Streamed):
        def submit(self, request: Any) -> int:
            if self.random.random() < 0.1:
                raise LanguageModelError("no room")
            return super().submit(request)

    assert play(False, lm=Refusing()) == play(False)  # asked by itself, it is answered


def test_whoever_stops_listening_leaves_no_request() -> None:
    lm, world_lm = Streamed(), Streamed(1)
    options: dict[str, Any] = {"lm": lm, "world_model": LanguageWorldModel(world_lm)}
    playing = stream_episodes(short, COMAP, TASKS[:9], **options)
    next(playing)
    assert lm.waiting or world_lm.waiting
    playing.close()
    assert not lm.waiting and not world_lm.waiting
    assert lm.forgotten + world_lm.forgotten > 0


def test_the_work_of_a_stream_is_counted() -> None:
    work_reports: list[Any] = []
    lm = Streamed()
    playing = stream_episodes(short, COMAP, TASKS[:3], lm=lm, on_work=work_reports.append)
    assert len(list(playing)) == 3
    assert work_reports[-1].asked == work_reports[-1].answered >= lm.submitted
    assert work_reports[-1].tokens > 0
    assert all(work.answered <= work.asked for work in work_reports)
