"""Apps about days and things: calendar, contacts, files, weather, geography, music, library."""

from __future__ import annotations

import math
import random
import re
from typing import Any

from .world import (
    App,
    Common,
    Job,
    Ledger,
    Row,
    Rows,
    Table,
    ToolCall,
    ToolError,
    World,
    call,
    data_file,
    fields_of,
    index_of,
    listed,
    matching,
    not_found,
    numbered,
)

_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class Calendar(App):
    """Appointments: by day, then by number; two never overlap."""

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        words = data_file("words")
        events: list[Row] = []
        for day in common.days:
            hours = sorted(rng.sample(range(8, 18, 2), rng.randrange(2, 5)))
            events += [
                {
                    "title": title,
                    "date": day,
                    "start": f"{hour:02}:{rng.choice(('00', '15', '30'))}",
                    "minutes": rng.choice((30, 45, 60, 75)),
                    "place": rng.choice(words["places"]),
                    "state": "planned",
                }
                for hour, title in zip(hours, rng.sample(words["events"], len(hours)), strict=True)
            ]
        return {"event": numbered("E", 30, events)}

    def _api_day(self, ledger: Ledger, date: str) -> Any:
        if not _DATE.fullmatch(date):
            raise ToolError(f"Bad value of date: expected YYYY-MM-DD, found {date[:32]!r}")
        return {"events": listed(_planned(ledger, date), "id title")}

    def _api_add(self, ledger: Ledger, title: str, date: str, start: str, minutes: int) -> Any:
        self._api_day(ledger, date)
        start_minute = _minute(start)
        if not 1 <= minutes <= 600:
            raise ToolError(f"Bad value of minutes: expected 1 to 600, found {minutes}")
        for key, row in _planned(ledger, date):
            other_start = _minute(row["start"])
            begins_before_its_end = start_minute < other_start + row["minutes"]
            if begins_before_its_end and other_start < start_minute + minutes:
                raise ToolError(f"Conflict: event {key} is at {row['start']}")
        key = f"E-{30 + len(ledger.rows('event'))}"
        event = {"title": title, "date": date, "start": start, "minutes": minutes}
        changed = ledger.put("event", key, **event, place="", state="planned")
        return {"event_id": key, "changed": changed}

    def _api_cancel(self, ledger: Ledger, event_id: str) -> Any:
        if ledger.row("event", event_id)["state"] != "planned":
            raise ToolError(f"Conflict: event {event_id} is cancelled already")
        return {"event_id": event_id, "changed": ledger.put("event", event_id, state="cancelled")}

    def finding(self, world: World, key: str, row: Row) -> list[ToolCall]:
        return [call("calendar.day", date=row["date"])]

    def _job_add(self, world: World, rng: random.Random) -> Job:
        title, date = rng.choice(data_file("words")["events"]), rng.choice(world.common.days)
        minutes = rng.choice((30, 45, 60))
        start = free_start(world, rng, date, minutes)
        slots = {"title": title, "date": date, "start": start, "minutes": minutes}
        answer = {"event": next_event(world)}
        return Job("calendar.add", slots, (call("calendar.add", **slots),), answer)


def _minute(time: str) -> int:
    match = _TIME.fullmatch(time)
    if match is None:
        raise ToolError(f"Bad value of start: expected HH:MM, found {time[:32]!r}")
    return int(match[1]) * 60 + int(match[2])


def _planned(ledger: Ledger, date: str) -> Rows:
    events = ledger.where("event", date=date, state="planned")
    return sorted(events, key=lambda item: (item[1]["start"], item[0]))


def free_start(world: World, rng: random.Random, date: str, minutes: int) -> str:
    """Draw a time of a day at which there is nothing yet."""
    busy = [(_minute(row["start"]), row["minutes"]) for _, row in _planned(world.ledger(), date)]
    free = [
        start
        for start in range(6 * 60, 22 * 60, 15)
        if all(
            start >= busy_start + busy_minutes or busy_start >= start + minutes
            for busy_start, busy_minutes in busy
        )
    ]
    start = rng.choice(free)
    return f"{start // 60:02}:{start % 60:02}"


