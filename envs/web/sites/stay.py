"""``stay.test``: places to stay, with dates, filters and bookings."""

from __future__ import annotations

from typing import NamedTuple

from ...generated import Draws
from .. import pages as ui
from .base import Common, Fields, Redirect, Site, clean, number, words

NIGHTS = ("1", "2", "3", "4", "5", "6", "7")
GUESTS = ("1", "2", "3", "4", "5", "6")
SORTS = ("name", "price", "rating")
TOWNS = 8
_PLACES, _HORIZON = 80, 120


class Place(NamedTuple):
    """A place to stay; `taken` are the nights, in days after today, that are booked by others."""

    id: int
    name: str
    town: str
    price: int
    guests: int
    rating: int
    amenities: tuple[str, ...]
    host: str
    taken: frozenset[int]


class Booking(NamedTuple):
    """A booking; `day` is in days after today."""

    place: int
    day: int
    nights: int
    guests: int
    name: str
    breakfast: bool
    status: str = "confirmed"


class Stay(Site):
    """The booking site of an instance; its state is a tuple of bookings."""

    host, title = "stay.test", "Stay"
    menu = (("Stay", "/"), ("Bookings", "/bookings"))

    def __init__(self, common: Common):
        super().__init__(common)
        self.places = self._built()
        draws = Draws("web", common.seed, "bookings")
        places = draws.some(self.places, 3)
        self.start = tuple(
            Booking(place.id, draws.integer(5, 60), draws.integer(1, 5), 2, "you", False)
            for place in places
        )

    def _built(self) -> tuple[Place, ...]:
        draws = Draws("web", self.common.seed, "stay")
        places = []
        for index, name in enumerate(self.common.stays[:_PLACES]):
            taken = set[int]()
            for _ in range(draws.integer(2, 6)):
                first = draws.integer(0, _HORIZON)
                taken |= set(range(first, first + draws.integer(2, 9)))
            amenities = draws.some(words()["amenities"], draws.integer(1, 3))
            town, price = self.common.towns[index % TOWNS], 100 * draws.integer(35, 240)
            guests, rating = draws.integer(2, 6), draws.integer(25, 50)
            host = draws.pick(self.common.people)
            found = frozenset(taken)
            places.append(
                Place(index + 1, name, town, price, guests, rating, amenities, host, found)
            )
        return tuple(places)

    def is_free(self, place: Place, day: int, nights: int) -> bool:
        return not place.taken & set(range(day, day + nights))

    def found(self, given: Fields) -> list[Place]:
        """Return the places that fit the filters, in the order asked for."""
        wanted = [name for name in words()["amenities"] if given.get(name) == "yes"]
        found = [
            place
            for place in self.places
            if given.get("town", "any") in ("any", place.town)
            and place.guests >= (number(given.get("guests")) or 1)
            and all(name in place.amenities for name in wanted)
        ]
        if given.get("sort") == "price":
            return sorted(found, key=lambda place: (place.price, place.id))
        if given.get("sort") == "rating":
            return sorted(found, key=lambda place: (-place.rating, place.id))
        return sorted(found, key=lambda place: place.name)

    def _form(self, given: Fields) -> ui.Node:
        towns = ("any", *self.common.towns[:TOWNS])
        boxes = (
            ui.checkbox(name.capitalize(), name, given.get(name) == "yes")
            for name in words()["amenities"]
        )
        return ui.form(
            "/search",
            ui.select("Town", "town", towns, given.get("town", "any")),
            ui.select("Guests", "guests", GUESTS, given.get("guests", "1")),
            *boxes,
            ui.select("Sort by", "sort", SORTS, given.get("sort", "name")),
            ui.button("Search"),
        )

    def show_front(self, state: tuple[Booking, ...], given: Fields) -> ui.Page:
        today = ui.text(f"Today: {self.common.today}")
        return self.page("Places to stay", today, self._form(given))

    def show_search(self, state: tuple[Booking, ...], given: Fields) -> ui.Page:
        found = ui.listing(self.found(given), "/search", given, self._row)
        return self.page("Search", self._form(given), *found)

    def _row(self, place: Place) -> tuple[ui.Node, ...]:
        said = f"{place.town}, {place.price // 100} a night, rating {place.rating / 10}"
        return ui.link(place.name, "/place", id=place.id), ui.text(said)

    def _of(self, given: Fields) -> Place | None:
        index = number(given.get("id"), 1, len(self.places))
        return self.places[index - 1] if index else None

    def _dates(self, given: Fields) -> tuple[int, int, int] | None:
        """Return the day, the nights and the guests that a request names; None for others."""
        nights, guests = number(given.get("nights"), 1, 7), number(given.get("guests"), 1, 6)
        try:
            day = self.common.offset(clean(given.get("day")))
        except ValueError:
            return None
        if nights is None or guests is None or not 0 <= day <= 365:
            return None
        return day, nights, guests

    def show_place(self, state: tuple[Booking, ...], given: Fields) -> ui.Page | None:
        place = self._of(given)
        if place is None:
            return None
        wrong = [ui.text("No such date or number.")] if given.get("wrong") else []
        return self.page(
            place.name,
            *ui.facts(
                {
                    "Town": place.town,
                    "Price a night": place.price // 100,
                    "Guests at most": place.guests,
                    "Rating": place.rating / 10,
                    "Amenities": ", ".join(place.amenities),
                    "Host": place.host,
                    "Today": self.common.today,
                }
            ),
            *wrong,
            ui.form(
                "/book",
                ui.hidden("id", str(place.id)),
                ui.textbox("Check-in", "day"),
                ui.select("Nights", "nights", NIGHTS),
                ui.select("Guests", "guests", GUESTS),
                ui.button("Check availability"),
            ),
        )

    def show_book(self, state: tuple[Booking, ...], given: Fields) -> ui.Page | None:
        place, dates = self._of(given), self._dates(given)
        if place is None:
            return None
        back = ui.link("Other dates", "/place", id=place.id)
        if dates is None:
            return self.page(place.name, ui.text("Dates are written as in 2031-12-31."), back)
        day, nights, guests = dates
        if guests > place.guests:
            return self.page(place.name, ui.text(f"At most {place.guests} guests."), back)
        if not self.is_free(place, day, nights):
            return self.page(place.name, ui.text("Sold out on these dates."), back)
        return self.page(
            place.name,
            *ui.facts(
                {
                    "Check-in": self.common.day(day),
                    "Nights": nights,
                    "Guests": guests,
                    "Total": place.price // 100 * nights,
                }
            ),
            back,
            ui.post(
                "/book",
                {key: given.get(key, "") for key in ("id", "day", "nights", "guests")},
                ui.textbox("Name of the guest", "name"),
                ui.checkbox("Breakfast", "breakfast"),
                ui.button("Book"),
            ),
        )

    def post_book(self, state: tuple[Booking, ...], given: Fields) -> Redirect | None:
        place, dates, name = self._of(given), self._dates(given), clean(given.get("name"))
        if place is None:
            return None
        free = dates is not None and dates[2] <= place.guests and self.is_free(place, *dates[:2])
        if dates is None or not free or not name:
            return Redirect(state, ui.address("/place", id=place.id, wrong="yes"))
        booking = Booking(place.id, *dates, name, given.get("breakfast") == "yes")
        return Redirect((*state, booking), ui.address("/booking", id=len(state) + 1))

    def show_bookings(self, state: tuple[Booking, ...], given: Fields) -> ui.Page:
        links = (
            (ui.link(f"Booking {index + 1}: {self.places[one.place - 1].name}", self._at(index)),)
            for index, one in list(enumerate(state))[-40:]
        )
        return self.page("Bookings", ui.rows(links))

    def _at(self, index: int) -> str:
        return ui.address("/booking", id=index + 1)

    def show_booking(self, state: tuple[Booking, ...], given: Fields) -> ui.Page | None:
        index = number(given.get("id"), 1, len(state))
        if index is None:
            return None
        one = state[index - 1]
        cancel = ui.post("/cancel", {"id": index}, ui.button("Cancel booking"))
        return self.page(
            f"Booking {index}",
            *ui.facts(
                {
                    "Place": self.places[one.place - 1].name,
                    "Town": self.places[one.place - 1].town,
                    "Status": one.status,
                    "Check-in": self.common.day(one.day),
                    "Nights": one.nights,
                    "Guests": one.guests,
                    "Name of the guest": one.name,
                    "Breakfast": "yes" if one.breakfast else "no",
                }
            ),
            *([cancel] if one.status == "confirmed" else []),
        )

    def post_cancel(self, state: tuple[Booking, ...], given: Fields) -> Redirect | None:
        index = number(given.get("id"), 1, len(state))
        if index is None:
            return None
        gone = state[index - 1]._replace(status="cancelled")
        return Redirect((*state[: index - 1], gone, *state[index:]), self._at(index - 1))
