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
    NextWord,
    Sampling,
    Score,
    Scores,
    TokenTexts,
    Usage,
    WordProbabilities,
    answer,
)
from .create import ShippedModels, create_language_model, shipped_models
from .hf import HFLanguageModel
from .openai import OpenAILanguageModel
from .replay import ReplayLanguageModel

__all__ = [
    "CAPABILITIES",
    "Completion",
    "Encode",
    "Encoding",
    "Generate",
    "HFLanguageModel",
    "LMReply",
    "LMRequest",
    "LanguageModel",
    "Message",
    "NextWord",
    "OpenAILanguageModel",
    "ReplayLanguageModel",
    "Sampling",
    "Score",
    "Scores",
    "ShippedModels",
    "TokenTexts",
    "Usage",
    "WordProbabilities",
    "answer",
    "create_language_model",
    "shipped_models",
]
