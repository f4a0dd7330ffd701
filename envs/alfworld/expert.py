"""The experts: `plan` knows everything and is shortest, `explore` knows only what was observed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations

from ...facts import State
from .engine import NativeEngine
from .goal import APPLIANCES, Dialect, Goal, fits, kind_of, likelihood


def plan(engine: NativeEngine) -> list[str] | None:
    """Return the shortest list of commands that wins from the engine's state."""
    if engine.won():
        return []
    return min((draft.commands for draft in _drafts(engine)), key=len, default=None)


class _Draft:
    """A plan in the making: its commands, and the state that they lead to."""

    __slots__ = ("commands", "engine", "held", "location", "opened", "source")

    def __init__(self, engine: NativeEngine):
        self.engine = engine
        self.commands: list[str] = []
        self.location = engine.location
        self.held = engine.held
        self.opened: set[str] = set()
        self.source: str | None = None

    def copy(self) -> _Draft:
        # Past `__init__`, which would begin again at the engine's state.
        draft = _Draft.__new__(_Draft)
        draft.engine = self.engine
        draft.commands = [*self.commands]
        draft.location = self.location
        draft.held = self.held
        draft.opened = {*self.opened}
        draft.source = self.source
        return draft

    def left_in_place(self, thing: str) -> bool:
        """Return whether `thing` also stays where the goal wants it: it can be in two receptacles."""
        contents = self.engine.contents
        targets = self.engine.game.targets
        return any(thing in contents[place] for place in targets if place != self.source)

    def go(self, place: str) -> None:
        """Walk to a receptacle, unless it is here."""
        location = self.engine.game.location[place]
        if location != self.location:
            self.commands.append(f"go to {place}")
            self.location = location

    def reach(self, place: str) -> None:
        """Walk to a receptacle and open it, where it has a closed door."""
        self.go(place)
        closed = place in self.engine.game.openable and place not in self.engine.opened
        if closed and place not in self.opened:
            self.commands.append(f"open {place}")
            self.opened.add(place)

    def put(self, place: str) -> None:
        """Walk to a receptacle and put the held thing there."""
        self.reach(place)
        if self.engine.game.dialect == "move":
            self.commands.append(f"move {self.held} to {place}")
        else:
            self.commands.append(f"put {self.held} in/on {place}")
        self.held = None


def _drafts(engine: NativeEngine) -> Iterator[_Draft]:
    """Yield plans that win, one of the shortest among them."""
    goal = engine.game.goal
    if goal.lamp:
        yield from _beside_lamp(engine)
    elif goal.count == 2:
        yield from _two(engine)
    else:
        for thing in sorted(engine.game.wanted):
            for draft in _fetched(_Draft(engine), thing):
                for treated in _treated(draft, thing):
                    if treated.left_in_place(thing):
                        yield treated
                    yield from _placed(treated, thing)


def _fetched(draft: _Draft, thing: str) -> Iterator[_Draft]:
    """Yield the ways to have a thing in the hand."""
    engine = draft.engine
    if draft.held == thing:
        yield draft
        return
    if thing not in engine.game.pickupable:
        return

    sources = [place for place, things in engine.contents.items() if thing in things]
    if not sources:
        return
    for emptied in _emptied(draft):
        for source in sources:
            branch = emptied.copy()
            branch.reach(source)
            branch.commands.append(f"take {thing} from {source}")
            branch.held = thing
            branch.source = source
            yield branch


def _emptied(draft: _Draft) -> Iterator[_Draft]:
    """Yield the ways to have nothing in the hand."""
    if draft.held is None:
        yield draft
        return

    # A thing cannot be dropped: it goes into a receptacle that takes its kind.
    game = draft.engine.game
    kind = game.kind[draft.held]
    for place in game.receptacles:
        if (game.kind[place], kind) in game.fits:
            branch = draft.copy()
            branch.put(place)
            yield branch


def _treated(draft: _Draft, thing: str) -> Iterator[_Draft]:
    """Yield the ways to make the held thing as the goal wants it."""
    engine = draft.engine
    state = engine.game.goal.state
    # The engine's sets of things that are clean, hot and cool have the names of the states.
    if state is None or thing in getattr(engine, state):
        yield draft
        return

    verb, kinds = APPLIANCES[state]
    for place in engine.game.receptacles:
        if engine.game.kind[place].removesuffix("type") in kinds:
            branch = draft.copy()
            branch.go(place)  # not `reach`: by upstream's rules the door may stay closed
            branch.commands.append(f"{verb} {thing} with {place}")
            yield branch