def next_event(world: World) -> str:
    """Return the id of the first event that is added."""
    return f"E-{30 + len(world.tables['event'])}"


class Contacts(App):
    """An address book: numbers before details."""

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        cities = [city["name"] for city in common.cities.values()]
        phones = rng.sample(range(1000, 10_000), len(common.people))
        contacts = (
            {"name": name, "phone": f"+90 555 {phone}", "city": rng.choice(cities)}
            for name, phone in zip(common.people, phones, strict=True)
        )
        return {"contact": numbered("P", 10, contacts)}

    def _api_find(self, ledger: Ledger, word: str) -> Any:
        words = set(word.lower().split())
        contacts = []
        for key, row in ledger.rows("contact"):
            if words <= set(row["name"].lower().split()):
                contacts.append((key, row))
        if not (words and contacts):  # no words would be every contact
            raise not_found("contact", word)
        return {"contacts": listed(contacts, "id name")}

    def _api_set_phone(self, ledger: Ledger, contact_id: str, phone: str) -> Any:
        ledger.row("contact", contact_id)
        if not re.fullmatch(r"\+?[\d ]{4,20}", phone):
            raise ToolError(f"Bad value of phone: expected digits, found {phone[:32]!r}")
        return {"contact_id": contact_id, "changed": ledger.put("contact", contact_id, phone=phone)}

    def finding(self, world: World, key: str, row: Row) -> list[ToolCall]:
        return [call("contacts.find", word=row["name"].split()[0])]

    def _job_change(self, world: World, rng: random.Random) -> Job:
        key, row = world.pick(rng, "contact")
        phone = f"+90 555 0{rng.randrange(100, 1000)}"
        change = call("contacts.set_phone", contact_id=key, phone=phone)
        calls = (*self.finding(world, key, row), change)
        slots = {"name": row["name"], "phone": phone}
        return Job("contacts.change", slots, calls, {"contact": key})


class Files(App):
    """A drive: pages of folders, sizes in bytes, names that are in a folder once."""

    page_size = 4

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        words = data_file("words")
        names = [f"{word}.{end}" for word in words["file_words"] for end in words["file_ends"]]
        files = (
            {
                "name": name,
                "folder": rng.choice(words["folders"]),
                "bytes": rng.randrange(300, 900_000),
                "owner": rng.choice(common.people),
            }
            for name in rng.sample(names, 22)
        )
        return {"file": numbered("F", 200, files)}

    def _in_folder(self, ledger: Ledger, folder: str) -> Rows:
        if folder not in data_file("words")["folders"]:
            raise not_found("folder", folder)
        return ledger.where("file", folder=folder)

    def _api_list(self, ledger: Ledger, folder: str, page: int = 1) -> Any:
        return self.page("files", self._in_folder(ledger, folder), "id name", page)

    def _api_move(self, ledger: Ledger, file_id: str, folder: str) -> Any:
        name = ledger.row("file", file_id)["name"]
        if any(row["name"] == name for _, row in self._in_folder(ledger, folder)):
            raise ToolError(f"Conflict: {folder} has a file {name} already")
        return {"file_id": file_id, "changed": ledger.put("file", file_id, folder=folder)}

    def draw(self, world: World, rng: random.Random, table: str) -> tuple[str, Row]:
        """Draw a file of the first three pages of its folder."""
        files, ledger = world.tables[table], world.ledger()
        near = [
            key
            for key, row in files.items()
            if index_of(key, self._in_folder(ledger, row["folder"])) < 3 * self.page_size
        ]
        key = rng.choice(near)
        return key, files[key]

    def finding(self, world: World, key: str, row: Row) -> list[ToolCall]:
        files = self._in_folder(world.ledger(), row["folder"])
        return self.pages("list", index_of(key, files), folder=row["folder"])

    def _job_move(self, world: World, rng: random.Random) -> Job:
        key, row = self.draw(world, rng, "file")
        folders = [name for name in data_file("words")["folders"] if name != row["folder"]]
        target = rng.choice(folders)
        move = call("files.move", file_id=key, folder=target)
        slots = {"name": row["name"], "folder": row["folder"], "target": target}
        return Job("files.move", slots, (*self.finding(world, key, row), move), {"file": key})


