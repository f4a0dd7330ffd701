"""Going back to a moment of an episode, through all the wrappers around an environment."""

from __future__ import annotations

from typing import Any

import gymnasium

from .base import Snapshot

__all__ = ["restore", "snapshot"]


def snapshot(env: gymnasium.Env[str, str]) -> Snapshot:
    """Return the moment that the (wrapped) environment is in.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ALFWorld-v0")
        >>> observation, info = env.reset(seed=1)
        >>> moment = snapshot(env)
        >>> after = env.step(info["admissible_actions"][0])
        >>> restore(env, moment)[0] == observation
        True
    """
    taken: Snapshot = env.get_wrapper_attr("snapshot")()
    return taken


def restore(env: gymnasium.Env[str, str], snapshot: Snapshot) -> tuple[str, dict[str, Any]]:
    """Bring a (wrapped) environment back to `snapshot`, its `TimeLimit` included."""
    observation, info = env.get_wrapper_attr("restore")(snapshot)
    layer: gymnasium.Env[Any, Any] = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.TimeLimit):
            layer._elapsed_steps = info["step"]
        elif isinstance(layer, gymnasium.wrappers.OrderEnforcing):
            layer._has_reset = True
        elif isinstance(layer, gymnasium.wrappers.PassiveEnvChecker):
            layer._previous_data = (observation, {})  # else its first step expects a reset
        layer = layer.env
    return observation, info
