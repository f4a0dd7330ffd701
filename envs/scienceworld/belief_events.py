"""What each event of an observation changes in a belief."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .belief import AGENT, INVENTORY, Belief, base_name
from .belief_names import Phrase, chosen, named, pairs_of, parse_phrase, score
from .sentences import Event
from .sentences_things import WORDS, bucket, canonical_name

__all__ = ["Fold"]

_GROUND = "ground"  # nothing lies in it, all on it
_MEASURED = re.compile(r" (?:on|with) (.+)")


class Fold:
    """Takes the events that followed one action into a belief.

    There is a method for each kind of `Event`; kinds without one change nothing.

    Args:
        belief: What to change.
        words: What the action was about, ``"red apple in kitchen"`` of ``"eat red apple in kitchen"``.
        request: What the request was about that a choice followed; empty where there was none.
    """

    def __init__(self, belief: Belief, words: str, request: str = ""):
        self.belief = belief
        self.words = words
        self._said = [words, request] if request else [words]

    def take(self, event: Event) -> bool:
        """Take in one event; return whether it makes sense here."""
        method = _METHODS.get(event.kind)
        return True if method is None else method(self, event) is not False

    # Which things are meant.

    def one(self, name: str) -> list[str]:
        """Return the things that an answer about one thing may mean."""
        return self._chosen(named(self.belief, name))

    def _chosen(self, found: Sequence[str]) -> list[str]:
        return chosen(self.belief, found, [parse_phrase(words) for words in self._said])

    def meant(self, words: str) -> list[str]:
        """Return the things that an action's own words may mean."""
        phrase = parse_phrase(words)
        around = self.belief.around()
        best = max((score(self.belief, thing, phrase) for thing in around), default=0)
        found = [thing for thing in around if best == 3 == score(self.belief, thing, phrase)]
        return chosen(self.belief, found)

    def two(self, first: str, second: str) -> tuple[list[str], list[str]]:
        """Return the things that an answer about two things may mean."""
        ones, others = named(self.belief, first), self.places(second)
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
        return max((score(self.belief, t, phrase) for t in things if t in self.belief.parent), default=0)

    def places(self, name: str) -> list[str]:
        """Return the things, or the room, or the inventory, that something may be put into."""
        if name in (INVENTORY, self.belief.room):
            return [name]
        if name == _GROUND:
            return [self.belief.room]
        found = named(self.belief, name)
        return found or ([name] if self._is_room(name) else [])

    def _is_room(self, name: str) -> bool:
        if name in self.belief.parent:
            return False
        return name in self.belief.seen or any(name in ends for ends in self.belief.doors)

    # Looking.

    def room(self, event: Event) -> None:
        if not self.words or any(thing.name == AGENT for thing in event.things):
            self.belief.room = event.first  # else it is looked at from elsewhere
        self.belief.show(event.first, event.things)
        self._doors(event)

    def _doors(self, event: Event) -> None:
        here = event.first or self.belief.room
        for there, state in event.pairs:
            self.belief.doors[min(here, there), max(here, there)] = state

    def inventory(self, event: Event) -> None:
        self.belief.show(INVENTORY, event.things)

    def inside(self, event: Event) -> None:
        places = self.places(event.first) or [event.first] * bool(event.pairs)
        if len(places) > 1:
            places = self._chosen(places)
        if len(places) == 1:
            self.belief.show(places[0], event.things)
        if places == [event.first]:
            self._doors(event)

    def thing(self, event: Event) -> bool:
        """Take in the description of one thing, which the action named."""
        thing = event.things[0]
        found = self.one(thing.name)
        if len(found) > 1 and thing.contents is not None:
            told = sorted(child.name for child in thing.contents)
            inside = {f: sorted(map(base_name, self.belief.inside(f))) for f in found}
            found = [f for f in found if inside[f] == told] or found
        if len(found) == 1:
            self.belief.describe(found[0], thing)
        return bool(found) or bool(set(thing.name.split()) & set(self.words.split())) or event.second

    # Going and opening.

    def go(self, event: Event) -> None:
        self.belief.room = event.second

    def opened(self, event: Event) -> None:
        self._set(event.first, "open")

    def closed(self, event: Event) -> None:
        self._set(event.first, "closed")

    def _set(self, name: str, state: str) -> None:
        if name != "door":
            for thing in self._only(self.one(name)):
                self.belief.mark(thing, state)
            return
        here = self.belief.room
        doors = [ends for ends in self.belief.doors if here in ends]
        meant = [ends for ends in doors if (ends[0] if ends[1] == here else ends[1]) in self.words]
        doors = meant or doors
        if len(doors) == 1:
            self.belief.doors[doors[0]] = state

    def _only(self, things: list[str]) -> list[str]:
        """Return the thing, if it is clear which one."""
        return things if len(things) == 1 else []

    # Devices and circuits.

    def active(self, event: Event) -> None:
        for thing in self._only(self.one(event.first)):
            self.belief.mark(thing, "active")

    def inactive(self, event: Event) -> None:
        for thing in self._only(self.one(event.first)):
            self.belief.mark(thing, "inactive")

    def linked(self, event: Event) -> None:
        (first, owner), (second, other) = event.pairs
        ones, others = self.two(owner, other)
        if len(ones) == len(others) == 1:
            self.belief.link(f"{ones[0]}.{first}", f"{others[0]}.{second}")

    def unlinked(self, event: Event) -> None:
        found = named(self.belief, event.first) or [event.first]
        linked = [t for t in found if any(e.startswith(f"{t}.") for p in self.belief.links for e in p)]
        for thing in linked if len(linked) == 1 else found:
            self.belief.unlink(thing)

    # Handling.

    def moved(self, event: Event) -> None:
        ones, places = self.two(event.first, event.second)
        name, marks = canonical_name(event.first)
        if len(places) != 1:
            for thing in ones:
                self.belief.forget(thing)
            return
        if len(ones) == 1:
            self.belief.move(ones[0], places[0])
            return
        for thing in ones:
            self.belief.forget(thing)
        self.belief.new(name, places[0])

    def emptied(self, event: Event) -> None:
        """Move all that is in one thing into another."""
        ones, places = self.two(event.first, event.second)
        for vessel in ones:
            for thing in self.belief.inside(vessel):
                if len(ones) == len(places) == 1:
                    self.belief.move(thing, places[0])
                else:
                    self.belief.forget(thing)

    def dunked(self, event: Event) -> None:
        """Move the liquids of the second thing into the first, which was dunked into it."""
        ones, others = self.two(event.first, event.second)
        names = [canonical_name(thing.name)[0] for thing in event.things]
        for vessel in others:
            for thing in self.belief.inside(vessel):
                if base_name(thing) not in names:
                    continue
                if len(ones) == len(others) == 1:
                    self.belief.move(thing, ones[0])
                else:
                    self.belief.forget(thing)

    def mixed(self, event: Event) -> None:
        """Put the product in the place of what was mixed."""
        for vessel in self._only(self.meant(self.words)):
            for thing in self.belief.inside(vessel):
                self.belief.forget(thing)
            name = WORDS["products"].get(event.first, event.first)
            self.belief.new(canonical_name(name)[0], vessel)

    def empty(self, event: Event) -> None:
        found = self.one(event.first) if event.first else self.meant(self.words)
        for place in self._only(found):
            self.belief.show(place, ())

    def eaten(self, event: Event) -> None:
        for thing in self.one(event.first):
            self.belief.forget(thing)

    def dug(self, event: Event) -> None:
        for name in ("hole", event.second):
            self.belief.new(name, self.belief.room)

    def chopped(self, event: Event) -> None:
        for thing in self.one(event.first):
            self.belief.forget(thing)
        if event.second:
            self.belief.new(event.second, self.belief.room)

    # Attention.

    def focused(self, event: Event) -> None:
        found = self.one(event.first)
        self.belief.focus = found[0] if len(found) == 1 else canonical_name(event.first)[0]

    def unfocused(self, event: Event) -> None:
        self.belief.focus = ""

    def temperature(self, event: Event) -> None:
        target = _MEASURED.search(self.words)
        found = self.meant(target[1]) if target else []
        for thing in self._only(found):
            self.belief.mark(thing, "temp", bucket(int(event.first)))

    def menu(self, event: Event) -> None:
        self.belief.pending = dict(event.pairs)


_METHODS: dict[str, Callable[[Fold, Event], bool | None]] = {
    "room": Fold.room,
    "inventory": Fold.inventory,
    "inside": Fold.inside,
    "thing": Fold.thing,
    "door": Fold._doors,
    "go": Fold.go,
    "opened": Fold.opened,
    "closed": Fold.closed,
    "active": Fold.active,
    "inactive": Fold.inactive,
    "flushing": Fold.active,
    "linked": Fold.linked,
    "unlinked": Fold.unlinked,
    "moved": Fold.moved,
    "emptied": Fold.emptied,
    "dunked": Fold.dunked,
    "mixed": Fold.mixed,
    "empty": Fold.empty,
    "eaten": Fold.eaten,
    "dug": Fold.dug,
    "chopped": Fold.chopped,
    "focus": Fold.focused,
    "unfocus": Fold.unfocused,
    "temperature": Fold.temperature,
    "menu": Fold.menu,
}
