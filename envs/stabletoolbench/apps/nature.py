"""Weather stations and geography."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

from .base import App, Common, Job, World, data_file, pick
from .ledger import Ledger, Row, Table, ToolError, page_of

__all__ = ["GEOGRAPHY", "WEATHER"]


def _weather_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    stations: dict[str, Row] = {}
    forecasts: dict[str, Row] = {}
    for number, city in enumerate(common.cities.values(), 40):
        stations[f"S-{number}"] = {"city": city["name"]}
    for day in common.days:
        winds = rng.sample(range(10, 250), len(stations))
        for key, wind in zip(stations, winds, strict=True):
            forecasts[f"{key} {day}"] = {
                "fahrenheit": rng.randrange(20, 95),
                "wind": wind / 10,
                "rain": rng.randrange(0, 40),
            }
    return {"station": stations, "forecast": forecasts, "alert": {}}


def station_of(tables: Mapping[str, Table], city: str) -> str:
    """Return the station of a city."""
    return next(key for key, row in tables["station"].items() if row["city"] == city)


def _station(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    wanted = args["city"].strip().lower()
    for key, row in ledger.rows("station"):
        if row["city"].lower() == wanted:
            return {"station_id": key}
    raise ToolError(f"city {args['city'][:64]!r} not found")


def _forecast(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    ledger.row("station", args["station_id"])
    row = ledger.row("forecast", f"{args['station_id']} {args['date']}")
    told = {"temperature_f": row["fahrenheit"], "wind_ms": row["wind"], "rain_mm": row["rain"]}
    return {"station_id": args["station_id"]} | told


def _alert(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    ledger.row("station", args["station_id"])
    if not 0 < args["limit"] <= 80:
        raise ToolError("Bad value of limit: expected more than 0 and at most 80")
    key = ledger.new_id("alert", "AL")
    changed = ledger.put("alert", key, station=args["station_id"], limit=args["limit"])
    return {"alert_id": key, "changed": changed}


def forecasting(world: World, city: str, day: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the calls that tell the weather of a city."""
    station = station_of(world.tables, city)
    asked = {"station_id": station, "date": day}
    return [("weather.station", {"city": city}), ("weather.forecast", asked)]


def weather_of(world: World, city: str, day: str) -> Row:
    """Return what the forecast is."""
    return world.tables["forecast"][f"{station_of(world.tables, city)} {day}"]


def _drawn(world: World, rng: random.Random) -> tuple[list[str], str]:
    names = [city["name"] for city in world.common.cities.values()]
    return rng.sample(names, 2), rng.choice(world.common.days)


def _temperature(world: World, rng: random.Random) -> Job:
    (city, _), day = _drawn(world, rng)
    celsius = round((weather_of(world, city, day)["fahrenheit"] - 32) / 1.8, 2)
    calls = tuple(forecasting(world, city, day))
    return Job("weather.temperature", {"city": city, "date": day}, calls, {"celsius": celsius})


def _windier(world: World, rng: random.Random) -> Job:
    cities, day = _drawn(world, rng)
    winds = {city: weather_of(world, city, day)["wind"] for city in cities}
    best = max(cities, key=lambda city: float(winds[city]))
    calls = tuple(call for city in cities for call in forecasting(world, city, day))
    slots = {"first": cities[0], "second": cities[1], "date": day}
    return Job("weather.windier", slots, calls, {"city": best, "wind": winds[best]})


def _alerting(world: World, rng: random.Random) -> Job:
    (city, _), _ = _drawn(world, rng)
    limit, station = rng.randrange(8, 30), station_of(world.tables, city)
    ordered = ("weather.alert", {"station_id": station, "limit": limit})
    calls = (("weather.station", {"city": city}), ordered)
    return Job("weather.alert", {"city": city, "limit": limit}, calls, {"alert": "AL-1"})


