"""Reading ScienceWorld's answers: from an observation to the plain events that it states.

Descriptions of things are read by `sentences_things`; here are the sentences around them. Reading is a
pure function of the text, total, and remembered.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from .sentences_things import WORDS, Thing, read_thing, read_things

__all__ = ["Event", "forget_texts", "read_observation"]


class Event(NamedTuple):
    """One thing that an observation states.

    Attributes:
        kind: ``room``, ``inventory``, ``inside``, ``thing``, ``door``, ``go``, ``opened``, ``closed``,
            ``active``, ``inactive``, ``flushing``, ``moved``, ``emptied``, ``dunked``, ``mixed``,
            ``empty``, ``burning``, ``eaten``, ``focus``, ``unfocus``, ``temperature``, ``dug``,
            ``chopped``, ``linked``, ``unlinked``, ``menu``, ``refused``, ``swallowed`` or
            ``unaltered``.
        first: The thing, room or number that it is about; empty where there is none.
        second: The other thing or room of the sentence; empty where there is none.
        things: The things that it lists.
        pairs: Doors with their states, terminals with their owners, or choices with their numbers.
    """

    kind: str
    first: str = ""
    second: str = ""
    things: tuple[Thing, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()


_Events = tuple[Event, ...]
_ROOM = re.compile(
    r"this (?:room|outside location) is called the ([^.\n]+)\. (?:in it|here) ?,? ?you see:"
)
_INSIDE = re.compile(r"inside the ([^\n]+?) is: *\n")
_DOOR = re.compile(r"a door to the ([^()\n,]+) \(that is (open|closed)\)")
_ALSO = re.compile(r"\n *you also see:")
_CHOICE = re.compile(r"\n(\d+):\t([^\n]*)")
_LINK = re.compile(r"(.+?) on (.+) is now connected to (.+?) on (.+)")
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
    """Return the events that an observation states, in order; None where it fits no rule.

    Example:
        >>> read_observation("You move the metal pot to the stove.")[0][:3]
        ('moved', 'metal pot', 'stove')
        >>> read_observation("The dragon sleeps. It snores.") is None
        True
    """
    text = text.lower().strip()
    told = _read_view(text)
    if told is not None:
        return told
    events: list[Event] = []
    while found := _DISCONNECTING.match(text):
        events.append(Event("unlinked", found[1]))
        text = text[found.end() :].lstrip()
    sentence = text.rstrip(" .\n")
    event = _read_sentence(sentence)
    if event is not None:
        return (*events, event)
    if sentence.startswith(tuple(WORDS["unaltered"])) or sentence.endswith(
        tuple(WORDS["unaltered_ends"])
    ):
        return (*events, Event("unaltered"))
    thing = read_thing(text)
    if thing is None:
        things = _read_block(text)
        if things is None or len(things) != 1:
            return None
        thing = things[0]
    article = text.partition(" ")[0] if text.startswith(("a ", "an ", "the ")) else ""
    return (*events, Event("thing", thing.name, article, (thing,)))


def forget_texts() -> None:
    """Forget all texts that were read; for measurements of memory.

    Example:
        >>> forget_texts()
    """
    read_observation.cache_clear()
    read_thing.cache_clear()


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
    found = _ROOM.match(text) or _INSIDE.match(text)
    if found is None:
        door = _DOOR.fullmatch(text)
        return (Event("door", pairs=(door.groups(),)),) if door else None  # type: ignore[arg-type]
    doors = tuple(_DOOR.findall(text, found.end()))
    also = _ALSO.search(text, found.end())
    things = _read_block(text[found.end() : also.start() if also else len(text)])
    if things is None:
        return None
    kind = "room" if found.re is _ROOM else "inside"
    return (Event(kind, found[1], things=things, pairs=doors),)


def _read_block(text: str) -> tuple[Thing, ...] | None:
    """Read things, one a line; a line that ends in ``is:`` has its contents below, up to a blank."""
    things: list[Thing] = []
    owner: Thing | None = None
    inside: list[Thing] = []
    for line in (*text.split("\n"), ""):
        line = line.strip()
        if not line:
            if owner is not None:
                things.append(replace(owner, contents=tuple(inside)))
                owner, inside = None, []
            continue
        if line.endswith("is:"):
            if owner is not None:
                things.append(replace(owner, contents=tuple(inside)))
                inside = []
            owner = read_thing(line + " nothing.")
            if owner is None:
                return None
            continue
        if line.rstrip(".") == "nothing":
            if owner is not None:
                things.append(owner)
                owner = None
            continue
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
        found = pattern.fullmatch(sentence)
        if found:
            first, second, liquids = (*found.groups(), "", "", "")[:3]
            return Event(kind, first, second, read_things(liquids) or ())
    link = _LINK.fullmatch(sentence)
    if link:
        return Event("linked", pairs=((link[1], link[2]), (link[3], link[4])))
    return None
