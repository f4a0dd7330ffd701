"""The embedded tools: thirteen small programs over seeded tables, and what they can be asked for."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..names import changed, standard
from .base import Answering, App, Job, World, common_of, data_file
from .commerce import INVENTORY, ORDERS
from .finance import BANK, CURRENCY
from .ledger import Ledger, Marks, ToolError
from .media import LIBRARY, MUSIC
from .nature import GEOGRAPHY, WEATHER
from .office import CALENDAR, CONTACTS, FILES
from .together import TOGETHER
from .travel import FLIGHTS, HOTELS

__all__ = [
    "APPS",
    "TOGETHER",
    "Answering",
    "App",
    "Job",
    "Ledger",
    "Marks",
    "ToolError",
    "World",
    "answering",
    "api_key",
    "api_records",
    "category_of",
    "world_of",
]

_LISTED = (
    FLIGHTS,
    HOTELS,
    ORDERS,
    INVENTORY,
    CALENDAR,
    CONTACTS,
    FILES,
    CURRENCY,
    BANK,
    WEATHER,
    GEOGRAPHY,
    MUSIC,
    LIBRARY,
)

APPS: Mapping[str, App] = {app.name: app for app in _LISTED}
"""All apps, by name."""


@lru_cache(maxsize=64)
def world_of(seed: int) -> World:
    """Return the world of a seed: the same in every process.

    Example:
        >>> world = world_of(0)
        >>> len(world.tables["city"]), world.common.cities == world_of(0).common.cities
        (12, True)
    """
    rng = random.Random(f"comap tools {seed}")
    common = common_of(rng)
    tables: dict[str, Any] = {}
    for app in _LISTED:
        tables |= app.tables(random.Random(f"comap tools {seed} {app.name}"), common)
    return World(seed, common, tables)


def category_of(app: str) -> str:
    """Return an app's category.

    Example:
        >>> category_of("flights")
        'Travel'
    """
    category: str = data_file("apps.json")[app]["category"]
    return category


def answering(tool: str, api: str) -> Answering | None:
    """Return what answers calls of an API, by their standard names; None where there is no such API.

    Example:
        >>> answering("flights", "nowhere") is None
        True
    """
    app = APPS.get(tool)
    return None if app is None else app.answers.get(api)


@lru_cache(maxsize=64)
def api_records(app: str) -> tuple[dict[str, Any], ...]:
    """Return an app's functions as records of an ``api_list``.

    Example:
        >>> api_records("flights")[0]["api_name"]
        'airports'
    """
    told = data_file("apps.json")[app]
    return tuple(
        {
            "category_name": told["category"],
            "tool_name": app,
            "api_name": api["name"],
            "api_description": api["about"],
            "required_parameters": [_parameter(*part) for part in api.get("required", ())],
            "optional_parameters": [_parameter(*part) for part in api.get("optional", ())],
            "method": api.get("method", "GET"),
        }
        for api in told["apis"]
    )


def api_key(record: Mapping[str, Any]) -> str:
    """Return ``"app.api"`` of a record."""
    return f"{standard(record['tool_name'])}.{changed(standard(record['api_name']))}"


def _parameter(
    name: str, kind: str, about: str, example: Any, options: list[str] | None = None
) -> dict[str, Any]:
    told = {"name": name, "type": kind, "description": about, "default": example}
    return told if options is None else told | {"enum": options}
