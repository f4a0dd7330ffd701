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
    """Take in a description that lists all that is in a place, with what is in that."""
    listing = _Listing(belief)
    listing.match(place, things)

    # What is new here and missing there has moved. The list grows by what is in the new things.
    for thing, new_place in listing.fresh:
        missing_names = listing.missing.get(thing.name)
        if missing_names:
            name = missing_names.pop(0)
            belief.move(name, new_place)
        else:
            name = belief.new(thing.name, new_place)
        listing.take(name, thing)

    for missing_names in listing.missing.values():
        for name in missing_names:
            if name in belief.parent:
                belief.forget(name)


class _Listing:
    """What one description lists."""

    def __init__(self, belief: Belief):
        self.belief = belief
        self.missing: dict[str, list[str]] = {}
        self.fresh: list[tuple[Thing, str]] = []

    def match(self, place: str, things: Sequence[Thing]) -> None:
        """Find the things that a description lists among those that were in the place before.

        What is listed and not found is `fresh`; what was there and is not listed is `missing`.
        """
        names_before: dict[str, list[str]] = {}
        for name in self.belief.inside(place):
            names_before.setdefault(base_name(name), []).append(name)
        listed: dict[str, list[Thing]] = {}
        for thing in things:
            if thing.name not in _IGNORED:
                listed.setdefault(thing.name, []).append(thing)

        # A description does not say which of two equal names is which. Those with the same contents as
        # before come first, then whatever is most alike.
        for base, group in listed.items():
            names = names_before.get(base, [])
            candidates = [*names]
            unmatched = self._take_unchanged(names, group)
            if (
                unmatched and len(candidates) > 1
            ):  # which is which is a guess, and wires tell no more
                for name in candidates:
                    self.belief.unlink(name)
            for thing in unmatched:
                if names:
                    self.take(_most_alike(self.belief, names, thing), thing)
                else:
                    self.fresh.append((thing, place))

        for base, names in names_before.items():
            self.missing.setdefault(base, []).extend(names)
        self.belief.seen.add(place)

    def _take_unchanged(self, names: list[str], group: list[Thing]) -> list[Thing]:
        """Take things with the contents that known ones have, whose names go; return the others."""
        unmatched = []
        for thing in group:
            contents = _contents(thing)
            unchanged = (name for name in names if contents == _inside(self.belief, name))
            name = None if contents is None else next(unchanged, None)
            if name is None:
                unmatched.append(thing)
            else:
                names.remove(name)
                self.take(name, thing)
        return unmatched

    def take(self, name: str, thing: Thing) -> None:
        """Take in what a description says of a thing whose name in the belief is known."""
        _describe(self.belief, name, thing)
        if thing.contents is not None:
            self.match(name, thing.contents)


def _contents(thing: Thing) -> list[str] | None:
    """Return what a description tells to be in a thing, by bare names."""
    return None if thing.contents is None else sorted(child.name for child in thing.contents)


def _inside(belief: Belief, name: str) -> list[str]:
    return sorted(base_name(child) for child in belief.inside(name))


def _most_alike(belief: Belief, names: list[str], thing: Thing) -> str:
    """Take the known thing that shares most with a description out of `names`, or the first."""
    contents = set(_contents(thing) or ())
    best_name = names[0]
    if contents:
        best_name = max(names, key=lambda name: len(contents.intersection(_inside(belief, name))))
    names.remove(best_name)
    return best_name


