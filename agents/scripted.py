"""Agents that ask no language model: the expert, the random one, the replay of a trajectory."""

from __future__ import annotations

import random
from collections.abc import Generator

from ..errors import OptionError
from ..trajectory import Trajectory
from .base import Decision, Imagine, Reply, Request, View


class ExpertAgent:
    """Does what ``env.expert_action()`` says, in imagination what follows from the belief alone.

    Example:
        >>> from comap.agents import run_episode
        >>> import gymnasium as gym, comap
        >>> trajectory = run_episode(gym.make("comap/ALFWorld-v0"), ExpertAgent(), seed=0)
        >>> trajectory.success
        True
    """

    name = "expert"
    asks_world_model = False

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Return the expert's action; give up where it has none."""
        yield from ()  # it asks nothing, but `decide` is a generator
        return Decision(view.expert_action())


_WORDS = ("look", "inventory", "help")  # where an environment lists no actions


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
    asks_world_model = False

    def __init__(self, seed: int = 0, mixed: float = 0.0):
        if not 0 <= mixed <= 1:
            raise OptionError(f"mixed must be from 0 to 1, not {mixed!r}")
        self.seed = seed
        self.mixed = mixed

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Return a random action."""
        yield from ()

        # A generator for each step, not one for the agent: episodes that run at the same time would
        # else draw from it in turn, and none could be played again alone.
        entropy = f"{self.seed}\n{view.task}\n{view.step}"
        if view.seed:  # 0 where the episode has none
            entropy += f"\n{view.seed}"
        rng = random.Random(entropy.encode("utf-8", "replace"))

        actions = view.admissible_actions or _WORDS
        action = rng.choice(actions)
        if rng.random() < self.mixed:
            head = action.split()
            tail = rng.choice(actions).split()
            if len(head) > 2:  # "take mug 1 from desk 1" gets the end of another action: "shelf 2"
                action = " ".join([*head[:-2], *tail[-2:]])
        return Decision(action)


class ReplayAgent:
    """Repeats a trajectory's actions, to see what follows them elsewhere.

    Args:
        trajectory: The recorded episode.
        imagine: Ask a world model about each action first, and keep what it says.

    Example:
        >>> from comap.agents import ExpertAgent, run_episode
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ALFWorld-v0")
        >>> first = run_episode(env, ExpertAgent(), seed=0)
        >>> again = run_episode(env, ReplayAgent(first), task=first.task)
        >>> [step.observation for step in again.steps] == [step.observation for step in first.steps]
        True
    """

    def __init__(self, trajectory: Trajectory, imagine: bool = False):
        self.name = trajectory.agent
        self._actions = tuple(step.action for step in trajectory.steps)
        self.asks_world_model = imagine

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Return the recorded action of this step; give up where the record ends."""
        if view.step >= len(self._actions):
            return Decision(None)

        action = self._actions[view.step]
        if not self.asks_world_model:
            return Decision(action)
        imagined = yield Imagine(action)
        return Decision(action, imagined)
