"""Gymnasium's rules, the choice of tasks, and memory."""

from __future__ import annotations

import gc
import os
import random
import unittest
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from ...errors import NoEpisode, OptionError, TaskNotFound
from .suite import Suite, expect, refused, same
from .transcripts import Env, record

__all__ = ["Rules"]


class Rules(Suite):
    """The environment is a Gymnasium environment whose tasks can be chosen."""

    def test_check_env(self) -> None:
        """Gymnasium's own checker finds nothing, and warns of nothing."""
        with self.make() as env, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(self.check_target(env))
        found = [str(item.message) for item in caught if issubclass(item.category, UserWarning)]
        expect(not found, "check_env must not warn", found)

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
                lambda: env.reset(options={"task": "no/such/task"}),
                TaskNotFound,
                "an unknown task",
            )
            expect("no/such/task" in str(error), "the message must name the task", str(error))
            refused(lambda: env.step("look"), ResetNeeded, "a step after a failed reset")
            self._play(env, 0)

    def test_memory_is_flat(self) -> None:
        """Many short episodes leave nothing behind."""
        number = self.memory_episodes  # as many before, so that caches are as full as they get
        with self.make() as env:
            start = self._memory_after(env, range(number))
            end = self._memory_after(env, range(number, 2 * number))
        contract = f"{self.memory_episodes} episodes must add at most {self.max_growth_mb} MB"
        expect(end - start <= self.max_growth_mb, contract, f"{end - start:.1f} MB")

    def _memory_after(self, env: Env, seeds: Sequence[int]) -> float:
        """Play an episode for each seed and return the memory in use, in MB."""
        for seed in seeds:
            observation, info = env.reset(seed=seed)
            rng, over = random.Random(seed), False
            for _ in range(self.memory_steps):
                if not over:
                    action = self.policy(observation, info, rng)
                    observation, _, terminated, truncated, info = env.step(action)
                    over = terminated or truncated
        gc.collect()
        return _resident_mb()


def _resident_mb() -> float:
    """Return the memory that this process holds, in MB."""
    try:
        import psutil
    except ImportError:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return float(psutil.Process().memory_info().rss) / 2**20
