"""Reading how ScienceWorld describes a thing: its name, its condition, and what is in or on it.

``a sink, which is turned on. In the sink is: a jug (containing a substance called water).`` is one
thing with another in it, which has a third in it. Reading is a pure function of the text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

__all__ = ["WORDS", "Thing", "bucket", "canonical_name", "read_thing", "read_things"]

WORDS: dict[str, Any] = json.loads(
    (files(__package__) / "data" / "sentences.json").read_text("utf-8")
)
"""The tables of words: stages of life, phases, temperatures, answers that change nothing."""

_DEEPEST = 12
_PLAIN_HEAD = re.compile(r"[a-z0-9][\w '-]{0,99}")
_HEAD = re.compile(r"a book \([^()#\n]{1,99}\)[^,.()#\n]{0,199}")
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
    """A thing as a text describes it.

    Attributes:
        name: Its name in lower case, without article, stage of life and phase.
        marks: What is said of it: ``("open",)``, ``("phase", "solid")``, ``("stage", "adult")``.
        contents: What is in or on it, or None where the text does not tell.
        links: Its terminals and what each is connected to, ``""`` for nothing.
    """

    name: str
    marks: tuple[tuple[str, ...], ...] = ()
    contents: tuple[Thing, ...] | None = None
    links: tuple[tuple[str, str], ...] = ()


def bucket(celsius: float) -> str:
    """Return the name of the range that a temperature (degrees Celsius) is in.

    Example:
        >>> bucket(-4), bucket(10), bucket(98), bucket(300)
        ('freezing', 'cold', 'hot', 'extreme')
    """
    for limit, name in WORDS["buckets"]:
        if celsius <= limit:
            return str(name)
    return str(WORDS["hottest"])


@lru_cache(maxsize=8_192)
def canonical_name(text: str) -> tuple[str, tuple[tuple[str, ...], ...]]:
    """Return the name in a description without article, stage and phase, and these as marks.

    Example:
        >>> canonical_name("a substance called ice")
        ('water', (('phase', 'solid'),))
        >>> canonical_name("a pea plant in the seedling stage with a tall height")
        ('pea plant', (('stage', 'seedling'),))
        >>> canonical_name("a giant tortoise egg"), canonical_name("A book (Emma) titled Emma")
        (('giant tortoise', (('stage', 'egg'),)), ('book (emma)', ()))
    """
    name = " ".join(text.lower().split())
    name = _ARTICLE.sub("", name, count=1) if _ARTICLE.match(name) else name
    name = name.removeprefix("substance called ")
    book = _BOOK.match(name)
    if book:
        return book[0], ()
    name = name.split(" titled ", 1)[0]
    if _BEE.fullmatch(name):  # answers number the bees, descriptions do not
        return "bee", ()
    staged = _STAGED.match(name)
    if staged:
        return staged[1], (("stage", staged[2]),)
    name = WORDS["lookalikes"].get(name, name)  # descriptions call them by the second name
    if name in WORDS["water"]:
        return "water", (("phase", WORDS["water"][name]),)
    if name in WORDS["larvae"]:
        return WORDS["larvae"][name], (("stage", name),)
    words = name.split(" ")
    if len(words) > 1 and words[0] in WORDS["phases"]:
        return " ".join(words[1:]), (("phase", WORDS["phases"][words[0]]),)
    for place, rest in ((0, words[1:]), (-1, words[:-1])):
        if rest and words[place] in WORDS["stages"]:
            return " ".join(rest), (("stage", words[place]),)
    return name, ()


@lru_cache(maxsize=8_192)
def read_thing(text: str) -> Thing | None:
    """Return the thing that a text describes; None where the text is no description.

    Example:
        >>> read_thing("a metal pot (containing a substance called water)").contents
        (Thing(name='water', marks=(('phase', 'liquid'),), contents=None, links=()),)
        >>> read_thing("a oven, which is turned off. The oven door is closed. ").marks
        (('inactive',), ('closed',))
        >>> read_thing("The dragon sleeps. It snores.") is None
        True
    """
    reader = _Reader(" ".join(text.lower().strip().split(" ")))
    thing = reader.thing(0)
    if thing is None or reader.text[reader.at :].strip(" .\n\t"):
        return None
    return thing


def read_things(text: str) -> tuple[Thing, ...] | None:
    """Return the things of a list that takes the whole text; None where it is none.

    Example:
        >>> [thing.name for thing in read_things("a bowl (containing nothing), a drawer")]
        ['bowl', 'drawer']
        >>> read_things("nothing"), read_things("")
        ((), None)
    """
    reader = _Reader(text.lower().strip())
    things = reader.listing(0)
    return None if things is None or reader.text[reader.at :].strip(" .") else things


class _Reader:
    """Reads one description from left to right."""

    __slots__ = ("at", "signed", "text")

    def __init__(self, text: str):
        self.text = _GLUED.sub(". its terminal", text) if "its terminal" in text else text
        self.at = 0
        self.signed = "the artist is listed" in text

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found:
            self.at = found.end()
        return found

    def blanks(self) -> None:
        while self.text.startswith(" ", self.at):
            self.at += 1

    def listing(self, depth: int) -> tuple[Thing, ...] | None:
        """Read things with commas between them, or "nothing"."""
        if self.text.startswith("nothing", self.at):
            self.at += len("nothing")
            return ()
        things = []
        while True:
            self.blanks()
            thing = self.thing(depth + 1)
            if thing is None:
                return None
            things.append(thing)
            if self.text.startswith(" , ", self.at):
                self.at += 3
            elif self.text.startswith(", ", self.at):
                self.at += 2
            else:
                return tuple(things)

    def thing(self, depth: int) -> Thing | None:
        """Read one thing with all that is said of it."""
        if depth > _DEEPEST:
            return None
        book = self.text.startswith("a book (", self.at)
        head = self.take(_HEAD if book else _PLAIN_HEAD)
        if head is None or not head[0].strip():
            return None
        words = head[0]
        artist = _ARTIST.search(self.text, head.start()) if self.signed else None
        if artist and head.start() < artist.start() < head.end():
            words, self.at = self.text[head.start() : artist.start()], artist.end()
        name, marks = canonical_name(words)
        if not name:
            return None
        thing: Thing | None = Thing(name, marks)
        while thing is not None:
            before = self.at
            thing = self.tail(thing, depth)
            if self.at == before:
                break
        return thing

    def tail(self, thing: Thing, depth: int) -> Thing | None:
        """Read one more thing that is said of `thing`; None where it cannot be read."""
        if self.take(_SMALL):
            return thing
        if self.take(_FIRE):
            return replace(thing, marks=(*thing.marks, ("burning",)))
        for pattern in (_TURNED, _DOOR):
            found = self.take(pattern)
            if found:
                drain = pattern is _DOOR and found[1] != thing.name
                state = None if drain else _STATES.get(found[found.re.groups])
                return replace(thing, marks=(*thing.marks, (state,))) if state else thing
        link = self.take(_LINK)
        if link:
            other = "" if link[2] == "nothing" else link[2].strip()
            return replace(thing, links=(*thing.links, (link[1] or "", other)))
        if self.take(_CONTAINING):
            things = self.listing(depth)
            self.blanks()
            closed = things is not None and self.text.startswith(")", self.at)
            self.at += closed
            return replace(thing, contents=things) if closed else None
        if self.take(_INSIDE):
            return self.inside(thing, depth)
        return self.slope(thing) if self.take(_SLOPE) else thing

    def inside(self, thing: Thing, depth: int) -> Thing | None:
        """Read what is in or on `thing`, and the full stop after it."""
        things = self.listing(depth)
        if things is None:
            return None
        self.blanks()
        self.at += self.text.startswith(".", self.at)
        return replace(thing, contents=things)

    def slope(self, thing: Thing) -> Thing:
        """Read what slides down an inclined plane."""
        things = []
        while found := self.take(_SLID):
            name, _ = canonical_name(found[1])
            things.append(Thing(name, (("slid", found[3] or "middle"),)))
        return replace(thing, contents=tuple(things))
