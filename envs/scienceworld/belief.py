"""What the agent believes of the world, which of its things a text means, and the belief in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ...facts import Fact, State
from ...trajectory import Turn
from .sentences import canonical_name

AGENT = "agent"
INVENTORY = "inventory"
_NUMBERED = re.compile(r"(.+) #([0-9]{1,6})")
_LENGTHS = dict.fromkeys(("open", "closed", "active", "inactive", "burning"), 2)
_LENGTHS |= dict.fromkeys(("temp", "phase", "stage", "slid"), 3)
_GROUPS = {"closed": "open", "inactive": "active"}


def base_name(name: str) -> str:
    """Return the name of a thing without the number that tells it from others of that name."""
    found = _NUMBERED.fullmatch(name) if "#" in name else None
    return found[1] if found else name


def order(name: str) -> tuple[str, int]:
    """Return what names are sorted by: the bare name, then the number."""
    found = _NUMBERED.fullmatch(name) if "#" in name else None
    return (found[1], int(found[2])) if found else (name, 1)


class Belief:
    """Where things are, what is known of them, and everything else that facts tell."""

    __slots__ = (
        "_free",
        "children",
        "doors",
        "focus",
        "fresh",
        "links",
        "marks",
        "other",
        "parent",
        "pending",
        "room",
        "seen",
    )

    def __init__(self, facts: Iterable[Fact] = ()):
        self.room = ""
        self.parent: dict[str, str] = {}
        self.children: dict[str, set[str]] = {}
        self.marks: dict[str, dict[str, Fact]] = {}
        self.doors: dict[tuple[str, str], str] = {}
        self.links: set[tuple[str, str]] = set()
        self.focus = ""
        self.pending: dict[str, str] = {}
        self.seen: set[str] = set()
        self.other: set[Fact] = set()
        self.fresh: set[str | tuple[str, str]] = set()
        self._free: dict[str, int] = {}  # for each name, a number below which none is free
        for fact in sorted(facts):  # of two places for a thing, chance must not choose
            self._read(fact)
        self.fresh.clear()

    def _read(self, fact: Fact) -> None:
        kind, size = fact[0] if fact else "", len(fact)
        if kind == "in" and size == 3:
            self.move(fact[1], fact[2])
        elif kind == "holding" and size == 2:
            self.move(fact[1], INVENTORY)
        elif size == _LENGTHS.get(kind):
            self.mark(fact[1], kind, *fact[2:])
        elif kind == "room" and size == 3 and fact[1] == AGENT:
            self.room = fact[2]
        elif kind == "seen" and size == 2:
            self.seen.add(fact[1])
        elif kind == "door" and size == 4:
            self.doors[fact[1], fact[2]] = fact[3]
        elif kind == "connected" and size == 3:
            self.links.add((fact[1], fact[2]))
        elif kind == "focused" and size == 2:
            self.focus = fact[1]
        elif kind == "pending" and size == 3:
            self.pending[fact[1]] = fact[2]
        else:
            self.other.add(fact)

    def facts(self) -> frozenset[Fact]:
        found: set[Fact] = set(self.other)
        if self.room:
            found.add(("room", AGENT, self.room))
        for thing, place in self.parent.items():
            found.add(("holding", thing) if place == INVENTORY else ("in", thing, place))
        for marks in self.marks.values():
            found.update(marks.values())
        found.update(("seen", place) for place in self.seen)
        found.update(("door", *ends, state) for ends, state in self.doors.items())
        found.update(("connected", *ends) for ends in self.links)
        if self.focus:
            found.add(("focused", self.focus))
        found.update(("pending", *choice) for choice in self.pending.items())
        return frozenset(found)

    # What is known of one thing.

    def mark(self, thing: str, kind: str, *value: str) -> None:
        """Say something of a thing, in the place of what was said of that before."""
        group = _GROUPS.get(kind, kind)
        self.fresh.add((thing, group))
        self.marks.setdefault(thing, {})[group] = (kind, thing, *value)

    def unmark(self, thing: str, *groups: str) -> None:
        """Forget what was said of a thing: ``open``, ``active``, ``temp``, ``phase`` and so on."""
        marks = self.marks.get(thing, {})
        for group in groups:
            marks.pop(group, None)

    def has(self, thing: str, *mark: str) -> bool:
        marks = self.marks.get(thing)
        if not marks:
            return False
        return marks.get(_GROUPS.get(mark[0], mark[0])) == (mark[0], thing, *mark[1:])

    # Where things are.

    def inside(self, place: str) -> list[str]:
        return sorted(self.children.get(place, ()), key=order)

    def below(self, place: str, *, through_closed: bool = True) -> list[str]:
        """Return everything in a place and in what is in it, each thing before what it holds."""
        found: list[str] = []
        waiting = self.inside(place)[::-1]
        while waiting:
            thing = waiting.pop()
            found.append(thing)
            if through_closed or not self.has(thing, "closed"):
                waiting += self.inside(thing)[::-1]
        return found

    def around(self) -> list[str]:
        """Return what the agent can see: in its room and what it holds, not in closed things."""
        return [
            *self.below(self.room, through_closed=False),
            *self.below(INVENTORY, through_closed=False),
        ]

    def above(self, thing: str) -> list[str]:
        """Return the places that a thing is in, the nearest first."""
        places: list[str] = []
        while thing in self.parent and self.parent[thing] not in places:
            thing = self.parent[thing]
            places.append(thing)
        return places

    def move(self, thing: str, place: str) -> None:
        """Put a thing, with all that is in it, into a place; into itself it does not go."""
        if place == thing or thing in self.above(place):
            return
        self.fresh.add(thing)
        self._take_out(thing)
        self.parent[thing] = place
        self.children.setdefault(place, set()).add(thing)

    def _take_out(self, thing: str) -> None:
        place = self.parent.pop(thing, None)
        if place is not None:
            self.children[place].discard(thing)

    def forget(self, thing: str) -> None:
        for part in (*reversed(self.below(thing)), thing):
            self._take_out(part)
            self._free.pop(base_name(part), None)
            self.children.pop(part, None)
            self.marks.pop(part, None)
            self.seen.discard(part)
            self.unlink(part)

    def new(self, name: str, place: str) -> str:
        """Add a thing that was not known, and return what it is called."""
        number = self._free.get(name, 1)
        thing = name if number == 1 else f"{name} #{number}"
        while thing in self.parent:
            number += 1
            thing = f"{name} #{number}"
        self._free[name] = number
        self.move(thing, place)
        return thing

    # Circuits.

    def link(self, first: str, second: str) -> None:
        self.links.add((min(first, second), max(first, second)))

    def unlink(self, thing: str, terminal: str | None = None) -> None:
        ends = f"{thing}." if terminal is None else f"{thing}.{terminal}"
        for pair in [*self.links]:
            if any(end == ends or (terminal is None and end.startswith(ends)) for end in pair):
                self.links.discard(pair)


_PLACES = re.compile(r" \((in [^()]*(?:\([^()]*\)[^()]*)*)\)$")
_STAGE = re.compile(r" in the [a-z]+ stage\b")
_words = re.compile(r"[a-z0-9()'-]+").findall
_ROOM = "room"  # how any room may be called
_SPLITS = (" to ", " into ", " in ", " on ")


class Phrase(NamedTuple):
    """What a referring expression says."""

    head: str
    containing: tuple[str, ...] | None = None
    places: tuple[str, ...] = ()


@lru_cache(maxsize=8_192)
def parse_phrase(text: str) -> Phrase:
    """Return what a referring expression of an action says."""
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
    """Return the things in sight that an answer's bare name may mean, those called exactly so, if any."""
    wanted, _ = canonical_name(name)
    around = belief.around()
    exact = [thing for thing in around if base_name(thing) == wanted]
    if exact:
        return exact
    ends = re.compile(rf"(?:.+ )?{re.escape(wanted)}(?: with .+| [a-z])?")
    return [thing for thing in around if ends.fullmatch(base_name(thing))]