class Weather(App):
    """Stations before forecasts, Fahrenheit for Celsius."""

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        stations = numbered("S", 40, ({"city": city["name"]} for city in common.cities.values()))
        forecasts: dict[str, Row] = {}
        for day in common.days:
            winds = rng.sample(range(10, 250), len(stations))
            for key, wind in zip(stations, winds, strict=True):
                forecasts[f"{key} {day}"] = {
                    "fahrenheit": rng.randrange(20, 95),
                    "wind": wind / 10,
                    "rain": rng.randrange(0, 40),
                }
        return {"station": stations, "forecast": forecasts, "alert": {}}

    def _api_forecast(self, ledger: Ledger, station_id: str, date: str) -> Any:
        ledger.row("station", station_id)
        row = ledger.row("forecast", f"{station_id} {date}")
        fields = "station_id=id temperature_f=fahrenheit wind_ms=wind rain_mm=rain"
        return fields_of(station_id, row, fields)

    def _api_alert(self, ledger: Ledger, station_id: str, limit: float) -> Any:
        ledger.row("station", station_id)
        if not 0 < limit <= 80:
            raise ToolError("Bad value of limit: expected more than 0 and at most 80")
        key = ledger.new_id("alert", "AL")
        changed = ledger.put("alert", key, station=station_id, limit=limit)
        return {"alert_id": key, "changed": changed}

    def _drawn(self, world: World, rng: random.Random) -> tuple[list[str], str]:
        names = [city["name"] for city in world.common.cities.values()]
        return rng.sample(names, 2), rng.choice(world.common.days)

    def _job_temperature(self, world: World, rng: random.Random) -> Job:
        (city, _), day = self._drawn(world, rng)
        calls, row = forecasting(world, city, day)
        celsius = round((row["fahrenheit"] - 32) / 1.8, 2)
        return Job("weather.temperature", {"city": city, "date": day}, calls, {"celsius": celsius})

    def _job_windier(self, world: World, rng: random.Random) -> Job:
        (first, second), day = self._drawn(world, rng)
        first_calls, first_row = forecasting(world, first, day)
        second_calls, second_row = forecasting(world, second, day)
        if first_row["wind"] >= second_row["wind"]:
            answer = {"city": first, "wind": first_row["wind"]}
        else:
            answer = {"city": second, "wind": second_row["wind"]}
        slots = {"first": first, "second": second, "date": day}
        return Job("weather.windier", slots, (*first_calls, *second_calls), answer)

    def _job_alert(self, world: World, rng: random.Random) -> Job:
        (city, _), day = self._drawn(world, rng)
        limit = rng.randrange(8, 30)
        (find, forecast), _ = forecasting(world, city, day)
        alert = call("weather.alert", station_id=forecast[1]["station_id"], limit=limit)
        return Job(
            "weather.alert", {"city": city, "limit": limit}, (find, alert), {"alert": "AL-1"}
        )


def forecasting(world: World, city: str, day: str) -> tuple[tuple[ToolCall, ToolCall], Row]:
    station = next(key for key, row in world.tables["station"].items() if row["city"] == city)
    forecast = call("weather.forecast", station_id=station, date=day)
    row = world.tables["forecast"][f"{station} {day}"]
    return (call("weather.station", city=city), forecast), row


