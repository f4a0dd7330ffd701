"""Search QA: the environment, retrievers, indexes, questions, canonicalizer and the encyclopedia."""

from __future__ import annotations

from ...lm.encoder import Encoder, TransformerEncoder
from ..vector import vector_of
from .canonicalizer import SearchQACanonicalizer
from .env import SearchQAEnv
from .index import build_index, open_index
from .protocol import exact_match, f1_score, normalize_answer, reward_of, sub_exact_match
from .retriever import CallableRetriever, Hit, HybridRetriever, RemoteRetriever, Retriever

__all__ = [
    "CallableRetriever",
    "Encoder",
    "Hit",
    "HybridRetriever",
    "RemoteRetriever",
    "Retriever",
    "SearchQACanonicalizer",
    "SearchQAEnv",
    "TransformerEncoder",
    "build_index",
    "exact_match",
    "f1_score",
    "normalize_answer",
    "open_index",
    "reward_of",
    "sub_exact_match",
    "vector",
]


vector = vector_of(SearchQAEnv.env_id)
"""Search QA environments as one: what ``gym.make_vec`` calls. See `text_vector`."""
