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
_PLACES = 80
_HORIZON = 120  # days after today within which nights are booked by others


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
    """A booking; `place` is the place's number, `day` is in days after today."""

    place: int
    day: int
    nights: int
    guests: int
    name: str
    breakfast: bool
    status: str = "confirmed"


class Stay(Site):
    """The booking site of an instance; its state is a tuple of bookings."""

    host = "stay.test"
    title = "Stay"
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
        """Return the places to stay, with the nights that others have booked, drawn from the seed."""
        draws = Draws("web", self.common.seed, "stay")
        places = []
        for index, name in enumerate(self.common.stays[:_PLACES]):
            nights: set[int] = set()
            for _ in range(draws.integer(2, 6)):
                first_night = draws.integer(0, _HORIZON)
                nights.update(range(first_night, first_night + draws.integer(2, 9)))

            # In the order in which they are drawn: it is part of the instance.
            amenities = draws.some(words()["amenities"], draws.integer(1, 3))
            price = 100 * draws.integer(35, 240)
            guests = draws.integer(2, 6)
            rating = draws.integer(25, 50)
            host = draws.pick(self.common.people)
            places.append(
                Place(
                    id=index + 1,
                    name=name,
                    town=self.common.towns[index % TOWNS],
                    price=price,
                    guests=guests,
                    rating=rating,
                    amenities=amenities,
                    host=host,
                    taken=frozenset(nights),
                )
            )
        return tuple(places)

    def is_free(self, place: Place, day: int, nights: int) -> bool:
        return not place.taken & set(range(day, day + nights))

    def found(self, fields: Fields) -> list[Place]:
        """Return the places that fit the filters, in the order asked for."""
        amenities = [name for name in words()["amenities"] if fields.get(name) == "yes"]
        places = [
            place
            for place in self.places
            if fields.get("town", "any") in ("any", place.town)
            and place.guests >= (number(fields.get("guests")) or 1)
            and all(name in place.amenities for name in amenities)
        ]
        if fields.get("sort") == "price":
            return sorted(places, key=lambda place: (place.price, place.id))
        if fields.get("sort") == "rating":
            return sorted(places, key=lambda place: (-place.rating, place.id))
        return sorted(places, key=lambda place: place.name)

    def _form(self, fields: Fields) -> ui.Node:
        towns = ("any", *self.common.towns[:TOWNS])
        boxes = (
            ui.checkbox(name.capitalize(), name, fields.get(name) == "yes")
            for name in words()["amenities"]
        )
        return ui.form(
            "/search",
            ui.select("Town", "town", towns, fields.get("town", "any")),
            ui.select("Guests", "guests", GUESTS, fields.get("guests", "1")),
            *boxes,
            ui.select("Sort by", "sort", SORTS, fields.get("sort", "name")),
            ui.button("Search"),
        )

    def show_front(self, state: tuple[Booking, ...], fields: Fields) -> ui.Page:
        today = ui.text(f"Today: {self.common.today}")
        return self.page("Places to stay", today, self._form(fields))

    def show_search(self, state: tuple[Booking, ...], fields: Fields) -> ui.Page:
        results = ui.listing(self.found(fields), "/search", fields, self._row)
        return self.page("Search", self._form(fields), *results)

    def _row(self, place: Place) -> tuple[ui.Node, ...]:
        description = f"{place.town}, {place.price // 100} a night, rating {place.rating / 10}"
        return ui.link(place.name, "/place", id=place.id), ui.text(description)

    def _of(self, fields: Fields) -> Place | None:
        place_id = number(fields.get("id"), 1, len(self.places))
        return self.places[place_id - 1] if place_id else None

    def _dates(self, fields: Fields) -> tuple[int, int, int] | None:
        """Return the day, the nights and the guests that a request names; None for others."""
        nights = number(fields.get("nights"), 1, 7)
        guests = number(fields.get("guests"), 1, 6)
        try:
            day = self.common.offset(clean(fields.get("day")))
        except ValueError:
            return None
        if nights is None or guests is None or not 0 <= day <= 365:
            return None
        return day, nights, guests

    def show_place(self, state: tuple[Booking, ...], fields: Fields) -> ui.Page | None:
        place = self._of(fields)
        if place is None:
            return None
        notes = [ui.text("No such date or number.")] if fields.get("wrong") else []
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
            *notes,
            ui.form(
                "/book",
                ui.hidden("id", str(place.id)),
                ui.textbox("Check-in", "day"),
                ui.select("Nights", "nights", NIGHTS),
                ui.select("Guests", "guests", GUESTS),
                ui.button("Check availability"),
            ),
        )

    def show_book(self, state: tuple[Booking, ...], fields: Fields) -> ui.Page | None:
        place = self._of(fields)
        dates = self._dates(fields)
        if place is None:
            return None

        # What cannot be booked says why, and leads back.
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
                {key: fields.get(key, "") for key in ("id", "day", "nights", "guests")},
                ui.textbox("Name of the guest", "name"),
                ui.checkbox("Breakfast", "breakfast"),
                ui.button("Book"),
            ),
        )

    def post_book(self, state: tuple[Booking, ...], fields: Fields) -> Redirect | None:
        place = self._of(fields)
        dates = self._dates(fields)
        name = clean(fields.get("name"))
        if place is None:
            return None

        # Checked again: a form may be sent that `show_book` would not have shown.
        if dates is None or not name:
            return Redirect(state, ui.address("/place", id=place.id, wrong="yes"))
        day, nights, guests = dates
        if guests > place.guests or not self.is_free(place, day, nights):
            return Redirect(state, ui.address("/place", id=place.id, wrong="yes"))

        has_breakfast = fields.get("breakfast") == "yes"
        booking = Booking(place.id, day, nights, guests, name, has_breakfast)
        return Redirect((*state, booking), _booking_address(len(state) + 1))

    def show_bookings(self, state: tuple[Booking, ...], fields: Fields) -> ui.Page:
        rows = []
        for booking_id, booking in list(enumerate(state, 1))[-40:]:
            place = self.places[booking.place - 1]
            name = f"Booking {booking_id}: {place.name}"
            rows.append((ui.link(name, _booking_address(booking_id)),))
        return self.page("Bookings", ui.rows(rows))

    def show_booking(self, state: tuple[Booking, ...], fields: Fields) -> ui.Page | None:
        booking_id = number(fields.get("id"), 1, len(state))
        if booking_id is None:
            return None
        booking = state[booking_id - 1]
        place = self.places[booking.place - 1]
        facts = {
            "Place": place.name,
            "Town": place.town,
            "Status": booking.status,
            "Check-in": self.common.day(booking.day),
            "Nights": booking.nights,
            "Guests": booking.guests,
            "Name of the guest": booking.name,
            "Breakfast": "yes" if booking.breakfast else "no",
        }

        # What is canceled stays so: there is nothing more to press.
        buttons = []
        if booking.status == "confirmed":
            buttons.append(ui.post("/cancel", {"id": booking_id}, ui.button("Cancel booking")))
        return self.page(f"Booking {booking_id}", *ui.facts(facts), *buttons)

    def post_cancel(self, state: tuple[Booking, ...], fields: Fields) -> Redirect | None:
        booking_id = number(fields.get("id"), 1, len(state))
        if booking_id is None:
            return None
        cancelled = state[booking_id - 1]._replace(status="cancelled")
        bookings = (*state[: booking_id - 1], cancelled, *state[booking_id:])
        return Redirect(bookings, _booking_address(booking_id))


def _booking_address(booking_id: int) -> str:
    return ui.address("/booking", id=booking_id)
