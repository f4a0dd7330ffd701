"""The same seed and actions give the same transcript: again, elsewhere, and in vectors."""

from __future__ import annotations

import random
import unittest
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from ..base import Info
from .suite import Suite, expect, same
from .transcripts import record, replay, replay_in_child

__all__ = ["Replays"]


class Replays(Suite):
    """Transcripts depend on nothing but the seed, the task and the actions."""

    def test_same_transcript_in_other_processes(self) -> None:
        """Seed and actions determine every byte, in any process, for any PYTHONHASHSEED."""
        with self.make() as env:
            episodes = [self._play(env, seed) for seed in self.seeds]
        for hash_seed in self.hash_seeds:
            again = replay_in_child(self.maker, self._arguments(), episodes, hash_seed)
            for episode, records in zip(episodes, again, strict=True):
                same(
                    episode.records,
                    records,
                    f"seed {episode.seed} must give the same transcript in a fresh process with "
                    f"PYTHONHASHSEED={hash_seed} (if `make` is overridden, set `maker` instead)",
                )

    def test_seed_repeats_an_episode(self) -> None:
        """The same seed gives the same episode, in the same environment and in a fresh one."""
        with self.make() as env, self.make() as other:
            episodes = [self._play(env, seed) for seed in self.seeds]
            for episode in episodes:
                again = f"seed {episode.seed} must give the same transcript again"
                same(episode.records, replay(env, episode), again)
                same(episode.records, replay(other, episode), f"{again}, in a fresh environment")

    def test_seed_chooses_the_task(self) -> None:
        """Seeds choose tasks: many seeds do not all give the same one."""
        with self.make() as env:
            if len(env.get_wrapper_attr("tasks")) < 2:
                raise unittest.SkipTest("there is only one task")
            first = env.reset(seed=0)[1]["task"]
            others = (env.reset(seed=seed)[1]["task"] for seed in range(1, 24))
            found = any(other != first for other in others)
            expect(found, "24 seeds must choose among the tasks", first)

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

    def _make_vec(self, **how: Any) -> VectorEnv[Any, Any, Any]:
        if not self.env_id:
            raise unittest.SkipTest("no registered id")
        return gymnasium.make_vec(self.env_id, num_envs=2, **how, **self.kwargs)

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
        records, played = [record(observations, infos)], []
        for number in range(self.steps):
            chosen = (
                actions[number]
                if actions
                else tuple(
                    self.policy(text, {key: infos[key][i] for key in Info.__required_keys__}, rng)
                    for i, text in enumerate(observations)
                )
            )
            *answer, infos = envs.step(chosen)
            observations = answer[0]
            records.append(record(*answer, infos))
            played.append(chosen)
        return records, played
