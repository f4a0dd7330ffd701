"""ALFWorld's canonicalizer: from text to belief facts, and from facts back to text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ...facts import Fact, State, diff
from ...trajectory import Turn
from ..canon import names, reworded
from .goal import APPLIANCES, Dialect, can, fits


class Event(NamedTuple):
    """One thing that a sentence states."""

    kind: str
    name: str = ""
    second_name: str = ""
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
_SILENT = ("nothing happens", "available commands:")
"""How the answers begin that say nothing of the world: a refusal, and the help."""

_IN_IT = ("In it", "in it")


def read_listing(text: str) -> tuple[str, ...] | None:
    """Return the names in a list such as ``a mug 1, and a pen 2``; None where it is not one."""
    if text == "nothing":
        return ()
    things = tuple(map(_read_part, text.split(", ")))
    return None if None in things else things  # type: ignore[return-value]


@lru_cache(maxsize=16_384)
def _read_part(part: str) -> str | None:
    """Return the name in one part of a list: ``a mug 1`` or ``and a pen 2``."""
    match = _PART.fullmatch(part)
    return match[1] if match and " and " not in match[1] else None


def read_intro(text: str) -> tuple[str, ...] | None:
    """Return the receptacles that a first observation lists; None where it lists none."""
    _, intro, rest = text.lower().partition(_INTRO)
    end = _END.search(rest) if intro else None
    return read_listing(rest[: end.start()]) if end else None


@lru_cache(maxsize=4_096)
def read_observation(text: str) -> _Events:
    """Return the events that an observation states, in order; None where a sentence fits no rule."""
    events = []
    subject = ""  # what "it" means in the sentence that follows
    # Texts with line ends and the like in them take longer.
    plain = text if text.isprintable() else " ".join(text.split())
    for sentence in plain.split(". "):
        event = _read_sentence(sentence, subject if sentence[:5] in _IN_IT else "")
        if event is None:
            # A text that says nothing changes no belief; one that cannot be read makes it unparsed.
            is_silent = " ".join(text.lower().split()).startswith(_SILENT)
            return () if is_silent else None

        events.append(event)
        subject = event[1]
    return tuple(events)


@lru_cache(maxsize=4_096)  # larger ones are no faster, and grow for an hour
def _read_sentence(sentence: str, subject: str) -> Event | None:
    """Return the event of one sentence; many sentences recur in every game."""
    sentence = sentence.lower().removesuffix(".")
    if "  " in sentence or sentence[:1] == " " or sentence[-1:] == " ":
        sentence = " ".join(sentence.split())

    # Most new texts are lists of what is where: they need no regular expression.
    head, sees, things = sentence.partition(", you see ")
    if sees and head[:7] == "on the ":
        return _contents("surface", head[7:], things)
    if sees and head == "in it":
        return _contents("inside", subject, things)

    words = sentence.split(" ", 2)
    for pattern, reader in _RULES.get(" ".join(words[:2]), ()) or _RULES.get(words[0], ()):
        match = pattern.fullmatch(sentence)
        if match:
            return reader(match)
    return None


def _contents(kind: str, place: str, text: str) -> Event | None:
    """Return the event of a list of what is on or in a place."""
    things = read_listing(text)
    if things is None or not _THING.fullmatch(place):
        return None
    return Event(kind, place, "", things, frozenset([("in", thing, place) for thing in things]))


def _listed(kind: str) -> _Reader:
    """Return a reader of a sentence that lists things."""

    def read(match: re.Match[str]) -> Event | None:
        things = read_listing(match[1])
        return None if things is None else Event(kind, "", "", things)

    return read


def _named(kind: str) -> _Reader:
    """Return a reader of a sentence that names up to two things."""

    def read(match: re.Match[str]) -> Event:
        groups = match.groups()
        name = groups[0] if groups else ""
        second_name = groups[1] if len(groups) > 1 else ""
        return Event(kind, name, second_name)

    return read


def _arrival(match: re.Match[str]) -> Event:
    """Read "You arrive at desk 1"; the older dialect's "loc 4" says nothing of receptacles."""
    place = match[1]
    if place.startswith("loc "):
        return Event("arrive", place)
    return Event("arrive", place, facts=frozenset({("at", "agent", place)}))


def _facing(match: re.Match[str]) -> Event | None:
    """Read "You are facing the bed 1, and desk 1": the agent is at all of them."""
    places = tuple(match[1].replace(", and ", ", ").split(", "))
    if not all(map(_THING.fullmatch, places)):
        return None
    return Event("facing", "", "", places, frozenset([("at", "agent", place) for place in places]))


