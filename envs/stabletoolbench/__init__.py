"""StableToolBench: the environment, its tools and backends, canonicalizer and scores."""

from __future__ import annotations

from ..vector import vector_of
from .calls import Call, parse_call, write_call
from .canonicalizer import ToolCanonicalizer
from .env import Done, StableToolBenchEnv
from .functions import functions

__all__ = [
    "Call",
    "Done",
    "StableToolBenchEnv",
    "ToolCanonicalizer",
    "functions",
    "parse_call",
    "vector",
    "write_call",
]


vector = vector_of(StableToolBenchEnv.env_id)
"""Tool-use environments as one: what ``gym.make_vec`` calls. See `text_vector`."""
