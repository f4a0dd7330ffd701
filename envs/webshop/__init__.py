"""WebShop: the environment, catalogues, search, canonicalizer, expert and the generated catalogue."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from ..vector import text_vector
from .build import build_catalog
from .canonicalizer import WebShopCanonicalizer
from .catalog import Catalog
from .env import WebShopEnv
from .expert import ShopExpert
from .facts import catalogue, structural
from .generate import generate_catalog
from .goals import Goal
from .products import Product
from .reward import reward_of

__all__ = [
    "Catalog",
    "Goal",
    "Product",
    "ShopExpert",
    "WebShopCanonicalizer",
    "WebShopEnv",
    "build_catalog",
    "catalogue",
    "generate_catalog",
    "reward_of",
    "structural",
    "vector",
]


def vector(num_envs: int, **kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Return WebShop environments as one: what ``gym.make_vec`` calls. See `text_vector`.

    Example:
        >>> envs = vector(2, asynchronous=False)
        >>> envs.num_envs
        2
    """
    return text_vector(WebShopEnv.env_id, num_envs, **kwargs)
