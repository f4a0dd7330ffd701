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
    StreamingLanguageModel,
    TokenTexts,
    Usage,
    WordProbabilities,
    answer,
)
from .create import ShippedModels, create_language_model, shipped_models
from .engine_choice import EngineChoice, resolved_engine
from .hf import HFLanguageModel
from .openai import OpenAILanguageModel
from .replay import ReplayLanguageModel
from .vllm import VLLMLanguageModel

__all__ = [
    "CAPABILITIES",
    "Completion",
    "Encode",
    "Encoding",
    "EngineChoice",
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
    "StreamingLanguageModel",
    "TokenTexts",
    "Usage",
    "VLLMLanguageModel",
    "WordProbabilities",
    "answer",
    "create_language_model",
    "resolved_engine",
    "shipped_models",
]
