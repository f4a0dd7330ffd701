"""Reading ALFWorld's sentences: from an observation to the plain events that it states.

The grammar covers both dialects, alfworld 0.4's ("You move the ... to the ...") and the older one
("You put the ... in/on the ..."). Reading is a pure function of the text, and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

__all__ = ["Event", "read_intro", "read_listing", "read_observation"]


class Event(NamedTuple):
    """One thing that a sentence states.

    Attributes:
        kind: ``arrive``, ``surface``, ``open``, ``closed``, ``opens``, ``closes``, ``pick``, ``put``,
            ``clean``, ``hot``, ``cool``, ``lit``, ``dark``, ``sliced``, ``carry``, ``facing``,
            ``beside``, ``condition``, ``container`` or ``room``.
        name: The thing that it is about; empty where there is none.
        other: The receptacle or tool of the sentence; empty where there is none.
        things: The things that the sentence lists, or the words of a ``condition``.
    """

    kind: str
    name: str = ""
    other: str = ""
    things: tuple[str, ...] = ()


_Events: TypeAlias = tuple[Event, ...] | None
_Reader: TypeAlias = Callable[["re.Match[str]", str], Event | None]

_NAME = r"([a-z0-9][\w '/-]*)"
_THING = re.compile(r"[a-z0-9][\w '/-]*")
_LISTING = re.compile(r"an? [a-z0-9][\w '/-]*(?:, (?:and )?an? [a-z0-9][\w '/-]*)*")
_INTRO = re.compile(r"looking quickly around you, you see (.*?)\.(?:\s|$)", re.DOTALL)
_HELP = "available commands:"
_REFUSED = "nothing happens"


def read_listing(text: str) -> tuple[str, ...] | None:
    """Return the names in a list such as ``a mug 1, and a pen 2``; None where it is not one.

    Example:
        >>> read_listing("a mug 1, a pen 2, and a cd 3"), read_listing("nothing"), read_listing("?")
        (('mug 1', 'pen 2', 'cd 3'), (), None)
    """
    if text == "nothing":
        return ()
    if not _LISTING.fullmatch(text):
        return None
    parts = text.replace(", and ", ", ").split(", ")
    return tuple([part[2:] if part[1] == " " else part[3:] for part in parts])


def read_intro(text: str) -> tuple[str, ...] | None:
    """Return the receptacles that a first observation lists; None where it lists none.

    Example:
        >>> read_intro("Looking quickly around you, you see a bed 1, and a desk 1.")
        ('bed 1', 'desk 1')
    """
    found = _INTRO.search(text.lower())
    return read_listing(found.group(1)) if found else None


@lru_cache(maxsize=16_384)
def read_observation(text: str) -> _Events:
    """Return the events that an observation states, in order; None where a sentence fits no rule.

    An observation that states no change ("Nothing happens.", the help) gives no events.

    Example:
        >>> read_observation("You arrive at desk 1. On the desk 1, you see a pen 2.")[1].things
        ('pen 2',)
        >>> read_observation("Nothing happens."), read_observation("The dragon sleeps.")
        ((), None)
    """
    lowered = " ".join(text.lower().split())
    if lowered.startswith((_REFUSED, _HELP)):
        return ()
    events: list[Event] = []
    subject = ""
    for sentence in lowered.removesuffix(".").split(". "):
        event = _read_sentence(sentence, subject if sentence.startswith("in it") else "")
        if event is None:
            return None
        events.append(event)
        subject = event[1]
    return tuple(events)


@lru_cache(maxsize=65_536)
def _read_sentence(sentence: str, subject: str) -> Event | None:
    """Return the event of one sentence in lower case; many sentences recur in every game."""
    words = sentence.split(" ", 2)
    for pattern, reader in _RULES.get(" ".join(words[:2]), ()) or _RULES.get(words[0], ()):
        match = pattern.fullmatch(sentence)
        if match:
            return reader(match, subject)
    return None


def _listed(kind: str, name_group: int | None, list_group: int) -> _Reader:
    """Return a reader for a sentence that lists things."""

    def read(match: re.Match[str], subject: str) -> Event | None:
        things = read_listing(match[list_group])
        name = subject if name_group is None else match[name_group]
        return None if things is None else Event(kind, name, "", things)

    return read


def _named(kind: str) -> _Reader:
    """Return a reader for a sentence about one or two things."""
    return lambda match, _: Event(kind, *match.groups())


def _facing(match: re.Match[str], _: str) -> Event | None:
    names = tuple(match[1].replace(", and ", ", ").split(", "))
    return Event("facing", "", "", names) if all(map(_THING.fullmatch, names)) else None


def _condition(match: re.Match[str], _: str) -> Event | None:
    """Read "This is a hot and clean sliced apple 1" (and "This is a normal mug 1")."""
    words = match[1].split()
    if words[0] == "normal":
        return Event("normal", " ".join(words[1:]))
    states = []
    while words and words[0] in _CONDITIONS:
        state = _CONDITIONS[words.pop(0)]
        states += [state] if state else []
    return Event("condition", " ".join(words), "", tuple(states)) if words and states else None


def _in_it(match: re.Match[str], subject: str) -> Event | None:
    things = read_listing(match[1])
    return None if things is None or not subject else Event("inside", subject, "", things)


_CONDITIONS = {"hot": "hot", "cold": "cool", "cool": "cool", "clean": "clean", "sliced": "sliced"}
_CONDITIONS["and"] = ""


def _rule(pattern: str, reader: _Reader) -> tuple[re.Pattern[str], _Reader]:
    return re.compile(pattern.replace("NAME", _NAME)), reader


_RULES: dict[str, tuple[tuple[re.Pattern[str], _Reader], ...]] = {
    "you arrive": (_rule("you arrive at NAME", _named("arrive")),),
    "on the": (_rule("on the NAME, you see (.+)", _listed("surface", 1, 2)),),
    "the": (
        _rule("the NAME is open", _named("open")),
        _rule("the NAME is closed", _named("closed")),
    ),
    "in it,": (_rule("in it, you see (.+)", _in_it),),
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
    "looking quickly": (
        _rule("looking quickly around you, you see (.+)", _listed("around", None, 1)),
    ),
    "next to": (_rule("next to it, you see (.+)", _listed("beside", None, 1)),),
    "this is": (_rule("this is an? (.+)", _condition),),
    "there's nothing": (_rule("there's nothing special about (?:the )?NAME", _named("condition")),),
}
