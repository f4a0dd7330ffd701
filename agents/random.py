"""The agent that acts at random."""

from __future__ import annotations

import random
from collections.abc import Generator

from ..errors import OptionError
from .base import Decision, Reply, Request, View

__all__ = ["RandomAgent"]

_WORDS = ("look", "inventory", "help")


class RandomAgent:
    """Takes random admissible actions, and now and then one that mixes two of them.

    The choice depends on the seed, the task, the step and the episode's seed (unless that is 0)
    alone, not on other episodes.

    Args:
        seed: Seed of the choices.
        mixed: Share of actions made of the beginning of one admissible action and the end of
            another, many of which do nothing: world models must know those too.

    Raises:
        OptionError: `mixed` is not from 0 to 1.

    Example:
        >>> from comap.agents import run_episode
        >>> import gymnasium as gym, comap
        >>> len(run_episode(gym.make("comap/ALFWorld-v0"), RandomAgent(seed=1), seed=0).steps)
        50
    """

    name = "random"

    def __init__(self, seed: int = 0, mixed: float = 0.0):
        if not 0 <= mixed <= 1:
            raise OptionError(f"mixed must be from 0 to 1, not {mixed!r}")
        self.seed, self.mixed = seed, mixed

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Return a random action."""
        yield from ()
        said = f"{self.seed}\n{view.task}\n{view.step}"
        if view.seed:
            said += f"\n{view.seed}"
        rng = random.Random(said.encode("utf-8", "replace"))
        actions = view.admissible_actions or _WORDS
        action = rng.choice(actions)
        if rng.random() < self.mixed:
            action = _mix(action, rng.choice(actions))
        return Decision(action)


def _mix(first: str, second: str) -> str:
    """Return the first action with its last two words from the second."""
    head, tail = first.split(), second.split()
    return " ".join([*head[:-2], *tail[-2:]]) if len(head) > 2 else first
