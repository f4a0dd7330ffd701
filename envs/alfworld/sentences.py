"""Reading ALFWorld's sentences: from an observation to the plain events that it states.

The grammar covers both dialects, alfworld 0.4's ("You move the ... to the ...") and the older one
("You put the ... in/on the ..."). Reading is a pure function of the text, and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ...facts import Fact

__all__ = ["Event", "forget_texts", "read_intro", "read_listing", "read_observation"]


class Event(NamedTuple):
    """One thing that a sentence states.

    Attributes:
        kind: ``arrive``, ``surface``, ``open``, ``closed``, ``opens``, ``closes``, ``pick``, ``put``,
            ``clean``, ``hot``, ``cool``, ``lit``, ``dark``, ``sliced``, ``carry``, ``facing``,
            ``beside``, ``condition``, ``container`` or ``room``.
        name: The thing that it is about; empty where there is none.
        other: The receptacle or tool of the sentence; empty where there is none.
        things: The things that the sentence lists, or the words of a ``condition``.
        facts: The facts that take the place of all others of their sort, where there are such.
    """

    kind: str
    name: str = ""
    other: str = ""
    things: tuple[str, ...] = ()
    facts: frozenset[Fact] = frozenset()


_Events: TypeAlias = tuple[Event, ...] | None
_Reader: TypeAlias = Callable[["re.Match[str]"], Event | None]

# Names are far shorter than this; the bound keeps reading linear, however long a text is.
_NAME = r"([a-z0-9][\w '/-]{0,80})"
_THING = re.compile(r"[a-z0-9][\w '/-]*")
_PART = re.compile(r"(?:and )?an? ([a-z0-9][\w '/-]*)")
_INTRO = "looking quickly around you, you see "
_END = re.compile(r"\.(?:\s|$)")
_HELP = "available commands:"
_REFUSED = "nothing happens"
_IN_IT = ("In it", "in it")


def read_listing(text: str) -> tuple[str, ...] | None:
    """Return the names in a list such as ``a mug 1, and a pen 2``; None where it is not one.

    Example:
        >>> read_listing("a mug 1, a pen 2, and a cd 3"), read_listing("nothing"), read_listing("?")
        (('mug 1', 'pen 2', 'cd 3'), (), None)
    """
    if text == "nothing":
        return ()
    names = tuple(map(_read_part, text.split(", ")))
    return None if None in names else names  # type: ignore[return-value]


@lru_cache(maxsize=16_384)
def _read_part(part: str) -> str | None:
    """Return the name in one part of a list; None where there is none."""
    found = _PART.fullmatch(part)
    return found[1] if found and " and " not in found[1] else None


def read_intro(text: str) -> tuple[str, ...] | None:
    """Return the receptacles that a first observation lists; None where it lists none.

    Example:
        >>> read_intro("Looking quickly around you, you see a bed 1, and a desk 1.")
        ('bed 1', 'desk 1')
    """
    _, found, rest = text.lower().partition(_INTRO)
    end = _END.search(rest) if found else None
    return read_listing(rest[: end.start()]) if end else None


@lru_cache(maxsize=4_096)
def read_observation(text: str) -> _Events:
    """Return the events that an observation states, in order; None where a sentence fits no rule.

    An observation that states no change ("Nothing happens.", the help) gives no events.

    Example:
        >>> read_observation("You arrive at desk 1. On the desk 1, you see a pen 2.")[1].things
        ('pen 2',)
        >>> read_observation("Nothing happens."), read_observation("The dragon sleeps.")
        ((), None)
    """
    events = []
    subject = ""
    for sentence in text.split(". ") if text.isprintable() else _sentences(text):
        event = _read_sentence(sentence, subject if sentence[:5] in _IN_IT else "")
        if event is None:
            return () if _is_silent(text) else None
        events.append(event)
        subject = event[1]
    return tuple(events)


def _sentences(text: str) -> list[str]:
    """Return the sentences of a text with line ends and the like in it."""
    return " ".join(text.split()).split(". ")


def _is_silent(text: str) -> bool:
    """Return whether an observation is one that states no change."""
    return " ".join(text.lower().split()).startswith((_REFUSED, _HELP))


@lru_cache(maxsize=4_096)  # larger ones are no faster, and grow for an hour
def _read_sentence(sentence: str, subject: str) -> Event | None:
    """Return the event of one sentence; many sentences recur in every game."""
    sentence = sentence.lower().removesuffix(".")
    if "  " in sentence or sentence[:1] == " " or sentence[-1:] == " ":
        sentence = " ".join(sentence.split())
    head, sees, things = sentence.partition(", you see ")
    if sees and head[:7] == "on the ":  # most new texts are lists of what is where
        return _shown("surface", head[7:], things)
    if sees and head == "in it":
        return _shown("inside", subject, things)
    words = sentence.split(" ", 2)
    for pattern, reader in _RULES.get(" ".join(words[:2]), ()) or _RULES.get(words[0], ()):
        match = pattern.fullmatch(sentence)
        if match:
            return reader(match)
    return None


def _shown(kind: str, place: str, text: str) -> Event | None:
    """Return the event of a sentence that shows what a place holds."""
    things = read_listing(text)
    if things is None or not _THING.fullmatch(place):
        return None
    return Event(kind, place, "", things, frozenset([("in", thing, place) for thing in things]))


def forget_texts() -> None:
    """Forget the texts read so far, to measure what reading costs.

    Example:
        >>> forget_texts()
    """
    read_observation.cache_clear()
    _read_sentence.cache_clear()
    _read_part.cache_clear()


def _listed(kind: str) -> _Reader:
    """Return a reader for a sentence that lists things."""

    def read(match: re.Match[str]) -> Event | None:
        things = read_listing(match[1])
        return None if things is None else Event(kind, "", "", things)

    return read


def _named(kind: str) -> _Reader:
    """Return a reader for a sentence about one or two things."""

    def read(match: re.Match[str]) -> Event:
        name, other = (*match.groups(), "", "")[:2]
        return Event(kind, name, other)

    return read


def _arrival(match: re.Match[str]) -> Event:
    """Read "You arrive at desk 1"; the older dialect's "loc 4" says nothing of receptacles."""
    place = match[1]
    at: Fact = ("at", "agent", place)
    return Event(
        "arrive", place, facts=frozenset() if place.startswith("loc ") else frozenset({at})
    )


