"""ScienceWorld's canonicalizer: folds actions and answers into a belief.

An answer is read into events (`sentences`), each event changes the belief (`Fold`), and time that has
passed takes away what may have changed (`pass_time`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ...facts import Fact, State
from ...trajectory import Turn
from ..canon import collapse, names, reworded
from .belief import (
    AGENT,
    INVENTORY,
    TARGET,
    Belief,
    Meaning,
    base_name,
    called,
    named,
    parse_phrase,
)
from .sentences import WORDS, Event, Thing, bucket, canonical_name, read_observation

_IGNORED = frozenset(WORDS["ignored"])
_REPLACED = ("phase", "stage", "slid", "burning")


def show(belief: Belief, place: str, things: Sequence[Thing]) -> None:
    listing = _Listing(belief)
    listing.match(place, things)
    for thing, where in listing.fresh:  # it grows by what is in the new things
        gone = listing.missing.get(thing.name)
        if gone:
            name = gone.pop(0)
            belief.move(name, where)
        else:
            name = belief.new(thing.name, where)
        listing.take(name, thing)
    for gone in listing.missing.values():
        for name in gone:
            if name in belief.parent:
                belief.forget(name)


class _Listing:
    """What one description lists."""

    def __init__(self, belief: Belief):
        self.belief = belief
        self.missing: dict[str, list[str]] = {}
        self.fresh: list[tuple[Thing, str]] = []

    def match(self, place: str, things: Sequence[Thing]) -> None:
        known: dict[str, list[str]] = {}
        for name in self.belief.inside(place):
            known.setdefault(base_name(name), []).append(name)
        listed: dict[str, list[Thing]] = {}
        for thing in things:
            if thing.name not in _IGNORED:
                listed.setdefault(thing.name, []).append(thing)
        for base, group in listed.items():
            names = known.get(base, [])
            before = [*names]
            others = self._others(names, group)
            if others and len(before) > 1:  # which is which is a guess, and wires tell no more
                for name in before:
                    self.belief.unlink(name)
            for thing in others:
                if names:
                    self.take(_likest(self.belief, names, thing), thing)
                else:
                    self.fresh.append((thing, place))
        for base, names in known.items():
            self.missing.setdefault(base, []).extend(names)
        self.belief.seen.add(place)

    def _others(self, names: list[str], group: list[Thing]) -> list[Thing]:
        """Take things that have in them what known ones have; return the others."""
        others = []
        for thing in group:
            inside = _contents(thing)
            same = (name for name in names if inside == _inside(self.belief, name))
            name = None if inside is None else next(same, None)
            if name is None:
                others.append(thing)
            else:
                names.remove(name)
                self.take(name, thing)
        return others

    def take(self, name: str, thing: Thing) -> None:
        _say(self.belief, name, thing)
        if thing.contents is not None:
            self.match(name, thing.contents)


def _contents(thing: Thing) -> list[str] | None:
    """Return what a description tells to be in a thing, by bare names."""
    return None if thing.contents is None else sorted(child.name for child in thing.contents)


def _inside(belief: Belief, name: str) -> list[str]:
    return sorted(base_name(child) for child in belief.inside(name))


def _likest(belief: Belief, names: list[str], thing: Thing) -> str:
    """Take the known thing that shares most with a description out of `names`, or the first."""
    contents, found = set(_contents(thing) or ()), names[0]
    if contents:
        found = max(names, key=lambda name: len(contents.intersection(_inside(belief, name))))
    names.remove(found)
    return found


def _say(belief: Belief, name: str, thing: Thing) -> None:
    belief.fresh.add(name)
    belief.unmark(name, *_REPLACED)
    for kind, *value in thing.marks:
        belief.mark(name, kind, *value)
    for terminal, other in thing.links:
        if not other:
            belief.unlink(name, terminal)


_GROUND = "ground"  # nothing lies in it, all on it


class Fold(Meaning):
    """Takes the events that followed one action into a belief."""

    def __init__(self, belief: Belief, words: str, request: str = "", looking: bool = False):
        super().__init__(belief, words, request)
        self.looking = looking

    def take(self, event: Event) -> bool:
        """Take in one event; return whether it makes sense here."""
        method = _METHODS.get(event.kind)
        return True if method is None else method(self, event) is not False

    # Looking.

    def _on_room(self, event: Event) -> None:
        if not self.words or any(thing.name == AGENT for thing in event.things):
            self.belief.room = event.first  # else it is looked at from elsewhere
        show(self.belief, event.first, event.things)
        self._on_door(event)

    def _on_door(self, event: Event) -> None:
        here = event.first or self.belief.room
        for there, state in event.pairs:
            self.belief.doors[min(here, there), max(here, there)] = state

    def _on_inventory(self, event: Event) -> None:
        show(self.belief, INVENTORY, event.things)

    def _on_inside(self, event: Event) -> None:
        places = self.places(event.first) or [event.first] * bool(event.pairs)
        if len(places) > 1:
            places = self._chosen(places)
        if len(places) == 1:
            show(self.belief, places[0], event.things)
        if places == [event.first]:
            self._on_door(event)

    def _on_thing(self, event: Event) -> bool:
        """Take in the description of one thing, which the action named."""
        if not self.looking:
            return False
        thing = event.things[0]
        found = self.one(thing.name)
        if len(found) > 1 and thing.contents is not None:
            same = [name for name in found if _inside(self.belief, name) == _contents(thing)]
            found = same or found
        if len(found) == 1:
            _say(self.belief, found[0], thing)
            if thing.contents is not None:
                show(self.belief, found[0], thing.contents)
        named_so = any(word in thing.name for word in self.words.split())
        return bool(found or named_so or event.second)

    # Going and opening.

    def _on_go(self, event: Event) -> None:
        self.belief.room = event.second

    def _on_opened(self, event: Event) -> None:
        state = "open" if event.kind == "opened" else "closed"
        if event.first != "door":
            self._change(event.first, "open", state)
            return
        here = self.belief.room
        doors = [ends for ends in self.belief.doors if here in ends]
        meant = [ends for ends in doors if (ends[0] if ends[1] == here else ends[1]) in self.words]
        doors = meant or doors
        if len(doors) == 1:
            self.belief.doors[doors[0]] = state

    def _change(self, name: str, group: str, state: str) -> None:
        found = self.one(name)
        if len(found) == 1:
            self.belief.mark(found[0], state)
            return
        for thing in found or named(self.belief, name):
            if not self.belief.has(thing, state):
                self.belief.unmark(thing, group)

    def _only(self, things: list[str]) -> list[str]:
        return things if len(things) == 1 else []

    # Devices and circuits.

    def _on_active(self, event: Event) -> None:
        state = "inactive" if event.kind == "inactive" else "active"
        self._change(event.first, "active", state)

    def _on_linked(self, event: Event) -> None:
        (first, owner), (second, other) = event.pairs
        ones, others = self.two(owner, other)
        if len(ones) == len(others) == 1:
            self.belief.link(f"{ones[0]}.{first}", f"{others[0]}.{second}")

    def _on_unlinked(self, event: Event) -> None:
        found = named(self.belief, event.first) or [event.first]
        linked = [
            t for t in found if any(e.startswith(f"{t}.") for p in self.belief.links for e in p)
        ]
        for thing in linked if len(linked) == 1 else found:
            self.belief.unlink(thing)

    # Handling.

    def _on_moved(self, event: Event) -> None:
        ones, places = self.two(event.first, event.second)
        if event.second == _GROUND:
            places = [self.belief.room]
        if len(ones) == len(places) == 1:
            if ones[0] in self.belief.above(places[0]):  # a table into the jug on it: nowhere
                self.belief.forget(ones[0])
            else:
                self.belief.move(ones[0], places[0])
            return
        for thing in ones or named(self.belief, event.first):
            if [thing] != places:
                self.belief.forget(thing)
        if len(places) == 1 and (places[0] in self.belief.parent or self._is_place(places[0])):
            self.belief.new(canonical_name(event.first)[0], places[0])

    def _on_emptied(self, event: Event) -> None:
        ones, places = self.two(event.first, event.second)
        if event.second == _GROUND:
            places = [self.belief.room]
        if len(ones) == len(places) == 1:
            for thing in self.belief.inside(ones[0]):
                self.belief.move(thing, places[0])
            return
        for vessel in ones or named(self.belief, event.first):
            for thing in self.belief.inside(vessel):
                self.belief.forget(thing)

    def _on_dunked(self, event: Event) -> None:
        """Move the liquids of the second thing into the first, which was dunked into it."""
        ones, others = self.two(event.first, event.second)
        liquids = {thing.name for thing in event.things}
        for vessel in others or named(self.belief, event.second):
            for thing in self.belief.inside(vessel):
                if base_name(thing) not in liquids:
                    continue
                if len(ones) == len(others) == 1:
                    self.belief.move(thing, ones[0])
                else:
                    self.belief.forget(thing)

    def _on_mixed(self, event: Event) -> None:
        vessels = self.meant(self.words) or called(self.belief, parse_phrase(self.words))
        for vessel in vessels:
            for thing in self.belief.inside(vessel):
                self.belief.forget(thing)
        name = WORDS["products"].get(event.first, event.first)
        for vessel in self._only(vessels):
            self.belief.new(canonical_name(name)[0], vessel)

    def _on_empty(self, event: Event) -> None:
        found = self.one(event.first) if event.first else self.meant(self.words)
        for place in self._only(found):
            show(self.belief, place, ())

    def _on_burning(self, event: Event) -> None:
        for thing in self._only(self._used_on(event.first)):
            self.belief.mark(thing, "burning")

    def _on_eaten(self, event: Event) -> None:
        for thing in self.one(event.first) or named(self.belief, event.first):
            self.belief.forget(thing)

    def _on_dug(self, event: Event) -> None:
        for name in ("hole", event.second):
            self.belief.new(name, self.belief.room)

    def _on_chopped(self, event: Event) -> None:
        for thing in self._used_on(event.first):
            self.belief.forget(thing)
        if event.second:
            self.belief.new(event.second, self.belief.room)

    # Attention.

    def _on_focus(self, event: Event) -> None:
        found = self.one(event.first)
        self.belief.focus = found[0] if len(found) == 1 else canonical_name(event.first)[0]

    def _on_unfocus(self, event: Event) -> None:
        self.belief.focus = ""

    def _on_temperature(self, event: Event) -> None:
        target = TARGET.search(self.words)
        for thing in self._only(self.meant(target[1]) if target else []):
            self.belief.mark(thing, "temp", bucket(int(event.first)))

    def _on_menu(self, event: Event) -> None:
        self.belief.pending = dict(event.pairs)

    _on_closed = _on_opened
    _on_flushing = _on_inactive = _on_active


_METHODS: dict[str, Callable[[Fold, Event], bool | None]] = {
    name.removeprefix("_on_"): method
    for name, method in vars(Fold).items()
    if name.startswith("_on_")
}


_TAPS = frozenset(WORDS["taps"])
_COOLERS = frozenset(WORDS["coolers"])
_SHORT_LIVED = frozenset(WORDS["short_lived"])
_PLANTS = (" tree", " plant")


def pass_time(belief: Belief) -> None:
    """Forget what may have changed while an action took its time, and fill what is under a tap."""
    for thing in [name for name in belief.parent if base_name(name) == "water"]:
        belief.unlink(thing)
    linked = {end.rpartition(".")[0] for pair in belief.links for end in pair}
    for thing, marks in [*belief.marks.items()]:
        for group in [*marks]:
            if (thing, group) not in belief.fresh and not _lasts(belief, thing, group, linked):
                belief.unmark(thing, group)
    for thing in sorted(belief.parent):
        if thing in belief.parent and _is_fleeting(belief, thing):
            belief.forget(thing)
    for tap in sorted(belief.parent):  # open vessels under running taps fill
        if base_name(tap) not in _TAPS or not belief.has(tap, "active"):
            continue
        for vessel in belief.inside(tap):
            held = {base_name(thing) for thing in belief.inside(vessel)}
            if vessel in belief.seen and "water" not in held and not belief.has(vessel, "closed"):
                belief.mark(belief.new("water", vessel), "phase", "liquid")


def _lasts(belief: Belief, thing: str, group: str, linked: set[str]) -> bool:
    """Return whether what is said of a thing surely stays so for a while."""
    base = base_name(thing)
    if group == "active":
        return base == "switch" or not (base in _SHORT_LIVED or thing in linked)
    if group == "phase":  # liquid water far from what heats and cools
        return (
            belief.has(thing, "phase", "liquid")
            and base == "water"
            and not any(
                base_name(place) in _COOLERS
                or (belief.has(place, "active") and base_name(place) not in _TAPS)
                for place in belief.above(thing)
            )
        )
    return group not in ("temp", "slid")


def _is_fleeting(belief: Belief, thing: str) -> bool:
    """Return whether a thing may be gone, elsewhere or of another name after a while."""
    base, place = base_name(thing), belief.parent[thing]
    if base == "water" and _has_beside(belief, place, _PLANTS):
        return True  # plants drink at once
    if base == "bee":
        return (thing, "stage") not in belief.fresh
    if thing in belief.fresh:
        return False
    if belief.has(thing, "burning"):
        return (thing, "burning") not in belief.fresh
    if base_name(place).endswith(_PLANTS):
        return True
    if base == "water":
        wet = base_name(place) in (*_TAPS, "toilet") or "flower pot" in place
        return wet or _has_beside(belief, place, ("soil",))
    return base.endswith(" seed") and _has_beside(belief, place, ("soil",))


def _has_beside(belief: Belief, place: str, ends: tuple[str, ...]) -> bool:
    return any(base_name(other).endswith(ends) for other in belief.children.get(place, ()))


_WHAT = r"((?!(?:to|into|in|on|with)\s).+?)"  # what is written so is written so again
_SYNONYMS = tuple(
    (re.compile(pattern), form)
    for pattern, form in (
        (r"^look$", "look around"),
        (r"^(?:examine|look on)\s+(.+)$", r"look at \1"),
        (r"^(?:(?:go|walk|move) (?:through|to|into)|go)\s+(.+)$", r"go to \1"),
        (r"^turn on\s+(.+)$", r"activate \1"),
        (r"^turn off\s+(.+)$", r"deactivate \1"),
        (r"^(?:get|take)\s+(.+)$", r"pick up \1"),
        (r"^drop\s+(.+)$", r"put down \1"),
        (rf"^(pour|dunk)\s+{_WHAT}\s+(?:into|in|on|to)\s+(.+)$", r"\1 \2 into \3"),
        (rf"^(?:move|put(?! down))\s+{_WHAT}\s+(?:to|into|in|on)\s+(.+)$", r"move \1 to \2"),
        (rf"^connect\s+{_WHAT}\s+(?:to|into)\s+(.+)$", r"connect \1 to \2"),
        (rf"^use\s+{_WHAT}\s+(?:with|on)\s+(.+)$", r"use \1 on \2"),
        (r"^focus\s+(?!on\b)(.+)$", r"focus on \1"),
        (r"^consume\s+(.+)$", r"eat \1"),
        (r"^stir\s+(.+)$", r"mix \1"),
    )
)
_REQUEST = "request"
_LOOKING = ("look at ", "look on ", "examine ")
_AT_ONCE = frozenset(WORDS["zero_tick"])
_VERB = re.compile(
    r"(?:(?:turn|look|focus) (?:on|off|at|in)|(?:pick|put) (?:up|down)|[a-z]+)\s+(.+)", re.DOTALL
)


class ScienceWorldCanonicalizer:
    r"""Folds ScienceWorld's text into a belief.

    Example:
        >>> canon = ScienceWorldCanonicalizer()
        >>> state = canon.initial("Boil water.", "This room is called the kitchen. In it, you see: \n"
        ...                       "\ta metal pot (containing a substance called ice)\n")
        >>> state = canon.update(state, "pick up pot", "You move the metal pot to the inventory.")
        >>> print(state.to_text())
        holding(metal pot)
        in(water, metal pot)
        room(agent, kitchen)
        seen(kitchen)
        seen(metal pot)
        >>> canon.action("Examine the metal pot.")
        'look at metal pot'
    """

    version = "scienceworld-1"

    def initial(self, goal: str, observation: str) -> State:
        """Return what the first observation, a look around, says."""
        return self.update(State(), "look around", observation)

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the belief after `action` was answered with `observation`."""
        events = read_observation(observation)
        if events is None:
            return State(state.facts, parsed=False)
        belief = Belief(state.facts)
        action = collapse(action)
        asked, belief.pending = belief.pending, {}
        chosen = action if action == _REQUEST else asked.get(action, action)
        request = _object_of(asked.get(_REQUEST, "")) if action in asked else ""
        words = _object_of(chosen)
        fold = Fold(belief, words, request, chosen.startswith(_LOOKING))
        if not all(fold.take(event) for event in events):
            return State(state.facts, parsed=False)
        if _takes_time(chosen, words, events[-1]):
            pass_time(belief)
        if belief.pending:
            belief.pending[_REQUEST] = action
        facts = belief.facts()
        return state if facts == state.facts and state.parsed else State(facts)

    def action(self, text: str) -> str:
        """Return the canonical form of an action: lower case, no articles, one verb for each act."""
        return reworded(text, _SYNONYMS)

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a change follows neither from the belief, nor from time, nor from the action."""
        later = Belief(before.facts)
        pass_time(later)
        aged = later.facts()
        added = after.facts - before.facts - aged
        removed = before.facts - after.facts - (before.facts - aged)
        choices = {f[1]: f[2] for f in before.facts if f[0] == "pending" and len(f) == 3}
        action = self.action(action)
        done = choices.get(action, action)
        changed = added | {fact for fact in removed if fact[:1] != ("pending",)}
        if done.startswith(_INSPECTING):
            return bool(changed)
        if any(fact[0] in _SHOWN and not _is_liquid_water(fact) for fact in added):
            return True
        known = {base_name(fact[1]) for fact in before.facts if fact[0] in ("in", "holding")}
        return not all(_follows(fact, done, known) for fact in changed)


def _object_of(action: str) -> str:
    found = None if action in _AT_ONCE else _VERB.fullmatch(action)
    return found[1] if found else ""


def _takes_time(action: str, words: str, event: Event) -> bool:
    """Return whether the world went on; asking for a choice and looking around do not let it."""
    if event.kind in ("menu", "refused", "inventory"):
        return False
    if event.kind == "room":
        return bool(words)
    return event.kind != "unaltered" or action not in _AT_ONCE


_INSPECTING = ("look", "examine", "inventory", "read", "task", "wait", "use thermometer")
_SHOWN = ("seen", "temp", "phase", "stage", "slid", "burning", "pending")
_LABELS = {"in": 2, "door": 3}  # how many arguments name things; else the first


def _is_liquid_water(fact: Fact) -> bool:
    return fact[::2] == ("phase", "liquid") and base_name(fact[1]) == "water"


def _follows(fact: Fact, action: str, known: set[str]) -> bool:
    """Return whether an action names what a fact is about; what is put somewhere must be known."""
    if fact[0] == "room" or _is_liquid_water(fact):
        return True  # only going leads elsewhere, and what a tap gives is liquid
    things = [base_name(part.partition(".")[0]) for part in fact[1 : _LABELS.get(fact[0], 2) + 1]]
    if fact[0] in ("in", "holding") and things[0] not in known | {"water"}:
        return False
    return any(names(action, thing) for thing in things)
