"""StableToolBench: the environment, its tools and backends, canonicalizer and scores."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from ..vector import text_vector
from .backends import Backend, BackendFault, Chain, Embedded, Hit, Request
from .cache import ResponseCache
from .calls import Call, parse_call, write_call
from .canonicalizer import ToolCanonicalizer
from .env import StableToolBenchEnv
from .functions import functions
from .session import Done, Session

__all__ = [
    "Backend",
    "BackendFault",
    "Call",
    "Chain",
    "Done",
    "Embedded",
    "Hit",
    "Request",
    "ResponseCache",
    "Session",
    "StableToolBenchEnv",
    "ToolCanonicalizer",
    "functions",
    "parse_call",
    "vector",
    "write_call",
]


def vector(num_envs: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Return tool-use environments as one: what ``gym.make_vec`` calls. See `text_vector`.

    Example:
        >>> envs = vector(2, asynchronous=False)
        >>> envs.num_envs
        2
    """
    return text_vector(StableToolBenchEnv.env_id, num_envs, **kwargs)
