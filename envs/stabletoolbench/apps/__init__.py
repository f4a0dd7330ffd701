"""The generated tools: thirteen small programs over seeded tables, and jobs over several of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..functions import changed, standard
from .everyday import (
    Calendar,
    Contacts,
    Files,
    Geography,
    Library,
    Music,
    Weather,
    forecasting,
    free_start,
    next_event,
)
from .trade import Bank, Currency, Flights, Hotels, Inventory, Orders, conversion
from .world import Answering, App, Job, Making, Row, ToolCall, World, call, common_of, data_file

_LISTED: tuple[App, ...] = (
    *(Flights(), Hotels(), Orders(), Inventory(), Calendar(), Contacts(), Files()),
    *(Currency(), Bank(), Weather(), Geography(), Music(), Library()),
)
APPS: Mapping[str, App] = {app.name: app for app in _LISTED}


@lru_cache(maxsize=64)
def world_of(seed: int) -> World:
    """Return the world of a seed: the same in every process."""
    rng = random.Random(f"comap tools {seed}")
    common = common_of(rng)
    tables: dict[str, Any] = {}
    for app in APPS.values():
        tables |= app.tables(random.Random(f"comap tools {seed} {app.name}"), common)
    return World(seed, common, tables)


def category_of(app: str) -> str:
    category: str = data_file("apps")[app]["category"]
    return category


def answering(tool: str, api: str) -> Answering | None:
    """Return what answers calls of an API, by their standard names; None where there is no such API."""
    app = APPS.get(tool)
    return None if app is None else app.answers.get(api)


@lru_cache(maxsize=64)
def api_records(app: str) -> tuple[dict[str, Any], ...]:
    """Return an app's functions as records of an ``api_list``."""
    app_record = data_file("apps")[app]
    return tuple(
        {
            "category_name": app_record["category"],
            "tool_name": app,
            "api_name": api["name"],
            "api_description": api["about"],
            "required_parameters": [_parameter(*part) for part in api.get("required", ())],
            "optional_parameters": [_parameter(*part) for part in api.get("optional", ())],
            "method": api.get("method", "GET"),
        }
        for api in app_record["apis"]
    )


def api_key(record: Mapping[str, Any]) -> str:
    """Return ``"app.api"`` of a record."""
    return f"{standard(record['tool_name'])}.{changed(standard(record['api_name']))}"


def _parameter(
    name: str, kind: str, description: str, example: Any, options: list[str] | None = None
) -> dict[str, Any]:
    record = {"name": name, "type": kind, "description": description, "default": example}
    return record if options is None else record | {"enum": options}


def _currencies(world: World, rng: random.Random) -> dict[str, str]:
    first, *others = world.common.currencies
    return {"base": first, "quote": rng.choice(others)}


def _flight_price(world: World, rng: random.Random) -> Job:
    key, row = world.pick(rng, "flight")
    slots = _currencies(world, rng)
    convert, amount = conversion(world, **slots, amount=row["price"])
    calls = (call("flights.details", flight_id=key), convert)
    return Job("together.flight_price", {"flight": key, **slots}, calls, {"amount": amount})


def _order_currency(world: World, rng: random.Random) -> Job:
    key, row = world.pick(rng, "order")
    slots = _currencies(world, rng)
    convert, amount = conversion(world, **slots, amount=row["cents"] / 100)
    calls = (call("orders.details", order_id=key), convert)
    return Job("together.order_currency", {"order": key, **slots}, calls, {"amount": amount})


def _telling_contact(world: World, key: str, row: Row) -> list[ToolCall]:
    finding = APPS["contacts"].finding(world, key, row)
    return [*finding, call("contacts.details", contact_id=key)]


def _contact_weather(world: World, rng: random.Random) -> Job:
    key, row = world.pick(rng, "contact")
    day = rng.choice(world.common.days)
    asking, forecast = forecasting(world, row["city"], day)
    slots = {"name": row["name"], "date": day}
    calls = (*_telling_contact(world, key, row), *asking)
    return Job("together.contact_weather", slots, calls, {"rain": forecast["rain"]})


def _meeting(world: World, rng: random.Random) -> Job:
    key, row = world.pick(rng, "contact")
    title, day = rng.choice(data_file("words")["events"]), rng.choice(world.common.days)
    start = free_start(world, rng, day, 60)
    event = {"title": f"{title} {row['phone']}", "date": day, "start": start, "minutes": 60}
    calls = (*_telling_contact(world, key, row), call("calendar.add", **event))
    slots = {"title": title, "name": row["name"], "date": day, "start": start}
    return Job("together.meeting", slots, calls, {"event": next_event(world)})


TOGETHER: Mapping[str, Making] = {
    "together.flight_price": _flight_price,
    "together.order_currency": _order_currency,
    "together.contact_weather": _contact_weather,
    "together.meeting": _meeting,
}
"""Jobs over several apps, by wording."""
