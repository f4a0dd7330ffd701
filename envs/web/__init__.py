"""The web: generated sites, a browser for them, the environment and its canonicalizer."""

from __future__ import annotations

from ..vector import vector_of
from . import kinds as kinds  # those that `WebEnv` chooses from
from .canonicalizer import WebCanonicalizer
from .env import WebEnv
from .live import KeyNodeReport, gaia_correct, key_node_report, read_tasks

__all__ = [
    "KeyNodeReport",
    "WebCanonicalizer",
    "WebEnv",
    "gaia_correct",
    "key_node_report",
    "read_tasks",
    "vector",
]


vector = vector_of(WebEnv.env_id)
"""Web environments as one: what ``gym.make_vec`` calls. See `text_vector`."""
