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
    numbered = _NUMBERED.fullmatch(name) if "#" in name else None
    return numbered[1] if numbered else name


def order(name: str) -> tuple[str, int]:
    """Return what names are sorted by: the bare name, then the number."""
    numbered = _NUMBERED.fullmatch(name) if "#" in name else None
    return (numbered[1], int(numbered[2])) if numbered else (name, 1)


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
        """Take in one fact; what is none of these kinds, or not of its size, is kept as it is."""
        kind = fact[0] if fact else ""
        size = len(fact)
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
        """Return the belief as facts, from which it can be read again."""
        facts: set[Fact] = set(self.other)
        if self.room:
            facts.add(("room", AGENT, self.room))
        for thing, place in self.parent.items():
            facts.add(("holding", thing) if place == INVENTORY else ("in", thing, place))
        for marks in self.marks.values():
            facts.update(marks.values())
        facts.update(("seen", place) for place in self.seen)
        facts.update(("door", *ends, state) for ends, state in self.doors.items())
        facts.update(("connected", *ends) for ends in self.links)
        if self.focus:
            facts.add(("focused", self.focus))
        facts.update(("pending", *choice) for choice in self.pending.items())
        return frozenset(facts)

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
        # Without recursion: facts that a model wrote may nest as deep as they like.
        things: list[str] = []
        pending = self.inside(place)[::-1]
        while pending:
            thing = pending.pop()
            things.append(thing)
            if through_closed or not self.has(thing, "closed"):
                pending += self.inside(thing)[::-1]
        return things

    def around(self) -> list[str]:
        """Return what the agent can see: in its room and what it holds, not in closed things."""
        return [
            *self.below(self.room, through_closed=False),
            *self.below(INVENTORY, through_closed=False),
        ]

    def above(self, thing: str) -> list[str]:
        """Return the places that a thing is in, the nearest first."""
        # A belief that was predicted may have things in a ring; each place is named once.
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
        """Take a thing and all that is in it out of the belief."""
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
        """Take off what is connected to a terminal of a thing; to any of them, where none is named."""
        for pair in [*self.links]:
            if terminal is None:
                is_meant = any(end.startswith(f"{thing}.") for end in pair)
            else:
                is_meant = f"{thing}.{terminal}" in pair
            if is_meant:
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

    # The engine's own menus write all places around a thing: "apple (in bowl, in table, in kitchen)".
    chain = _PLACES.search(text)
    if chain:
        places = [part.removeprefix("in ").strip() for part in chain[1].split(", in ")]
        return Phrase(text[: chain.start()], None, tuple(places))

    # Agents write "cup containing water in kitchen", with the place nearest to it.
    parts = re.split(r" (?:in|on) ", text, maxsplit=1)
    head, _, contents_text = parts[0].partition(" containing ")
    contents: tuple[str, ...] | None = None
    if contents_text == "nothing":
        contents = ()
    elif contents_text:
        contents = tuple(re.split(r" and |, ", contents_text))
    place = parts[1].partition(" containing ")[0] if len(parts) > 1 else ""
    return Phrase(head, contents, (place,) if place else ())


def named(belief: Belief, name: str) -> list[str]:
    """Return the things in sight that an answer's bare name may mean, those called exactly so, if any."""
    bare_name, _ = canonical_name(name)
    around = belief.around()
    exact = [thing for thing in around if base_name(thing) == bare_name]
    if exact:
        return exact

    # Answers leave words out: of "metal pot" the first one, of "cup with water" or "box a" the last.
    pattern = re.compile(rf"(?:.+ )?{re.escape(bare_name)}(?: with .+| [a-z])?")
    return [thing for thing in around if pattern.fullmatch(base_name(thing))]


def called(belief: Belief, phrase: Phrase) -> list[str]:
    """Return the things in sight that the words for a thing in an action may mean."""
    return [thing for thing in belief.around() if _fits_head(belief, thing, phrase)]


def chosen(belief: Belief, things: Sequence[str], phrases: Sequence[Phrase] = ()) -> list[str]:
    """Return those of some things that phrases may mean; one, where they are as good as the same."""
    if len(things) == 1 and phrases and not _fits_places(belief, things[0], phrases[0]):
        return []

    # What a phrase says is used as far as it leaves something: it may be older than the belief.
    candidates = list(things)
    for phrase in phrases:
        for fits in (_fits_places, _fits_contents, _fits_head):
            if len(candidates) < 2:
                break
            fitting = [thing for thing in candidates if fits(belief, thing, phrase)]
            if not fitting:
                break
            candidates = fitting

    # Of five equal seeds it makes no difference which one was taken.
    if len(candidates) > 1 and len({_signature(belief, thing) for thing in candidates}) == 1:
        return candidates[-1:]
    return candidates


def score(belief: Belief, thing: str, phrase: Phrase) -> int:
    """Return how many parts of a phrase fit a thing, 0 to 3."""
    return sum(fits(belief, thing, phrase) for fits in (_fits_places, _fits_contents, _fits_head))


def _fits_places(belief: Belief, thing: str, phrase: Phrase) -> bool:
    """Return whether a thing is where a phrase says, as far as the belief knows where it is."""
    places = belief.above(thing)
    if len(phrase.places) > 1:
        # The engine has what the agent holds in "inventory, in agent", and may leave both out.
        phrase_places = [place for place in phrase.places if place != "agent"]
        compared = [place for place in places if place != INVENTORY or INVENTORY in phrase_places]
        return [base_name(place) for place in compared] == phrase_places[: len(compared)]

    for place in phrase.places:
        if place == _ROOM and places[:1] == [belief.room]:
            continue
        words = set(_words(place))
        if not places or not words <= set(_words(base_name(places[0]))):
            return False
    return True


