"""What each event of an observation changes in a belief."""

from __future__ import annotations

from collections.abc import Callable

from .belief import AGENT, INVENTORY, Belief, base_name
from .belief_meaning import TARGET, Meaning
from .belief_names import called, named, parse_phrase
from .belief_show import describe, show
from .sentences import Event
from .sentences_things import WORDS, bucket, canonical_name

__all__ = ["Fold"]

_GROUND = "ground"  # nothing lies in it, all on it


class Fold(Meaning):
    """Takes the events that followed one action into a belief.

    There is a method for each kind of `Event`; kinds without one change nothing.

    Args:
        belief: What to change.
        words: As for `Meaning`.
        request: As for `Meaning`.
        looking: Whether the action asks for a description.
    """

    def __init__(self, belief: Belief, words: str, request: str = "", looking: bool = False):
        super().__init__(belief, words, request)
        self.looking = looking

    def take(self, event: Event) -> bool:
        """Take in one event; return whether it makes sense here."""
        method = _METHODS.get(event.kind)
        return True if method is None else method(self, event) is not False

    # Looking.

    def _room(self, event: Event) -> None:
        if not self.words or any(thing.name == AGENT for thing in event.things):
            self.belief.room = event.first  # else it is looked at from elsewhere
        show(self.belief, event.first, event.things)
        self._doors(event)

    def _doors(self, event: Event) -> None:
        here = event.first or self.belief.room
        for there, state in event.pairs:
            self.belief.doors[min(here, there), max(here, there)] = state

    def _inventory(self, event: Event) -> None:
        show(self.belief, INVENTORY, event.things)

    def _inside(self, event: Event) -> None:
        places = self.places(event.first) or [event.first] * bool(event.pairs)
        if len(places) > 1:
            places = self._chosen(places)
        if len(places) == 1:
            show(self.belief, places[0], event.things)
        if places == [event.first]:
            self._doors(event)

    def _thing(self, event: Event) -> bool:
        """Take in the description of one thing, which the action named."""
        if not self.looking:
            return False
        thing = event.things[0]
        found = self.one(thing.name)
        if len(found) > 1 and thing.contents is not None:
            told = sorted(child.name for child in thing.contents)
            inside = {f: sorted(map(base_name, self.belief.inside(f))) for f in found}
            found = [f for f in found if inside[f] == told] or found
        if len(found) == 1:
            describe(self.belief, found[0], thing)
        named_so = any(word in thing.name for word in self.words.split())
        return bool(found or named_so or event.second)

    # Going and opening.

    def _go(self, event: Event) -> None:
        self.belief.room = event.second

    def _opened(self, event: Event) -> None:
        self._set(event.first, "open")

    def _closed(self, event: Event) -> None:
        self._set(event.first, "closed")

    def _set(self, name: str, state: str) -> None:
        if name != "door":
            self._change(name, "open", state)
            return
        here = self.belief.room
        doors = [ends for ends in self.belief.doors if here in ends]
        meant = [ends for ends in doors if (ends[0] if ends[1] == here else ends[1]) in self.words]
        doors = meant or doors
        if len(doors) == 1:
            self.belief.doors[doors[0]] = state

    def _change(self, name: str, group: str, state: str) -> None:
        """Note the state of the thing that an answer names.

        Where it is not clear which one is meant, nothing is believed of those of another state.
        """
        found = self.one(name)
        if len(found) == 1:
            self.belief.mark(found[0], state)
            return
        for thing in found or named(self.belief, name):
            if not self.belief.has(thing, state):
                self.belief.unmark(thing, group)

    def _only(self, things: list[str]) -> list[str]:
        """Return the thing, if it is clear which one."""
        return things if len(things) == 1 else []

    # Devices and circuits.

    def _active(self, event: Event) -> None:
        self._change(event.first, "active", "active")

    def _inactive(self, event: Event) -> None:
        self._change(event.first, "active", "inactive")

    def _linked(self, event: Event) -> None:
        (first, owner), (second, other) = event.pairs
        ones, others = self.two(owner, other)
        if len(ones) == len(others) == 1:
            self.belief.link(f"{ones[0]}.{first}", f"{others[0]}.{second}")

    def _unlinked(self, event: Event) -> None:
        found = named(self.belief, event.first) or [event.first]
        linked = [
            t for t in found if any(e.startswith(f"{t}.") for p in self.belief.links for e in p)
        ]
        for thing in linked if len(linked) == 1 else found:
            self.belief.unlink(thing)

    # Handling.

    def _moved(self, event: Event) -> None:
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

    def _emptied(self, event: Event) -> None:
        """Move all that is in one thing into another."""
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

    def _dunked(self, event: Event) -> None:
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

    def _mixed(self, event: Event) -> None:
        """Put the product in the place of what was mixed."""
        vessels = self.meant(self.words) or called(self.belief, parse_phrase(self.words))
        for vessel in vessels:
            for thing in self.belief.inside(vessel):
                self.belief.forget(thing)
        name = WORDS["products"].get(event.first, event.first)
        for vessel in self._only(vessels):
            self.belief.new(canonical_name(name)[0], vessel)

    def _empty(self, event: Event) -> None:
        found = self.one(event.first) if event.first else self.meant(self.words)
        for place in self._only(found):
            show(self.belief, place, ())

    def _burning(self, event: Event) -> None:
        for thing in self._only(self._used_on(event.first)):
            self.belief.mark(thing, "burning")

    def _eaten(self, event: Event) -> None:
        for thing in self.one(event.first) or named(self.belief, event.first):
            self.belief.forget(thing)

    def _dug(self, event: Event) -> None:
        for name in ("hole", event.second):
            self.belief.new(name, self.belief.room)

    def _chopped(self, event: Event) -> None:
        for thing in self._used_on(event.first):
            self.belief.forget(thing)
        if event.second:
            self.belief.new(event.second, self.belief.room)

    # Attention.

    def _focused(self, event: Event) -> None:
        found = self.one(event.first)
        self.belief.focus = found[0] if len(found) == 1 else canonical_name(event.first)[0]

    def _unfocused(self, event: Event) -> None:
        self.belief.focus = ""

    def _temperature(self, event: Event) -> None:
        target = TARGET.search(self.words)
        for thing in self._only(self.meant(target[1]) if target else []):
            self.belief.mark(thing, "temp", bucket(int(event.first)))

    def _menu(self, event: Event) -> None:
        self.belief.pending = dict(event.pairs)


_METHODS: dict[str, Callable[[Fold, Event], bool | None]] = {
    "room": Fold._room,
    "inventory": Fold._inventory,
    "inside": Fold._inside,
    "thing": Fold._thing,
    "door": Fold._doors,
    "go": Fold._go,
    "opened": Fold._opened,
    "closed": Fold._closed,
    "active": Fold._active,
    "inactive": Fold._inactive,
    "flushing": Fold._active,
    "linked": Fold._linked,
    "unlinked": Fold._unlinked,
    "moved": Fold._moved,
    "emptied": Fold._emptied,
    "dunked": Fold._dunked,
    "mixed": Fold._mixed,
    "empty": Fold._empty,
    "burning": Fold._burning,
    "eaten": Fold._eaten,
    "dug": Fold._dug,
    "chopped": Fold._chopped,
    "focus": Fold._focused,
    "unfocus": Fold._unfocused,
    "temperature": Fold._temperature,
    "menu": Fold._menu,
}