def called(belief: Belief, phrase: Phrase) -> list[str]:
    """Return the things in sight that the words for a thing in an action may mean."""
    return [thing for thing in belief.around() if _fits_head(belief, thing, phrase)]


def chosen(belief: Belief, things: Sequence[str], phrases: Sequence[Phrase] = ()) -> list[str]:
    """Return those of some things that phrases may mean; one, where they are as good as the same."""
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
        wanted = [place for place in phrase.places if place != "agent"]
        here = [place for place in above if place != INVENTORY or INVENTORY in wanted]
        return [base_name(place) for place in here] == wanted[: len(here)]
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
    """Yield the ways to split ``A to B``, ``A into B``, ``A in B`` or ``A on B`` into two phrases."""
    for between in _SPLITS:
        start = words.find(between)
        while start >= 0:
            yield parse_phrase(words[:start]), parse_phrase(words[start + len(between) :])
            start = words.find(between, start + 1)


TARGET = re.compile(r" (?:on|with) (.+)")
"""What something was used on, in what ``use O on O`` is about."""


class Meaning:
    """What is known of an action's words when its answer is read."""

    def __init__(self, belief: Belief, words: str, request: str = ""):
        self.belief = belief
        self.words = words
        self._said = [words, request] if request else [words]

    def one(self, name: str) -> list[str]:
        """Return the things that an answer about one thing may mean."""
        return self._chosen(named(self.belief, name))

    def _chosen(self, found: Sequence[str]) -> list[str]:
        return chosen(self.belief, found, [parse_phrase(words) for words in self._said])

    def meant(self, words: str) -> list[str]:
        """Return the things that an action's own words may mean."""
        phrase = parse_phrase(words)
        found = called(self.belief, phrase)
        others = [parse_phrase(said) for said in self._said[1:]]
        return chosen(self.belief, found, [phrase, *others])

    def _used_on(self, name: str) -> list[str]:
        """Return the things that an answer to ``use O on O`` may mean by what the first was used on."""
        target = TARGET.search(self.words)
        phrases = [parse_phrase(target[1])] if target else []
        return chosen(self.belief, named(self.belief, name), phrases)

    def two(self, first: str, second: str) -> tuple[list[str], list[str]]:
        """Return the things that an answer about two things may mean; they may be places, too."""
        ones = named(self.belief, first) or [first] * self._is_place(first)
        others = self.places(second)
        for words in self._said:
            first_phrase, second_phrase = max(
                pairs_of(words),
                key=lambda split: self._fit(ones, split[0]) + self._fit(others, split[1]),
                default=(None, None),
            )
            if first_phrase is not None and second_phrase is not None:
                ones = chosen(self.belief, ones, [first_phrase])
                others = chosen(self.belief, others, [second_phrase])
        return ones, others

    def _fit(self, things: Sequence[str], phrase: Phrase) -> int:
        known = (thing for thing in things if thing in self.belief.parent)
        return max((score(self.belief, thing, phrase) for thing in known), default=0)

    def places(self, name: str) -> list[str]:
        """Return the things, or the room, or the inventory, that something may be put into."""
        if name in (INVENTORY, self.belief.room):
            return [name]
        found = named(self.belief, name)
        return found or ([name] if self._is_room(name) else [])

    def _is_place(self, name: str) -> bool:
        return name in (INVENTORY, self.belief.room) or self._is_room(name)

    def _is_room(self, name: str) -> bool:
        if name in self.belief.parent:
            return False
        return name in self.belief.seen or any(name in ends for ends in self.belief.doors)


