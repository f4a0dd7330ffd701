"""Sixty-four environments on two cores, for long: steps, failures, memory."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import gymnasium

from ...envs.classes import class_of
from .findings import Findings
from .isolated import Isolated
from .memory import Memory

__all__ = ["ENVIRONMENTS", "MOST_GROWTH_MB", "SECONDS", "play_load", "run_load"]

ENVIRONMENTS = {
    "comap/ALFWorld-v0": 10,
    "comap/WebShop-v0": 8,
    "comap/StableToolBench-v0": 7,
    "comap/SearchQA-v0": 6,
    "comap/ScienceWorld-v0": 1,
}
"""How many of each a process plays; there are two processes."""

SECONDS = 3600.0
"""How long all are played at scale 1."""

MOST_GROWTH_MB = 24.0
"""By how much a process may grow over the second half of the time."""

_PROCESSES = 2
_LIMIT = 30
_SAMPLES = 60
_START = 1800.0
_WORDS = ("look", "search[shoes]", "<search>a river</search>", "inventory", "Finish", "click[back]")


def run_load(
    scale: float = 1.0, seed: int = 0, tell: Callable[[str], object] = lambda line: None
) -> dict[str, Any]:
    """Play all environments in two processes at once, each on a core, and return what was found.

    Args:
        scale: Which share of `SECONDS`; three seconds at least.
        seed: Of tasks and actions.
        tell: Told a line at the end.
    """
    found, seconds = Findings(), max(3.0, SECONDS * scale)
    cores = sorted(os.sched_getaffinity(0))[:_PROCESSES] if hasattr(os, "sched_getaffinity") else []
    players = [
        Isolated(
            play_load, seconds, seed + 1000 * number, cores[number] if cores[number:] else None
        )
        for number in range(_PROCESSES)
    ]
    told = [player.result(seconds + _START) for player in players]
    for part in told:
        found.take(part)
    found.note("seconds", seconds)
    found.note("processes", told)
    plain = found.plain()
    tell(f"load: {plain['counts']}, {plain['lost']} lost")
    return plain


def play_load(seconds: float, seed: int, core: int | None = None) -> dict[str, Any]:
    """Play this process's environments in turns, and return what was found.

    Args:
        seconds: For how long.
        seed: Of tasks and actions.
        core: The core to stay on; None for any.
    """
    if core is not None:
        os.sched_setaffinity(0, {core})
    found, memory, rng = Findings(), Memory(), random.Random(seed)
    players = [
        _Player(env_id, seed * 64 + number, found)
        for env_id, count in ENVIRONMENTS.items()
        for number in range(count)
    ]
    found.count("environments", len(players))
    for player in players:
        player.act(rng)
    begun = time.monotonic()
    sampled = begun
    while (now := time.monotonic()) < begun + seconds:
        for player in players:
            player.act(rng)
        if now - sampled >= seconds / _SAMPLES:
            memory.sample(now - begun)
            sampled = now
    for player in players:
        player.env.close()
    growth = memory.growth()
    right = growth is None or growth <= MOST_GROWTH_MB
    found.check(right, f"memory grew by {growth} MB over the second half of {seconds:.0f} s")
    found.note("memory_growth_mb", growth)
    found.note("memory_most_mb", memory.most())
    return found.plain()


class _Player:
    """Plays one environment, episode after episode."""

    def __init__(self, env_id: str, seed: int, found: Findings):
        options = dict(getattr(class_of(env_id), "embedded", {}))
        options["max_episode_steps"] = _LIMIT
        self.env: Any = gymnasium.make(env_id, disable_env_checker=True, **options)
        self.env_id, self.seed, self.found = env_id, seed, found
        self.info: dict[str, Any] | None = None

    def act(self, rng: random.Random) -> None:
        """Take a step, or begin an episode."""
        try:
            if self.info is None:
                self.seed += 100_003
                self.info = self.env.reset(seed=self.seed)[1]
                self.found.count("episodes")
                return
            action = rng.choice(self.info["admissible_actions"] or _WORDS)
            _, _, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            self.found.lose(f"{self.env_id}: {type(error).__name__}: {error}")
            self.info = None
            return
        self.found.count("steps")
        self.found.check("error" not in info, f"{self.env_id}: {info.get('error')}")
        self.info = None if terminated or truncated else info
