"""A calendar, an address book and a drive."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from .base import App, Common, Job, World, data_file, pick
from .ledger import Ledger, Row, Table, ToolError, page_of

__all__ = ["CALENDAR", "CONTACTS", "FILES"]

_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def _calendar_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    words = data_file("words.json")
    events: dict[str, Row] = {}
    for day in common.days:
        hours = sorted(rng.sample(range(8, 18, 2), rng.randrange(2, 5)))
        for hour, title in zip(hours, rng.sample(words["events"], len(hours)), strict=True):
            events[f"E-{30 + len(events)}"] = {
                "title": title,
                "date": day,
                "start": f"{hour:02}:{rng.choice(('00', '15', '30'))}",
                "minutes": rng.choice((30, 45, 60, 75)),
                "place": rng.choice(words["places"]),
                "state": "planned",
            }
    return {"event": events}


def _minute(time: str) -> int:
    match = _TIME.fullmatch(time)
    if match is None:
        raise ToolError(f"Bad value of start: expected HH:MM, found {time[:32]!r}")
    return int(match[1]) * 60 + int(match[2])


def _planned(ledger: Ledger, date: str) -> list[tuple[str, Row]]:
    found = [
        (key, row)
        for key, row in ledger.rows("event")
        if row["date"] == date and row["state"] == "planned"
    ]
    return sorted(found, key=lambda item: (item[1]["start"], item[0]))


def _day(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    if not _DATE.fullmatch(args["date"]):
        raise ToolError(f"Bad value of date: expected YYYY-MM-DD, found {args['date'][:32]!r}")
    return {"events": [{"id": k, "title": r["title"]} for k, r in _planned(ledger, args["date"])]}


def _event(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row = ledger.row("event", args["event_id"])
    shown = ("title", "start", "minutes", "place", "state")
    return {"id": args["event_id"]} | {name: row[name] for name in shown}


def _add(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    _day(ledger, args)
    start = _minute(args["start"])
    if not 1 <= args["minutes"] <= 600:
        raise ToolError(f"Bad value of minutes: expected 1 to 600, found {args['minutes']}")
    for key, row in _planned(ledger, args["date"]):
        other = _minute(row["start"])
        if start < other + row["minutes"] and other < start + args["minutes"]:
            raise ToolError(f"Conflict: event {key} is at {row['start']}")
    key = f"E-{30 + len(ledger.rows('event'))}"
    values = {name: args[name] for name in ("title", "date", "start", "minutes")}
    changed = ledger.put("event", key, **values, place="", state="planned")
    return {"event_id": key, "changed": changed}


def _cancel(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    if ledger.row("event", args["event_id"])["state"] != "planned":
        raise ToolError(f"Conflict: event {args['event_id']} is cancelled already")
    changed = ledger.put("event", args["event_id"], state="cancelled")
    return {"event_id": args["event_id"], "changed": changed}


def _where(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["event"])
    calls = (("calendar.day", {"date": row["date"]}), ("calendar.event", {"event_id": key}))
    answer = {"start": row["start"], "place": row["place"]}
    return Job("calendar.where", {"title": row["title"], "date": row["date"]}, calls, answer)


def free_start(world: World, rng: random.Random, date: str, minutes: int) -> str:
    """Draw a time of a day at which there is nothing yet."""
    busy = [(_minute(r["start"]), r["minutes"]) for _, r in _planned(world.ledger(), date)]
    free = [
        start
        for start in range(6 * 60, 22 * 60, 15)
        if all(start >= other + long or other >= start + minutes for other, long in busy)
    ]
    start = rng.choice(free)
    return f"{start // 60:02}:{start % 60:02}"


def _adding(world: World, rng: random.Random) -> Job:
    title, date = rng.choice(data_file("words.json")["events"]), rng.choice(world.common.days)
    minutes = rng.choice((30, 45, 60))
    start = free_start(world, rng, date, minutes)
    slots = {"title": title, "date": date, "start": start, "minutes": minutes}
    answer = {"event": f"E-{30 + len(world.tables['event'])}"}
    return Job("calendar.add", slots, (("calendar.add", slots),), answer)


def _cancelling(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["event"])
    calls = (("calendar.day", {"date": row["date"]}), ("calendar.cancel", {"event_id": key}))
    slots = {"title": row["title"], "date": row["date"]}
    return Job("calendar.cancel", slots, calls, {"event": key})


CALENDAR = App(
    "calendar",
    _calendar_tables,
    {"day": _day, "event": _event, "add": _add, "cancel": _cancel},
    {"calendar.where": _where, "calendar.add": _adding, "calendar.cancel": _cancelling},
)
"""Appointments: by day, then by number; two never overlap."""


def _contact_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    cities = [city["name"] for city in common.cities.values()]
    phones = rng.sample(range(1000, 10_000), len(common.people))
    contacts: dict[str, Row] = {
        f"P-{10 + number}": {"name": name, "phone": f"+90 555 {phone}", "city": rng.choice(cities)}
        for number, (name, phone) in enumerate(zip(common.people, phones, strict=True))
    }
    return {"contact": contacts}


def _find(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    wanted = set(args["word"].lower().split())
    found = [
        {"id": key, "name": row["name"]}
        for key, row in ledger.rows("contact")
        if wanted and wanted <= set(row["name"].lower().split())
    ]
    if not found:
        raise ToolError(f"contact {args['word'][:64]!r} not found")
    return {"contacts": found}


def _contact(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    return {"id": args["contact_id"], **ledger.row("contact", args["contact_id"])}


def _set_phone(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    ledger.row("contact", args["contact_id"])
    if not re.fullmatch(r"\+?[\d ]{4,20}", args["phone"]):
        raise ToolError(f"Bad value of phone: expected digits, found {args['phone'][:32]!r}")
    changed = ledger.put("contact", args["contact_id"], phone=args["phone"])
    return {"contact_id": args["contact_id"], "changed": changed}


def finding(world: World, key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the calls that tell all of a contact."""
    word = world.tables["contact"][key]["name"].split()[0]
    return [("contacts.find", {"word": word}), ("contacts.details", {"contact_id": key})]


