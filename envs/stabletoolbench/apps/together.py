"""Jobs in which one app's answer is what the next one is asked about."""

from __future__ import annotations

import random
from collections.abc import Mapping

from .base import Job, Making, World, data_file, pick
from .finance import rate_of
from .nature import forecasting, weather_of
from .office import finding, free_start

__all__ = ["TOGETHER"]


def _flight_price(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["flight"])
    base, quote = world.common.currencies[0], rng.choice(world.common.currencies[1:])
    asked = {"is_from": base, "to": quote, "amount": row["price"]}
    calls = (("flights.details", {"flight_id": key}), ("currency.convert", asked))
    amount = round(rate_of(world.tables, base, quote) * row["price"], 2)
    slots = {"flight": key, "base": base, "quote": quote}
    return Job("together.flight_price", slots, calls, {"amount": amount})


def _order_currency(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["order"])
    base, quote = world.common.currencies[0], rng.choice(world.common.currencies[1:])
    units = row["cents"] / 100
    asked = {"is_from": base, "to": quote, "amount": units}
    calls = (("orders.details", {"order_id": key}), ("currency.convert", asked))
    amount = round(rate_of(world.tables, base, quote) * units, 2)
    slots = {"order": key, "base": base, "quote": quote}
    return Job("together.order_currency", slots, calls, {"amount": amount})


def _contact_weather(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["contact"])
    day = rng.choice(world.common.days)
    calls = (*finding(world, key), *forecasting(world, row["city"], day))
    answer = {"rain": weather_of(world, row["city"], day)["rain"]}
    return Job("together.contact_weather", {"name": row["name"], "date": day}, calls, answer)


def _meeting(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["contact"])
    title, day = rng.choice(data_file("words.json")["events"]), rng.choice(world.common.days)
    start = free_start(world, rng, day, 60)
    event = {"title": f"{title} {row['phone']}", "date": day, "start": start, "minutes": 60}
    calls = (*finding(world, key), ("calendar.add", event))
    slots = {"title": title, "name": row["name"], "date": day, "start": start}
    answer = {"event": f"E-{30 + len(world.tables['event'])}"}
    return Job("together.meeting", slots, calls, answer)


TOGETHER: Mapping[str, Making] = {
    "together.flight_price": _flight_price,
    "together.order_currency": _order_currency,
    "together.contact_weather": _contact_weather,
    "together.meeting": _meeting,
}
"""Jobs over several apps, by wording."""
