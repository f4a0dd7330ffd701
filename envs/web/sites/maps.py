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

    host, title = "map.test", "Map"
    menu = (("Map", "/"), ("Route", "/route"), ("Saved places", "/saved"))

    def __init__(self, common: Common):
        super().__init__(common)
        self.spots = self._drawn()
        self.by_name = {spot.name.lower(): spot for spot in self.spots}
        self.start = ()

    def _drawn(self) -> tuple[Spot, ...]:
        draws, known = Draws("web", self.common.seed, "map"), words()
        spots = [
            Spot(
                index + 1,
                town,
                "town",
                town,
                draws.integer(0, 900),
                draws.integer(0, 900),
                0,
                24,
                "",
            )
            for index, town in enumerate(self.common.towns)
        ]
        towns, names = list(spots), set[str]()
        while len(names) < _PLACES:
            kind, town = draws.pick(known["kinds"]), draws.pick(towns)
            name = f"{draws.pick((*known['last'], *known['series']))} {kind}"
            if name in names:
                continue
            names.add(name)
            x, y = town.x + draws.integer(-30, 30), town.y + draws.integer(-30, 30)
            opens, closes = draws.integer(7, 11), draws.pick((13, 16, 18, 20, 22))
            phone = f"0{draws.integer(200, 999)} {draws.integer(10_000, 99_999)}"
            index = len(spots) + 1
            spots.append(Spot(index, name, kind, town.name, x, y, opens, closes, phone))
        return tuple(spots)

    def found(self, given: Fields) -> list[tuple[float, Spot]]:
        """Return distances and places that fit, the nearest first."""
        query, near = given.get("q", "").lower(), self._spot(given.get("near"))
        hour = number(given.get("open"), 0, 23)
        found = []
        for spot in self.spots:
            fits = query in spot.name.lower() or query == spot.kind
            if fits and (hour is None or spot.opens <= hour < spot.closes):
                found.append((distance(near, spot) if near else 0.0, spot))
        return sorted(found, key=lambda hit: (hit[0], hit[1].name))

    def _spot(self, given: str | None) -> Spot | None:
        return self.by_name.get(clean(given).lower())

    def _form(self, given: Fields) -> ui.Node:
        return ui.search_form(
            "/search",
            "Search the map",
            given.get("q", ""),
            ui.textbox("Near", "near", given.get("near", "")),
            ui.select("Open at", "open", HOURS, given.get("open", "any")),
        )

    def show_front(self, state: tuple[tuple[str, int], ...], given: Fields) -> ui.Page:
        towns = ((ui.link(town, "/place", id=i + 1),) for i, town in enumerate(self.common.towns))
        return self.page("The map", self._form(given), ui.rows(towns))

    def show_search(self, state: tuple[tuple[str, int], ...], given: Fields) -> ui.Page:
        near, asked = self._spot(given.get("near")), clean(given.get("near"))
        unknown = [ui.text(f"No place is named {asked}.")] if asked and near is None else []

        def row(hit: tuple[float, Spot]) -> tuple[ui.Node, ...]:
            said = f"{hit[1].kind}, {hit[1].town}" + (f", {hit[0]:.1f} km away" if near else "")
            return ui.link(hit[1].name, "/place", id=hit[1].id), ui.text(said)

        found = ui.listing(self.found(given), "/search", given, row)
        return self.page("Search", self._form(given), *unknown, *found)

    def show_place(self, state: tuple[tuple[str, int], ...], given: Fields) -> ui.Page | None:
        index = number(given.get("id"), 1, len(self.spots))
        if index is None:
            return None
        spot = self.spots[index - 1]
        hours = [ui.text(f"Phone: {spot.phone}"), ui.text(f"Open: {spot.opens} to {spot.closes}")]
        return self.page(
            spot.name,
            *ui.facts({"Kind": spot.kind, "Town": spot.town}),
            *(hours if spot.kind != "town" else []),
            ui.post("/save", {"id": index}, ui.select("List", "list", LISTS), ui.button("Save")),
        )

    def show_route(self, state: tuple[tuple[str, int], ...], given: Fields) -> ui.Page:
        start, end = self._spot(given.get("from")), self._spot(given.get("to"))
        by = given.get("by", "car")
        parts = list[ui.Node]()
        if start and end and by in _SPEEDS:
            length = distance(start, end)
            parts = [
                *ui.facts(
                    {
                        "Route": f"{start.name} to {end.name} by {by}",
                        "Distance": f"{length:.1f} km",
                        "Time": duration(length, by),
                    }
                )
            ]
        elif given:
            parts = [ui.text("No such place is on the map.")]
        return self.page(
            "Route",
            ui.form(
                "/route",
                ui.textbox("From", "from", given.get("from", "")),
                ui.textbox("To", "to", given.get("to", "")),
                ui.radios("By", "by", WAYS, by),
                ui.button("Show route"),
            ),
            *parts,
        )

    def post_save(self, state: tuple[tuple[str, int], ...], given: Fields) -> Redirect | None:
        index, name = number(given.get("id"), 1, len(self.spots)), given.get("list", "")
        if index is None or name not in LISTS:
            return None
        kept = tuple(one for one in state if one != (name, index))
        return Redirect((*kept, (name, index))[-_LAST:], "/saved")

    def show_saved(self, state: tuple[tuple[str, int], ...], given: Fields) -> ui.Page:
        found = (
            (ui.text(f"{name}:"), ui.link(self.spots[index - 1].name, "/place", id=index))
            for name, index in state[-20:]
        )
        return self.page("Saved places", ui.text(f"Saved: {len(state)}"), ui.rows(found))


def distance(one: Spot, other: Spot) -> float:
    """Return the distance of two spots in kilometers, rounded as it is shown."""
    return round(hypot(one.x - other.x, one.y - other.y) / 10, 1)


def duration(length: float, by: str) -> str:
    """Return how long a way of so many kilometers takes."""
    minutes = round(60 * length / _SPEEDS[by])
    return f"{minutes // 60} h {minutes % 60} min"
