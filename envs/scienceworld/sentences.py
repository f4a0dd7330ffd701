"""Parser of ScienceWorld's answers: descriptions into `Thing`s, observations into `Event`s."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from ..storage import packaged

WORDS: dict[str, Any] = packaged(__package__, "sentences")
"""The tables of words: stages of life, phases, temperatures, answers that change nothing."""

_DEEPEST = 12
_PLAIN_HEAD = re.compile(r"[a-z0-9][\w '-]{0,99}")
_BOOK_HEAD = re.compile(r"a book \([^()#\n]{1,99}\)[^,.()#\n]{0,199}")
_ARTICLE = re.compile(r"(?:an?|the) +")
_BOOK = re.compile(r"book \([^()]*\)")
_BEE = re.compile(r"bee \d+")
_STAGED = re.compile(r"^(.+?) in the ([a-z]+) stage\b")
_TURNED = re.compile(r", which is (?:turned )?([a-z]+)(?:\. (?=[),.]))?")
_SMALL = re.compile(
    r", that is covered in pollen|, currently reading a temperature of -?\d+ degrees celsius"
    r"| *\(that looks unwell\)|\.? *the time reads \d+ ticks\."
)
_FIRE = re.compile(r" *\(on fire\)")
_DOOR = re.compile(r"\.? +the ([a-z0-9 -]+?)(?: \(on fire\))?(?: door)? is (open|closed)\. ?")
_INSIDE = re.compile(r"\.? *(?:in|on|inside) the [^:.\n]{1,80}?(?: is| you see): *")
_CONTAINING = re.compile(r" *\(containing ")
_SLOPE = re.compile(r", with: +")
_SLID = re.compile(
    r"([^,.()#\n]{1,80}?) (at the (top|bottom) of|approximately \d+% down) the plane(?: -- |, )?"
)
_LINK = re.compile(r"\.? *(?:its (\w+(?: \d)?)|it) is connected to: ([^.\n]*)\. ?")
_GLUED = re.compile(r"(?<=\w)its terminal")  # as in "a red wireits terminal 1"
_ARTIST = re.compile(r" of [^.\n]*\. +the artist is listed as [^.\n]*\.")
_STATES = {
    "on": "active",
    "activated": "active",
    "flushing": "active",
    "off": "inactive",
    "deactivated": "inactive",
    "open": "open",
    "closed": "closed",
}


@dataclass(frozen=True, slots=True)
class Thing:
    """A thing as a text describes it."""

    name: str
    marks: tuple[tuple[str, ...], ...] = ()
    contents: tuple[Thing, ...] | None = None
    links: tuple[tuple[str, str], ...] = ()


def bucket(celsius: float) -> str:
    """Return the name of the range that a temperature (degrees Celsius) is in."""
    for limit, name in WORDS["buckets"]:
        if celsius <= limit:
            return str(name)
    return str(WORDS["hottest"])


@lru_cache(maxsize=8_192)
def canonical_name(text: str) -> tuple[str, tuple[tuple[str, ...], ...]]:
    """Return the name in a description without article, stage and phase, and these as marks."""
    name = " ".join(text.lower().split())
    name = _ARTICLE.sub("", name, count=1) if _ARTICLE.match(name) else name
    name = name.removeprefix("substance called ")

    # Books come first: a title may have any word in it, that of a stage too.
    book_match = _BOOK.match(name)
    if book_match:
        return book_match[0], ()
    name = name.split(" titled ", 1)[0]

    # Living things: some texts say the stage in words, some put it beside the name or in its place.
    if _BEE.fullmatch(name):  # answers number the bees, descriptions do not
        return "bee", ()
    staged_match = _STAGED.match(name)
    if staged_match:
        return staged_match[1], (("stage", staged_match[2]),)
    name = WORDS["lookalikes"].get(name, name)  # descriptions call them by the second name

    # Ice and steam are water in another phase, and a larva is named after its stage alone.
    if name in WORDS["water"]:
        return "water", (("phase", WORDS["water"][name]),)
    if name in WORDS["larvae"]:
        return WORDS["larvae"][name], (("stage", name),)

    words = name.split(" ")
    if len(words) > 1 and words[0] in WORDS["phases"]:
        return " ".join(words[1:]), (("phase", WORDS["phases"][words[0]]),)
    for stage, other_words in ((words[0], words[1:]), (words[-1], words[:-1])):
        if other_words and stage in WORDS["stages"]:
            return " ".join(other_words), (("stage", stage),)
    return name, ()


@lru_cache(maxsize=8_192)
def read_thing(text: str) -> Thing | None:
    """Return the thing that a text describes; None where the text is no description."""
    reader = _Reader(" ".join(text.lower().strip().split(" ")))
    thing = reader.thing(0)
    if thing is None or reader.text[reader.position :].strip(" .\n\t"):
        return None
    return thing


def read_things(text: str) -> tuple[Thing, ...] | None:
    """Return the things of a list that takes the whole text; None where it is none."""
    reader = _Reader(text.lower().strip())
    things = reader.listing(0)
    return None if things is None or reader.text[reader.position :].strip(" .") else things


class _Reader:
    """Reads one description from left to right."""

    __slots__ = ("has_artist", "position", "text")

    def __init__(self, text: str):
        self.text = _GLUED.sub(". its terminal", text) if "its terminal" in text else text
        self.position = 0
        self.has_artist = "the artist is listed" in text

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Read on past a pattern, where the text goes on with it."""
        match = pattern.match(self.text, self.position)
        if match:
            self.position = match.end()
        return match

    def blanks(self) -> None:
        while self.text.startswith(" ", self.position):
            self.position += 1

    def listing(self, depth: int) -> tuple[Thing, ...] | None:
        """Read things with commas between them, or "nothing"."""
        if self.text.startswith("nothing", self.position):
            self.position += len("nothing")
            return ()
        things = []
        while True:
            self.blanks()
            thing = self.thing(depth + 1)
            if thing is None:
                return None
            things.append(thing)
            if self.text.startswith(" , ", self.position):
                self.position += 3
            elif self.text.startswith(", ", self.position):
                self.position += 2
            else:
                return tuple(things)

    def thing(self, depth: int) -> Thing | None:
        """Read a thing with all that is said of it; None where none can be read."""
        if depth > _DEEPEST:
            return None  # real descriptions are never so deep; a model's may be
        is_book = self.text.startswith("a book (", self.position)
        head = self.take(_BOOK_HEAD if is_book else _PLAIN_HEAD)
        if head is None or not head[0].strip():
            return None

        # A painting's title may have anything in it; what it is of is no part of its name.
        words = head[0]
        artist = _ARTIST.search(self.text, head.start()) if self.has_artist else None
        if artist and head.start() < artist.start() < head.end():
            words = self.text[head.start() : artist.start()]
            self.position = artist.end()
        name, marks = canonical_name(words)
        if not name:
            return None

        thing: Thing | None = Thing(name, marks)
        while thing is not None:
            start = self.position
            thing = self.tail(thing, depth)
            if self.position == start:
                break
        return thing

    def tail(self, thing: Thing, depth: int) -> Thing | None:
        """Read one more thing that is said of `thing`; None where it cannot be read."""
        if self.take(_SMALL):
            return thing
        if self.take(_FIRE):
            return replace(thing, marks=(*thing.marks, ("burning",)))
        for pattern in (_TURNED, _DOOR):
            match = self.take(pattern)
            if match:
                # The drain of a sink opens and closes as well: that is no state of the sink.
                is_drain = pattern is _DOOR and match[1] != thing.name
                state = None if is_drain else _STATES.get(match[match.re.groups])
                return replace(thing, marks=(*thing.marks, (state,))) if state else thing

        link = self.take(_LINK)
        if link:
            linked_name = "" if link[2] == "nothing" else link[2].strip()
            return replace(thing, links=(*thing.links, (link[1] or "", linked_name)))

        if self.take(_CONTAINING):
            things = self.listing(depth)
            self.blanks()
            is_closed = things is not None and self.text.startswith(")", self.position)
            if not is_closed:
                return None
            self.position += 1
            return replace(thing, contents=things)
        if self.take(_INSIDE):
            things = self.listing(depth)
            if things is None:
                return None
            self.blanks()
            self.position += self.text.startswith(".", self.position)
            return replace(thing, contents=things)
        return self.slope(thing) if self.take(_SLOPE) else thing

    def slope(self, thing: Thing) -> Thing:
        """Read what stands on an inclined plane, and how far down; in between is in between."""
        things = []
        while match := self.take(_SLID):
            name, _ = canonical_name(match[1])
            things.append(Thing(name, (("slid", match[3] or "middle"),)))
        return replace(thing, contents=tuple(things))


