"""What tasks ask for: templates over all sites, each with a plan that does it.

``data/templates.json`` has the texts. `Slots` draws what stands in their slots from the catalogue of an
instance. An answer stands on one page only, so that it has to be looked up; what has to be typed is in
quotes, or on a page.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ..generated import Draws
from ..storage import packaged
from .sites import World
from .sites.base import words
from .sites.maps import LISTS, distance, duration
from .sites.shop import SIZES
from .sites.stay import NIGHTS
from .sites.wiki import Article

NOTHING = "N/A"
Filling: TypeAlias = "dict[str, str] | None"


class Draft(NamedTuple):
    """A task before it was played."""

    level: int  # 1 (look up), 2 (filter, compare, fill in) or 3 (several sites)
    goal: str
    start: str
    plan: tuple[str, ...]  # actions by names, without the last ``stop``
    answer: str  # empty where something has to be changed instead
    sources: tuple[str, ...]  # pages to be read; of an answer its last one where there are none
    others: tuple[str, ...]  # answers of the same kind: one that names one of them as well is wrong


def template_names() -> tuple[str, ...]:
    """Return the names of all templates."""
    return tuple(packaged("comap.envs.web", "templates"))


def draft(name: str, world: World, number: int) -> Draft | None:
    """Return a draw of a template on an instance; None where what was drawn does not fit."""
    template = packaged("comap.envs.web", "templates")[name]
    slots = Slots(world, Draws("web", world.common.seed, name, number))
    filling: Filling = getattr(slots, name.replace("-", "_"))()
    if filling is None:
        return None
    return Draft(
        template["level"],
        template["goal"].format_map(filling),
        template["start"],
        tuple(step.format_map(filling) for step in template["plan"]),
        template.get("answer", "").format_map(filling),
        tuple(source.format_map(filling) for source in template.get("sources", ())),
        tuple(slots.others),
    )


class Slots:
    """Draws what stands in a template's slots: one method for each template.

    The order of the draws in a method is part of its tasks: another one would make others of all ids.
    """

    def __init__(self, world: World, draws: Draws):
        self.world = world
        self.draws = draws
        self.words = words()
        self.others: list[str] = []

    def shop_detail(self) -> Filling:
        product = self.draws.pick(self.world.shop.products)
        attribute = self.draws.pick(("material", "color", "brand"))
        if attribute == "material":
            for goods in self.words["goods"].values():
                self.others += goods["materials"]
        elif attribute == "color":
            self.others = self.words["colors"]
        else:
            self.others = self.words["brands"]
        return {
            "asked": attribute,
            "product": product.name,
            "value": getattr(product, attribute),
        }

    def shop_status(self) -> Filling:
        number, order = self.draws.pick(self.world.shop.start.orders)
        return {"order": str(number), "status": order.status}

    def shop_cheapest(self) -> Filling:
        filters = {
            "category": self.draws.pick(tuple(self.words["goods"])),
            "rating": self.draws.pick(("3", "4", "4.5")),
        }
        cheapest, *rest = self.world.shop.found(filters | {"sort": "price"})
        self.others = self.words["brands"]
        if rest and rest[0].price == cheapest.price:
            return None  # either would be right
        return filters | {"product": cheapest.name, "brand": cheapest.brand}

    def shop_cart(self) -> Filling:
        first, second = self.draws.some(self.world.shop.products, 2)
        return {
            "product": first.name,
            "other": second.name,
            "size": self.draws.pick(SIZES[1:]),  # the first size is chosen already
            "size2": self.draws.pick(SIZES[1:]),
        }

    def shop_order(self) -> Filling:
        return {
            "product": self.draws.pick(self.world.shop.products).name,
            "size": self.draws.pick(SIZES[1:]),
            "quantity": str(self.draws.integer(2, 5)),
            "street": f"{self.draws.integer(1, 99)} {self.draws.pick(self.words['streets'])}",
            "town": self.draws.pick(self.world.common.towns),
        }

    def shop_missing(self) -> Filling:
        goods = self.draws.pick(tuple(self.words["goods"].values()))
        name = f"{self.draws.pick(self.words['series'])} {self.draws.pick(goods['kinds'])}"
        return None if self.world.shop.found({"q": name}) else {"product": name}

    def _article(self, kind: str = "") -> Article:
        """Return an article of a kind, or of any."""
        articles = self.world.wiki.articles.values()
        return self.draws.pick([article for article in articles if kind in ("", article.kind)])

    def wiki_fact(self) -> Filling:
        article = self._article()
        label, value = self.draws.pick(tuple(article.facts.items()))
        return {"article": article.title, "label": label, "value": value}

    def wiki_chain(self) -> Filling:
        company = self._article("company")
        articles = self.world.wiki.articles
        founder = articles[company.links["Founder"]]
        town = articles[founder.links["Birthplace"]]
        return {
            "company": company.title,
            "founder": founder.title,
            "town": town.title,
            "year": town.facts["First mentioned"],
        }

    def wiki_compare(self) -> Filling:
        towns = self.draws.some(self.world.common.towns, 2)
        self.others = list(towns)
        articles = self.world.wiki.articles
        largest = max(towns, key=lambda town: int(articles[town].facts["Inhabitants"]))
        return {"one": towns[0], "other": towns[1], "most": largest}

    def wiki_reverse(self) -> Filling:
        person = self._article("person").title
        wiki = self.world.wiki
        companies = [
            title for title in wiki.linked[person] if wiki.articles[title].kind == "company"
        ]
        if len(companies) != 1:
            return None
        year = wiki.articles[companies[0]].facts["Founded"]
        return {"person": person, "company": companies[0], "year": year}

    def wiki_missing(self) -> Filling:
        return {"person": self.draws.pick(self.world.common.people)}  # they have mail, no article

    def forum_date(self) -> Filling:
        thread = self.draws.pick(self.world.forum.threads)
        day = self.world.common.day(-thread.age)
        return {"board": thread.board, "thread": thread.title, "day": day}

    forum_vote = forum_date

    def forum_member(self) -> Filling:
        board = self.draws.pick(self.words["boards"])
        forum = self.world.forum
        newest = forum.board(forum.start, board, "newest")[0]
        year, _ = forum.member(newest.author)
        return {
            "board": board,
            "thread": newest.title,
            "author": newest.author,
            "year": str(year),
        }

    def forum_reply(self) -> Filling:
        thread = self.draws.pick(self.world.forum.threads)
        text = self.draws.pick(self.words["remarks"])
        return {"board": thread.board, "thread": thread.title, "text": text}

    def forum_post(self) -> Filling:
        title = self.draws.pick(self.words["subjects"])
        text = self.draws.pick(self.words["openings"])
        return {"board": self.draws.pick(self.words["boards"]), "title": title, "text": text}

    def stay_book(self) -> Filling:
        place = self.draws.pick(self.world.stay.places)
        nights = self.draws.pick(NIGHTS[1:])
        day = self.draws.integer(3, 90)
        guests = self.draws.integer(2, place.guests)
        booking = self._booking(place.name, place.town, day, nights)
        if not self.world.stay.is_free(place, day, int(nights)):
            return None
        return booking | {"guests": str(guests)}

    def stay_soldout(self) -> Filling:
        place = self.draws.pick(self.world.stay.places)
        nights = self.draws.pick(NIGHTS[1:])
        day = self.draws.pick(sorted(place.taken))  # the first night alone is enough
        return self._booking(place.name, place.town, day, nights)

    def _booking(self, place: str, town: str, day: int, nights: str) -> dict[str, str]:
        return {
            "place": place,
            "town": town,
            "day": self.world.common.day(day),
            "nights": nights,
            "name": self.draws.pick(self.world.common.people),
        }

    def stay_cheapest(self) -> Filling:
        amenity = self.draws.pick(self.words["amenities"])
        cheapest, second, *_ = self.world.stay.found({amenity: "yes", "sort": "price"})
        self.others = self.world.common.people
        if cheapest.price == second.price:
            return None  # either would be right
        return {"amenity": amenity, "place": cheapest.name, "host": cheapest.host}

    def stay_cancel(self) -> Filling:
        stay = self.world.stay
        number = self.draws.integer(1, len(stay.start))
        place = stay.places[stay.start[number - 1].place - 1].name
        return {"number": str(number), "place": place}

    def map_time(self) -> Filling:
        start, end = self.draws.some(self.world.map.spots, 2)
        vehicle = self.draws.pick(("foot", "bicycle"))
        time = duration(distance(start, end), vehicle)
        return {"start": start.name, "end": end.name, "by": vehicle, "time": time}

    def map_nearest(self) -> Filling:
        kind = self.draws.pick(self.words["kinds"])
        town = self.draws.pick(self.world.common.towns)
        hour = self.draws.pick(("12", "18"))
        hits = self.world.map.found({"q": kind, "near": town, "open": hour})
        if len(hits) < 2:
            return None
        (length, nearest), (second_length, _) = hits[:2]
        if length == second_length:
            return None  # either would be right
        return {
            "kind": kind,
            "town": town,
            "hour": hour,
            "place": nearest.name,
            "phone": nearest.phone,
        }

    def map_save(self) -> Filling:
        place = self.draws.pick(self.world.map.spots).name
        return {"place": place, "list": self.draws.pick(LISTS[1:])}

    def map_missing(self) -> Filling:
        kind = self.draws.pick(("airport", "castle", "theater", "zoo"))
        return {"kind": kind, "town": self.draws.pick(self.world.common.towns)}

    def _message(self, kind: str) -> dict[str, str]:
        """Return what a template may say of a message of a kind, with what the message says itself."""
        messages = [message for message in self.world.mail.messages if message.kind == kind]
        message = self.draws.pick(messages)
        return {
            "id": str(message.id),
            "sender": message.sender,
            "subject": message.subject,
            **message.facts,
        }

    def mail_code(self) -> Filling:
        return self._message("code")

    mail_star = mail_code

    def mail_reply(self) -> Filling:
        return self._message("code") | {"text": self.draws.pick(self.words["remarks"])}

    def mail_forward(self) -> Filling:
        return self._message("code") | {"to": self.draws.pick(self.world.common.people)}

    def home_order(self) -> Filling:
        product = self.draws.pick(self.world.shop.products).name
        return self._message("address") | {"product": product}

    def home_book(self) -> Filling:
        plan = self._message("plan")
        nights = self.draws.pick(NIGHTS[1:])
        stay = self.world.stay
        place = next(place for place in stay.places if place.name == plan["Place"])
        day = self.world.common.offset(plan["Check-in"])
        return plan | {"nights": nights} if stay.is_free(place, day, int(nights)) else None

    def home_route(self) -> Filling:
        person = self._article("person")
        start = person.links["Birthplace"]
        end = self.draws.pick(self.world.common.towns)
        if start == end:
            return None
        spots = self.world.map.by_name
        length = distance(spots[start.lower()], spots[end.lower()])
        return {
            "person": person.title,
            "start": start,
            "end": end,
            "length": f"{length:.1f} km",
        }