def _fits_contents(belief: Belief, thing: str, phrase: Phrase) -> bool:
    if phrase.containing is None:
        return True
    inside = sorted(base_name(child) for child in belief.inside(thing))
    return inside == sorted(canonical_name(name)[0] for name in phrase.containing)


def _fits_head(belief: Belief, thing: str, phrase: Phrase) -> bool:
    """Return whether the words for a thing fit it: its name, and what they say of its state."""
    head, marks = canonical_name(phrase.head)
    marks_of_thing = belief.marks.get(thing, {})
    for kind, *value in marks:
        if kind in marks_of_thing and not belief.has(thing, kind, *value):
            return False
    if set(_words(head)) <= set(_words(base_name(thing))):
        return True

    # "Substance" is the engine's word for whatever is no vessel, no device and no living thing.
    is_object = thing in belief.seen or bool({"open", "active", "stage"} & marks_of_thing.keys())
    return head == "substance" and not is_object


def _signature(belief: Belief, thing: str) -> tuple[object, ...]:
    """Return what things must have in common to be as good as the same."""
    marks = sorted((fact[0], *fact[2:]) for fact in belief.marks.get(thing, {}).values())
    contents = sorted(base_name(child) for child in belief.below(thing))

    # What is connected or focused on is like nothing else.
    ends = [end for pair in belief.links for end in pair]
    is_linked = any(end.startswith(f"{thing}.") for end in ends)
    own_name = thing if is_linked or belief.focus == thing else ""
    return base_name(thing), belief.parent.get(thing), tuple(marks), tuple(contents), own_name


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
        self._texts = [words, request] if request else [words]

    def one(self, name: str) -> list[str]:
        """Return the things that an answer about one thing may mean."""
        return self._chosen(named(self.belief, name))

    def _chosen(self, things: Sequence[str]) -> list[str]:
        return chosen(self.belief, things, [parse_phrase(text) for text in self._texts])

    def meant(self, words: str) -> list[str]:
        """Return the things that an action's own words may mean."""
        phrase = parse_phrase(words)
        request_phrases = [parse_phrase(text) for text in self._texts[1:]]
        return chosen(self.belief, called(self.belief, phrase), [phrase, *request_phrases])

    def _used_on(self, name: str) -> list[str]:
        """Return the things that an answer to ``use O on O`` may mean by what the first was used on."""
        target = TARGET.search(self.words)
        phrases = [parse_phrase(target[1])] if target else []
        return chosen(self.belief, named(self.belief, name), phrases)

    def two(self, first: str, second: str) -> tuple[list[str], list[str]]:
        """Return the things that an answer about two things may mean; they may be places, too."""
        first_things = named(self.belief, first)
        if not first_things and self._is_place(first):
            first_things = [first]
        second_things = self.places(second)

        # "pour cup in sink in jug in kitchen" can be split at three places: the one that fits best is
        # taken, of what the action says first, and then of the request that it answers.
        for text in self._texts:
            first_phrase, second_phrase = max(
                pairs_of(text),
                key=lambda split: (
                    self._fit(first_things, split[0]) + self._fit(second_things, split[1])
                ),
                default=(None, None),
            )
            if first_phrase is not None and second_phrase is not None:
                first_things = chosen(self.belief, first_things, [first_phrase])
                second_things = chosen(self.belief, second_things, [second_phrase])
        return first_things, second_things

    def _fit(self, things: Sequence[str], phrase: Phrase) -> int:
        """Return how well the thing fits a phrase that fits it best."""
        placed = (thing for thing in things if thing in self.belief.parent)
        return max((score(self.belief, thing, phrase) for thing in placed), default=0)

    def places(self, name: str) -> list[str]:
        """Return the things, or the room, or the inventory, that something may be put into."""
        if name in (INVENTORY, self.belief.room):
            return [name]
        things = named(self.belief, name)
        if not things and self._is_room(name):
            return [name]
        return things

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

    place_and_doors = [f"room: {belief.room or 'unknown'}"]
    for (first_end, second_end), status in sorted(belief.doors.items()):
        if belief.room in (first_end, second_end):
            other_end = first_end if second_end == belief.room else second_end
            place_and_doors.append(f"door to {other_end} ({status})")
    lines.append("; ".join(place_and_doors))

    inventory = _things(belief, INVENTORY)
    if not inventory:
        inventory = "nothing" if INVENTORY in belief.seen else "not looked"
    lines.append(f"held: {inventory}")
    lines.append(f"here: {_things(belief, belief.room) or 'not looked'}")

    # For a prediction another room matters only where the action names it.
    for room in sorted(belief.children):
        is_other_room = room not in belief.parent and room not in (INVENTORY, belief.room)
        if is_other_room and (action is None or room in action):
            things = _things(belief, room)
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
    for turn in history[1:][-_LAST:]:
        answer = turn.observation.strip().partition("\n")[0]
        lines.append(f"last: {turn.action} -> {answer}")
    return "\n".join(lines)


def _things(belief: Belief, place: str) -> str:
    """Return what is in a place, each thing with its state and, in brackets, with what is in it."""
    text = ""
    depth = {place: 0}
    open_brackets = 0
    for thing in belief.below(place):
        level = depth[belief.parent[thing]]
        depth[thing] = level + 1
        text += "]" * (open_brackets - level)
        if level > open_brackets:
            text += " ["
        elif text:
            text += ", "
        open_brackets = level

        words = []
        for kind, _, *value in belief.marks.get(thing, {}).values():
            words.append(value[0] if value else _WORDS.get(kind, kind))
        words.sort()
        if thing in belief.seen and not belief.children.get(thing):
            words.append("empty")
        text += f"{thing} ({', '.join(words)})" if words else thing
    return text + "]" * open_brackets
