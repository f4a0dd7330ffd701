"""What tasks ask for: templates over all sites, each with a plan that does it.

A template draws from the catalogue of an instance, and returns None where the draw does not fit. An
answer stands on one page only, so that it has to be looked up. What has to be typed is in quotes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ..generated import Draws
from .actions import Move, Target
from .sites import World
from .sites.base import address, words
from .sites.map import LISTS, distance
from .sites.shop import SIZES, Product
from .sites.stay import NIGHTS

NOTHING = "N/A"


class Draft(NamedTuple):
    """A task before it was played.

    Attributes:
        goal: The task in words.
        start: The address that it starts at.
        plan: Actions that do it, by names, without the last ``stop``.
        answer: What has to be answered; empty where something has to be changed instead.
        sources: Addresses of the pages that have to be read; by default the last, for an answer.
        others: Answers to the like of this; one that has one of them in it as well is wrong.
    """

    goal: str
    start: str
    plan: tuple[str, ...]
    answer: str = ""
    sources: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


Template: TypeAlias = Callable[[World, Draws], Draft | None]
TEMPLATES: dict[str, tuple[int, Template]] = {}


def _template(name: str, level: int) -> Callable[[Template], Template]:
    def add(function: Template) -> Template:
        TEMPLATES[name] = (level, function)
        return function

    return add


def _click(name: str, role: str = "link") -> str:
    return str(Move("click", Target(role=role, name=name)))


def _press(name: str) -> str:
    return _click(name, "button")


def _fill(name: str, value: str) -> str:
    return str(Move("type", Target(role="textbox", name=name), value, enter=False))


def _search(name: str, value: str) -> str:
    return str(Move("type", Target(role="searchbox", name=name), value))


def _choose(name: str, value: str, role: str = "combobox") -> str:
    return str(Move("select", Target(role=role, name=name), value))


SHOP, WIKI, FORUM, STAY = "shop.test/", "wiki.test/", "forum.test/", "stay.test/"
MAP, MAIL, HOME = "map.test/", "mail.test/inbox", "home.test/"
_SHOP_BOX, _WIKI_BOX, _MAP_BOX = "Search the shop", "Search the encyclopedia", "Search the map"


def _open_product(product: Product) -> tuple[str, ...]:
    return _search(_SHOP_BOX, product.name), _click(product.name)


@_template("shop-detail", 1)
def _shop_detail(world: World, draws: Draws) -> Draft:
    product = draws.pick(world.shop.products)
    asked = draws.pick(("material", "color", "brand"))
    goal = f'What is the {asked} of the "{product.name}" in the shop?'
    known = words()
    others = [one for goods in known["goods"].values() for one in goods["materials"]]
    others = {"material": others, "color": known["colors"], "brand": known["brands"]}[asked]
    answer: str = getattr(product, asked)
    return Draft(goal, SHOP, _open_product(product), answer, others=tuple(others))


@_template("shop-status", 1)
def _shop_status(world: World, draws: Draws) -> Draft:
    name, order = draws.pick(world.shop.start.orders)
    goal = f"What is the status of order {name} in the shop?"
    return Draft(goal, SHOP, (_click("Orders"), _click(f"Order {name}")), order.status)


@_template("shop-cheapest", 2)
def _shop_cheapest(world: World, draws: Draws) -> Draft | None:
    department, rating = draws.pick(tuple(words()["goods"])), draws.pick(("3", "4", "4.5"))
    best, *rest = world.shop.found({"category": department, "rating": rating, "sort": "price"})
    if rest and rest[0].price == best.price:
        return None
    goal = f"Which brand is the cheapest product of the category {department} that has a rating of at "
    goal += f"least {rating}?"
    plan = (
        _click(department),
        _choose("Rating of at least", rating),
        _choose("Sort by", "price"),
        _press("Search"),
        _click(best.name),
    )
    return Draft(goal, SHOP, plan, best.brand, others=tuple(words()["brands"]))


@_template("shop-cart", 2)
def _shop_cart(world: World, draws: Draws) -> Draft:
    one, other = draws.some(world.shop.products, 2)
    sizes = draws.pick(SIZES[1:]), draws.pick(SIZES[1:])
    goal = f'Put the "{one.name}" in size {sizes[0]} and the "{other.name}" in size {sizes[1]} into the '
    goal += "cart of the shop, one of each."
    add = _press("Add to cart")
    first = (*_open_product(one), _choose("Size", sizes[0]), add, _click("Search"))
    return Draft(goal, SHOP, (*first, *_open_product(other), _choose("Size", sizes[1]), add))


@_template("shop-order", 2)
def _shop_order(world: World, draws: Draws) -> Draft:
    product, size = draws.pick(world.shop.products), draws.pick(SIZES[1:])
    quantity, town = draws.integer(2, 5), draws.pick(world.common.towns)
    street = f"{draws.integer(1, 99)} {draws.pick(words()['streets'])}"
    goal = f'Order {quantity} of the "{product.name}" in size {size} from the shop, to "{street}" in '
    goal += f'"{town}", by express delivery.'
    plan = (
        *_open_product(product),
        _choose("Size", size),
        _choose("Quantity", str(quantity)),
        _press("Add to cart"),
        _click("Checkout"),
        _fill("Street", street),
        _fill("Town", town),
        _choose("Delivery", "express", "radiogroup"),
        _press("Place order"),
    )
    return Draft(goal, SHOP, plan)


@_template("shop-missing", 1)
def _shop_missing(world: World, draws: Draws) -> Draft | None:
    known = words()
    kind = draws.pick(draws.pick(tuple(known["goods"].values()))["kinds"])
    name = f"{draws.pick(known['series'])} {kind}"
    if world.shop.found({"q": name}):
        return None
    goal = f'What is the price of the "{name}" in the shop?'
    return Draft(goal, SHOP, (_search(_SHOP_BOX, name),), NOTHING)


@_template("wiki-fact", 1)
def _wiki_fact(world: World, draws: Draws) -> Draft:
    article = draws.pick(tuple(world.wiki.articles.values()))
    label, value = draws.pick(tuple(article.facts.items()))
    goal = f'What does the encyclopedia say in the article "{article.title}" under "{label}"?'
    plan = (_search(_WIKI_BOX, article.title), _click(article.title))
    return Draft(goal, WIKI, plan, value)


@_template("wiki-chain", 2)
def _wiki_chain(world: World, draws: Draws) -> Draft:
    articles = world.wiki.articles
    company = draws.pick([one for one in articles.values() if one.kind == "company"])
    founder = articles[company.links["Founder"]]
    town = articles[founder.links["Birthplace"]]
    goal = f'When was the birthplace of the founder of "{company.title}" first mentioned?'
    plan = (_search(_WIKI_BOX, company.title), *map(_click, (company.title, founder.title, town.title)))
    return Draft(goal, WIKI, plan, town.facts["First mentioned"])


@_template("wiki-compare", 2)
def _wiki_compare(world: World, draws: Draws) -> Draft:
    pair = draws.some(world.common.towns, 2)
    most = max(pair, key=lambda town: int(world.wiki.articles[town].facts["Inhabitants"]))
    goal = f'Which town has more inhabitants, "{pair[0]}" or "{pair[1]}"?'
    plan = tuple(step for town in pair for step in (_search(_WIKI_BOX, town), _click(town)))
    sources = tuple("wiki.test" + address("/article", t=town) for town in pair)
    return Draft(goal, WIKI, plan, most, sources, pair)


@_template("wiki-reverse", 2)
def _wiki_reverse(world: World, draws: Draws) -> Draft | None:
    articles = world.wiki.articles
    person = draws.pick([one for one in articles.values() if one.kind == "person"])
    founded = [one for one in world.wiki.linked[person.title] if articles[one].kind == "company"]
    if len(founded) != 1:
        return None
    goal = f'In which year was the company founded whose founder is "{person.title}"?'
    plan = (_search(_WIKI_BOX, person.title), _click(person.title), _click("What links here"))
    return Draft(goal, WIKI, (*plan, _click(founded[0])), articles[founded[0]].facts["Founded"])


@_template("wiki-missing", 1)
def _wiki_missing(world: World, draws: Draws) -> Draft:
    person = draws.pick(world.common.people)  # they have mail, but no article
    goal = f'In which year was "{person}" born, according to the encyclopedia?'
    return Draft(goal, WIKI, (_search(_WIKI_BOX, person),), NOTHING)


@_template("forum-date", 1)
def _forum_date(world: World, draws: Draws) -> Draft:
    thread = draws.pick(world.forum.threads)
    goal = f'On which day was the thread "{thread.title}" written in the forum?'
    plan = (_click(thread.board), _click(thread.title))
    return Draft(goal, FORUM, plan, world.common.day(-thread.age))


@_template("forum-member", 2)
def _forum_member(world: World, draws: Draws) -> Draft:
    board = draws.pick(words()["boards"])
    newest = world.forum.board(world.forum.start, board, "newest")[0]
    goal = f"Since which year is the writer of the newest thread of the board {board} a member of the "
    goal += "forum?"
    since = world.forum.member(newest.author)[0]
    plan = (_click(board), _choose("Sort by", "newest"), _press("Sort"))
    return Draft(goal, FORUM, (*plan, _click(newest.title), _click(newest.author)), str(since))


@_template("forum-vote", 1)
def _forum_vote(world: World, draws: Draws) -> Draft:
    thread = draws.pick(world.forum.threads)
    goal = f'Vote for the thread "{thread.title}" in the forum.'
    return Draft(goal, FORUM, (_click(thread.board), _click(thread.title), _press("Upvote")))


@_template("forum-reply", 2)
def _forum_reply(world: World, draws: Draws) -> Draft:
    thread, said = draws.pick(world.forum.threads), draws.pick(words()["remarks"])
    goal = f'Reply to the thread "{thread.title}" in the forum with the words "{said}"'
    plan = (_click(thread.board), _click(thread.title), _fill("Your reply", said), _press("Reply"))
    return Draft(goal, FORUM, plan)


@_template("forum-post", 2)
def _forum_post(world: World, draws: Draws) -> Draft:
    board, subject = draws.pick(words()["boards"]), draws.pick(words()["subjects"])
    said = draws.pick(words()["openings"])
    goal = f'Open a thread with the title "{subject}" and the text "{said}" on the board {board} of the '
    goal += "forum."
    plan = (
        _click(board),
        _click("New thread"),
        _fill("Title", subject),
        _fill("Text", said),
        _press("Post thread"),
    )
    return Draft(goal, FORUM, plan)


@_template("stay-book", 2)
def _stay_book(world: World, draws: Draws) -> Draft | None:
    place, day, nights = draws.pick(world.stay.places), draws.integer(3, 90), draws.pick(NIGHTS[1:])
    if not world.stay.is_free(place, day, int(nights)):
        return None
    guests, name = draws.integer(2, place.guests), draws.pick(world.common.people)
    goal = f'Book the "{place.name}" in {place.town} from {world.common.day(day)} for {nights} nights '
    goal += f'and {guests} guests, with breakfast, in the name of "{name}".'
    plan = (
        _choose("Town", place.town),
        _press("Search"),
        _click(place.name),
        _fill("Check-in", world.common.day(day)),
        _choose("Nights", nights),
        _choose("Guests", str(guests)),
        _press("Check availability"),
        _fill("Name of the guest", name),
        _click("Breakfast", "checkbox"),
        _press("Book"),
    )
    return Draft(goal, STAY, plan)


@_template("stay-cheapest", 2)
def _stay_cheapest(world: World, draws: Draws) -> Draft | None:
    amenity = draws.pick(words()["amenities"])
    best, second, *_ = world.stay.found({amenity: "yes", "sort": "price"})
    if best.price == second.price:
        return None
    goal = f"Who is the host of the cheapest place to stay that has a {amenity}, in any town?"
    plan = (_click(amenity.capitalize(), "checkbox"), _choose("Sort by", "price"), _press("Search"))
    others = tuple(world.common.people)
    return Draft(goal, STAY, (*plan, _click(best.name)), best.host, others=others)


@_template("stay-cancel", 1)
def _stay_cancel(world: World, draws: Draws) -> Draft:
    index = draws.integer(1, len(world.stay.start))
    name = world.stay.places[world.stay.start[index - 1].place - 1].name
    plan = (_click("Bookings"), _click(f"Booking {index}: {name}"), _press("Cancel booking"))
    return Draft(f'Cancel the booking of the "{name}".', STAY, plan)


@_template("stay-soldout", 2)
def _stay_soldout(world: World, draws: Draws) -> Draft:
    place = draws.pick(world.stay.places)
    day, nights = draws.pick(sorted(place.taken)), draws.pick(NIGHTS[1:])
    name = draws.pick(world.common.people)
    goal = f'Book the "{place.name}" in {place.town} from {world.common.day(day)} for {nights} nights in '
    goal += f'the name of "{name}"; answer N/A if it is sold out.'
    plan = (
        _choose("Town", place.town),
        _press("Search"),
        _click(place.name),
        _fill("Check-in", world.common.day(day)),
        _choose("Nights", nights),
        _press("Check availability"),
    )
    return Draft(goal, STAY, plan, NOTHING)


@_template("map-time", 1)
def _map_time(world: World, draws: Draws) -> Draft:
    start, end = draws.some(world.map.spots, 2)
    by, speed = draws.pick((("foot", 5), ("bicycle", 16)))
    minutes = round(60 * distance(start, end) / speed)
    goal = f'How long does it take from "{start.name}" to "{end.name}" by {by}, according to the map?'
    plan = (
        _click("Route"),
        _fill("From", start.name),
        _fill("To", end.name),
        _choose("By", by, "radiogroup"),
        _press("Show route"),
    )
    return Draft(goal, MAP, plan, f"{minutes // 60} h {minutes % 60} min")


@_template("map-nearest", 2)
def _map_nearest(world: World, draws: Draws) -> Draft | None:
    kind, town = draws.pick(words()["kinds"]), draws.pick(world.common.towns)
    hour = draws.pick(("12", "18"))
    found = world.map.found({"q": kind, "near": town, "open": hour})
    if not found or (len(found) > 1 and found[0][0] == found[1][0]):
        return None
    goal = f'What is the phone number of the "{kind}" nearest to "{town}" of those that are open at '
    goal += f"{hour}?"
    plan = (_fill("Near", town), _choose("Open at", hour), _search(_MAP_BOX, kind))
    nearest = found[0][1]
    return Draft(goal, MAP, (*plan, _click(nearest.name)), nearest.phone)


@_template("map-save", 1)
def _map_save(world: World, draws: Draws) -> Draft:
    spot, name = draws.pick(world.map.spots), draws.pick(LISTS[1:])
    goal = f'Save "{spot.name}" to the list {name} of the map.'
    plan = (_search(_MAP_BOX, spot.name), _click(spot.name), _choose("List", name), _press("Save"))
    return Draft(goal, MAP, plan)


@_template("map-missing", 1)
def _map_missing(world: World, draws: Draws) -> Draft:
    kind, town = draws.pick(("airport", "castle", "theater", "zoo")), draws.pick(world.common.towns)
    goal = f'What is the phone number of the "{kind}" nearest to "{town}"?'
    return Draft(goal, MAP, (_fill("Near", town), _search(_MAP_BOX, kind)), NOTHING)


def _open_message(world: World, draws: Draws, kind: str) -> tuple[tuple[str, ...], str, str, int]:
    """Return how to open a message of a kind, its sender and subject, and its number."""
    message = draws.pick([one for one in world.mail.messages if one.kind == kind])
    plan = (
        _search("Search mail", message.sender),
        _click(f"{message.sender}: {message.subject}"),
    )
    return plan, message.sender, message.subject, message.id


@_template("mail-code", 1)
def _mail_code(world: World, draws: Draws) -> Draft:
    plan, sender, subject, index = _open_message(world, draws, "code")
    goal = f'Which code is in the mail from "{sender}" about "{subject}"?'
    return Draft(goal, MAIL, plan, world.mail.messages[index - 1].facts["Code"])


@_template("mail-star", 1)
def _mail_star(world: World, draws: Draws) -> Draft:
    plan, sender, subject, _ = _open_message(world, draws, "code")
    goal = f'Star the mail from "{sender}" about "{subject}".'
    return Draft(goal, MAIL, (*plan, _press("Star")))


@_template("mail-reply", 2)
def _mail_reply(world: World, draws: Draws) -> Draft:
    plan, sender, subject, _ = _open_message(world, draws, "code")
    said = draws.pick(words()["remarks"])
    goal = f'Reply to the mail from "{sender}" about "{subject}" with the words "{said}"'
    return Draft(goal, MAIL, (*plan, _click("Reply"), _fill("Text", said), _press("Send")))


@_template("mail-forward", 2)
def _mail_forward(world: World, draws: Draws) -> Draft:
    plan, sender, subject, _ = _open_message(world, draws, "code")
    to = draws.pick(world.common.people)
    goal = f'Forward the mail from "{sender}" about "{subject}" to "{to}".'
    return Draft(goal, MAIL, (*plan, _click("Forward"), _fill("To", to), _press("Send")))


@_template("home-order", 3)
def _home_order(world: World, draws: Draws) -> Draft:
    plan, sender, _, index = _open_message(world, draws, "address")
    source = "mail.test" + address("/message", id=index)
    facts, product = world.mail.messages[index - 1].facts, draws.pick(world.shop.products)
    goal = f'Order one "{product.name}", the smallest size, from the shop, to the new address that '
    goal += f'"{sender}" wrote you in a mail.'
    plan = (
        _click("Mail"),
        *plan,
        _click("Home"),
        _click("Shop"),
        *_open_product(product),
        _press("Add to cart"),
        _click("Checkout"),
        _fill("Street", facts["Street"]),
        _fill("Town", facts["Town"]),
        _press("Place order"),
    )
    return Draft(goal, HOME, plan, sources=(source,))


@_template("home-book", 3)
def _home_book(world: World, draws: Draws) -> Draft | None:
    plan, sender, _, index = _open_message(world, draws, "plan")
    source = "mail.test" + address("/message", id=index)
    facts, nights = world.mail.messages[index - 1].facts, draws.pick(NIGHTS[1:])
    place = next(one for one in world.stay.places if one.name == facts["Place"])
    day = next(day for day in range(366) if world.common.day(day) == facts["Check-in"])
    if not world.stay.is_free(place, day, int(nights)):
        return None
    goal = f'"{sender}" wrote you a mail about a few days off. Book the "{place.name}" for {nights} '
    goal += f'nights from the day in the mail, for one guest, in the name of "{sender}".'
    plan = (
        _click("Mail"),
        *plan,
        _click("Home"),
        _search("Search all sites", place.name),
        _click(place.name),
        _fill("Check-in", facts["Check-in"]),
        _choose("Nights", nights),
        _press("Check availability"),
        _fill("Name of the guest", sender),
        _press("Book"),
    )
    return Draft(goal, HOME, plan, sources=(source,))


@_template("home-route", 3)
def _home_route(world: World, draws: Draws) -> Draft | None:
    articles = world.wiki.articles
    person = draws.pick([one for one in articles.values() if one.kind == "person"])
    start, end = person.links["Birthplace"], draws.pick(world.common.towns)
    if start == end:
        return None
    length = distance(world.map.by_name[start.lower()], world.map.by_name[end.lower()])
    goal = f'How far is it from the birthplace of "{person.title}" to "{end}", according to the map?'
    plan = (
        _click("Encyclopedia"),
        _search(_WIKI_BOX, person.title),
        _click(person.title),
        _click("Home"),
        _click("Map"),
        _click("Route"),
        _fill("From", start),
        _fill("To", end),
        _press("Show route"),
    )
    route = address("/route", **{"from": start, "to": end, "by": "car"})
    sources = ("wiki.test" + address("/article", t=person.title), f"map.test{route}")
    return Draft(goal, HOME, plan, f"{length:.1f} km", sources)