def _facing(match: re.Match[str]) -> Event | None:
    names = tuple(match[1].replace(", and ", ", ").split(", "))
    if not all(map(_THING.fullmatch, names)):
        return None
    return Event("facing", "", "", names, frozenset([("at", "agent", name) for name in names]))


def _condition(match: re.Match[str]) -> Event | None:
    """Read "This is a hot and clean sliced apple 1" (and "This is a normal mug 1")."""
    words = match[1].split()
    if words[0] == "normal":
        return Event("normal", " ".join(words[1:])) if len(words) > 1 else None
    states = []
    while words and words[0] in _CONDITIONS:
        state = _CONDITIONS[words.pop(0)]
        states += [state] if state else []
    return Event("condition", " ".join(words), "", tuple(states)) if words and states else None


_CONDITIONS = {"hot": "hot", "cold": "cool", "cool": "cool", "clean": "clean", "sliced": "sliced"}
_CONDITIONS["and"] = ""


def _rule(pattern: str, reader: _Reader) -> tuple[re.Pattern[str], _Reader]:
    return re.compile(pattern.replace("NAME", _NAME)), reader


_RULES: dict[str, tuple[tuple[re.Pattern[str], _Reader], ...]] = {
    "you arrive": (_rule("you arrive at NAME", _arrival),),
    "the": (
        _rule("the NAME is open", _named("open")),
        _rule("the NAME is closed", _named("closed")),
    ),
    "you open": (_rule("you open the NAME", _named("opens")),),
    "you close": (_rule("you close the NAME", _named("closes")),),
    "you pick": (_rule("you pick up the NAME from the NAME", _named("pick")),),
    "you move": (_rule("you move the NAME to the NAME", _named("put")),),
    "you put": (_rule("you put the NAME (?:in/on|in|on) the NAME", _named("put")),),
    "you clean": (_rule("you clean the NAME using the NAME", _named("clean")),),
    "you heat": (_rule("you heat the NAME using the NAME", _named("hot")),),
    "you cool": (_rule("you cool the NAME using the NAME", _named("cool")),),
    "you turn": (
        _rule("you turn on the NAME", _named("lit")),
        _rule("you turn off the NAME", _named("dark")),
    ),
    "you sliced": (_rule("you sliced the NAME with the NAME", _named("sliced")),),
    "you are": (
        _rule("you are carrying: an? NAME", _named("carry")),
        _rule("you are not carrying anything", _named("carry")),
        _rule("you are in the middle of a room", _named("room")),
        _rule("you are facing the (.+)", _facing),
    ),
    "looking quickly": (_rule("looking quickly around you, you see (.+)", _listed("around")),),
    "next to": (_rule("next to it, you see (.+)", _listed("beside")),),
    "this is": (_rule("this is an? (.+)", _condition),),
    "there's nothing": (_rule("there's nothing special about (?:the )?NAME", _named("condition")),),
}