def _condition(match: re.Match[str]) -> Event | None:
    """Read "This is a hot and clean sliced apple 1" (and "This is a normal mug 1")."""
    words = match[1].split()
    if words[0] == "normal":
        return Event("normal", " ".join(words[1:])) if len(words) > 1 else None

    # What follows the last word for a condition is the thing's name.
    conditions = []
    while words and words[0] in _CONDITIONS:
        condition = _CONDITIONS[words.pop(0)]
        if condition:
            conditions.append(condition)
    if not words or not conditions:
        return None
    return Event("condition", " ".join(words), "", tuple(conditions))


_CONDITIONS = {
    "hot": "hot",
    "cold": "cool",
    "cool": "cool",
    "clean": "clean",
    "sliced": "sliced",
    "and": "",
}
"""The words before a thing's name, and the fact that each states."""


def _rule(pattern: str, reader: _Reader) -> tuple[re.Pattern[str], _Reader]:
    return re.compile(pattern.replace("NAME", _NAME)), reader


# Rules by the first two words of a sentence, or its first, so that few patterns are tried.
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


_SYNONYMS = tuple(
    (re.compile(pattern), form)
    for pattern, form in (
        (r"^(?:pick up|grab|get|take)\s+(.+?)\s+(?:from|off|out of)\s+(.+)$", r"take \1 from \2"),
        (r"^(?:walk|go|move) to\s+(.+)$", r"go to \1"),
        (r"^(?:put|place|move)\s+(.+?)\s+(?:in/on|into|onto|in|on|to)\s+(.+)$", r"put \1 in/on \2"),
        (r"^(?:turn on|toggle|switch on|use)\s+(.+)$", r"use \1"),
        (r"^(clean|heat|cool|slice)\s+(.+?)\s+(?:with|using|in)\s+(.+)$", r"\1 \2 with \3"),
    )
)


_NONE: frozenset[Fact] = frozenset()


