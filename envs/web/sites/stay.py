"""``stay.test``: places to stay, with dates, filters and bookings."""

from __future__ import annotations

from typing import NamedTuple

from ...generated import Draws
from ..pages import Node, Page, button, checkbox, form, hidden, link, rows, select, text, textbox
from .base import Common, Fields, Redirect, Site, address, clean, labeled, listing, number, words

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
        self.get = {
            "/": self._front,
            "/search": self._search,
            "/place": self._place,
            "/book": self._offer,
            "/bookings": self._bookings,
            "/booking": self._booking,
        }
        self.post = {"/book": self._book, "/cancel": self._cancel}

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

    def records(self, state: tuple[Booking, ...]) -> set[tuple[str, ...]]:
        return {
            (
                "booking",
                self.places[one.place - 1].name,
                self.common.day(one.day),
                str(one.nights),
                str(one.guests),
                one.name.lower(),
                str(one.breakfast),
                one.status,
            )
            for one in state
        }

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

    def _form(self, given: Fields) -> Node:
        towns = ("any", *self.common.towns[:TOWNS])
        boxes = (
            checkbox(name.capitalize(), name, given.get(name) == "yes")
            for name in words()["amenities"]
        )
        return form(
            "/search",
            select("Town", "town", towns, given.get("town", "any")),
            select("Guests", "guests", GUESTS, given.get("guests", "1")),
            *boxes,
            select("Sort by", "sort", SORTS, given.get("sort", "name")),
            button("Search"),
        )

    def _front(self, state: tuple[Booking, ...], given: Fields) -> Page:
        today = labeled("Today", self.common.today.isoformat())
        return self.page("Places to stay", today, self._form(given))

    def _search(self, state: tuple[Booking, ...], given: Fields) -> Page:
        found = listing(self.found(given), "/search", given, self._row)
        return self.page("Search", self._form(given), *found)

    def _row(self, place: Place) -> tuple[Node, ...]:
        said = f"{place.town}, {place.price // 100} a night, rating {place.rating / 10}"
        return link(place.name, address("/place", id=place.id)), text(said)

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

    def _about(self, place: Place) -> tuple[Node, ...]:
        return (
            labeled("Town", place.town),
            labeled("Price a night", place.price // 100),
            labeled("Guests at most", place.guests),
            labeled("Rating", place.rating / 10),
            labeled("Amenities", ", ".join(place.amenities)),
            labeled("Host", place.host),
        )

    def _place(self, state: tuple[Booking, ...], given: Fields) -> Page | None:
        place = self._of(given)
        if place is None:
            return None
        wrong = [text("No such date or number.")] if given.get("wrong") else []
        return self.page(
            place.name,
            *self._about(place),
            labeled("Today", self.common.today.isoformat()),
            *wrong,
            form(
                "/book",
                hidden("id", str(place.id)),
                textbox("Check-in", "day"),
                select("Nights", "nights", NIGHTS),
                select("Guests", "guests", GUESTS),
                button("Check availability"),
            ),
        )

    def _offer(self, state: tuple[Booking, ...], given: Fields) -> Page | None:
        place, dates = self._of(given), self._dates(given)
        if place is None:
            return None
        back = link("Other dates", address("/place", id=place.id))
        if dates is None:
            return self.page(place.name, text("Dates are written as in 2031-12-31."), back)
        day, nights, guests = dates
        if guests > place.guests:
            return self.page(place.name, text(f"At most {place.guests} guests."), back)
        if not self.is_free(place, day, nights):
            return self.page(place.name, text("Sold out on these dates."), back)
        return self.page(
            place.name,
            labeled("Check-in", self.common.day(day)),
            labeled("Nights", nights),
            labeled("Guests", guests),
            labeled("Total", place.price // 100 * nights),
            back,
            form(
                "/book",
                *(hidden(key, given.get(key, "")) for key in ("id", "day", "nights", "guests")),
                textbox("Name of the guest", "name"),
                checkbox("Breakfast", "breakfast"),
                button("Book"),
                method="post",
            ),
        )

    def _book(self, state: tuple[Booking, ...], given: Fields) -> Redirect | None:
        place, dates, name = self._of(given), self._dates(given), clean(given.get("name"))
        if place is None:
            return None
        free = dates is not None and dates[2] <= place.guests and self.is_free(place, *dates[:2])
        if dates is None or not free or not name:
            return Redirect(state, address("/place", id=place.id, wrong="yes"))
        booking = Booking(place.id, *dates, name, given.get("breakfast") == "yes")
        return Redirect((*state, booking), address("/booking", id=len(state) + 1))

    def _bookings(self, state: tuple[Booking, ...], given: Fields) -> Page:
        links = (
            (link(f"Booking {index + 1}: {self.places[one.place - 1].name}", self._at(index)),)
            for index, one in list(enumerate(state))[-40:]
        )
        return self.page("Bookings", rows(links))

    def _at(self, index: int) -> str:
        return address("/booking", id=index + 1)

    def _booking(self, state: tuple[Booking, ...], given: Fields) -> Page | None:
        index = number(given.get("id"), 1, len(state))
        if index is None:
            return None
        one = state[index - 1]
        cancel = form("/cancel", hidden("id", str(index)), button("Cancel booking"), method="post")
        return self.page(
            f"Booking {index}",
            labeled("Place", self.places[one.place - 1].name),
            labeled("Town", self.places[one.place - 1].town),
            labeled("Status", one.status),
            labeled("Check-in", self.common.day(one.day)),
            labeled("Nights", one.nights),
            labeled("Guests", one.guests),
            labeled("Name of the guest", one.name),
            labeled("Breakfast", "yes" if one.breakfast else "no"),
            *([cancel] if one.status == "confirmed" else []),
        )

    def _cancel(self, state: tuple[Booking, ...], given: Fields) -> Redirect | None:
        index = number(given.get("id"), 1, len(state))
        if index is None:
            return None
        gone = state[index - 1]._replace(status="cancelled")
        return Redirect((*state[: index - 1], gone, *state[index:]), self._at(index - 1))
