"""The expert that knows only what has been observed: searches, then fetches, treats and places.

It reads the goal from the task's words, the world from belief facts, and what can be done from the
admissible actions, as an agent would; what is likely where comes from `comap.envs.alfworld.kinds`.
It works on real and on imagined beliefs alike.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from ...facts import State
from .goal import Goal, kind_of
from .kinds import fits, likelihood
from .wording import Dialect

__all__ = ["explore"]

_APPLIANCES = {
    "clean": ("clean", ("sinkbasin", "sink")),
    "hot": ("heat", ("microwave",)),
    "cool": ("cool", ("fridge",)),
}
_DIGITS = re.compile(r"(?<![0-9])([0-9]{1,9})(?![0-9])")


def explore(
    goal: Goal, state: State, admissible: tuple[str, ...] | None, dialect: Dialect = "move"
) -> str | None:
    """Return the next command of an explorer, or None where it is at its wits' end.

    Args:
        goal: The goal, as the task's words say it.
        state: The belief.
        admissible: The commands that do something now, or None where nobody knows.
        dialect: How to put things down where nobody knows what is admissible.

    Example:
        >>> goal = Goal.from_sentence("put a mug in desk.")
        >>> explore(goal, State(frozenset({("exists", "shelf 1")})), None)
        'go to shelf 1'
    """
    return _Explorer(goal, state, admissible, dialect).decide()


def _natural(name: str) -> tuple[str, int, str]:
    """Return what sorts "desk 2" before "desk 10"."""
    number = _DIGITS.search(name)
    return kind_of(name), int(number[1]) if number else 0, name


class _Explorer:
    """One decision."""

    def __init__(
        self, goal: Goal, state: State, admissible: tuple[str, ...] | None, dialect: Dialect
    ):
        self.goal, self.facts, self.dialect = goal, state.facts, dialect
        self.admissible = None if admissible is None else frozenset(admissible)
        self.places = sorted((f[-1] for f in self.facts if f[0] == "exists"), key=_natural)
        self.here = {f[2] for f in self.facts if f[0] == "at" and len(f) == 3}
        self.held = min((f[-1] for f in self.facts if f[0] == "holding"), default=None)
        self.contents: defaultdict[str, list[str]] = defaultdict(list)
        for fact in sorted(self.facts):  # sorted: no choice may depend on hashes
            if fact[0] == "in" and len(fact) == 3:
                self.contents[fact[2]].append(fact[1])

    def allowed(self, command: str) -> bool:
        """Return whether a command would do something, as far as is known."""
        return self.admissible is None or command in self.admissible

    def decide(self) -> str | None:
        """Return the next command."""
        if self.held is not None and not self.wanted(self.held):
            return self.get_rid()
        if self.held is not None:
            return self.use_held(self.held)
        thing = self.known_thing()
        if thing is not None:
            return self.take(*thing)
        return self.search(self.goal.object_kind)

    def wanted(self, thing: str) -> bool:
        """Return whether a thing is of the kind that the goal is about."""
        return kind_of(thing) == self.goal.object_kind

    def done(self, thing: str, place: str) -> bool:
        """Return whether a thing is already as and where the goal wants it."""
        ready = self.goal.state is None or (self.goal.state, thing) in self.facts
        return not self.goal.lamp and kind_of(place) == self.goal.target_kind and ready

    def known_thing(self) -> tuple[str, str] | None:
        """Return a wanted thing that is known to be somewhere it can be taken from."""
        home = self.target() if self.goal.count == 2 else None
        found = [
            (place not in self.here, _natural(place), _natural(thing), thing, place)
            for place, things in self.contents.items()
            for thing in things
            if ("exists", place) in self.facts
            and self.wanted(thing)
            and (place != home if self.goal.count == 2 else not self.done(thing, place))
        ]
        return min(found)[3:] if found else None

    def target(self) -> str | None:
        """Return the receptacle to bring things to: the one that already holds most of them."""
        targets = [
            place
            for place in self.places
            if kind_of(place) == self.goal.target_kind and self.tried_in_vain(place) is False
        ]
        score = {place: sum(map(self.wanted, self.contents[place])) for place in targets}
        return min(
            targets,
            key=lambda p: (-score[p], p not in self.here, ("closed", p) in self.facts, _natural(p)),
            default=None,
        )

    def tried_in_vain(self, place: str) -> bool:
        """Return whether the held thing cannot be put into a receptacle that is here and open."""
        if self.held is None or place not in self.here or ("closed", place) in self.facts:
            return False
        return not self.put_command(place)

    def reach(self, place: str) -> str | None:
        """Return the next command on the way to a receptacle and into it, None once there."""
        if place not in self.here and self.allowed(f"go to {place}"):
            return f"go to {place}"
        if ("open", place) in self.facts:
            return None
        if ("closed", place) in self.facts or place not in self.here:
            # A receptacle that one cannot go to is where one is: things share locations.
            for command in (f"open {place}", f"examine {place}"):
                if self.allowed(command) and not (
                    command.startswith("examine") and place in self.here
                ):
                    return command
        return None

    def take(self, thing: str, place: str) -> str | None:
        """Return the next command towards holding a thing."""
        return self.reach(place) or f"take {thing} from {place}"

    def put_command(self, place: str) -> str | None:
        """Return the command that puts the held thing into a receptacle that is here."""
        move, put = f"move {self.held} to {place}", f"put {self.held} in/on {place}"
        if self.admissible is None:
            return move if self.dialect == "move" else put
        return next((command for command in (move, put) if command in self.admissible), None)

    def use_held(self, thing: str) -> str | None:
        """Return the next command with a wanted thing in hand."""
        goal = self.goal
        if goal.lamp:
            return self.to_lamp()
        if goal.state is not None and (goal.state, thing) not in self.facts:
            verb, kinds = _APPLIANCES[goal.state]
            for place in self.places:
                if kind_of(place) in kinds:
                    command = f"{verb} {thing} with {place}"
                    return self.walk(place) if not self.can_do(command, place) else command
        target = self.target()
        if target is None:
            return self.search(goal.target_kind)
        return self.reach(target) or self.put_command(target)

    def can_do(self, command: str, place: str) -> bool:
        """Return whether a command at a receptacle can be given now."""
        if self.admissible is not None:
            return command in self.admissible
        return place in self.here

    def walk(self, place: str) -> str | None:
        """Return the command that leads to a receptacle."""
        return f"go to {place}" if self.allowed(f"go to {place}") else None

    def to_lamp(self) -> str | None:
        """Return the next command towards a lit lamp."""
        for place, things in sorted(self.contents.items(), key=lambda item: _natural(item[0])):
            for lamp in things:
                if kind_of(lamp) == self.goal.target_kind:
                    if place in self.here or not self.allowed(f"go to {place}"):
                        return f"use {lamp}"
                    return f"go to {place}"
        for command in sorted(self.admissible or ()):
            if command.startswith(f"use {self.goal.target_kind}"):
                return command
        return self.search(self.goal.target_kind)

    def get_rid(self) -> str | None:
        """Return the next command towards empty hands."""
        places = sorted(
            self.places, key=lambda p: (p not in self.here, ("closed", p) in self.facts)
        )
        for place in places:
            if fits(str(self.held), place):
                return self.reach(place) or self.put_command(place)
        return None

    def search(self, kind: str) -> str | None:
        """Return the next command of a search: the likeliest receptacle not yet looked into."""
        unseen = [place for place in self.places if ("seen", place) not in self.facts]
        unseen.sort(key=lambda p: (p not in self.here, -likelihood(kind, p), _natural(p)))
        for place in unseen:
            command = self.reach(place)
            if command is not None:
                return command
        return self.look_again()

    def look_again(self) -> str | None:
        """Return a command for when everything has been seen in vain: visit the least known."""
        commands: Iterable[str] = sorted(self.admissible or ())
        for command in commands:
            if command.startswith("open "):
                return command
        return None
