"""WebShop: the environment, catalogues, search, canonicalizer, expert and the generated catalogue."""

from __future__ import annotations

from ..vector import vector_of
from .build import build_catalog
from .canonicalizer import WebShopCanonicalizer
from .catalog import Catalog
from .env import WebShopEnv
from .expert import ShopExpert
from .generate import generate_catalog
from .products import Goal, Product, reward_of

__all__ = [
    "Catalog",
    "Goal",
    "Product",
    "ShopExpert",
    "WebShopCanonicalizer",
    "WebShopEnv",
    "build_catalog",
    "generate_catalog",
    "reward_of",
    "vector",
]


vector = vector_of(WebShopEnv.env_id)
"""WebShop environments as one: what ``gym.make_vec`` calls. See `text_vector`."""