class _Fold:
    """One belief, grouped as events need it, and how each event of an observation changes it.

    The groups say what an event replaces without a look at all facts: `at` and `holding`, what is
    `inside` each receptacle, and which things are `near`. `current` has all facts.
    """

    __slots__ = ("at", "changed", "current", "going", "holding", "inside", "near")

    def __init__(self, facts: frozenset[Fact]):
        self.current = set(facts)
        self.at = frozenset(fact for fact in facts if fact[0] == "at")
        self.holding = frozenset(fact for fact in facts if fact[0] == "holding")

        inside: defaultdict[str, set[Fact]] = defaultdict(set)
        near: defaultdict[str, set[Fact]] = defaultdict(set)
        for fact in facts:
            if fact[0] == "in" and len(fact) == 3:
                inside[fact[2]].add(fact)
            elif fact[0] == "near" and len(fact) == 3:
                near[fact[1]].add(fact)

        # Frozen, since they are shared with the events that put them in.
        self.inside = {place: frozenset(group) for place, group in inside.items()}
        self.near = {thing: frozenset(group) for thing, group in near.items()}

    def fold(self, events: tuple[Event, ...], action: str) -> bool:
        """Take in the events that followed `action`; return whether anything changed."""
        self.changed = False
        for event in events:
            method = _METHODS.get(event[0])
            if method is not None:
                method(self, event)

        # Some texts state no arrival, only what is there: then the agent has left where it was.
        if events[0][0] in _VIEWS and action.lstrip()[:6].lower() == "go to ":
            self.at = self._replace(self.at, frozenset({("at", "agent", events[0][1])}))
        return self.changed

    # One change each.

    def _add(self, fact: Fact) -> None:
        if fact not in self.current:
            self.current.add(fact)
            self.changed = True

    def _drop(self, fact: Fact) -> None:
        if fact in self.current:
            self.current.discard(fact)
            self.changed = True

    def _replace(self, old_facts: frozenset[Fact], new_facts: frozenset[Fact]) -> frozenset[Fact]:
        if old_facts != new_facts:
            self.current -= old_facts
            self.current |= new_facts
            self.changed = True
        return new_facts

    def _be_at(self, name: str) -> None:
        place: Fact = ("at", "agent", name)
        if place not in self.at:
            self.at |= {place}
            self._add(place)

    def _hold(self, name: str) -> None:
        new = frozenset({("holding", name)}) if name else _NONE
        self.holding = self._replace(self.holding, new)

    def _contain(self, event: Event) -> None:
        place = event.name
        self.inside[place] = self._replace(self.inside.get(place, _NONE), event.facts)

    def _be_near(self, thing: str) -> None:
        new = frozenset(("near", thing, place[-1]) for place in self.at)
        for fact in new:
            self._add(fact)
        self.near[thing] = self.near.get(thing, _NONE) | new

    # One kind of event each.

    def on_arrive(self, event: Event) -> None:
        self.at = self._replace(self.at, event.facts)

    def on_surface(self, event: Event) -> None:
        self._be_at(event.name)
        self._add(("seen", event.name))
        self._contain(event)

    def on_open(self, event: Event) -> None:
        is_open = event.kind.startswith("open")
        self._be_at(event.name)
        self._add(("open" if is_open else "closed", event.name))
        self._drop(("closed" if is_open else "open", event.name))

    def on_inside(self, event: Event) -> None:
        if ("open", event.name) in self.current:
            self._add(("seen", event.name))
        self._contain(event)

    def on_pick(self, event: Event) -> None:
        self._be_at(event.second_name)
        self._hold(event.name)
        former_place: Fact = ("in", event.name, event.second_name)
        self.inside[event.second_name] = self.inside.get(event.second_name, _NONE) - {former_place}
        self._drop(former_place)
        for fact in self.near.pop(event.name, _NONE):
            self._drop(fact)

    def on_put(self, event: Event) -> None:
        self._be_at(event.second_name)
        self._hold("")
        placed: Fact = ("in", event.name, event.second_name)
        self.inside[event.second_name] = self.inside.get(event.second_name, _NONE) | {placed}
        self._add(placed)

    def on_treated(self, event: Event) -> None:
        self._be_at(event.second_name)
        self._hold(event.name)
        self._add((event.kind, event.name))

        # Hot and cool cancel each other.
        if event.kind != "clean":
            self._drop(("cool" if event.kind == "hot" else "hot", event.name))

    def on_sliced(self, event: Event) -> None:
        self._hold(event.second_name)
        self._add(("sliced", event.name))

    def on_lit(self, event: Event) -> None:
        self._add(("lit", event.name))

        # A lamp that no receptacle here is known to hold is here all the same: one could use it.
        contents_here = (self.inside.get(place[-1], _NONE) for place in self.at)
        if not any(fact[1] == event.name for facts in contents_here for fact in facts):
            self._be_near(event.name)

    def on_dark(self, event: Event) -> None:
        self._drop(("lit", event.name))

    def on_beside(self, event: Event) -> None:
        for thing in event.things:
            self._be_near(thing)

    def on_carry(self, event: Event) -> None:
        self._hold(event.name)

    def on_around(self, event: Event) -> None:
        for name in event.things:
            self._add(("exists", name))

    def on_condition(self, event: Event) -> None:
        for state in ("clean", "hot", "cool", "sliced"):
            change = self._add if state in event.things else self._drop
            change((state, event.name))


_VIEWS = frozenset(("surface", "open", "closed"))
_METHODS: dict[str, Callable[[_Fold, Event], None]] = {
    "arrive": _Fold.on_arrive,
    "facing": _Fold.on_arrive,
    "room": _Fold.on_arrive,
    "surface": _Fold.on_surface,
    "inside": _Fold.on_inside,
    "open": _Fold.on_open,
    "opens": _Fold.on_open,
    "closed": _Fold.on_open,
    "closes": _Fold.on_open,
    "pick": _Fold.on_pick,
    "put": _Fold.on_put,
    "clean": _Fold.on_treated,
    "hot": _Fold.on_treated,
    "cool": _Fold.on_treated,
    "sliced": _Fold.on_sliced,
    "lit": _Fold.on_lit,
    "dark": _Fold.on_dark,
    "beside": _Fold.on_beside,
    "carry": _Fold.on_carry,
    "around": _Fold.on_around,
    "condition": _Fold.on_condition,
}
"""How each kind of event changes a belief; the others, such as ``"normal"``, change nothing."""


# Predicates, as `reveals` judges changes of their facts.
_TREATED = ("clean", "hot", "cool", "sliced")
_TREATING = ("clean ", "heat ", "cool ", "slice ")
_HOLDS = ("holding", "in", "near")
_PLACED = ("at", "holding", "in", "near")
_FIRST_SIGHT = ("exists", "seen")


