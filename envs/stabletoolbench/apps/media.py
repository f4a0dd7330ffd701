"""Charts of music, and a library."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from .base import App, Common, Job, World, data_file, pick
from .ledger import Ledger, Row, Table, ToolError, page_of

__all__ = ["LIBRARY", "MUSIC"]


def _titles(rng: random.Random, number: int) -> list[str]:
    words = data_file("words.json")
    pairs = [(word, noun) for word in words["title_words"] for noun in words["title_nouns"]]
    return [f"{word.capitalize()} {noun}" for word, noun in rng.sample(pairs, number)]


def _music_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    tracks: dict[str, Row] = {}
    for number, title in enumerate(_titles(rng, 16), 60):
        tracks[f"T-{number}"] = {
            "title": title,
            "artist": rng.choice(common.people),
            "seconds": rng.randrange(120, 420),
            "year": rng.randrange(1990, 2031),
        }
    charts: dict[str, Row] = {}
    for country in dict.fromkeys(city["country"] for city in common.cities.values()):
        for place, key in enumerate(rng.sample(list(tracks), 8), 1):
            charts[f"{country} {place}"] = {"country": country, "place": place, "track": key}
    return {"track": tracks, "chart": charts, "playlist": {}}


def _chart(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    wanted = args["country"].strip().lower()
    found = [row for _, row in ledger.rows("chart") if row["country"].lower() == wanted]
    if not found:
        raise ToolError(f"country {args['country'][:64]!r} not found")
    told = [{"place": row["place"], "track_id": row["track"]} for row in found]
    return page_of("chart", told, args, 4)


def _track(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    return {"id": args["track_id"], **ledger.row("track", args["track_id"])}


def _add(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    ledger.row("track", args["track_id"])
    if args["playlist"] not in data_file("words.json")["playlists"]:
        raise ToolError(f"playlist {args['playlist'][:64]!r} not found")
    key = f"{args['playlist']} {args['track_id']}"
    if any(found == key for found, _ in ledger.rows("playlist")):
        raise ToolError(f"Conflict: {args['track_id']} is on {args['playlist']} already")
    changed = ledger.put("playlist", key, playlist=args["playlist"], track=args["track_id"])
    return {"playlist": args["playlist"], "changed": changed}


def _charted(world: World, country: str, place: int) -> tuple[str, list[tuple[str, Any]]]:
    """Return the track at a place, and the calls that tell which it is."""
    asked = {"country": country} if place <= 4 else {"country": country, "page": 2}
    key: str = world.tables["chart"][f"{country} {place}"]["track"]
    return key, [("music.chart", asked)]


def _country(world: World, rng: random.Random) -> str:
    country: str = pick(rng, world.tables["chart"])[1]["country"]
    return country


def _top(world: World, rng: random.Random) -> Job:
    country = _country(world, rng)
    key, calls = _charted(world, country, 1)
    row = world.tables["track"][key]
    calls.append(("music.track", {"track_id": key}))
    answer = {"title": row["title"], "artist": row["artist"]}
    return Job("music.top", {"country": country}, tuple(calls), answer)


def _length(world: World, rng: random.Random) -> Job:
    country, place = _country(world, rng), rng.randrange(1, 9)
    key, calls = _charted(world, country, place)
    calls.append(("music.track", {"track_id": key}))
    answer = {"minutes": round(world.tables["track"][key]["seconds"] / 60, 2)}
    return Job("music.length", {"country": country, "place": place}, tuple(calls), answer)


def _adding(world: World, rng: random.Random) -> Job:
    country, place = _country(world, rng), rng.randrange(1, 9)
    playlist = rng.choice(data_file("words.json")["playlists"])
    key, calls = _charted(world, country, place)
    calls.append(("music.add_to_playlist", {"playlist": playlist, "track_id": key}))
    slots = {"country": country, "place": place, "playlist": playlist}
    return Job("music.add", slots, tuple(calls), {"track": key})


MUSIC = App(
    "music",
    _music_tables,
    {"chart": _chart, "track": _track, "add_to_playlist": _add},
    {"music.top": _top, "music.length": _length, "music.add": _adding},
)
"""Charts tell numbers, tracks the rest; seconds for minutes."""


def _book_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    books: dict[str, Row] = {}
    for number, title in enumerate(_titles(rng, 24), 80):
        books[f"K-{number}"] = {
            "title": title,
            "author": rng.choice(common.people),
            "pages": rng.randrange(80, 900),
            "year": rng.randrange(1950, 2031),
            "copies": rng.randrange(0, 4),
        }
    return {"book": books, "hold": {}}


def _with_word(ledger: Ledger, word: str) -> list[tuple[str, Row]]:
    wanted = word.strip().lower()
    return [
        (key, row) for key, row in ledger.rows("book") if wanted in row["title"].lower().split()
    ]


def _search(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    found = _with_word(ledger, args["word"])
    if not found:
        raise ToolError(f"title with {args['word'][:64]!r} not found: search for one word")
    return page_of("books", [{"id": key, "title": row["title"]} for key, row in found], args, 3)


def _book(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    return {"id": args["book_id"], **ledger.row("book", args["book_id"])}


def _reserve(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row = ledger.row("book", args["book_id"])
    if row["copies"] < 1:
        raise ToolError(f"Conflict: book {args['book_id']} has no free copy")
    key = ledger.new_id("hold", "HD")
    changed = ledger.put("hold", key, book=args["book_id"], reader=args["reader"])
    changed += ledger.put("book", args["book_id"], copies=row["copies"] - 1)
    return {"reservation_id": key, "changed": changed}


def _searching(world: World, key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the calls that find a book by the word of its title that the fewest have."""
    ledger = world.ledger()
    lists = {
        word: [found for found, _ in _with_word(ledger, word)]
        for word in world.tables["book"][key]["title"].lower().split()
    }
    word = min(lists, key=lambda word: (lists[word].index(key) // 3, word))
    pages = lists[word].index(key) // 3 + 1
    asked = [{"word": word}] + [{"word": word, "page": n} for n in range(2, pages + 1)]
    return [("library.search", page) for page in asked]


def _details(world: World, rng: random.Random) -> tuple[Row, tuple[tuple[str, Any], ...]]:
    key, row = pick(rng, world.tables["book"])
    return row, (*_searching(world, key), ("library.book", {"book_id": key}))


def _length_of_book(world: World, rng: random.Random) -> Job:
    row, calls = _details(world, rng)
    return Job("library.pages", {"title": row["title"]}, calls, {"pages": row["pages"]})


def _author(world: World, rng: random.Random) -> Job:
    row, calls = _details(world, rng)
    answer = {"author": row["author"], "year": row["year"]}
    return Job("library.author", {"title": row["title"]}, calls, answer)


def _reserving(world: World, rng: random.Random) -> Job:
    free = [key for key, row in world.tables["book"].items() if row["copies"]]
    key, reader = rng.choice(free), rng.choice(world.common.people)
    reserved = ("library.reserve", {"book_id": key, "reader": reader})
    slots = {"title": world.tables["book"][key]["title"], "reader": reader}
    calls = (*_searching(world, key), reserved)
    return Job("library.reserve", slots, calls, {"reservation": "HD-1"})


LIBRARY = App(
    "library",
    _book_tables,
    {"search": _search, "book": _book, "reserve": _reserve},
    {
        "library.pages": _length_of_book,
        "library.author": _author,
        "library.reserve": _reserving,
    },
)
"""Books by a word of the title, pages, copies that run out."""
