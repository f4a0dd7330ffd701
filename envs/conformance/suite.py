"""The conformance tests, in four groups, and what they share."""

from __future__ import annotations

import gc
import os
import pickle
import random
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from ...errors import InvalidAction, NoEpisode, OptionError, SnapshotError, TaskNotFound
from ...facts import Delta, State, diff
from ..base import Info, Snapshot, restore, snapshot
from .transcripts import (
    Env,
    Episode,
    digest,
    follow,
    load,
    play,
    record,
    replay,
    replay_in_child,
    shown,
)

# What the default policy says where no actions are listed: texts that one environment or another takes.
_WORDS = ("look", "help", "search for a red shoe", "go north", "finish")


class Suite:
    """What a subclass may set or replace, and how an environment is made and played."""

    env_id: ClassVar[str] = ""
    kwargs: ClassVar[Mapping[str, Any]] = {}
    maker: ClassVar[str] = "comap.envs.conformance.transcripts:make_env"
    maker_args: ClassVar[Mapping[str, Any] | None] = None
    seeds: ClassVar[Sequence[int]] = (0, 1, 2)
    steps: ClassVar[int] = 25
    hash_seeds: ClassVar[Sequence[int]] = (1,)
    expert_steps: ClassVar[int] = 200
    refuses_nonsense: ClassVar[bool] = True
    memory_episodes: ClassVar[int] = 500
    memory_steps: ClassVar[int] = 3
    max_growth_mb: ClassVar[float] = 4.0
    max_info_bytes: ClassVar[int] = 200_000

    # What a subclass may replace.

    def make(self) -> Env:
        """Return a fresh environment; `maker` does it, so that other processes can, too."""
        env: Env = load(self.maker)(**self._arguments())
        return env

    def policy(self, observation: str, info: dict[str, Any], rng: random.Random) -> str:
        """Return the next action: by default a random admissible one, else a few words."""
        choices: Sequence[str] = info["admissible_actions"] or _WORDS
        return rng.choice(choices)

    def check_target(self, env: Env) -> gymnasium.Env[Any, Any]:
        """Return the layer that Gymnasium's ``check_env`` looks at."""
        return env.unwrapped

    def _arguments(self) -> Mapping[str, Any]:
        if self.maker_args is not None:
            return self.maker_args
        return {"env_id": self.env_id, "kwargs": dict(self.kwargs)}

    def _play(self, env: Env, seed: int, options: dict[str, Any] | None = None) -> Episode:
        return play(env, self.policy, seed=seed, options=options, steps=self.steps)

    def _tasks(self, env: Env) -> tuple[str, ...]:
        """Return the ids of at most three tasks: the first, one in the middle, the last."""
        ids: tuple[str, ...] = env.get_wrapper_attr("tasks").ids
        # In a small panel these may be the same task.
        return tuple(dict.fromkeys((ids[0], ids[len(ids) // 2], ids[-1])))

    def _steps(
        self, env: Env, seed: int, steps: int | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the answers (observation, info) of an episode while it is played."""
        rng = random.Random(seed)
        observation, info = env.reset(seed=seed)
        yield observation, info

        count = 0
        over = False
        while not over and count < (steps or self.steps):
            answer = env.step(self.policy(observation, info, rng))
            observation, reward, terminated, truncated, info = answer

            # Exact types: numpy's numbers and truth values pass for ours, but are written otherwise.
            flags = (type(reward), type(terminated), type(truncated))
            expect(flags == (float, bool, bool), "step must return float, bool, bool", flags)
            over = terminated or truncated
            count += 1
            yield observation, info


def expect(condition: Any, contract: str, actual: Any) -> None:
    """Raise an AssertionError that says what the contract is and what was found."""
    if not condition:
        raise AssertionError(f"{contract}; found {actual!r:.1000}")


def refused(call: Callable[[], Any], expected: type[Exception], subject: str) -> Exception:
    """Return the error of type `expected` that `call` must raise."""
    try:
        answer = call()
    except expected as error:
        return error
    except Exception as error:
        raise AssertionError(
            f"{subject} must raise {expected.__name__}; found {type(error).__name__}: {error}"
        ) from error
    raise AssertionError(f"{subject} must raise {expected.__name__}; found {answer!r:.300}")


def same(expected: Sequence[str], actual: Sequence[str], contract: str) -> None:
    """Compare records; an AssertionError says where they part."""
    if digest(expected) == digest(actual):
        return

    for number, (line, actual_line) in enumerate(zip(expected, actual, strict=False)):
        if line != actual_line:
            # A record may have 200,000 characters: the message shows those around the difference.
            pairs = zip(line, actual_line, strict=False)
            position = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            window = slice(max(0, position - 60), position + 200)
            raise AssertionError(
                f"{contract}; record {number} differs at character {position}: expected "
                f"...{line[window]!r}, found ...{actual_line[window]!r}"
            )

    raise AssertionError(f"{contract}; expected {len(expected)} records, found {len(actual)}")


NONSENSE: Mapping[str, str] = {
    "20,000 characters": "go to nowhere, " * 1333 + "stop.",
    "emoji": "\N{PILE OF POO} \N{WAVING HAND SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}",
    "control characters": "\x01\x07\x08\x1b[31m\r\n\t\x7f\x85\u2028",
    "a NUL character": "zzz\x00zzz",
    "a lone surrogate": "zzz \ud83d",
    "empty text": "",
}
"""Texts that are no action anywhere, by name."""

_NOT_TEXT: tuple[Any, ...] = (3, None, 1.5, b"look", ["look"], ("look",), np.array(["look"]))
_TYPES: Mapping[str, tuple[type, ...]] = {
    "task": (str,),
    "split": (str,),
    "goal": (str,),
    "admissible_actions": (tuple, type(None)),
    "facts": (State,),
    "delta": (Delta,),
    "score": (float, int),
    "success": (bool,),
    "invalid_action": (bool,),
    "step": (int,),
    "imagined": (bool,),
}


class Answers(Suite):
    """Infos are documented, small and consistent; every text is answered, nothing else is."""

    def test_info_has_the_documented_keys(self) -> None:
        """Infos have the keys of `Info` and of `info_extras`, of its types, small, picklable."""
        with self.make() as env:
            extras = env.get_wrapper_attr("info_extras")
            kept_keys = env.get_wrapper_attr("info_kept")
            expect(
                set(kept_keys) <= set(extras), "info_kept must be keys of info_extras", kept_keys
            )
            for seed in self.seeds:
                for number, (_, info) in enumerate(self._steps(env, seed)):
                    check_info(info, number, extras, self.max_info_bytes)

    def test_facts_and_delta_agree(self) -> None:
        """``info["delta"]`` leads from the facts before to ``info["facts"]``; facts are texts."""
        with self.make() as env:
            for seed in self.seeds:
                before = State()
                for _, info in self._steps(env, seed):
                    after = info["facts"]
                    delta = info["delta"]
                    expect(diff(before, after) == delta, "delta must be the difference", delta)

                    facts = [fact for fact in after.facts if type(fact) is tuple and fact]
                    texts = all(type(p) is str and p == p.lower() for fact in facts for p in fact)
                    tuples = len(facts) == len(after.facts)
                    expect(tuples and texts, "facts must be tuples of lower-case text", after)

                    reread = State.from_text(after.to_text())
                    expect(reread == after, "facts must come back from their text", after)
                    now = env.get_wrapper_attr("state_facts")()
                    expect(now == after, "state_facts() must be info['facts']", now)
                    before = after

    def test_admissible_actions_are_accepted(self) -> None:
        """What ``info["admissible_actions"]`` lists is not refused."""
        rng = random.Random(0)
        with self.make() as env:
            for seed in self.seeds:
                for _, info in self._steps(env, seed, min(self.steps, 5)):
                    actions = info["admissible_actions"]
                    if actions is None or info["imagined"]:
                        continue

                    # To restore may mean to play again (TextWorld): four actions in five states are enough.
                    moment = snapshot(env)
                    for action in rng.sample(actions, min(4, len(actions))):
                        answer = env.step(action)
                        expect(
                            not answer[-1]["invalid_action"] and "error" not in answer[-1],
                            f"the admissible action {action!r} must be accepted",
                            answer,
                        )
                        restore(env, moment)

    def test_any_text_is_answered(self) -> None:
        """No text breaks the environment; nonsense is reported as an invalid action."""
        with self.make() as env:
            for name, text in NONSENSE.items():
                env.reset(seed=self.seeds[0])
                observation, _, terminated, truncated, info = env.step(text)
                subject = f"an action of {name}"
                expect("error" not in info, f"{subject} must be answered", info.get("error"))
                expect(not truncated, f"{subject} must not cut the episode", truncated)
                expect(
                    observation in env.observation_space,
                    f"the answer to {subject} must be in the observation space",
                    observation,
                )
                if self.refuses_nonsense:
                    expect(info["invalid_action"], f"{subject} must be an invalid action", info)

                # Vectors send infos between processes: a lone surrogate must pass there, too.
                pickle.dumps(info)
                if not terminated:
                    env.step("look")

    def test_other_types_are_refused(self) -> None:
        """An action that is no text raises `InvalidAction`, which names its type."""
        with self.make() as env:
            _, before = env.reset(seed=self.seeds[0])

            # Also what contains a text: a vector's array or a list of actions is easily passed on.
            for action in _NOT_TEXT:
                name = type(action).__name__
                error = refused(partial(env.step, action), InvalidAction, f"an action of {name}")
                expect(name in str(error), f"the message must name {name}", str(error))
            info = env.step("look")[-1]
            expect(info["step"] == before["step"] + 1, "refused actions must not count", info)


def check_info(
    info: Mapping[str, Any], number: int, extras: Iterable[str] = (), most_bytes: int = 200_000
) -> None:
    """Raise an AssertionError unless an `Info` keeps its contract."""
    keys = sorted({*Info.__required_keys__, *extras})
    expect(sorted(info) == keys, f"info must have the keys {keys}", sorted(info))
    for key, types in _TYPES.items():
        kind = type(info[key])
        expect(kind in types, f"info[{key!r}] must be of {types}", (kind, info[key]))
    expect(info["step"] == number, f"info['step'] must be {number}", info["step"])
    expect(0 <= info["score"] <= 1, "info['score'] must be in 0..1", info["score"])
    expect(info["task"] and info["goal"], "info must name task and goal", info)

    size = len(pickle.dumps(info))
    expect(size <= most_bytes, f"info must be <= {most_bytes} bytes", size)
    expect(pickle.loads(pickle.dumps(info)) == info, "info must survive pickling", info)

    actions = info["admissible_actions"]
    expect(
        actions is None
        or (all(type(item) is str for item in actions) and len(set(actions)) == len(actions)),
        "info['admissible_actions'] must be unique texts",
        actions,
    )


class Replays(Suite):
    """Transcripts depend on nothing but the seed, the task and the actions."""

    def test_same_transcript_in_other_processes(self) -> None:
        """Seed and actions determine every byte, in any process, for any PYTHONHASHSEED."""
        with self.make() as env:
            episodes = [self._play(env, seed) for seed in self.seeds]

        for hash_seed in self.hash_seeds:
            replays = replay_in_child(self.maker, self._arguments(), episodes, hash_seed)
            for episode, records in zip(episodes, replays, strict=True):
                same(
                    episode.records,
                    records,
                    f"seed {episode.seed} must give the same transcript in a fresh process with "
                    f"PYTHONHASHSEED={hash_seed} (if `make` is overridden, set `maker` instead)",
                )

    def test_seed_repeats_an_episode(self) -> None:
        """The same seed gives the same episode, in the same environment and in a fresh one."""
        with self.make() as env, self.make() as fresh:
            episodes = [self._play(env, seed) for seed in self.seeds]
            for episode in episodes:
                contract = f"seed {episode.seed} must give the same transcript again"
                same(episode.records, replay(env, episode), contract)
                same(episode.records, replay(fresh, episode), f"{contract}, in a fresh environment")

    def test_seed_chooses_the_task(self) -> None:
        """Seeds choose tasks: many seeds do not all give the same one."""
        with self.make() as env:
            if len(env.get_wrapper_attr("tasks")) < 2:
                raise unittest.SkipTest("there is only one task")
            first_task = env.reset(seed=0)[1]["task"]
            tasks = (env.reset(seed=seed)[1]["task"] for seed in range(1, 24))
            differ = any(task != first_task for task in tasks)
            expect(differ, "24 seeds must choose among the tasks", first_task)

    def test_episodes_are_independent(self) -> None:
        """Nothing of an episode is left in the next one."""
        with self.make() as env, self.make() as fresh:
            task = self._tasks(env)[0]
            for seed in self.seeds:
                self._play(env, seed)
            after = self._play(env, 5, {"task": task})
            same(
                replay(fresh, after),
                after.records,
                f"task {task!r} must be the same after other episodes as in a fresh environment",
            )

    def test_async_vector_equals_sync(self) -> None:
        """`AsyncVectorEnv` and `SyncVectorEnv` give the same transcript."""
        self._compare(AsyncVectorEnv([self.make] * 2, shared_memory=False))

    def test_async_vector_with_shared_memory_equals_sync(self) -> None:
        """So does `AsyncVectorEnv` with its default, ``shared_memory=True``."""
        self._compare(AsyncVectorEnv([self.make] * 2))

    def test_make_vec_async_equals_sync(self) -> None:
        """So does ``gym.make_vec(id, vectorization_mode="async")``."""
        self._compare(self._make_vec(vectorization_mode="async"))

    def test_make_vec_equals_sync(self) -> None:
        """So does ``gym.make_vec(id)``, which takes the environment's own entry point."""
        self._compare(self._make_vec())

    def _make_vec(self, **options: Any) -> VectorEnv[Any, Any, Any]:
        if not self.env_id:
            raise unittest.SkipTest("no registered id")
        return gymnasium.make_vec(self.env_id, num_envs=2, **options, **self.kwargs)

    def _compare(self, envs: VectorEnv[Any, Any, Any]) -> None:
        """Play on `envs`, then the same actions one environment after the other."""
        kind = type(envs).__name__
        try:
            records, actions = self._play_vector(envs, None)
        finally:
            envs.close()

        sync = SyncVectorEnv([self.make] * 2)
        try:
            expected, _ = self._play_vector(sync, actions)
        finally:
            sync.close()
        same(expected, records, f"{kind} must give what SyncVectorEnv gives")

    def _play_vector(
        self, envs: VectorEnv[Any, Any, Any], actions: list[tuple[str, ...]] | None
    ) -> tuple[list[str], list[tuple[str, ...]]]:
        """Play `actions`, or else the policy's, and return the records and the actions."""
        rng = random.Random(0)
        observations, infos = envs.reset(seed=11)
        records = [record(observations, infos)]
        played = []

        # A vector begins ended episodes anew, so that the play is never shorter.
        for number in range(self.steps):
            if actions is not None:
                step_actions = actions[number]
            else:
                # A vector's info has an array for each key; a policy expects one environment's info.
                each_info = [
                    {key: infos[key][index] for key in Info.__required_keys__}
                    for index in range(len(observations))
                ]
                step_actions = tuple(
                    self.policy(text, info, rng)
                    for text, info in zip(observations, each_info, strict=True)
                )

            *answer, infos = envs.step(step_actions)
            observations = answer[0]
            records.append(record(*answer, infos))
            played.append(step_actions)
        return records, played


class Rules(Suite):
    """The environment is a Gymnasium environment whose tasks can be chosen."""

    def test_check_env(self) -> None:
        """Gymnasium's own checker finds nothing, and warns of nothing."""
        with self.make() as env, warnings.catch_warnings(record=True) as caught:
            # The checker raises for the worst only, and warns of the rest.
            warnings.simplefilter("always")
            check_env(self.check_target(env))
        texts = [str(item.message) for item in caught if issubclass(item.category, UserWarning)]
        expect(not texts, "check_env must not warn", texts)

    def test_step_before_reset_is_refused(self) -> None:
        """A step before the first reset raises `NoEpisode` or Gymnasium's own `ResetNeeded`."""
        with self.make() as env:
            refused(lambda: env.step("look"), ResetNeeded, "a step before reset")

    def test_step_after_the_end_is_refused(self) -> None:
        """A step after ``terminated`` raises `NoEpisode`, and `reset` helps."""
        with self.make() as env:
            self._expert_end(env)
            error = refused(lambda: env.step("look"), NoEpisode, "a step after the end")
            expect("reset" in str(error), "the message must name reset", str(error))
            env.reset(seed=0)
            env.step("look")

    def test_expert_solves_the_task(self) -> None:
        """Where an expert is known, following it ends the episode with success."""
        with self.make() as env:
            info = self._expert_end(env)
            expect(info["success"], "the expert's plan must solve the task", info)
            expect(info["score"] == 1.0, "a solved task must have score 1", info["score"])

    def _expert_end(self, env: Env) -> dict[str, Any]:
        """Follow the expert to the end; skip the test where there is none to follow."""
        for seed in self.seeds:
            _, info = env.reset(seed=seed)
            for _ in range(self.expert_steps):
                action = env.get_wrapper_attr("expert_action")()
                if action is None:
                    break
                _, _, terminated, truncated, info = env.step(action)
                if terminated:
                    return info
                if truncated or info["imagined"]:
                    break
        raise unittest.SkipTest("no expert that reaches the end of an episode")

    def test_task_option_chooses_the_task(self) -> None:
        """``reset(options={"task": id})`` plays that task, whatever the seed."""
        with self.make() as env:
            for task in self._tasks(env):
                first, second = (
                    env.reset(seed=seed, options={"task": task}) for seed in self.seeds[:2]
                )
                expect(first[1]["task"] == task, f"{task!r} was asked for", first[1]["task"])
                same(
                    [record(*first)],
                    [record(*second)],
                    f"task {task!r} must start the same whatever the seed",
                )

    def test_wrong_options_are_refused(self) -> None:
        """Unknown options and tasks raise helpful errors; the environment stays usable."""
        with self.make() as env:
            env.reset(seed=0)
            refused(lambda: env.reset(options={"tusk": "x"}), OptionError, "an unknown option")
            refused(lambda: env.reset(options={"task": 3}), OptionError, "a task that is no text")
            error = refused(
                lambda: env.reset(options={"task": "no/such/task"}), TaskNotFound, "an unknown task"
            )
            expect("no/such/task" in str(error), "the message must name the task", str(error))

            # The episode before must not go on as if it were the one that was asked for.
            refused(lambda: env.step("look"), ResetNeeded, "a step after a failed reset")
            self._play(env, 0)

    def test_memory_is_flat(self) -> None:
        """Many short episodes leave nothing behind."""
        # As many episodes come before, so that caches are as full as they get.
        number = self.memory_episodes
        with self.make() as env:
            start = self._memory_after(env, range(number))
            end = self._memory_after(env, range(number, 2 * number))
        contract = f"{self.memory_episodes} episodes must add at most {self.max_growth_mb} MB"
        expect(end - start <= self.max_growth_mb, contract, f"{end - start:.1f} MB")

    def _memory_after(self, env: Env, seeds: Sequence[int]) -> float:
        """Play an episode for each seed and return the memory in use, in MB."""
        for seed in seeds:
            rng = random.Random(seed)
            observation, info = env.reset(seed=seed)
            over = False
            for _ in range(self.memory_steps):
                if not over:
                    action = self.policy(observation, info, rng)
                    observation, _, terminated, truncated, info = env.step(action)
                    over = terminated or truncated

        # Cycles that wait for the collector are no leak.
        gc.collect()
        return _resident_mb()


def _resident_mb() -> float:
    """Return the memory of this process in MB, with psutil where it is installed."""
    try:
        import psutil
    except ImportError:
        # The second number is the resident set.
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return float(psutil.Process().memory_info().rss) / 2**20


class Snapshots(Suite):
    """Snapshots are whole, stay what they are, and are refused where they do not fit."""

    def test_snapshot_restores_anywhere(self) -> None:
        """A pickled snapshot of any moment brings it back, here and in a fresh environment."""
        for seed in self.seeds:
            with self.make() as env, self.make() as fresh:
                episode, moments = self._moments(env, seed)

                # The same environment is in another episode by then.
                env.reset(seed=seed + 1)
                for number, pickled in moments:
                    for which_env, target in (("the same", env), ("a fresh", fresh)):
                        self._check_moment(
                            target, pickle.loads(pickled), episode, number, which_env
                        )

    def test_snapshot_is_not_changed_by_later_steps(self) -> None:
        """A snapshot stays what it was while the episode goes on and callers change infos."""
        with self.make() as env:
            _, info = env.reset(seed=self.seeds[0])
            moment = snapshot(env)

            rng = random.Random(1)
            records = []
            actions: list[str] = []
            while len(actions) < self.steps:
                actions.append(self.policy("", info, rng))
                *answer, info = env.step(actions[-1])
                records.append(record(*answer, info))
                _, _, terminated, truncated = answer
                if terminated or truncated:
                    break

            # Callers may change the infos that they got: a snapshot shares nothing with them.
            info.clear()
            for times in ("once", "twice"):
                contract = f"a snapshot must not change, however often it is used ({times})"
                _restored(env, moment, contract)[1].clear()
                same(records, follow(env, actions), contract)

    def test_snapshot_that_does_not_fit_is_refused(self) -> None:
        """What is no snapshot, or one of other settings, raises `SnapshotError`."""
        with self.make() as env:
            env.reset(seed=0)
            moment = snapshot(env)
            wrong: list[Any] = [None, "text", {}, object()]
            if isinstance(moment, Snapshot):
                wrong += [
                    replace(moment, env_id="comap/Other-v0"),
                    replace(moment, settings=(*moment.settings, ("dialect", "other"))),
                    replace(moment, task="no/such/task"),
                    replace(moment, engine=object()),
                ]

            for no_moment in wrong:
                refused(partial(restore, env, no_moment), SnapshotError, f"{no_moment!r:.200}")
            restore(env, moment)
            env.step("look")

    def _moments(self, env: Env, seed: int) -> tuple[Episode, list[tuple[int, bytes]]]:
        """Play an episode; return it and pickled snapshots of some of its moments."""
        episode = self._play(env, seed)
        count = len(episode.actions)
        between = random.Random(seed).sample(range(count), min(2, count))
        numbers = {0, count, *between}

        # Played a second time: had a snapshot disturbed the first, its records would show nothing.
        env.reset(seed=seed)
        moments = []
        for number in range(count + 1):
            if number in numbers:
                moments.append((number, pickle.dumps(snapshot(env))))
            if number < count:
                env.step(episode.actions[number])
        return episode, moments

    def _check_moment(
        self, env: Env, moment: Any, episode: Episode, number: int, which_env: str
    ) -> None:
        """Restore step `number` of `episode` and play it to its end again."""
        contract = f"step {number} of seed {episode.seed}, restored in {which_env} environment,"
        restored = record(*_restored(env, moment, contract))
        same(
            [shown(episode.records[number])], [restored], f"{contract} must have its text and info"
        )
        later = follow(env, episode.actions[number:])
        same(episode.records[number + 1 :], later, f"{contract} must go on as it did")


def _restored(env: Env, moment: Any, contract: str) -> tuple[str, dict[str, Any]]:
    """Restore; a snapshot that is refused is a failure of the contract."""
    try:
        return restore(env, moment)
    except SnapshotError as error:
        raise AssertionError(f"{contract}; found it refused: {error}") from error