class Event(NamedTuple):
    """One thing that an observation states."""

    kind: str
    first: str = ""
    second: str = ""
    things: tuple[Thing, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()


_Events = tuple[Event, ...]
_ROOM = re.compile(
    r"this (?:room|outside location) is called the ([^.\n]+)\. (?:in it|here) ?,? ?you see:"
)
_INSIDE_VIEW = re.compile(r"inside the ([^\n]+?) is: *\n")
_ROOM_DOOR = re.compile(r"a door to the ([^()\n,]+) \(that is (open|closed)\)")
_ALSO = re.compile(r"\n *you also see:")
_CHOICE = re.compile(r"\n(\d+):\t([^\n]*)")
_CONNECTED = re.compile(r"(.+?) on (.+) is now connected to (.+?) on (.+)")
_DISCONNECTING = re.compile(r"\(disconnecting ([^()]+)\)")
_MENU = "ambiguous request:"
_NOT_KNOWN = "no known action matches that input"
_UNKNOWN = "unknown action."
_RULES = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("go", r"you (?:move|teleport) to (?:the )?()(.+)"),
        ("go", r"you move through the (.+?) to the (.+)"),
        ("moved", r"you move the (.+) to the (.+)"),
        ("emptied", r"you pour the contents of the (.+) into the (.+)"),
        ("moved", r"you pour the (.+) into the (.+)"),
        ("dunked", r"you dunk the (.+) in the (.+), moving the liquids \((.*)\) to the .+"),
        ("opened", r"the (.+) is (?:now|already) open"),
        ("closed", r"the (.+) is (?:now|already) closed"),
        ("active", r"the (.+) is (?:now|already) activated"),
        ("inactive", r"the (.+) is (?:now|already) deactivated"),
        ("flushing", r"the (.+) is now flushing"),
        ("mixed", r".+ mix to produce (?:an? )?(.+)"),
        ("empty", r"that container is empty, so there are no items to mix"),
        ("empty", r"there is nothing in the (.+)"),
        ("burning", r"the (.+) (?:catches|is already on) fire"),
        ("eaten", r"the (.+) was delicious"),
        ("focus", r"you focus on the (.+)"),
        ("unfocus", r"you reset the goal progress and focus"),
        ("temperature", r"the thermometer measures a temperature of (-?\d+) degrees celsius"),
        ("dug", r"you dig a hole in the (.+), and place the (.+) nearby"),
        ("chopped", r"you chop down the (.+), creating (.+)"),
        ("chopped", r"you hit the (.+) with the axe, causing it to break"),
        ("unlinked", r"(.+) has been disconnected"),
    )
)