def _placed(draft: _Draft, thing: str, targets: tuple[str, ...] | None = None) -> Iterator[_Draft]:
    """Yield the ways to put the held thing where the goal wants it."""
    game = draft.engine.game
    for place in game.targets if targets is None else targets:
        if (game.kind[place], game.kind[thing]) in game.fits:
            branch = draft.copy()
            branch.put(place)
            yield branch


def _two(engine: NativeEngine) -> Iterator[_Draft]:
    """Yield the ways to have two of the wanted things in one receptacle."""
    goal_things = sorted(engine.game.wanted)
    for place in engine.game.targets:
        things_there = [thing for thing in engine.contents[place] if thing in goal_things]
        missing = [thing for thing in goal_things if thing not in things_there]

        # All ways of fetching a thing end at this receptacle: only the shortest goes on.
        for order in permutations(missing, max(0, 2 - len(things_there))):
            drafts = [_Draft(engine)]
            for thing in order:
                placed: list[_Draft] = []
                for draft in drafts:
                    ways = _fetched(draft, thing)
                    shortest = min(ways, key=lambda branch: len(branch.commands), default=None)
                    if shortest is not None:
                        placed += _placed(shortest, thing, (place,))
                drafts = placed
            yield from drafts


def _beside_lamp(engine: NativeEngine) -> Iterator[_Draft]:
    """Yield the ways to hold a wanted thing beside a lit lamp."""
    lamps = []
    for place, things in engine.contents.items():
        lamps += [(place, lamp) for lamp in things if lamp in engine.game.lamps]

    for thing in sorted(engine.game.wanted):
        for draft in _fetched(_Draft(engine), thing):
            for place, lamp in lamps:
                branch = draft.copy()
                branch.go(place)  # not `reach`: a lamp behind a closed door can be used, too
                if lamp not in engine.toggled:
                    branch.commands.append(f"use {lamp}")
                yield branch


_DIGITS = re.compile(r"(?<![0-9])([0-9]{1,9})(?![0-9])")


def explore(
    goal: Goal, state: State, admissible: tuple[str, ...] | None, dialect: Dialect = "move"
) -> str | None:
    """Return the next command of an explorer, or None where it knows of nothing to try."""
    return _Explorer(goal, state, admissible, dialect).decide()


def _natural(name: str) -> tuple[str, int, str]:
    """Return what names are sorted by: kind, then number."""
    number = _DIGITS.search(name)
    return kind_of(name), int(number[1]) if number else 0, name