def _describe(belief: Belief, name: str, thing: Thing) -> None:
    """Write what a description says of a thing, without its contents, into the belief."""
    # Of a phase or a stage a description says all there is: what it leaves out is no longer so.
    belief.fresh.add(name)
    belief.unmark(name, *_REPLACED)
    for kind, *value in thing.marks:
        belief.mark(name, kind, *value)
    for terminal, linked_name in thing.links:
        if not linked_name:
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
        room = event.first or self.belief.room
        for next_room, state in event.pairs:
            self.belief.doors[min(room, next_room), max(room, next_room)] = state

    def _on_inventory(self, event: Event) -> None:
        show(self.belief, INVENTORY, event.things)

    def _on_inside(self, event: Event) -> None:
        # Only of a room are doors described: one that was never heard of is a room then.
        places = self.places(event.first)
        if not places and event.pairs:
            places = [event.first]
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
        names = self.one(thing.name)
        if len(names) > 1 and thing.contents is not None:
            contents = _contents(thing)
            unchanged = [name for name in names if _inside(self.belief, name) == contents]
            names = unchanged or names

        if len(names) == 1:
            _describe(self.belief, names[0], thing)
            if thing.contents is not None:
                show(self.belief, names[0], thing.contents)

        # A predicted description of something that nobody named or knows makes no sense.
        is_named = any(word in thing.name for word in self.words.split())
        return bool(names or is_named or event.second)

    # Going and opening.

    def _on_go(self, event: Event) -> None:
        self.belief.room = event.second

    def _on_opened(self, event: Event) -> None:
        state = "open" if event.kind == "opened" else "closed"
        if event.first != "door":
            self._change(event.first, "open", state)
            return

        # The answer says "door" alone: which one, the action says, or there is one only.
        room = self.belief.room
        doors = [ends for ends in self.belief.doors if room in ends]
        doors_in_words = []
        for ends in doors:
            next_room = ends[0] if ends[1] == room else ends[1]
            if next_room in self.words:
                doors_in_words.append(ends)
        doors = doors_in_words or doors
        if len(doors) == 1:
            self.belief.doors[doors[0]] = state

    def _change(self, name: str, group: str, state: str) -> None:
        """Give a thing a state; where it may be one of several, forget theirs."""
        things = self.one(name)
        if len(things) == 1:
            self.belief.mark(things[0], state)
            return
        for thing in things or named(self.belief, name):
            if not self.belief.has(thing, state):
                self.belief.unmark(thing, group)

    def _only(self, things: list[str]) -> list[str]:
        """Return a thing that is the only one; nothing where it may be one of several."""
        return things if len(things) == 1 else []

    # Devices and circuits.

    def _on_active(self, event: Event) -> None:
        state = "inactive" if event.kind == "inactive" else "active"
        self._change(event.first, "active", state)

    def _on_linked(self, event: Event) -> None:
        (first_terminal, first_name), (second_terminal, second_name) = event.pairs
        first_things, second_things = self.two(first_name, second_name)
        if len(first_things) == len(second_things) == 1:
            first_end = f"{first_things[0]}.{first_terminal}"
            second_end = f"{second_things[0]}.{second_terminal}"
            self.belief.link(first_end, second_end)

    def _on_unlinked(self, event: Event) -> None:
        things = named(self.belief, event.first) or [event.first]
        linked_things = [thing for thing in things if self._is_linked(thing)]
        for thing in linked_things if len(linked_things) == 1 else things:
            self.belief.unlink(thing)

    def _is_linked(self, thing: str) -> bool:
        ends = [end for pair in self.belief.links for end in pair]
        return any(end.startswith(f"{thing}.") for end in ends)

    # Handling.

    def _on_moved(self, event: Event) -> None:
        things, places = self.two(event.first, event.second)
        if event.second == _GROUND:
            places = [self.belief.room]
        if len(things) == len(places) == 1:
            if things[0] in self.belief.above(places[0]):  # a table into the jug on it: nowhere
                self.belief.forget(things[0])
            else:
                self.belief.move(things[0], places[0])
            return

        # One of several has moved, nobody knows which: none is surely where it was, and one is there.
        for thing in things or named(self.belief, event.first):
            if [thing] != places:
                self.belief.forget(thing)
        if len(places) == 1 and (places[0] in self.belief.parent or self._is_place(places[0])):
            self.belief.new(canonical_name(event.first)[0], places[0])

    def _on_emptied(self, event: Event) -> None:
        vessels, places = self.two(event.first, event.second)
        if event.second == _GROUND:
            places = [self.belief.room]
        if len(vessels) == len(places) == 1:
            for thing in self.belief.inside(vessels[0]):
                self.belief.move(thing, places[0])
            return
        for vessel in vessels or named(self.belief, event.first):
            for thing in self.belief.inside(vessel):
                self.belief.forget(thing)

    def _on_dunked(self, event: Event) -> None:
        """Move the liquids of the second thing into the first, which was dunked into it."""
        dunked_things, vessels = self.two(event.first, event.second)
        is_clear = len(dunked_things) == len(vessels) == 1
        liquids = {thing.name for thing in event.things}
        for vessel in vessels or named(self.belief, event.second):
            for thing in self.belief.inside(vessel):
                if base_name(thing) not in liquids:
                    continue
                if is_clear:
                    self.belief.move(thing, dunked_things[0])
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
        places = self.one(event.first) if event.first else self.meant(self.words)
        for place in self._only(places):
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
        things = self.one(event.first)
        self.belief.focus = things[0] if len(things) == 1 else canonical_name(event.first)[0]

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
    # Water may evaporate, freeze or be drunk, and its wires with it.
    for thing in [name for name in belief.parent if base_name(name) == "water"]:
        belief.unlink(thing)

    # What was just said stays; what else may have changed is unknown from here on.
    linked_things: set[str] = set()
    for pair in belief.links:
        linked_things.update(end.rpartition(".")[0] for end in pair)
    for thing, marks in [*belief.marks.items()]:
        for group in [*marks]:
            is_fresh = (thing, group) in belief.fresh
            if not is_fresh and not _lasts(belief, thing, group, linked_things):
                belief.unmark(thing, group)
    for thing in sorted(belief.parent):
        if thing in belief.parent and _is_fleeting(belief, thing):
            belief.forget(thing)

    # Open vessels under running taps fill: that is sure, and nobody says so.
    for tap in sorted(belief.parent):
        if base_name(tap) not in _TAPS or not belief.has(tap, "active"):
            continue
        for vessel in belief.inside(tap):
            contents = {base_name(thing) for thing in belief.inside(vessel)}
            is_open = vessel in belief.seen and not belief.has(vessel, "closed")
            if is_open and "water" not in contents:
                belief.mark(belief.new("water", vessel), "phase", "liquid")


