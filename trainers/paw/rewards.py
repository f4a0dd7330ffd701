"""Rewards: what each step of an episode is worth, by the settings or by a function of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from ...envs.registry import own_function
from ...errors import OptionError
from ...trajectory import Trajectory
from .config import PaWTraining

RewardFunction: TypeAlias = Callable[[Trajectory], Sequence[float]]
"""Returns the reward of each step of an episode."""


def reward_function(config: PaWTraining) -> RewardFunction | None:
    """Return the reward function that the settings name; None for the reward of a solved task alone.

    With F1 the environment's own rewards are those of its answers, from 0 to 1.
    """
    if ":" in config.reward:
        return own_function(config.reward)
    if config.reward == "success":
        return None
    return partial(
        environment_rewards, scale=config.success_reward if config.reward == "f1" else 1.0
    )


def environment_rewards(episode: Trajectory, *, scale: float = 1.0) -> list[float]:
    """Return the environment's own reward of each step, times `scale`."""
    return [scale * step.reward + 0.0 for step in episode.steps]  # never -0.0


def step_rewards(
    episode: Trajectory, success_reward: float, reward: RewardFunction | None = None
) -> list[float]:
    """Return the reward of each step: the function's, or all of it at the end of a solved episode.

    Raises:
        OptionError: The function did not return a number for each step.
    """
    if reward is None:
        rewards = [0.0] * len(episode.steps)
        if episode.success:
            rewards[-1] = float(success_reward)
        return rewards

    rewards = [float(value) for value in reward(episode)]
    if len(rewards) != len(episode.steps):
        raise OptionError(
            f"expected the reward function to return a number for each of {len(episode.steps)} steps, "
            f"found {len(rewards)}"
        )
    return rewards