class ALFWorldCanonicalizer:
    """Folds ALFWorld's text, of either dialect, into a belief.

    Args:
        dialect: The dialect that `describe` writes; both are read.

    Example:
        >>> canon = ALFWorldCanonicalizer()
        >>> state = canon.update(State(), "go to safe 1", "You arrive at safe 1. The safe 1 is closed.")
        >>> print(state.to_text())
        at(agent, safe 1)
        closed(safe 1)
        >>> canon.action("Move the apple 1 into the fridge 1.")
        'put apple 1 in/on fridge 1'
    """

    version = "alfworld-1"

    def __init__(self, dialect: Dialect = "move"):
        self.dialect = dialect
        self._memory: tuple[State, _Fold] | None = None

    def initial(self, goal: str, observation: str) -> State:
        """Return the receptacles that the first observation names."""
        receptacles = read_intro(observation)
        if receptacles is None:
            return State(frozenset(), parsed=False)
        return State(frozenset(("exists", name) for name in receptacles))

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the belief after `action` was answered with `observation`."""
        events = read_observation(observation)
        if events is None:
            return State(state.facts, parsed=False)
        if not events:
            return state if state.parsed else State(state.facts)

        # The grouping follows the newest belief, so that a step costs what it changes; any other
        # belief is grouped anew. While it changes, nobody else may use it.
        memory = self._memory
        self._memory = None
        fold = memory[1] if memory is not None and memory[0] is state else _Fold(state.facts)
        if fold.fold(events, action):
            state = State(frozenset(fold.current))
        elif not state.parsed:
            state = State(state.facts)

        self._memory = (state, fold)
        return state

    def action(self, text: str) -> str:
        """Return the canonical form of an action: lower case, no articles, one verb for each act."""
        return reworded(text, _SYNONYMS)

    def describe(self, before: State, action: str, after: State) -> str:
        """Return an observation from which `update` reads `after`: see `Describer`."""
        from .describe import describe

        return describe(before, action, after, self.dialect)

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a change follows neither from the belief nor from the action."""
        action = self.action(action)
        known_things = {fact[1] for fact in before.facts if fact[0] in _HOLDS and len(fact) > 1}
        delta = diff(before, after)
        for fact in delta.added | delta.removed:
            predicate = fact[0]
            thing = fact[-1] if predicate == "at" else "".join(fact[1:2])
            if predicate in _FIRST_SIGHT:
                return True
            if predicate in _TREATED and not action.startswith(_TREATING):
                return True

            # A place may change without being named: whoever goes to one leaves another, and a
            # known thing is near, or no more, as the agent moves.
            if predicate in _PLACED and not names(action, thing):
                leaves = predicate == "at" and fact in delta.removed
                if not (leaves or (predicate == "near" and thing in known_things)):
                    return True
        return False


_KNIVES = ("knife", "butterknife")


def admissible_of(state: State, dialect: Dialect = "move") -> tuple[str, ...]:
    """Return the commands that the facts, and what is known of kinds of things, allow, sorted."""
    facts = state.facts
    agent_places = {fact[2] for fact in facts if fact[0] == "at" and len(fact) == 3}
    # A predicted belief may hold several things: any one will do, if always the same.
    held_thing = min((fact[-1] for fact in facts if fact[0] == "holding"), default=None)

    commands = {"inventory", "look"}
    if dialect == "move":
        commands.add("help")
    if held_thing is not None:
        commands.add(f"examine {held_thing}")
    # One cannot go to where one is.
    commands |= {f"go to {f[-1]}" for f in facts if f[0] == "exists" and f[-1] not in agent_places}

    for place in agent_places:
        commands.add(f"examine {place}")
        closed = ("closed", place) in facts
        if closed:
            commands.add(f"open {place}")
        elif ("open", place) in facts:
            commands.add(f"close {place}")
        if held_thing is not None:
            commands |= _with_held(held_thing, place, closed, dialect)

    # A thing may be in two receptacles, so the pairs count.
    things = {(f[1], f[2]) for f in facts if f[0] == "in" and len(f) == 3 and f[2] in agent_places}
    for thing, place in things:
        if can(thing, "toggleable"):
            commands.add(f"use {thing}")
        elif held_thing is None and ("closed", place) not in facts and can(thing, "pickupable"):
            commands.add(f"take {thing} from {place}")
        if held_thing is not None and held_thing.startswith(_KNIVES) and can(thing, "sliceable"):
            commands.add(f"slice {thing} with {held_thing}")
    return tuple(sorted(commands))


def _with_held(thing: str, place: str, closed: bool, dialect: Dialect) -> set[str]:
    """Return the commands for the held thing at a receptacle."""
    commands = set()
    if not closed and fits(thing, place):
        if dialect == "move":
            commands.add(f"move {thing} to {place}")
        else:
            commands.add(f"put {thing} in/on {place}")

    for verb, kinds in APPLIANCES.values():
        if place.rpartition(" ")[0] in kinds and can(thing, f"{verb}able"):
            commands.add(f"{verb} {thing} with {place}")
    return commands