def _lasts(belief: Belief, thing: str, group: str, linked_things: set[str]) -> bool:
    """Return whether what is said of a thing surely stays so for a while."""
    base = base_name(thing)
    if group == "active":
        # A device in a circuit works as long as the others let it; a switch is set by hand alone.
        return base == "switch" or not (base in _SHORT_LIVED or thing in linked_things)
    if group == "phase":
        # Of all substances the belief knows only how liquid water behaves, far from heat and cold.
        if base != "water" or not belief.has(thing, "phase", "liquid"):
            return False
        return not any(_heats_or_cools(belief, place) for place in belief.above(thing))
    return group not in ("temp", "slid")


def _heats_or_cools(belief: Belief, place: str) -> bool:
    name = base_name(place)
    return name in _COOLERS or (belief.has(place, "active") and name not in _TAPS)


def _is_fleeting(belief: Belief, thing: str) -> bool:
    """Return whether a thing may be gone, elsewhere or of another name after a while."""
    base = base_name(thing)
    place = belief.parent[thing]
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
        drains = base_name(place) in (*_TAPS, "toilet") or "flower pot" in place
        return drains or _has_beside(belief, place, ("soil",))
    return base.endswith(" seed") and _has_beside(belief, place, ("soil",))


def _has_beside(belief: Belief, place: str, ends: tuple[str, ...]) -> bool:
    """Return whether a place has something in it whose name has one of some ends."""
    return any(base_name(child).endswith(ends) for child in belief.children.get(place, ()))


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

        # An action that may mean several things is answered by a menu, and the next one is a number of
        # it. That then means the menu's line, and the request that the menu was about.
        menu = belief.pending
        belief.pending = {}
        full_action = action if action == _REQUEST else menu.get(action, action)
        request = _object_of(menu.get(_REQUEST, "")) if action in menu else ""
        words = _object_of(full_action)

        fold = Fold(belief, words, request, full_action.startswith(_LOOKING))
        if not all(fold.take(event) for event in events):
            return State(state.facts, parsed=False)
        if _takes_time(full_action, words, events[-1]):
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
        # What time alone adds and takes away reveals nothing.
        later = Belief(before.facts)
        pass_time(later)
        later_facts = later.facts()
        added = after.facts - before.facts - later_facts
        removed = (before.facts - after.facts) & later_facts

        menu = {
            fact[1]: fact[2] for fact in before.facts if fact[0] == "pending" and len(fact) == 3
        }
        action = self.action(action)
        full_action = menu.get(action, action)
        changed = added | {fact for fact in removed if fact[:1] != ("pending",)}
        if full_action.startswith(_INSPECTING):
            return bool(changed)
        if any(fact[0] in _SHOWN and not _is_liquid_water(fact) for fact in added):
            return True
        known_names = {base_name(fact[1]) for fact in before.facts if fact[0] in ("in", "holding")}
        return not all(_follows(fact, full_action, known_names) for fact in changed)


def _object_of(action: str) -> str:
    """Return what stands behind an action's verb; nothing where the verb alone is the action."""
    verb_and_object = None if action in _AT_ONCE else _VERB.fullmatch(action)
    return verb_and_object[1] if verb_and_object else ""


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


def _follows(fact: Fact, action: str, known_names: set[str]) -> bool:
    """Return whether an action names what a fact is about; what is put somewhere must be known."""
    if fact[0] == "room" or _is_liquid_water(fact):
        return True  # only going leads elsewhere, and what a tap gives is liquid
    things = [base_name(part.partition(".")[0]) for part in fact[1 : _LABELS.get(fact[0], 2) + 1]]
    if fact[0] in ("in", "holding") and things[0] not in known_names | {"water"}:
        return False
    return any(names(action, thing) for thing in things)