_LAST = 2
_WORDS = {"active": "on", "inactive": "off"}


def narrate(goal: str, history: Sequence[Turn], state: State, action: str | None = None) -> str:
    """Return a belief in few words."""
    belief = Belief(state.facts)
    lines = [f"goal: {' '.join(goal.split())}"]
    doors = [
        f"door to {ends[0] if ends[1] == belief.room else ends[1]} ({status})"
        for ends, status in sorted(belief.doors.items())
        if belief.room in ends
    ]
    lines.append("; ".join([f"room: {belief.room or 'unknown'}", *doors]))
    held = _things(belief, INVENTORY)
    lines.append(f"held: {held or ('nothing' if INVENTORY in belief.seen else 'not looked')}")
    lines.append(f"here: {_things(belief, belief.room) or 'not looked'}")
    for room in sorted(belief.children):
        is_room = room not in belief.parent and room not in (INVENTORY, belief.room)
        things = _things(belief, room) if is_room and (action is None or room in action) else ""
        if things:
            lines.append(f"{room}: {things}")
    if belief.links:
        pairs = (f"{first} to {second}" for first, second in sorted(belief.links))
        lines.append(f"connected: {'; '.join(pairs)}")
    if belief.focus:
        lines.append(f"focus: {belief.focus}")
    if belief.pending:
        menu = (f"{n}: {text}" for n, text in sorted(belief.pending.items()) if n.isdecimal())
        lines.append(f"choose: {'; '.join(menu)}")
    # The lists below an answer's first line are what the belief tells as well.
    answers = [(t.action, t.observation.strip().partition("\n")[0]) for t in history[1:][-_LAST:]]
    lines += [f"last: {done} -> {answer}" for done, answer in answers]
    return "\n".join(lines)


def _things(belief: Belief, place: str) -> str:
    text = ""
    depth, opened = {place: 0}, 0
    for thing in belief.below(place):
        level = depth[belief.parent[thing]]
        depth[thing] = level + 1
        text += "]" * (opened - level) + (" [" if level > opened else ", " if text else "")
        marks = belief.marks.get(thing, {}).values()
        words = sorted(mark[2] if len(mark) > 2 else _WORDS.get(mark[0], mark[0]) for mark in marks)
        if thing in belief.seen and not belief.children.get(thing):
            words.append("empty")
        text += thing + (f" ({', '.join(words)})" if words else "")
        opened = level
    return text + "]" * opened
