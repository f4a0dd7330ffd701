"""The agent that takes the actions of a recorded episode."""

from __future__ import annotations

from collections.abc import Generator

from ..trajectory import Trajectory
from .base import Decision, Imagine, Reply, Request, View

__all__ = ["ReplayAgent"]


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
        self._imagine = imagine

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Return the recorded action of this step; give up where the record ends."""
        if view.step >= len(self._actions):
            return Decision(None)
        action = self._actions[view.step]
        return Decision(action, (yield Imagine(action)) if self._imagine else None)
