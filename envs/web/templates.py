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
    written = packaged("comap.envs.web", "templates")[name]
    slots = Slots(world, Draws("web", world.common.seed, name, number))
    filled: Filling = getattr(slots, name.replace("-", "_"))()
    if filled is None:
        return None
    return Draft(
        written["level"],
        written["goal"].format_map(filled),
        written["start"],
        tuple(step.format_map(filled) for step in written["plan"]),
        written.get("answer", "").format_map(filled),
        tuple(source.format_map(filled) for source in written.get("sources", ())),
        tuple(slots.others),
    )


class Slots:
    """Draws what stands in a template's slots: one method for each template."""

    def __init__(self, world: World, draws: Draws):
        self.world, self.draws, self.words = world, draws, words()
        self.others: list[str] = []

    def shop_detail(self) -> Filling:
        product = self.draws.pick(self.world.shop.products)
        asked = self.draws.pick(("material", "color", "brand"))
        materials = [one for goods in self.words["goods"].values() for one in goods["materials"]]
        known = {
            "material": materials,
            "color": self.words["colors"],
            "brand": self.words["brands"],
        }
        self.others = known[asked]
        return {"asked": asked, "product": product.name, "value": getattr(product, asked)}

    def shop_status(self) -> Filling:
        name, order = self.draws.pick(self.world.shop.start.orders)
        return {"order": str(name), "status": order.status}

    def shop_cheapest(self) -> Filling:
        asked = {
            "category": self.draws.pick(tuple(self.words["goods"])),
            "rating": self.draws.pick(("3", "4", "4.5")),
        }
        best, *rest = self.world.shop.found(asked | {"sort": "price"})
        self.others = self.words["brands"]
        if rest and rest[0].price == best.price:
            return None
        return asked | {"product": best.name, "brand": best.brand}

    def shop_cart(self) -> Filling:
        one, other = self.draws.some(self.world.shop.products, 2)
        sizes = {"size": self.draws.pick(SIZES[1:]), "size2": self.draws.pick(SIZES[1:])}
        return {"product": one.name, "other": other.name, **sizes}

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
        articles = self.world.wiki.articles.values()
        return self.draws.pick([one for one in articles if kind in ("", one.kind)])

    def wiki_fact(self) -> Filling:
        article = self._article()
        label, value = self.draws.pick(tuple(article.facts.items()))
        return {"article": article.title, "label": label, "value": value}

    def wiki_chain(self) -> Filling:
        company, articles = self._article("company"), self.world.wiki.articles
        founder = articles[company.links["Founder"]]
        town = articles[founder.links["Birthplace"]]
        found = {"company": company.title, "founder": founder.title, "town": town.title}
        return found | {"year": town.facts["First mentioned"]}

    def wiki_compare(self) -> Filling:
        one, other = self.draws.some(self.world.common.towns, 2)
        self.others, articles = [one, other], self.world.wiki.articles
        most = max(one, other, key=lambda town: int(articles[town].facts["Inhabitants"]))
        return {"one": one, "other": other, "most": most}

    def wiki_reverse(self) -> Filling:
        person, wiki = self._article("person").title, self.world.wiki
        found = [one for one in wiki.linked[person] if wiki.articles[one].kind == "company"]
        if len(found) != 1:
            return None
        year = wiki.articles[found[0]].facts["Founded"]
        return {"person": person, "company": found[0], "year": year}

    def wiki_missing(self) -> Filling:
        return {"person": self.draws.pick(self.world.common.people)}  # they have mail, no article

    def forum_date(self) -> Filling:
        thread = self.draws.pick(self.world.forum.threads)
        day = self.world.common.day(-thread.age)
        return {"board": thread.board, "thread": thread.title, "day": day}

    forum_vote = forum_date

    def forum_member(self) -> Filling:
        board, forum = self.draws.pick(self.words["boards"]), self.world.forum
        newest = forum.board(forum.start, board, "newest")[0]
        year = str(forum.member(newest.author)[0])
        return {"board": board, "thread": newest.title, "author": newest.author, "year": year}

    def forum_reply(self) -> Filling:
        thread = self.draws.pick(self.world.forum.threads)
        text = self.draws.pick(self.words["remarks"])
        return {"board": thread.board, "thread": thread.title, "text": text}

    def forum_post(self) -> Filling:
        title, text = (
            self.draws.pick(self.words["subjects"]),
            self.draws.pick(self.words["openings"]),
        )
        return {"board": self.draws.pick(self.words["boards"]), "title": title, "text": text}

    def stay_book(self) -> Filling:
        place, nights = self.draws.pick(self.world.stay.places), self.draws.pick(NIGHTS[1:])
        day, guests = self.draws.integer(3, 90), self.draws.integer(2, place.guests)
        found = self._booking(place.name, place.town, day, nights) | {"guests": str(guests)}
        return found if self.world.stay.is_free(place, day, int(nights)) else None

    def stay_soldout(self) -> Filling:
        place, nights = self.draws.pick(self.world.stay.places), self.draws.pick(NIGHTS[1:])
        return self._booking(place.name, place.town, self.draws.pick(sorted(place.taken)), nights)

    def _booking(self, place: str, town: str, day: int, nights: str) -> dict[str, str]:
        name, date = self.draws.pick(self.world.common.people), self.world.common.day(day)
        return {"place": place, "town": town, "day": date, "nights": nights, "name": name}

    def stay_cheapest(self) -> Filling:
        amenity = self.draws.pick(self.words["amenities"])
        best, second, *_ = self.world.stay.found({amenity: "yes", "sort": "price"})
        self.others = self.world.common.people
        if best.price == second.price:
            return None
        return {"amenity": amenity, "place": best.name, "host": best.host}

    def stay_cancel(self) -> Filling:
        stay = self.world.stay
        number = self.draws.integer(1, len(stay.start))
        place = stay.places[stay.start[number - 1].place - 1].name
        return {"number": str(number), "place": place}

    def map_time(self) -> Filling:
        start, end = self.draws.some(self.world.map.spots, 2)
        by = self.draws.pick(("foot", "bicycle"))
        time = duration(distance(start, end), by)
        return {"start": start.name, "end": end.name, "by": by, "time": time}

    def map_nearest(self) -> Filling:
        kind, town = self.draws.pick(self.words["kinds"]), self.draws.pick(self.world.common.towns)
        hour = self.draws.pick(("12", "18"))
        found = self.world.map.found({"q": kind, "near": town, "open": hour})
        if len(found) < 2 or found[0][0] == found[1][0]:
            return None
        asked, nearest = {"kind": kind, "town": town, "hour": hour}, found[0][1]
        return asked | {"place": nearest.name, "phone": nearest.phone}

    def map_save(self) -> Filling:
        place = self.draws.pick(self.world.map.spots).name
        return {"place": place, "list": self.draws.pick(LISTS[1:])}

    def map_missing(self) -> Filling:
        kind = self.draws.pick(("airport", "castle", "theater", "zoo"))
        return {"kind": kind, "town": self.draws.pick(self.world.common.towns)}

    def _message(self, kind: str) -> dict[str, str]:
        message = self.draws.pick([one for one in self.world.mail.messages if one.kind == kind])
        about = {"id": str(message.id), "sender": message.sender, "subject": message.subject}
        return about | message.facts

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
        found, stay = self._message("plan"), self.world.stay
        nights = self.draws.pick(NIGHTS[1:])
        place = next(one for one in stay.places if one.name == found["Place"])
        day = self.world.common.offset(found["Check-in"])
        return found | {"nights": nights} if stay.is_free(place, day, int(nights)) else None

    def home_route(self) -> Filling:
        person, spots = self._article("person"), self.world.map.by_name
        start, end = person.links["Birthplace"], self.draws.pick(self.world.common.towns)
        length = distance(spots[start.lower()], spots[end.lower()])
        found = {"person": person.title, "start": start, "end": end, "length": f"{length:.1f} km"}
        return found if start != end else None