class _Explorer:
    """One decision: the belief, grouped and in an order of its own, and what may be done in it."""

    def __init__(
        self, goal: Goal, state: State, admissible: tuple[str, ...] | None, dialect: Dialect
    ):
        self.goal = goal
        self.facts = state.facts
        self.dialect = dialect
        self.admissible = None if admissible is None else frozenset(admissible)

        self.places = sorted((f[-1] for f in self.facts if f[0] == "exists"), key=_natural)
        self.here = {f[2] for f in self.facts if f[0] == "at" and len(f) == 3}

        # A predicted belief may hold several things: any one will do, if always the same.
        self.held = min((f[-1] for f in self.facts if f[0] == "holding"), default=None)

        # Sorted: no choice may depend on hashes.
        self.contents: defaultdict[str, list[str]] = defaultdict(list)
        for fact in sorted(self.facts):
            if fact[0] == "in" and len(fact) == 3:
                self.contents[fact[2]].append(fact[1])

    def allowed(self, command: str) -> bool:
        """Return whether a command would do something, as far as is known."""
        return self.admissible is None or command in self.admissible

    def decide(self) -> str | None:
        """Return the next command: get rid of a thing, use it, fetch one, or search for one."""
        if self.held is not None and not self.wanted(self.held):
            return self.get_rid()
        if self.held is not None:
            return self.use_held(self.held)

        candidate = self.known_thing()
        if candidate is None:
            return self.search(self.goal.object_kind)
        thing, place = candidate
        return self.reach(place) or f"take {thing} from {place}"

    def wanted(self, thing: str) -> bool:
        return kind_of(thing) == self.goal.object_kind

    def done(self, thing: str, place: str) -> bool:
        """Return whether a thing is already as and where the goal wants it."""
        ready = self.goal.state is None or (self.goal.state, thing) in self.facts
        return not self.goal.lamp and kind_of(place) == self.goal.target_kind and ready

    def known_thing(self) -> tuple[str, str] | None:
        """Return a wanted thing that is known to be somewhere it can be taken from."""
        takes_two = self.goal.count == 2
        home = self.target() if takes_two else None

        # What is here comes first, then places and things by name.
        candidates = []
        for place, things in self.contents.items():
            if ("exists", place) not in self.facts:
                continue
            for thing in things:
                if not self.wanted(thing):
                    continue
                stays = place == home if takes_two else self.done(thing, place)
                if not stays:
                    order = (place not in self.here, _natural(place), _natural(thing))
                    candidates.append((order, thing, place))

        if not candidates:
            return None
        _, thing, place = min(candidates)
        return thing, place

    def target(self) -> str | None:
        """Return the receptacle to bring things to: the one that already holds most of them."""
        targets = [
            place
            for place in self.places
            if kind_of(place) == self.goal.target_kind and not self.tried_in_vain(place)
        ]
        counts = {place: sum(map(self.wanted, self.contents[place])) for place in targets}

        def order(place: str) -> tuple[int, bool, bool, tuple[str, int, str]]:
            is_elsewhere = place not in self.here
            is_closed = ("closed", place) in self.facts
            return -counts[place], is_elsewhere, is_closed, _natural(place)

        return min(targets, key=order, default=None)

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

        # A receptacle that one cannot go to is where one is: things share locations. The belief does
        # not say so yet; to examine it tells.
        is_here = place in self.here
        if (("closed", place) in self.facts or not is_here) and self.allowed(f"open {place}"):
            return f"open {place}"
        if not is_here and self.allowed(f"examine {place}"):
            return f"examine {place}"
        return None

    def put_command(self, place: str) -> str | None:
        """Return the command that puts the held thing into a receptacle that is here."""
        move = f"move {self.held} to {place}"
        put = f"put {self.held} in/on {place}"
        if self.admissible is None:
            return move if self.dialect == "move" else put
        return next((command for command in (move, put) if command in self.admissible), None)

    def use_held(self, thing: str) -> str | None:
        """Return the next command with a wanted thing in the hand."""
        goal = self.goal
        if goal.lamp:
            return self.to_lamp()

        if goal.state is not None and (goal.state, thing) not in self.facts:
            verb, kinds = APPLIANCES[goal.state]
            for place in self.places:
                if kind_of(place) in kinds:
                    command = f"{verb} {thing} with {place}"
                    go = f"go to {place}"

                    # Where nobody says what is admissible, the appliance must be known to be here.
                    if self.allowed(command) and (self.admissible or place in self.here):
                        return command
                    return go if self.allowed(go) else None

        target = self.target()
        if target is None:
            return self.search(goal.target_kind)
        return self.reach(target) or self.put_command(target)

    def to_lamp(self) -> str | None:
        """Return the next command towards a lit lamp."""
        for place, things in sorted(self.contents.items(), key=lambda item: _natural(item[0])):
            for lamp in things:
                if kind_of(lamp) == self.goal.target_kind:
                    if place in self.here or not self.allowed(f"go to {place}"):
                        return f"use {lamp}"
                    return f"go to {place}"

        # No lamp is known; a command may name one that nobody has read of.
        for command in sorted(self.admissible or ()):
            if command.startswith(f"use {self.goal.target_kind}"):
                return command
        return self.search(self.goal.target_kind)

    def get_rid(self) -> str | None:
        """Return the next command towards empty hands."""

        def order(place: str) -> tuple[bool, bool]:
            return place not in self.here, ("closed", place) in self.facts

        for place in sorted(self.places, key=order):
            if fits(str(self.held), place):
                return self.reach(place) or self.put_command(place)
        return None

    def search(self, kind: str) -> str | None:
        """Return the next command of a search: the likeliest receptacle not yet looked into."""
        unseen = [place for place in self.places if ("seen", place) not in self.facts]

        def order(place: str) -> tuple[bool, float, tuple[str, int, str]]:
            return place not in self.here, -likelihood(kind, place), _natural(place)

        for place in sorted(unseen, key=order):
            command = self.reach(place)
            if command is not None:
                return command

        # Everything has been seen in vain.
        commands = sorted(self.admissible or ())
        return next((command for command in commands if command.startswith("open ")), None)
