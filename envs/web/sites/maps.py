"""``map.test``: a directory of towns and places, with distances, routes and saved places."""

from __future__ import annotations

from math import hypot
from typing import NamedTuple

from ...generated import Draws
from .. import pages as ui
from .base import Common, Fields, Redirect, Site, clean, number, words

LISTS = ("favorites", "want to go", "next journey")
WAYS = ("foot", "bicycle", "car")
HOURS = ("any", "8", "12", "18", "21")
_SPEEDS = {"foot": 5, "bicycle": 16, "car": 60}
_PLACES = 130
_LAST = 40


class Spot(NamedTuple):
    """A town or a place, at coordinates in tenths of a kilometer, open between two hours."""

    id: int
    name: str
    kind: str
    town: str
    x: int
    y: int
    opens: int
    closes: int
    phone: str


class Map(Site):
    """The map of an instance; its state is a tuple of pairs, a list's name and a place's id."""

    host = "map.test"
    title = "Map"
    menu = (("Map", "/"), ("Route", "/route"), ("Saved places", "/saved"))

    def __init__(self, common: Common):
        super().__init__(common)
        self.spots = self._drawn()
        self.by_name = {spot.name.lower(): spot for spot in self.spots}
        self.start = ()

    def _drawn(self) -> tuple[Spot, ...]:
        """Return the towns of the instance, and places around them, drawn from its seed."""
        draws = Draws("web", self.common.seed, "map")
        vocabulary = words()
        towns = []
        for spot_id, town_name in enumerate(self.common.towns, 1):
            x = draws.integer(0, 900)
            y = draws.integer(0, 900)
            towns.append(Spot(spot_id, town_name, "town", town_name, x, y, 0, 24, ""))

        # No name is given twice: routes and answers name places.
        spots = list(towns)
        names: set[str] = set()
        while len(names) < _PLACES:
            kind = draws.pick(vocabulary["kinds"])
            town = draws.pick(towns)
            name = f"{draws.pick((*vocabulary['last'], *vocabulary['series']))} {kind}"
            if name in names:
                continue
            names.add(name)
            x = town.x + draws.integer(-30, 30)
            y = town.y + draws.integer(-30, 30)
            opens = draws.integer(7, 11)
            closes = draws.pick((13, 16, 18, 20, 22))
            phone = f"0{draws.integer(200, 999)} {draws.integer(10_000, 99_999)}"
            spots.append(Spot(len(spots) + 1, name, kind, town.name, x, y, opens, closes, phone))
        return tuple(spots)

    def found(self, fields: Fields) -> list[tuple[float, Spot]]:
        """Return distances and places that fit, the nearest first."""
        query = fields.get("q", "").lower()
        near = self._spot(fields.get("near"))
        hour = number(fields.get("open"), 0, 23)
        hits = []
        for spot in self.spots:
            fits = query in spot.name.lower() or query == spot.kind
            if fits and (hour is None or spot.opens <= hour < spot.closes):
                hits.append((distance(near, spot) if near else 0.0, spot))
        return sorted(hits, key=lambda hit: (hit[0], hit[1].name))

    def _spot(self, field: str | None) -> Spot | None:
        return self.by_name.get(clean(field).lower())

    def _form(self, fields: Fields) -> ui.Node:
        return ui.search_form(
            "/search",
            "Search the map",
            fields.get("q", ""),
            ui.textbox("Near", "near", fields.get("near", "")),
            ui.select("Open at", "open", HOURS, fields.get("open", "any")),
        )

    def show_front(self, state: tuple[tuple[str, int], ...], fields: Fields) -> ui.Page:
        towns = (
            (ui.link(town, "/place", id=spot_id),)
            for spot_id, town in enumerate(self.common.towns, 1)
        )
        return self.page("The map", self._form(fields), ui.rows(towns))

    def show_search(self, state: tuple[tuple[str, int], ...], fields: Fields) -> ui.Page:
        near = self._spot(fields.get("near"))
        near_name = clean(fields.get("near"))
        notes = []
        if near_name and near is None:
            notes.append(ui.text(f"No place is named {near_name}."))

        def row(hit: tuple[float, Spot]) -> tuple[ui.Node, ...]:
            length, spot = hit
            description = f"{spot.kind}, {spot.town}"
            if near:
                description += f", {length:.1f} km away"
            return ui.link(spot.name, "/place", id=spot.id), ui.text(description)

        results = ui.listing(self.found(fields), "/search", fields, row)
        return self.page("Search", self._form(fields), *notes, *results)

    def show_place(self, state: tuple[tuple[str, int], ...], fields: Fields) -> ui.Page | None:
        spot_id = number(fields.get("id"), 1, len(self.spots))
        if spot_id is None:
            return None
        spot = self.spots[spot_id - 1]
        facts = {"Kind": spot.kind, "Town": spot.town}
        if spot.kind != "town":
            facts["Phone"] = spot.phone
            facts["Open"] = f"{spot.opens} to {spot.closes}"
        return self.page(
            spot.name,
            *ui.facts(facts),
            ui.post("/save", {"id": spot_id}, ui.select("List", "list", LISTS), ui.button("Save")),
        )

    def show_route(self, state: tuple[tuple[str, int], ...], fields: Fields) -> ui.Page:
        start = self._spot(fields.get("from"))
        end = self._spot(fields.get("to"))
        vehicle = fields.get("by", "car")
        answer: list[ui.Node] = []
        if start and end and vehicle in _SPEEDS:
            length = distance(start, end)
            answer += ui.facts(
                {
                    "Route": f"{start.name} to {end.name} by {vehicle}",
                    "Distance": f"{length:.1f} km",
                    "Time": duration(length, vehicle),
                }
            )
        elif fields:  # else nobody has asked yet
            answer.append(ui.text("No such place is on the map."))

        return self.page(
            "Route",
            ui.form(
                "/route",
                ui.textbox("From", "from", fields.get("from", "")),
                ui.textbox("To", "to", fields.get("to", "")),
                ui.radios("By", "by", WAYS, vehicle),
                ui.button("Show route"),
            ),
            *answer,
        )

    def post_save(self, state: tuple[tuple[str, int], ...], fields: Fields) -> Redirect | None:
        spot_id = number(fields.get("id"), 1, len(self.spots))
        name = fields.get("list", "")
        if spot_id is None or name not in LISTS:
            return None

        # What is saved a second time goes to the end, and is there once.
        new_entry = (name, spot_id)
        entries = tuple(entry for entry in state if entry != new_entry)
        return Redirect((*entries, new_entry)[-_LAST:], "/saved")

    def show_saved(self, state: tuple[tuple[str, int], ...], fields: Fields) -> ui.Page:
        entries = (
            (ui.text(f"{name}:"), ui.link(self.spots[spot_id - 1].name, "/place", id=spot_id))
            for name, spot_id in state[-20:]
        )
        return self.page("Saved places", ui.text(f"Saved: {len(state)}"), ui.rows(entries))


def distance(start: Spot, end: Spot) -> float:
    """Return the distance of two spots in kilometers, rounded as it is shown."""
    return round(hypot(start.x - end.x, start.y - end.y) / 10, 1)


def duration(length: float, vehicle: str) -> str:
    """Return how long a way of so many kilometers takes."""
    minutes = round(60 * length / _SPEEDS[vehicle])
    return f"{minutes // 60} h {minutes % 60} min"