WEATHER = App(
    "weather",
    _weather_tables,
    {"station": _station, "forecast": _forecast, "alert": _alert},
    {
        "weather.temperature": _temperature,
        "weather.windier": _windier,
        "weather.alert": _alerting,
    },
)
"""Stations before forecasts, Fahrenheit for Celsius."""


def _city_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    rivers = data_file("words.json")["rivers"]
    people = rng.sample(range(8_000, 3_000_000), len(common.cities))
    cities: dict[str, Row] = {}
    for count, (key, city) in zip(people, common.cities.items(), strict=True):
        cities[key] = {
            **city,
            "people": count,
            "feet": rng.randrange(10, 6_000),
            "river": rng.choice(rivers),
            "x": rng.randrange(1000),
            "y": rng.randrange(1000),
        }
    return {"city": cities}


def _of_country(ledger: Ledger, country: str) -> list[tuple[str, Row]]:
    wanted = country.strip().lower()
    return [(key, row) for key, row in ledger.rows("city") if row["country"].lower() == wanted]


def _cities(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    found = _of_country(ledger, args["country"])
    if not found:
        raise ToolError(f"country {args['country'][:64]!r} not found")
    return page_of("cities", [{"id": key, "name": row["name"]} for key, row in found], args, 3)


def _city(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row = ledger.row("city", args["city_id"])
    told = {"inhabitants": row["people"], "height_feet": row["feet"], "river": row["river"]}
    return {"id": args["city_id"]} | told


def _miles(first: Row, second: Row) -> float:
    return round(math.hypot(first["x"] - second["x"], first["y"] - second["y"]), 2)


def _distance(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    first, second = ledger.row("city", args["first"]), ledger.row("city", args["second"])
    return {"first": args["first"], "second": args["second"], "miles": _miles(first, second)}


def _pages(world: World, country: str, keys: list[str]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the calls that list a country as far as these cities."""
    listed = [key for key, _ in _of_country(world.ledger(), country)]
    last = max(listed.index(key) for key in keys) // 3 + 1
    pages = [{"country": country}] + [{"country": country, "page": n} for n in range(2, last + 1)]
    return [("geography.cities", page) for page in pages]


def _height(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["city"])
    calls = (*_pages(world, row["country"], [key]), ("geography.city", {"city_id": key}))
    slots = {"city": row["name"], "country": row["country"]}
    return Job("geography.height", slots, calls, {"metres": round(row["feet"] * 0.3048, 2)})


def _two(world: World, rng: random.Random) -> tuple[list[str], dict[str, Any]]:
    country = rng.choice([city["country"] for city in world.common.cities.values()])
    keys = rng.sample([key for key, _ in _of_country(world.ledger(), country)], 2)
    names = [world.tables["city"][key]["name"] for key in keys]
    return keys, {"first": names[0], "second": names[1], "country": country}


def _far(world: World, rng: random.Random) -> Job:
    keys, slots = _two(world, rng)
    asked = ("geography.distance", {"first": keys[0], "second": keys[1]})
    miles = _miles(*(world.tables["city"][key] for key in keys))
    calls = (*_pages(world, slots["country"], keys), asked)
    return Job("geography.distance", slots, calls, {"kilometres": round(miles * 1.609344, 2)})


def _larger(world: World, rng: random.Random) -> Job:
    keys, slots = _two(world, rng)
    rows = [world.tables["city"][key] for key in keys]
    best = max(rows, key=lambda row: int(row["people"]))
    details = tuple(("geography.city", {"city_id": key}) for key in keys)
    calls = (*_pages(world, slots["country"], keys), *details)
    answer = {"city": best["name"], "inhabitants": best["people"]}
    return Job("geography.largest", slots, calls, answer)


GEOGRAPHY = App(
    "geography",
    _city_tables,
    {"cities": _cities, "city": _city, "distance": _distance},
    {"geography.height": _height, "geography.distance": _far, "geography.largest": _larger},
)
"""Cities by number, pages of countries, feet and miles for metres and kilometres."""
