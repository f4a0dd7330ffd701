"""The expert that knows everything: shortest plans from any state of a game.

A plan of each family is a fixed sequence of stages (empty the hands, fetch, treat, place); the expert
tries every choice of thing, source, appliance and target and takes the shortest. What remains of a
shortest plan is again among the choices after its first command, so planning anew at every step
still makes progress at every step.

Some official games have dead ends: things that can be picked up but fit into no receptacle of the
room stay in the hands for ever. There no plan exists and `plan` returns None.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from .engine import NativeEngine

__all__ = ["plan"]

_APPLIANCES = {
    "clean": ("clean", ("sinkbasintype", "sinktype")),
    "hot": ("heat", ("microwavetype",)),
    "cool": ("cool", ("fridgetype",)),
}


def plan(engine: NativeEngine) -> list[str] | None:
    """Return the shortest list of commands that wins from the engine's state.

    Args:
        engine: A native engine, in any state; it is not changed.

    Returns:
        The commands, empty where the game is won, None where no plan is known.

    Example:
        >>> from comap.envs.alfworld.game import Game
        >>> from comap.envs.alfworld.generate import generate
        >>> engine = NativeEngine(Game(generate("train", 0).problem))
        >>> for command in plan(engine):
        ...     answer = engine.act(command)
        >>> engine.won()
        True
    """
    if engine.won():
        return []
    best: list[str] | None = None
    for draft in _drafts(engine):
        if best is None or len(draft.commands) < len(best):
            best = draft.commands
    return best


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
        """Return a draft that can go on differently."""
        other = _Draft.__new__(_Draft)
        other.engine, other.location, other.held = self.engine, self.location, self.held
        other.commands, other.opened, other.source = [*self.commands], {*self.opened}, self.source
        return other

    def left_in_place(self, thing: str) -> bool:
        """Return whether `thing` also stays where the goal wants it: it can be in two receptacles."""
        game, contents = self.engine.game, self.engine.contents
        return any(thing in contents[place] for place in game.targets if place != self.source)

    def go(self, place: str) -> None:
        """Walk to a receptacle, unless it is here."""
        where = self.engine.game.location[place]
        if where != self.location:
            self.commands.append(f"go to {place}")
            self.location = where

    def reach(self, place: str) -> None:
        """Walk to a receptacle and open it, where it has a closed door."""
        self.go(place)
        closed = place in self.engine.game.openable and place not in self.engine.opened
        if closed and place not in self.opened:
            self.commands.append(f"open {place}")
            self.opened.add(place)

    def put(self, place: str) -> None:
        """Put what is held into a receptacle."""
        self.reach(place)
        verb, where = ("move", "to") if self.engine.game.dialect == "move" else ("put", "in/on")
        self.commands.append(f"{verb} {self.held} {where} {place}")
        self.held = None


def _drafts(engine: NativeEngine) -> Iterator[_Draft]:
    """Yield every plan worth comparing."""
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
    """Yield the ways to come to hold `thing`."""
    engine = draft.engine
    if draft.held == thing:
        yield draft
        return
    if thing not in engine.game.pickupable:
        return
    sources = [place for place, things in engine.contents.items() if thing in things]
    if sources:
        for free in _emptied(draft):
            for source in sources:
                way = free.copy()
                way.reach(source)
                way.commands.append(f"take {thing} from {source}")
                way.held, way.source = thing, source
                yield way


def _emptied(draft: _Draft) -> Iterator[_Draft]:
    """Yield the ways to empty the hands."""
    if draft.held is None:
        yield draft
        return
    game = draft.engine.game
    kind = game.kind[draft.held]
    for place in game.receptacles:
        if (game.kind[place], kind) in game.fits:
            way = draft.copy()
            way.put(place)
            yield way


def _treated(draft: _Draft, thing: str) -> Iterator[_Draft]:
    """Yield the ways to make the held thing as the goal wants it."""
    engine = draft.engine
    state = engine.game.goal.state
    if state is None or thing in getattr(engine, state):
        yield draft
        return
    verb, kinds = _APPLIANCES[state]
    for place in engine.game.receptacles:
        if engine.game.kind[place] in kinds:
            way = draft.copy()
            way.go(place)
            way.commands.append(f"{verb} {thing} with {place}")
            yield way


def _placed(draft: _Draft, thing: str, targets: tuple[str, ...] | None = None) -> Iterator[_Draft]:
    """Yield the ways to bring the held thing to its place."""
    game = draft.engine.game
    for place in game.targets if targets is None else targets:
        if (game.kind[place], game.kind[thing]) in game.fits:
            way = draft.copy()
            way.put(place)
            yield way


def _two(engine: NativeEngine) -> Iterator[_Draft]:
    """Yield the ways to have two of the wanted things in one receptacle."""
    wanted = sorted(engine.game.wanted)
    for place in engine.game.targets:
        there = [thing for thing in engine.contents[place] if thing in wanted]
        missing = [thing for thing in wanted if thing not in there]
        for order in permutations(missing, max(0, 2 - len(there))):
            drafts = [_Draft(engine)]
            for thing in order:
                drafts = [
                    placed
                    for draft in drafts
                    for fetched in _shortest(_fetched(draft, thing))
                    for placed in _placed(fetched, thing, (place,))
                ]
            yield from drafts


def _shortest(drafts: Iterator[_Draft]) -> list[_Draft]:
    """Return the shortest draft, in a list that is empty where there is none."""
    best = min(drafts, key=lambda draft: len(draft.commands), default=None)
    return [] if best is None else [best]


def _beside_lamp(engine: NativeEngine) -> Iterator[_Draft]:
    """Yield the ways to hold the wanted thing beside a lit lamp."""
    lamps = [
        (place, lamp)
        for place, things in engine.contents.items()
        for lamp in things
        if lamp in engine.game.lamps
    ]
    for thing in sorted(engine.game.wanted):
        for draft in _fetched(_Draft(engine), thing):
            for place, lamp in lamps:
                way = draft.copy()
                way.go(place)
                if lamp not in engine.toggled:
                    way.commands.append(f"use {lamp}")
                yield way
