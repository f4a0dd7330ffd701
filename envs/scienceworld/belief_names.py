"""Which thing a text means: ``cup containing red paint in art studio`` among three wood cups.

Answers name things by a bare name; actions say more. Both together choose among the things that the
agent can see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from .belief import INVENTORY, Belief, base_name
from .sentences_things import canonical_name

__all__ = ["Phrase", "called", "chosen", "named", "pairs_of", "parse_phrase", "score"]

_PLACES = re.compile(r" \((in [^()]*(?:\([^()]*\)[^()]*)*)\)$")
_STAGE = re.compile(r" in the [a-z]+ stage\b")
_WORD = re.compile(r"[a-z0-9()'-]+")
_ROOM = "room"  # how any room may be called
_SPLITS = (" to ", " into ", " in ", " on ")


class Phrase(NamedTuple):
    """What a referring expression says.

    Attributes:
        head: The words for the thing itself.
        containing: What is in it, as far as the expression tells; None where it does not.
        places: Where it is, the nearest place first.
    """

    head: str
    containing: tuple[str, ...] | None = None
    places: tuple[str, ...] = ()


@lru_cache(maxsize=8_192)
def parse_phrase(text: str) -> Phrase:
    """Return what a referring expression of an action says.

    Example:
        >>> parse_phrase("cup containing red paint in art studio")
        Phrase(head='cup', containing=('red paint',), places=('art studio',))
        >>> parse_phrase("pea seed (in seed jar, in inventory, in agent, in greenhouse)").places
        ('seed jar', 'inventory', 'agent', 'greenhouse')
    """
    text = _STAGE.sub("", text.lower().strip())
    chain = _PLACES.search(text)
    if chain:
        places = [part.removeprefix("in ").strip() for part in chain[1].split(", in ")]
        return Phrase(text[: chain.start()], None, tuple(places))
    parts = re.split(r" (?:in|on) ", text, maxsplit=1)
    head, _, inside = parts[0].partition(" containing ")
    contents = None
    if inside:
        things = re.split(r" and |, ", inside)
        contents = () if inside == "nothing" else tuple(things)
    place = parts[1].partition(" containing ")[0] if len(parts) > 1 else ""
    return Phrase(head, contents, (place,) if place else ())


def named(belief: Belief, name: str) -> list[str]:
    """Return the things in sight that an answer's bare name may mean, those called exactly so, if any.

    Example:
        >>> belief = Belief([("room", "agent", "kitchen"), ("in", "red apple", "kitchen")])
        >>> named(belief, "apple")
        ['red apple']
    """
    wanted, _ = canonical_name(name)
    around = belief.around()
    exact = [thing for thing in around if base_name(thing) == wanted]
    if exact:
        return exact
    ends = re.compile(rf"(?:.+ )?{re.escape(wanted)}(?: with .+| [a-z])?")
    return [thing for thing in around if ends.fullmatch(base_name(thing))]


def called(belief: Belief, phrase: Phrase) -> list[str]:
    """Return the things in sight that the words for a thing in an action may mean.

    Example:
        >>> belief = Belief([("room", "agent", "studio"), ("in", "wood cup", "studio")])
        >>> called(belief, parse_phrase("cup in studio"))
        ['wood cup']
    """
    return [thing for thing in belief.around() if _fits_head(belief, thing, phrase)]


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def chosen(belief: Belief, things: Sequence[str], phrases: Sequence[Phrase] = ()) -> list[str]:
    """Return those of some things that phrases may mean; one, where they are as good as the same.

    Where a phrase says what fits none of the things, nothing that it says can be relied on. A single
    thing is not meant, or perhaps not, if it is elsewhere than the first phrase says: none is
    returned.
    """
    if len(things) == 1 and phrases and not _fits_places(belief, things[0], phrases[0]):
        return []
    found = list(things)
    for phrase in phrases:
        for fits in (_fits_places, _fits_contents, _fits_head):
            if len(found) < 2:
                break
            kept = [thing for thing in found if fits(belief, thing, phrase)]
            if not kept:
                break
            found = kept
    if len(found) > 1 and len({_signature(belief, thing) for thing in found}) == 1:
        return found[-1:]
    return found


def score(belief: Belief, thing: str, phrase: Phrase) -> int:
    """Return how many parts of a phrase fit a thing, 0 to 3."""
    return sum(fits(belief, thing, phrase) for fits in (_fits_places, _fits_contents, _fits_head))


def _fits_places(belief: Belief, thing: str, phrase: Phrase) -> bool:
    above = belief.above(thing)
    if len(phrase.places) > 1:
        told = [place for place in phrase.places if place != "agent"]
        here = [place for place in above if place != INVENTORY or INVENTORY in told]
        return [base_name(place) for place in here] == told[: len(here)]
    for place in phrase.places:
        if place == _ROOM and above[:1] == [belief.room]:
            continue
        words = set(_words(place))
        if not above or not words <= set(_words(base_name(above[0]))):
            return False
    return True


def _fits_contents(belief: Belief, thing: str, phrase: Phrase) -> bool:
    if phrase.containing is None:
        return True
    inside = sorted(base_name(child) for child in belief.inside(thing))
    return inside == sorted(canonical_name(name)[0] for name in phrase.containing)


def _fits_head(belief: Belief, thing: str, phrase: Phrase) -> bool:
    head, marks = canonical_name(phrase.head)
    known = belief.marks.get(thing, {})
    if any(kind in known and not belief.has(thing, kind, *value) for kind, *value in marks):
        return False
    if set(_words(head)) <= set(_words(base_name(thing))):
        return True
    marked = {"open", "active", "stage"} & known.keys()
    return head == "substance" and thing not in belief.seen and not marked


def _signature(belief: Belief, thing: str) -> tuple[object, ...]:
    """Return all that is known of a thing but its number."""
    marks = sorted((fact[0], *fact[2:]) for fact in belief.marks.get(thing, {}).values())
    inside = sorted(base_name(child) for child in belief.below(thing))
    linked = any(end.startswith(f"{thing}.") for pair in belief.links for end in pair)
    return (
        base_name(thing),
        belief.parent.get(thing),
        tuple(marks),
        tuple(inside),
        thing if linked or belief.focus == thing else "",
    )


def pairs_of(words: str) -> Iterator[tuple[Phrase, Phrase]]:
    """Yield the ways to split ``A to B``, ``A into B``, ``A in B`` or ``A on B`` into two phrases.

    Example:
        >>> [(a.head, b.head) for a, b in pairs_of("jug into flower pot 4")]
        [('jug', 'flower pot 4')]
    """
    for between in _SPLITS:
        start = words.find(between)
        while start >= 0:
            yield parse_phrase(words[:start]), parse_phrase(words[start + len(between) :])
            start = words.find(between, start + 1)
