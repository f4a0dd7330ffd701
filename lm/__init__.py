"""Language models: one protocol, and the backends that obey it."""

from __future__ import annotations

from .base import (
    CAPABILITIES,
    Completion,
    Encode,
    Encoding,
    Generate,
    LanguageModel,
    LMReply,
    LMRequest,
    Message,
    Sampling,
    Score,
    Scores,
    TokenTexts,
    Usage,
    WordProbabilities,
    Words,
    answer,
)
from .cache import CachedLanguageModel
from .create import create_language_model
from .hf import HFLanguageModel
from .openai import OpenAILanguageModel
from .replay import ReplayLanguageModel

__all__ = [
    "CAPABILITIES",
    "CachedLanguageModel",
    "Completion",
    "Encode",
    "Encoding",
    "Generate",
    "HFLanguageModel",
    "LMReply",
    "LMRequest",
    "LanguageModel",
    "Message",
    "OpenAILanguageModel",
    "ReplayLanguageModel",
    "Sampling",
    "Score",
    "Scores",
    "TokenTexts",
    "Usage",
    "WordProbabilities",
    "Words",
    "answer",
    "create_language_model",
]
