"""ScienceWorld: science experiments in text, on the original simulator.

Example:
    >>> import gymnasium as gym, comap
    >>> env = gym.make("comap/ScienceWorld-v0", split="test")
    >>> len(env.unwrapped.tasks)
    1819
"""

from __future__ import annotations

from ..vector import vector_of
from .backends import keep_idle
from .canonicalizer import ScienceWorldCanonicalizer
from .env import ScienceWorldEnv
from .tasks import SHORT

__all__ = ["SHORT", "ScienceWorldCanonicalizer", "ScienceWorldEnv", "keep_idle", "vector"]


vector = vector_of(ScienceWorldEnv.env_id)
"""ScienceWorld environments as one: what ``gym.make_vec`` calls. See `text_vector`."""