@lru_cache(maxsize=2_048)
def read_observation(text: str) -> _Events | None:
    """Return the events that an observation states, in order; None where it fits no rule."""
    text = text.lower().strip()
    view = _read_view(text)
    if view is not None:
        return view

    # What is moved is taken out of its circuit first, and the answer begins with that.
    events: list[Event] = []
    while disconnecting := _DISCONNECTING.match(text):
        events.append(Event("unlinked", disconnecting[1]))
        text = text[disconnecting.end() :].lstrip()

    sentence = text.rstrip(" .\n")
    event = _read_sentence(sentence)
    if event is not None:
        return (*events, event)
    starts = tuple(WORDS["unaltered"])
    ends = tuple(WORDS["unaltered_ends"])
    if sentence.startswith(starts) or sentence.endswith(ends):
        return (*events, Event("unaltered"))

    # Anything else may be a description, in one line or with the contents below.
    thing = read_thing(text)
    if thing is None:
        things = _read_block(text)
        if things is None or len(things) != 1:
            return None
        thing = things[0]
    article = text.partition(" ")[0] if text.startswith(("a ", "an ", "the ")) else ""
    return (*events, Event("thing", thing.name, article, (thing,)))


def _read_view(text: str) -> _Events | None:
    """Read a text of several lines: a room, the inventory, the inside of a thing, a menu."""
    if text.startswith(_MENU):
        return (Event("menu", pairs=tuple(_CHOICE.findall(text))),)
    if text.startswith(_NOT_KNOWN):
        return (Event("refused"),)
    if text.startswith(_UNKNOWN):
        return (Event("swallowed"),)
    if text.startswith("in your inventory, you see:"):
        things = _read_block(text.partition(":")[2])
        return None if things is None else (Event("inventory", things=things),)

    view = _ROOM.match(text) or _INSIDE_VIEW.match(text)
    if view is None:
        door = _ROOM_DOOR.fullmatch(text)
        return (Event("door", pairs=(door.groups(),)),) if door else None  # type: ignore[arg-type]

    # The doors stand below "You also see:", and are no things of the room.
    doors = tuple(_ROOM_DOOR.findall(text, view.end()))
    also = _ALSO.search(text, view.end())
    things = _read_block(text[view.end() : also.start() if also else len(text)])
    if things is None:
        return None
    kind = "room" if view.re is _ROOM else "inside"
    return (Event(kind, view[1], things=things, pairs=doors),)


def _read_block(text: str) -> tuple[Thing, ...] | None:
    """Read things, one a line; a line that ends in ``is:`` has its contents below, up to a blank."""
    things: list[Thing] = []
    owner: Thing | None = None
    inside: list[Thing] = []
    for line in (*text.split("\n"), ""):
        line = line.strip()
        if not line or line.endswith("is:"):
            if owner is not None:
                things.append(replace(owner, contents=tuple(inside)))
            owner = read_thing(f"{line} nothing.") if line else None
            inside = []
            if line and owner is None:
                return None
        elif line.rstrip(".") == "nothing":
            if owner is not None:
                things.append(owner)
            owner = None
        else:
            thing = read_thing(line)
            if thing is None:
                return None
            (things if owner is None else inside).append(thing)
    return tuple(things)


def _read_sentence(sentence: str) -> Event | None:
    """Read one sentence, in lower case and without its full stop."""
    if "\n" in sentence or len(sentence) > 400:
        return None
    for kind, pattern in _RULES:
        match = pattern.fullmatch(sentence)
        if match:
            first, second, liquids = (*match.groups(), "", "", "")[:3]
            return Event(kind, first, second, read_things(liquids) or ())
    link = _CONNECTED.fullmatch(sentence)
    if link:
        return Event("linked", pairs=((link[1], link[2]), (link[3], link[4])))
    return None
