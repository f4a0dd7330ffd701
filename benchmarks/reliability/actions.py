"""A million actions, mutated and hostile ones among them, over the five environments.

Each is answered within the environment's contract, or it is told here as a loss: an exception out of
``env.step``, an `Info` that is none, a fault of the engine, a process that died, memory that grows.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from ...envs.classes import class_of
from ...envs.conformance.answers import check_info
from ...facts import State, diff
from .findings import Findings
from .hostile import hostile, mutated
from .isolated import isolated
from .memory import Memory

__all__ = ["ACTIONS", "MOST_GROWTH_MB", "SHARES", "play_actions", "run_actions"]

ACTIONS = 1_000_000
"""How many actions are taken at scale 1."""

SHARES: Mapping[str, float] = {
    "comap/ALFWorld-v0": 0.4,
    "comap/WebShop-v0": 0.25,
    "comap/StableToolBench-v0": 0.2,
    "comap/SearchQA-v0": 0.13,
    "comap/ScienceWorld-v0": 0.02,
}
"""Which share of them each environment gets; ScienceWorld's simulator is some hundred times slower."""

MOST_GROWTH_MB = 24.0
"""By how much a process may grow over the second half of its actions; see `growth_mb`."""

_EXPERT, _ADMISSIBLE, _MUTATED = 0.15, 0.35, 0.7
_SAMPLES = 40
_LEAST_BETWEEN = 10  # collecting garbage takes longer than an action
_LONGEST_EPISODE = 40
_SELDOM = 16  # reading facts costs more than all else
_SECONDS = 4 * 3600.0
_PLAIN = (
    "look",
    "inventory",
    "search[red shoes]",
    "<search>a town</search>",
    "Finish",
    "think: hm",
)


def run_actions(
    scale: float = 1.0, seed: int = 0, tell: Callable[[str], object] = lambda line: None
) -> dict[str, Any]:
    """Play all environments, each in a process of its own, and return what was found.

    Args:
        scale: Which share of `ACTIONS`.
        seed: Of the actions.
        tell: Told a line for each environment.

    Example:
        >>> run_actions(0.0)["counts"]["actions"] >= 5
        True
    """
    found, environments = Findings(), {}
    for env_id, share in SHARES.items():
        number = max(1, round(ACTIONS * scale * share))
        told = isolated(play_actions, env_id, number, seed, timeout=_SECONDS)
        found.take(told)
        environments[env_id] = told
        tell(f"{env_id}: {number:,} actions, {told['lost']} lost")
    found.note("environments", environments)
    return found.plain()


def play_actions(env_id: str, number: int, seed: int = 0) -> dict[str, Any]:
    """Take so many actions in one environment on its embedded tasks, and return what was found.

    Args:
        env_id: The environment.
        number: How many.
        seed: Of the actions and of the tasks.

    Example:
        >>> play_actions("comap/ALFWorld-v0", 50)["counts"]["actions"]
        50
    """
    found, memory, begun = Findings(), Memory(), time.perf_counter()
    player = _Player(env_id, seed, found)
    every = max(_LEAST_BETWEEN, number // _SAMPLES)
    for count in range(number):
        player.act()
        if count % every == every - 1:
            memory.sample(count)
    player.close()
    growth = memory.growth()
    found.check(
        growth is None or growth <= MOST_GROWTH_MB,
        f"{env_id}: memory grew by {growth} MB over the second half of {number:,} actions",
    )
    found.note("memory_growth_mb", growth)
    found.note("memory_most_mb", memory.most())
    found.note("seconds", round(time.perf_counter() - begun, 2))
    return found.plain()


class _Player:
    """Takes actions of all kinds in one environment, and checks each answer."""

    def __init__(self, env_id: str, seed: int, found: Findings):
        options = dict(getattr(class_of(env_id), "embedded", {}))
        options["max_episode_steps"] = _LONGEST_EPISODE
        self.env = gymnasium.make(env_id, disable_env_checker=True, **options)
        self.env_id, self.seed, self.found = env_id, seed, found
        self.rng, self.episodes = random.Random(seed), 0
        self.extras = self.env.get_wrapper_attr("info_extras")
        self.over, self.steps = True, 0
        self.before, self.info = State(), dict[str, Any]()

    def act(self) -> None:
        """Take one action, and begin an episode before where none runs."""
        if self.over:
            self._begin()
        kind, action = self._draw()
        self.found.count("actions")
        self.found.count(kind)
        self.steps += 1
        try:
            answer = self.env.step(action)
        except Exception as error:
            self._lose(action, f"{type(error).__name__}: {error}")
            self.over = True
            return
        self.over = bool(answer[2] or answer[3])
        problem = self._problem(answer)
        if problem:
            self._lose(action, problem)
            self.over = True
        if answer[4].get("invalid_action"):
            self.found.tell("invalid_action")
        self.info = answer[4]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _begin(self) -> None:
        self.episodes += 1
        _, self.info = self.env.reset(seed=self.seed * 1_000_003 + self.episodes)
        self.found.count("episodes")
        self.before, self.steps, self.over = self.info["facts"], 0, False

    def _draw(self) -> tuple[str, str]:
        """Return the next action and of which kind it is."""
        admissible: Sequence[str] = self.info["admissible_actions"] or _PLAIN
        draw = self.rng.random()
        if draw < _EXPERT:
            action = self.env.get_wrapper_attr("expert_action")()
            if action is not None:
                return "of the expert", action
        if draw < _ADMISSIBLE:
            return "random", self.rng.choice(admissible)
        if draw < _MUTATED:
            return "mutated", mutated(self.rng.choice(admissible), self.rng, (*_PLAIN, *admissible))
        return "hostile", hostile(self.rng)

    def _problem(self, answer: tuple[Any, Any, Any, Any, dict[str, Any]]) -> str:
        """Return what is wrong with an answer, or nothing."""
        observation, reward, terminated, truncated, info = answer
        if "error" in info:
            return f"a fault of the engine: {info['error']}"
        if not isinstance(observation, str) or observation not in self.env.observation_space:
            return f"an observation that is none, of {len(observation)} characters"
        if not math.isfinite(float(reward)) or type(terminated) is not bool:
            return f"a reward or end that is none: {reward!r}, {terminated!r}"
        if type(truncated) is not bool:
            return f"an end that is none: {truncated!r}"
        if diff(self.before, info["facts"]) != info["delta"]:
            return "a delta that is not the change of the facts"
        try:
            check_info(info, self.steps, self.extras)
        except AssertionError as error:
            return str(error)
        facts = info["facts"]
        if self.steps % _SELDOM == 1 and State.from_text(facts.to_text()) != facts:
            return "facts that do not come back from their text"
        self.before = info["facts"]
        return ""

    def _lose(self, action: str, why: str) -> None:
        self.found.lose(f"{self.env_id}, {self.info.get('task')}: {action[:200]!r}: {why}")