def _phone(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["contact"])
    calls, slots = tuple(finding(world, key)), {"name": row["name"]}
    return Job("contacts.phone", slots, calls, {"phone": row["phone"]})


def _city(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["contact"])
    calls, slots = tuple(finding(world, key)), {"name": row["name"]}
    return Job("contacts.city", slots, calls, {"city": row["city"]})


def _change(world: World, rng: random.Random) -> Job:
    key, row = pick(rng, world.tables["contact"])
    phone = f"+90 555 0{rng.randrange(100, 1000)}"
    calls = (finding(world, key)[0], ("contacts.set_phone", {"contact_id": key, "phone": phone}))
    return Job("contacts.change", {"name": row["name"], "phone": phone}, calls, {"contact": key})


CONTACTS = App(
    "contacts",
    _contact_tables,
    {"find": _find, "details": _contact, "set_phone": _set_phone},
    {"contacts.phone": _phone, "contacts.city": _city, "contacts.change": _change},
)
"""An address book: numbers before details."""


def _file_tables(rng: random.Random, common: Common) -> dict[str, Table]:
    words = data_file("words.json")
    names = [f"{word}.{end}" for word in words["file_words"] for end in words["file_ends"]]
    rows: dict[str, Row] = {}
    for number, name in enumerate(rng.sample(names, 22), 200):
        rows[f"F-{number}"] = {
            "name": name,
            "folder": rng.choice(words["folders"]),
            "bytes": rng.randrange(300, 900_000),
            "owner": rng.choice(common.people),
        }
    return {"file": rows}


def _in_folder(ledger: Ledger, folder: str) -> list[tuple[str, Row]]:
    if folder not in data_file("words.json")["folders"]:
        raise ToolError(f"folder {folder[:64]!r} not found")
    return [(key, row) for key, row in ledger.rows("file") if row["folder"] == folder]


def _list_files(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    found = _in_folder(ledger, args["folder"])
    return page_of("files", [{"id": key, "name": row["name"]} for key, row in found], args, 4)


def _file(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row = ledger.row("file", args["file_id"])
    return {"id": args["file_id"], "size_bytes": row["bytes"], "owner": row["owner"]}


def _move_file(ledger: Ledger, args: Mapping[str, Any]) -> Any:
    row = ledger.row("file", args["file_id"])
    if any(other["name"] == row["name"] for _, other in _in_folder(ledger, args["folder"])):
        raise ToolError(f"Conflict: {args['folder']} has a file {row['name']} already")
    changed = ledger.put("file", args["file_id"], folder=args["folder"])
    return {"file_id": args["file_id"], "changed": changed}


def _locating(world: World, key: str) -> list[tuple[str, Mapping[str, Any]]]:
    folder = world.tables["file"][key]["folder"]
    place = [found for found, _ in _in_folder(world.ledger(), folder)].index(key)
    pages = [{"folder": folder}] + [{"folder": folder, "page": n} for n in range(2, place // 4 + 2)]
    return [("files.list", page) for page in pages]


def _drawn_file(world: World, rng: random.Random) -> tuple[str, Row, dict[str, Any]]:
    """Draw a file that at most three pages come before."""
    near = [key for key in world.tables["file"] if len(_locating(world, key)) <= 3]
    key = rng.choice(near)
    row = world.tables["file"][key]
    return key, row, {"name": row["name"], "folder": row["folder"]}


def _size(world: World, rng: random.Random) -> Job:
    key, row, slots = _drawn_file(world, rng)
    calls = (*_locating(world, key), ("files.info", {"file_id": key}))
    return Job("files.size", slots, calls, {"size": round(row["bytes"] / 1024, 2)})


def _owner(world: World, rng: random.Random) -> Job:
    key, row, slots = _drawn_file(world, rng)
    calls = (*_locating(world, key), ("files.info", {"file_id": key}))
    return Job("files.owner", slots, calls, {"owner": row["owner"]})


def _moving(world: World, rng: random.Random) -> Job:
    key, row, slots = _drawn_file(world, rng)
    folders = [name for name in data_file("words.json")["folders"] if name != row["folder"]]
    target = rng.choice(folders)
    calls = (*_locating(world, key), ("files.move", {"file_id": key, "folder": target}))
    return Job("files.move", {**slots, "target": target}, calls, {"file": key})


FILES = App(
    "files",
    _file_tables,
    {"list": _list_files, "info": _file, "move": _move_file},
    {"files.size": _size, "files.owner": _owner, "files.move": _moving},
)
"""A drive: pages of folders, sizes in bytes, names that are in a folder once."""
