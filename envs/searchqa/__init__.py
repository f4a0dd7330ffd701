"""Search QA: the environment, retrievers, indexes, questions, canonicalizer and the encyclopedia."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from ..vector import text_vector
from .answers import exact_match, f1_score, normalize_answer, sub_exact_match
from .canonicalizer import SearchQACanonicalizer
from .encoders import Encoder, TransformerEncoder
from .encyclopedia import generate_encyclopedia
from .env import SearchQAEnv
from .hybrid import HybridRetriever
from .index import build_index, open_index
from .questions import DATASETS, Question, read_questions
from .recording import RecordingRetriever, ReplayRetriever
from .remembering import RememberingRetriever
from .remote import RemoteRetriever
from .retriever import CallableRetriever, Hit, Retriever
from .reward import reward_of

__all__ = [
    "DATASETS",
    "CallableRetriever",
    "Encoder",
    "Hit",
    "HybridRetriever",
    "Question",
    "RecordingRetriever",
    "RememberingRetriever",
    "RemoteRetriever",
    "ReplayRetriever",
    "Retriever",
    "SearchQACanonicalizer",
    "SearchQAEnv",
    "TransformerEncoder",
    "build_index",
    "exact_match",
    "f1_score",
    "generate_encyclopedia",
    "normalize_answer",
    "open_index",
    "read_questions",
    "reward_of",
    "sub_exact_match",
    "vector",
]


def vector(num_envs: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Return search QA environments as one: what ``gym.make_vec`` calls. See `text_vector`.

    Example:
        >>> envs = vector(2, asynchronous=False)
        >>> envs.num_envs
        2
    """
    return text_vector(SearchQAEnv.env_id, num_envs, **kwargs)
