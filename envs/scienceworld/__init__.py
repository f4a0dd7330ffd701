"""ScienceWorld: science experiments in text, on the original simulator.

Example:
    >>> import gymnasium as gym, comap
    >>> env = gym.make("comap/ScienceWorld-v0", split="test")
    >>> len(env.unwrapped.tasks)
    1819
"""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from ..vector import text_vector
from .backends import keep_idle
from .canonicalizer import ScienceWorldCanonicalizer
from .env import ScienceWorldEnv
from .tasks import SHORT

__all__ = ["SHORT", "ScienceWorldCanonicalizer", "ScienceWorldEnv", "keep_idle", "vector"]


def vector(num_envs: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Return ScienceWorld environments as one: what ``gym.make_vec`` calls. See `text_vector`.

    Example:
        >>> envs = vector(2, asynchronous=False)
        >>> envs.num_envs
        2
    """
    return text_vector(ScienceWorldEnv.env_id, num_envs, **kwargs)
