"""The agent that asks the environment's own expert."""

from __future__ import annotations

from collections.abc import Generator

from .base import Decision, Reply, Request, View

__all__ = ["ExpertAgent"]


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

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Return the expert's action; give up where it has none."""
        yield from ()
        return Decision(view.expert_action())
