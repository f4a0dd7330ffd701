"""ALFWorld: the environment, its native engine, canonicalizer, experts and task generator."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from ..vector import text_vector
from .canonicalizer import ALFWorldCanonicalizer
from .engine import NativeEngine
from .env import ALFWorldEnv
from .game import Game
from .generate import GeneratedGame, generate, write_game
from .goal import Goal
from .problem import Problem, read_game

__all__ = [
    "ALFWorldCanonicalizer",
    "ALFWorldEnv",
    "Game",
    "GeneratedGame",
    "Goal",
    "NativeEngine",
    "Problem",
    "generate",
    "read_game",
    "vector",
    "write_game",
]


def vector(num_envs: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Return ALFWorld environments as one: what ``gym.make_vec`` calls. See `text_vector`.

    Example:
        >>> envs = vector(2, asynchronous=False)
        >>> envs.num_envs
        2
    """
    return text_vector(ALFWorldEnv.env_id, num_envs, **kwargs)
