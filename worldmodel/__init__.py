"""World models: what follows an action, in text; and environments imagined by them."""

from __future__ import annotations

from ..trajectory import Turn
from .base import (
    Configured,
    Grounded,
    Prediction,
    Query,
    Transition,
    WorldModel,
    ask,
    transitions_of,
)
from .cache import CachedWorldModel, CacheStatistics
from .create import WORLD_MODELS, create_world_model
from .imagined import ImaginedEnv, ImaginedSnapshot
from .language import LanguageWorldModel
from .lookahead import Imagined, asked_model, imagine, imagined_of, query_about
from .noisy import ERROR_KINDS, NoisyWorldModel
from .null import NullWorldModel
from .oracle import OracleWorldModel
from .retrieval import RetrievalWorldModel

__all__ = [
    "ERROR_KINDS",
    "WORLD_MODELS",
    "CacheStatistics",
    "CachedWorldModel",
    "Configured",
    "Grounded",
    "Imagined",
    "ImaginedEnv",
    "ImaginedSnapshot",
    "LanguageWorldModel",
    "NoisyWorldModel",
    "NullWorldModel",
    "OracleWorldModel",
    "Prediction",
    "Query",
    "RetrievalWorldModel",
    "Transition",
    "Turn",
    "WorldModel",
    "ask",
    "asked_model",
    "create_world_model",
    "imagine",
    "imagined_of",
    "query_about",
    "transitions_of",
]
