"""ALFWorld: the environment, its native engine, canonicalizer, experts and task generator."""

from __future__ import annotations

from ..vector import vector_of
from .canonicalizer import ALFWorldCanonicalizer
from .engine import NativeEngine
from .env import ALFWorldEnv
from .game import Game, Problem, read_game
from .generate import GeneratedGame, generate, write_game
from .goal import Goal

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


vector = vector_of(ALFWorldEnv.env_id)
"""ALFWorld environments as one: what ``gym.make_vec`` calls. See `text_vector`."""
