"""The belief that the canonicalizer folds texts into, grouped as events need it.

A thing is called by its name, ``"metal pot"``; where the belief has several of a name, the later ones
are ``"wood cup #2"``, ``"wood cup #3"`` in the order in which they became known. A thing keeps what it
is called for as long as it is known, wherever it is moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...facts import Fact

__all__ = ["AGENT", "INVENTORY", "Belief", "base_name", "order"]

AGENT = "agent"
"""What facts call the agent."""
INVENTORY = "inventory"
"""The place of what the agent holds."""

_NUMBERED = re.compile(r"(.+) #([0-9]{1,6})")
_LENGTHS = {
    "open": 2,
    "closed": 2,
    "active": 2,
    "inactive": 2,
    "temp": 3,
    "phase": 3,
    "stage": 3,
    "slid": 3,
    "burning": 2,
}
_GROUPS = {"closed": "open", "inactive": "active"}


def base_name(name: str) -> str:
    """Return the name of a thing without the number that tells it from others of that name.

    Example:
        >>> base_name("wood cup #2"), base_name("flower pot 4")
        ('wood cup', 'flower pot 4')
    """
    found = _NUMBERED.fullmatch(name) if "#" in name else None
    return found[1] if found else name


def order(name: str) -> tuple[str, int]:
    """Return what names are sorted by: the bare name, then the number.

    Example:
        >>> sorted(["cup #10", "cup #2", "cup"], key=order)
        ['cup', 'cup #2', 'cup #10']
    """
    found = _NUMBERED.fullmatch(name) if "#" in name else None
    return (found[1], int(found[2])) if found else (name, 1)


class Belief:
    """Where things are, what is known of them, and everything else that facts tell.

    `told` has what was said since the belief was made: things for where they are, and pairs of a
    thing and the kind of a mark.

    Args:
        facts: The facts to start with. Those of other predicates are kept as they are.

    Example:
        >>> belief = Belief([("room", "agent", "kitchen"), ("in", "metal pot", "kitchen")])
        >>> belief.move("metal pot", "inventory")
        >>> sorted(belief.facts())
        [('holding', 'metal pot'), ('room', 'agent', 'kitchen')]
    """

    __slots__ = (
        "_free",
        "children",
        "doors",
        "focus",
        "links",
        "marks",
        "other",
        "parent",
        "pending",
        "room",
        "seen",
        "told",
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
        self.told: set[str | tuple[str, str]] = set()
        self._free: dict[str, int] = {}  # for each name, a number below which none is free
        for fact in sorted(
            facts
        ):  # two places for a thing: which one counts must not depend on chance
            self._read(fact)
        self.told.clear()

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
        """Return the belief as facts."""
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
        self.told.add((thing, group))
        self.marks.setdefault(thing, {})[group] = (kind, thing, *value)

    def unmark(self, thing: str, *groups: str) -> None:
        """Forget what was said of a thing: ``open``, ``active``, ``temp``, ``phase`` and so on."""
        marks = self.marks.get(thing, {})
        for group in groups:
            marks.pop(group, None)

    def has(self, thing: str, *mark: str) -> bool:
        """Return whether something is said of a thing, for example ``has("oven", "closed")``."""
        marks = self.marks.get(thing)
        if not marks:
            return False
        return marks.get(_GROUPS.get(mark[0], mark[0])) == (mark[0], thing, *mark[1:])

    # Where things are.

    def inside(self, place: str) -> list[str]:
        """Return what is directly in a place, in order."""
        return sorted(self.children.get(place, ()), key=order)

    def below(self, place: str, *, through_closed: bool = True) -> list[str]:
        """Return everything in a place and in what is in it, each thing before what it holds.

        Args:
            place: A room, a thing or the inventory.
            through_closed: Look into closed things, too.
        """
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
        self.told.add(thing)
        self._take_out(thing)
        self.parent[thing] = place
        self.children.setdefault(place, set()).add(thing)

    def _take_out(self, thing: str) -> None:
        place = self.parent.pop(thing, None)
        if place is not None:
            self.children[place].discard(thing)

    def forget(self, thing: str) -> None:
        """Forget a thing and all that is in it."""
        for part in reversed(self.below(thing)):
            self._erase(part)
        self._erase(thing)

    def _erase(self, thing: str) -> None:
        self._take_out(thing)
        self._free.pop(base_name(thing), None)
        self.children.pop(thing, None)
        self.marks.pop(thing, None)
        self.seen.discard(thing)
        self.unlink(thing)

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
        """Connect two terminals, ``"red wire.terminal 1"`` and the like."""
        self.links.add((min(first, second), max(first, second)))

    def unlink(self, thing: str, terminal: str | None = None) -> None:
        """Disconnect a thing, or only one of its terminals."""
        ends = f"{thing}." if terminal is None else f"{thing}.{terminal}"
        for pair in [*self.links]:
            if any(end == ends or (terminal is None and end.startswith(ends)) for end in pair):
                self.links.discard(pair)