class Geography(App):
    """Cities by number, pages of countries, feet and miles for metres and kilometres."""

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        rivers = data_file("words")["rivers"]
        people = rng.sample(range(8_000, 3_000_000), len(common.cities))
        cities: dict[str, Row] = {
            key: {
                **city,
                "people": count,
                "feet": rng.randrange(10, 6_000),
                "river": rng.choice(rivers),
                "x": rng.randrange(1000),
                "y": rng.randrange(1000),
            }
            for count, (key, city) in zip(people, common.cities.items(), strict=True)
        }
        return {"city": cities}

    def _api_distance(self, ledger: Ledger, first: str, second: str) -> Any:
        miles = _miles(ledger.row("city", first), ledger.row("city", second))
        return {"first": first, "second": second, "miles": miles}

    def finding(self, world: World, key: str, row: Row) -> list[ToolCall]:
        return self._finding(world, row["country"], [key])

    def _finding(self, world: World, country: str, keys: list[str]) -> list[ToolCall]:
        cities = matching(world.ledger(), "city", "country", country)
        return self.pages("cities", max(index_of(key, cities) for key in keys), country=country)

    def _two(
        self, world: World, rng: random.Random
    ) -> tuple[list[str], list[Row], dict[str, Any], list[ToolCall]]:
        """Draw two cities of a country: ids, rows and slots, and the calls that find them."""
        cities = world.tables["city"]
        country = rng.choice([city["country"] for city in cities.values()])
        keys = rng.sample([key for key, city in cities.items() if city["country"] == country], 2)
        rows = [cities[key] for key in keys]
        slots = {"first": rows[0]["name"], "second": rows[1]["name"], "country": country}
        return keys, rows, slots, self._finding(world, country, keys)

    def _job_distance(self, world: World, rng: random.Random) -> Job:
        keys, rows, slots, finding = self._two(world, rng)
        calls = (*finding, call("geography.distance", first=keys[0], second=keys[1]))
        kilometres = round(_miles(*rows) * 1.609344, 2)
        return Job("geography.distance", slots, calls, {"kilometres": kilometres})

    def _job_largest(self, world: World, rng: random.Random) -> Job:
        keys, rows, slots, finding = self._two(world, rng)
        best = max(rows, key=lambda row: int(row["people"]))
        calls = (*finding, *(call("geography.city", city_id=key) for key in keys))
        answer = {"city": best["name"], "inhabitants": best["people"]}
        return Job("geography.largest", slots, calls, answer)


def _miles(first: Row, second: Row) -> float:
    return round(math.hypot(first["x"] - second["x"], first["y"] - second["y"]), 2)


def _titles(rng: random.Random, number: int) -> list[str]:
    words = data_file("words")
    pairs = [(word, noun) for word in words["title_words"] for noun in words["title_nouns"]]
    return [f"{word.capitalize()} {noun}" for word, noun in rng.sample(pairs, number)]


