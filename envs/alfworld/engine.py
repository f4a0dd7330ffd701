"""The native engine: ALFWorld's text game in pure Python, equal to TextWorld's to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ...errors import SnapshotError
from ...facts import Fact
from .game import Game
from .goal import BANNER, NOTHING_HAPPENS, join_names, listing

_Pair: TypeAlias = tuple[str, str]
_Command: TypeAlias = tuple[Callable[..., str], tuple[str, ...]]
_STATE_SETS = {
    "opened": "opened",
    "isclean": "clean",
    "ishot": "hot",
    "iscool": "cool",
    "issliced": "sliced",
    "istoggled": "toggled",
    "ison": "on",
}
"""The engine's attribute for each predicate of one argument that commands change."""

_SAVED_SETS = (*_STATE_SETS.values(), "checked", "around", "moved")


class NativeEngine:
    """Plays one game.

    Args:
        game: The game; shared, never changed.

    Example:
        >>> from comap.envs.alfworld.generate import generate
        >>> engine = NativeEngine(Game(generate("train", 0).problem))
        >>> engine.start().splitlines()[0]
        '-= Welcome to TextWorld, ALFRED! =-'
        >>> "look" in engine.admissible()
        True
    """

    name = "native"

    def __init__(self, game: Game):
        self.game = game
        self.start()

    def start(self) -> str:
        """Go to the start of the game and return its first text."""
        game = self.game
        self.location = game.start
        self.held: str | None = None
        self.checked: set[str] = set()
        for predicate, name in _STATE_SETS.items():
            setattr(self, name, set(game.unary.get(predicate, ())))

        self.contents: dict[str, list[str]] = {name: [] for name in game.receptacles}
        for thing, receptacle in game.pairs["inreceptacle"]:
            if thing not in self.contents[receptacle]:
                self.contents[receptacle].append(thing)
        for things in self.contents.values():
            things.sort(key=game.order.__getitem__)

        # `around`: each thing with its location. `moved`: things with the receptacles that they were
        # taken from, whose negated facts `look` upstream reads (see `_look`).
        self.around: set[_Pair] = set(game.pairs["objectatlocation"])
        self.moved: set[_Pair] = set()
        self._forget()

        return (
            f"{BANNER}\n\nYou are in the middle of a room. Looking quickly around you, you see "
            f"{listing(game.receptacles)}.\n\nYour task is to: {game.problem.task}"
        )

    # Declared for the type checker; `start` fills them.
    opened: set[str]
    clean: set[str]
    hot: set[str]
    cool: set[str]
    sliced: set[str]
    toggled: set[str]
    on: set[str]

    def _forget(self) -> None:
        """Drop what was worked out for the state before."""
        self._commands: dict[str, _Command] | None = None
        self._admissible: tuple[str, ...] = ()

    def native(self) -> NativeEngine:
        """Return this engine; the other one returns a native one in its state."""
        return self

    def act(self, command: str) -> tuple[str, bool]:
        """Take one command and return the answer and whether it was a command at all."""
        command = command.strip()
        commands = self._commands
        if commands is None:
            commands = self._work_out()

        entry = commands.get(command)
        if entry is not None:
            return entry[0](*entry[1]), True

        receptacle = self.game.going[self.location].get(command)
        if receptacle is not None:
            return self._go(receptacle), True
        return NOTHING_HAPPENS, False

    def admissible(self) -> tuple[str, ...]:
        """Return all commands that do something now, sorted as text."""
        if self._commands is None:
            self._work_out()
        if not self._admissible:
            commands = [*self.game.going[self.location]]
            commands += self._commands  # type: ignore[arg-type]
            commands.sort()
            self._admissible = tuple(commands)
        return self._admissible

    def won(self) -> bool:
        """Return whether the goal is true now."""
        conditions_met, total = self.conditions()
        return conditions_met == total

    def conditions(self) -> tuple[int, int]:
        """Return how many goal conditions are met and how many there are: `Goal.conditions`."""
        game = self.game
        goal = game.goal
        contents = self.contents
        goal_things = game.wanted
        if goal.lamp:
            lit = game.lamps & self.toggled
            shining = lit and any(
                lamp in contents[place]
                for place in game.here.get(self.location, ())
                for lamp in lit
            )
            return (self.held in goal_things) + bool(shining), 2

        placed = [[o for o in contents[place] if o in goal_things] for place in game.targets]
        if goal.count == 2:
            return min(2, max(map(len, placed), default=0)), 2

        somewhere = any(placed)
        if goal.state is None:
            return int(somewhere), 1

        treated: set[str] = getattr(self, goal.state)
        any_placed_treated = any(thing in treated for things in placed for thing in things)
        return somewhere + (not treated.isdisjoint(goal_things)) + any_placed_treated, 3

    # Commands.

    def _work_out(self) -> dict[str, _Command]:
        """Return the commands that do something here, beside going elsewhere."""
        game = self.game
        held_thing = self.held
        commands: dict[str, _Command] = {
            "inventory": (self._inventory, ()),
            "look": (self._look, ()),
        }
        if game.dialect == "move":
            commands["help"] = (self._help, ())
        for place in game.here.get(self.location, ()):
            self._at_receptacle(place, commands)

        # Only what one holds can be examined: in upstream's alfred.pddl the branch for things in
        # receptacles has a typo ("?l - location,") and never holds.
        if held_thing is not None:
            commands[f"examine {held_thing}"] = (self._examine_thing, (held_thing,))
            if held_thing in game.knives:
                location = self.location
                for thing in game.sliceable:
                    if (thing, location) in self.around:
                        commands[f"slice {thing} with {held_thing}"] = (
                            self._slice,
                            (thing, held_thing),
                        )

        self._commands = commands
        return commands

    def _at_receptacle(self, place: str, commands: dict[str, _Command]) -> None:
        """Add the commands that a receptacle at the agent's location allows."""
        game = self.game
        held_thing = self.held
        things = self.contents[place]
        commands[f"examine {place}"] = (self._examine, (place,))

        reachable = True
        if place in game.openable:
            reachable = place in self.opened
            if reachable:
                commands[f"close {place}"] = (self._close, (place,))
            else:
                commands[f"open {place}"] = (self._open, (place,))

        if held_thing is None:
            if reachable:
                pickupable = game.pickupable
                for thing in things:
                    if thing in pickupable:
                        commands[f"take {thing} from {place}"] = (self._take, (thing, place))
        else:
            self._with_held(place, held_thing, reachable, commands)

        # A lamp in a closed receptacle can be used, too, and one that is on can be turned on again.
        for lamp in game.toggleable:
            if lamp in things:
                commands[f"use {lamp}"] = (self._use, (lamp,))

    def _with_held(
        self, place: str, thing: str, reachable: bool, commands: dict[str, _Command]
    ) -> None:
        """Add the commands for the held thing at a receptacle."""
        game = self.game
        kind = game.kind[place]
        # Receptacles take any number of things.
        if reachable and (kind, game.kind[thing]) in game.fits:
            if game.dialect == "move":
                command = f"move {thing} to {place}"
            else:
                command = f"put {thing} in/on {place}"
            commands[command] = (self._move, (thing, place))

        # Upstream asks for the appliance to be here; whether its door is open does not matter.
        if kind == "microwavetype":
            if thing in game.heatable:
                commands[f"heat {thing} with {place}"] = (self._heat, (thing, place))
        elif kind == "fridgetype":
            if thing in game.coolable:
                commands[f"cool {thing} with {place}"] = (self._cool, (thing, place))
        elif kind in ("sinkbasintype", "sinktype") and thing in game.cleanable:
            commands[f"clean {thing} with {place}"] = (self._clean, (thing, place))

    def _go(self, place: str) -> str:
        self.location = self.game.location[place]
        self._forget()
        # Games of the older dialect name the location ("loc 12") instead of the receptacle.
        arrived = place if self.game.dialect == "move" else self.location
        return f"You arrive at {arrived}. {self._view(place)}"

    def _view(self, place: str) -> str:
        things = listing(self.contents[place])
        if place not in self.game.openable:
            return f"On the {place}, you see {things}."
        if place in self.opened:
            return f"The {place} is open. In it, you see {things}."
        return f"The {place} is closed."

    def _examine(self, place: str) -> str:
        self.checked.add(place)
        return self._view(place)

    def _open(self, place: str) -> str:
        self.opened.add(place)
        self.checked.add(place)
        self._forget()
        return f"You open the {place}. {self._view(place)}"

    def _close(self, place: str) -> str:
        self.opened.remove(place)
        self._forget()
        return f"You close the {place}."

    def _take(self, thing: str, place: str) -> str:
        self.contents[place].remove(thing)
        self.moved.add((thing, place))
        self.around.discard((thing, self.location))
        self.held = thing
        self._forget()
        return f"You pick up the {thing} from the {place}."

    def _move(self, thing: str, place: str) -> str:
        things = self.contents[place]
        if thing not in things:
            things.append(thing)
            things.sort(key=self.game.order.__getitem__)
        self.moved.discard((thing, place))
        self.around.add((thing, self.location))
        self.held = None
        self._forget()
        if self.game.dialect == "move":
            return f"You move the {thing} to the {place}."
        return f"You put the {thing} in/on the {place}."

    def _clean(self, thing: str, place: str) -> str:
        self.clean.add(thing)
        return f"You clean the {thing} using the {place}."

    def _heat(self, thing: str, place: str) -> str:
        self.hot.add(thing)
        self.cool.discard(thing)
        return f"You heat the {thing} using the {place}."

    def _cool(self, thing: str, place: str) -> str:
        self.cool.add(thing)
        self.hot.discard(thing)
        return f"You cool the {thing} using the {place}."

    def _use(self, thing: str) -> str:
        self.toggled.add(thing)
        self.on.discard(thing)
        return f"You turn on the {thing}."

    def _slice(self, thing: str, knife: str) -> str:
        self.sliced.add(thing)
        return f"You sliced the {thing} with the {knife}."

    def _help(self) -> str:
        self.checked.add(self.game.agent)
        return self.game.problem.help

    def _inventory(self) -> str:
        self.checked.add(self.game.agent)
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self.held}."

    def _look(self) -> str:
        game = self.game
        location = self.location
        self.checked.add(location)
        receptacles = game.here.get(location)
        if not receptacles:
            return "You are in the middle of a room. Looking quickly around you, you see nothing."

        # Upstream lists a thing that is at this location and stated not to be in a receptacle here.
        # Only taking a thing states that, so "next to it" is what was taken from one receptacle here
        # and put into another, once for each receptacle that it was taken from.
        beside = [
            o for o, place in self.moved if place in receptacles and (o, location) in self.around
        ]
        beside.sort(key=game.order.__getitem__)
        return (
            f"You are facing the {join_names(receptacles)}. Next to it, you see {listing(beside)}."
        )

    def _examine_thing(self, thing: str) -> str:
        self.checked.add(thing)
        if thing in self.game.containers:
            inside = listing(self.game.inside.get(thing, ()))
            return f"This is a normal {thing}. In it, you see {inside}."

        clean = thing in self.clean
        sliced = thing in self.sliced
        warmth = ""
        if thing in self.hot:
            warmth = "hot"
        elif thing in self.cool:
            # The grammar's rule for a thing that is cool and nothing else says "cold".
            warmth = "cool" if clean or sliced else "cold"
        if not (clean or sliced or warmth):
            return f"There's nothing special about {thing}."

        words = warmth
        if clean:
            words = f"{warmth} and clean" if warmth else "clean"
        name = f"sliced {thing}" if sliced else thing
        return f"This is a {words} {name}." if words else f"This is a {name}."

    # What checks and snapshots read.

    def facts(self) -> frozenset[Fact]:
        """Return everything that is true now, as the engine knows it."""
        game = self.game
        agent = game.agent
        dynamic: set[Fact] = {("atlocation", agent, self.location)}
        for predicate, name in _STATE_SETS.items():
            for thing in getattr(self, name):
                dynamic.add((predicate, thing))

        for place, things in self.contents.items():
            for thing in things:
                dynamic.add(("inreceptacle", thing, place))
        for thing, location in self.around:
            dynamic.add(("objectatlocation", thing, location))

        for thing in self.checked:
            dynamic.add(("checked", thing))
        if self.held is not None:
            dynamic.add(("holds", agent, self.held))
            dynamic.add(("holdsany", agent))
        return game.static | dynamic

    def save(self) -> dict[str, Any]:
        """Return what can change, as plain copies."""
        state: dict[str, Any] = {name: frozenset(getattr(self, name)) for name in _SAVED_SETS}
        return state | {
            "contents": {place: tuple(things) for place, things in self.contents.items()},
            "location": self.location,
            "held": self.held,
            "game": self.game.problem.sha256,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Go to a state that `save` returned."""
        if not isinstance(saved, dict) or saved.get("game") != self.game.problem.sha256:
            raise SnapshotError(
                "the game file is not the one that the snapshot was taken in (SHA-256 differs); "
                "use the same data"
            )

        for name in _SAVED_SETS:
            setattr(self, name, set(saved[name]))
        self.contents = {place: list(things) for place, things in saved["contents"].items()}
        self.location = saved["location"]
        self.held = saved["held"]
        self._forget()

    def adopt(self, facts: frozenset[Fact]) -> None:
        """Go to the state that another engine's facts describe; for planning, not for playing on."""
        contents: dict[str, list[str]] = {place: [] for place in self.contents}
        self.start()
        for name in _STATE_SETS.values():
            getattr(self, name).clear()
        self.around = set()
        self.held = None

        for predicate, *names in facts:
            if predicate in _STATE_SETS:
                getattr(self, _STATE_SETS[predicate]).add(names[0])
            elif predicate == "atlocation":
                self.location = names[1]
            elif predicate == "holds":
                self.held = names[1]
            elif predicate == "inreceptacle":
                contents[names[1]].append(names[0])
            elif predicate == "objectatlocation":
                self.around.add((names[0], names[1]))

        # Facts are a set; texts list things in the game's order.
        for things in contents.values():
            things.sort(key=self.game.order.__getitem__)
        self.contents = contents
        self._forget()

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""
