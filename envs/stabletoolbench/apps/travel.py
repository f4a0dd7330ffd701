"""Flights and hotels."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from .base import App, Common, Job, World, data_file, pick
from .ledger import Ledger, Row, Table, ToolError, page_of

__all__ = ["FLIGHTS", "HOTELS"]


def _flight_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    words = data_file("words.json")
    codes = [city["airport"] for city in common.cities.values()]
    flights: dict[str, Row] = {}
    for _ in range(12):
        origin, destination = rng.sample(codes, 2)
        date = rng.choice(common.days)
        prices = rng.sample(range(60, 400), rng.randrange(2, 7))
        for hour, price in zip(sorted(rng.sample(range(5, 23), len(prices))), prices, strict=True):
            flights[f"FL-{101 + len(flights)}"] = {
                "origin": origin,
                "destination": destination,
                "date": date,
                "departure": f"{hour:02}:{rng.choice(('05', '20', '45'))}",
                "price": price,
                "minutes": rng.randrange(45, 400),
                "seats": rng.randrange(2, 9),
                "aircraft": rng.choice(words["aircraft"]),
            }
    return {"flight": flights, "booking": {}}


def _airports(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    wanted = args["city"].strip().lower()
    found = [row for _, row in ledger.rows("city") if row["name"].lower() == wanted]
    if not found:
        raise ToolError(f"city {args['city'][:64]!r} not found")
    return {"airports": [{"code": row["airport"], "country": row["country"]} for row in found]}


def _flights(ledger: Ledger, args: Mapping[str, Any]) -> list[tuple[str, Row]]:
    route = (args["origin"].upper(), args["destination"].upper(), args["date"])
    found = [
        (key, row)
        for key, row in ledger.rows("flight")
        if (row["origin"], row["destination"], row["date"]) == route
    ]
    return sorted(found, key=lambda item: item[1]["departure"])


def _search_flights(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    told = [
        {"id": key, "departure": row["departure"], "price": row["price"]}
        for key, row in _flights(ledger, args)
    ]
    return page_of("flights", told, args, 3)


def _flight(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row = ledger.row("flight", args["flight_id"])
    shown = ("origin", "destination", "date", "price", "minutes", "seats", "aircraft")
    return {"id": args["flight_id"]} | {name: row[name] for name in shown}


def _book(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    flight, seats = ledger.row("flight", args["flight_id"]), args["seats"]
    if seats < 1:
        raise ToolError(f"Bad value of seats: expected at least 1, found {seats}")
    if seats > flight["seats"]:
        raise ToolError(f"Conflict: flight {args['flight_id']} has {flight['seats']} free seats")
    key = ledger.new_id("booking", "BK")
    changed = ledger.put("booking", key, flight=args["flight_id"], seats=seats)
    changed += ledger.put("flight", args["flight_id"], seats=flight["seats"] - seats)
    return {"booking_id": key, "changed": changed}


def _cheapest(world: World, rng: random.Random) -> Job:
    row = pick(rng, world.tables["flight"])[1]
    cities = {city["airport"]: city["name"] for city in world.common.cities.values()}
    search = {name: row[name] for name in ("origin", "destination", "date")}
    found = _flights(world.ledger(), search)
    best = min(found, key=lambda item: int(item[1]["price"]))
    names = {name: cities[row[name]] for name in ("origin", "destination")}
    calls: list[tuple[str, Mapping[str, Any]]] = [
        ("flights.airports", {"city": city}) for city in names.values()
    ]
    calls.append(("flights.search", search))
    if len(found) > 3:
        calls.append(("flights.search", {**search, "page": 2}))
    answer = {"flight": best[0], "price": best[1]["price"]}
    return Job("flights.cheapest", {**names, "date": row["date"]}, tuple(calls), answer)


def _duration(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["flight"])
    calls = (("flights.details", {"flight_id": key}),)
    return Job("flights.duration", {"flight": key}, calls, {"hours": round(row["minutes"] / 60, 2)})


def _booking(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["flight"])
    seats = rng.randrange(2, row["seats"] + 1) if row["seats"] > 2 else 2
    calls = (("flights.book", {"flight_id": key, "seats": seats}),)
    return Job("flights.book", {"flight": key, "seats": seats}, calls, {"booking": "BK-1"})


FLIGHTS = App(
    "flights",
    _flight_tables,
    {"airports": _airports, "search": _search_flights, "details": _flight, "book": _book},
    {"flights.cheapest": _cheapest, "flights.duration": _duration, "flights.book": _booking},
)
"""Timetables: airports before flights, pages, minutes for hours, seats that run out."""


def _hotel_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    nouns = data_file("words.json")["hotel_nouns"]
    hotels: dict[str, Row] = {}
    for city in common.cities.values():
        names = rng.sample(nouns, rng.randrange(2, 6) if hotels else 2)
        best = rng.randrange(len(names))
        for place, name in enumerate(names):
            hotels[f"H-{11 + len(hotels)}"] = {
                "name": name,
                "city": city["name"],
                "stars": 5 if place == best else rng.randrange(1, 5),
                "cents": rng.randrange(4_000, 30_000, 50),
                "rooms": rng.randrange(1, 6),
            }
    return {"hotel": hotels, "reservation": {}}


def _of_city(ledger: Ledger, city: str) -> list[tuple[str, Row]]:
    wanted = city.strip().lower()
    return [(key, row) for key, row in ledger.rows("hotel") if row["city"].lower() == wanted]


def _list_hotels(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    found = _of_city(ledger, args["city"])
    if not found:
        raise ToolError(f"city {args['city'][:64]!r} not found")
    told = [{"id": key, "name": row["name"]} for key, row in found]
    return page_of("hotels", told, args, 3)


def _hotel(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row = ledger.row("hotel", args["hotel_id"])
    return {"id": args["hotel_id"], "night_cents": row["cents"], "stars": row["stars"]} | {
        "free_rooms": row["rooms"]
    }


def _reserve(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    hotel, nights = ledger.row("hotel", args["hotel_id"]), args["nights"]
    if not 1 <= nights <= 30:
        raise ToolError(f"Bad value of nights: expected 1 to 30, found {nights}")
    if hotel["rooms"] < 1:
        raise ToolError(f"Conflict: hotel {args['hotel_id']} has no free room")
    key = ledger.new_id("reservation", "RV")
    changed = ledger.put("reservation", key, hotel=args["hotel_id"], nights=nights)
    changed += ledger.put("hotel", args["hotel_id"], rooms=hotel["rooms"] - 1)
    return {"reservation_id": key, "total_cents": nights * hotel["cents"], "changed": changed}


def _finding(world: World, city: str, key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the calls that find a hotel of a city."""
    place = [found for found, _ in _of_city(world.ledger(), city)].index(key)
    pages: list[dict[str, Any]] = [{"city": city}, {"city": city, "page": 2}]
    return [("hotels.list", page) for page in pages[: place // 3 + 1]]


def _price(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["hotel"])
    calls = (*_finding(world, row["city"], key), ("hotels.details", {"hotel_id": key}))
    slots = {"name": row["name"], "city": row["city"]}
    return Job("hotels.price", slots, calls, {"price": row["cents"] / 100})


def _best(world: World, rng: random.Random) -> Job:
    by_city: dict[str, list[str]] = {}
    for key, row in world.tables["hotel"].items():
        by_city.setdefault(row["city"], []).append(key)
    city = rng.choice([city for city, keys in by_city.items() if len(keys) <= 3])
    keys = by_city[city]
    calls = (("hotels.list", {"city": city}),) + tuple(
        ("hotels.details", {"hotel_id": key}) for key in keys
    )
    (best,) = [
        world.tables["hotel"][key] for key in keys if world.tables["hotel"][key]["stars"] == 5
    ]
    return Job("hotels.best", {"city": city}, calls, {"hotel": best["name"]})


def _reserving(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["hotel"])
    nights = rng.randrange(2, 8)
    booked = ("hotels.reserve", {"hotel_id": key, "nights": nights})
    slots = {"name": row["name"], "city": row["city"], "nights": nights}
    calls = (*_finding(world, row["city"], key), booked)
    return Job("hotels.reserve", slots, calls, {"reservation": "RV-1"})


HOTELS = App(
    "hotels",
    _hotel_tables,
    {"list": _list_hotels, "details": _hotel, "reserve": _reserve},
    {"hotels.price": _price, "hotels.best": _best, "hotels.reserve": _reserving},
)
"""Hotels: numbers before details, pages, prices in cents, rooms that run out."""