class Music(App):
    """Charts tell numbers, tracks the rest; seconds for minutes."""

    page_size = 4

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        tracks = numbered(
            "T",
            60,
            (
                {
                    "title": title,
                    "artist": rng.choice(common.people),
                    "seconds": rng.randrange(120, 420),
                    "year": rng.randrange(1990, 2031),
                }
                for title in _titles(rng, 16)
            ),
        )
        charts: dict[str, Row] = {}
        for country in dict.fromkeys(city["country"] for city in common.cities.values()):
            for place, key in enumerate(rng.sample(list(tracks), 8), 1):
                charts[f"{country} {place}"] = {"country": country, "place": place, "track": key}
        return {"track": tracks, "chart": charts, "playlist": {}}

    def _api_add_to_playlist(self, ledger: Ledger, playlist: str, track_id: str) -> Any:
        ledger.row("track", track_id)
        if playlist not in data_file("words")["playlists"]:
            raise not_found("playlist", playlist)
        key = f"{playlist} {track_id}"
        if any(playlist_key == key for playlist_key, _ in ledger.rows("playlist")):
            raise ToolError(f"Conflict: {track_id} is on {playlist} already")
        changed = ledger.put("playlist", key, playlist=playlist, track=track_id)
        return {"playlist": playlist, "changed": changed}

    def _charted(self, world: World, country: str, place: int) -> tuple[str, ToolCall]:
        page = {} if place <= self.page_size else {"page": 2}
        key: str = world.tables["chart"][f"{country} {place}"]["track"]
        return key, call("music.chart", country=country, **page)

    def _job_top(self, world: World, rng: random.Random) -> Job:
        country = world.pick(rng, "chart")[1]["country"]
        key, chart = self._charted(world, country, 1)
        row = world.tables["track"][key]
        answer = {"title": row["title"], "artist": row["artist"]}
        calls = (chart, call("music.track", track_id=key))
        return Job("music.top", {"country": country}, calls, answer)

    def _job_length(self, world: World, rng: random.Random) -> Job:
        country, place = world.pick(rng, "chart")[1]["country"], rng.randrange(1, 9)
        key, chart = self._charted(world, country, place)
        answer = {"minutes": round(world.tables["track"][key]["seconds"] / 60, 2)}
        calls = (chart, call("music.track", track_id=key))
        return Job("music.length", {"country": country, "place": place}, calls, answer)

    def _job_add(self, world: World, rng: random.Random) -> Job:
        country, place = world.pick(rng, "chart")[1]["country"], rng.randrange(1, 9)
        playlist = rng.choice(data_file("words")["playlists"])
        key, chart = self._charted(world, country, place)
        calls = (chart, call("music.add_to_playlist", playlist=playlist, track_id=key))
        slots = {"country": country, "place": place, "playlist": playlist}
        return Job("music.add", slots, calls, {"track": key})


class Library(App):
    """Books by a word of the title, pages, copies that run out."""

    def tables(self, rng: random.Random, common: Common) -> dict[str, Table]:
        books = (
            {
                "title": title,
                "author": rng.choice(common.people),
                "pages": rng.randrange(80, 900),
                "year": rng.randrange(1950, 2031),
                "copies": rng.randrange(0, 4),
            }
            for title in _titles(rng, 24)
        )
        return {"book": numbered("K", 80, books), "hold": {}}

    def _with_word(self, ledger: Ledger, word: str) -> Rows:
        plain_word = word.strip().lower()
        books = [
            item for item in ledger.rows("book") if plain_word in item[1]["title"].lower().split()
        ]
        if not books:
            raise not_found("title with", word, ": search for one word")
        return books

    def _api_search(self, ledger: Ledger, word: str, page: int = 1) -> Any:
        return self.page("books", self._with_word(ledger, word), "id title", page)

    def _api_reserve(self, ledger: Ledger, book_id: str, reader: str) -> Any:
        copies = ledger.row("book", book_id)["copies"]
        if copies < 1:
            raise ToolError(f"Conflict: book {book_id} has no free copy")
        key = ledger.new_id("hold", "HD")
        changed = ledger.put("hold", key, book=book_id, reader=reader)
        changed += ledger.put("book", book_id, copies=copies - 1)
        return {"reservation_id": key, "changed": changed}

    def finding(self, world: World, key: str, row: Row) -> list[ToolCall]:
        """Return the calls that find a book by the word of its title that the fewest have."""
        ledger = world.ledger()
        indices = {
            word: index_of(key, self._with_word(ledger, word))
            for word in row["title"].lower().split()
        }
        word = min(indices, key=lambda word: (indices[word] // self.page_size, word))
        return self.pages("search", indices[word], word=word)

    def _job_reserve(self, world: World, rng: random.Random) -> Job:
        books = world.tables["book"]
        key = rng.choice([key for key, row in books.items() if row["copies"]])
        reader = rng.choice(world.common.people)
        reserve = call("library.reserve", book_id=key, reader=reader)
        calls = (*self.finding(world, key, books[key]), reserve)
        slots = {"title": books[key]["title"], "reader": reader}
        return Job("library.reserve", slots, calls, {"reservation": "HD-1"})
