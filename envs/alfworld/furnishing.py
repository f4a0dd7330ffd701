"""What a generated game asks for, and which things are where."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..draws import Draws
from .difficulty import Difficulty
from .goal import Goal
from .rooms import Layout, Receptacle, load_table, point

__all__ = ["Target", "Thing", "choose_target", "furnish"]

_NOWHERE = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A goal, in the official files' spelling.

    Attributes:
        family: One of `comap.envs.alfworld.goal.FAMILIES`.
        thing: Type of the thing to bring or to look at.
        place: Type of the receptacle to bring it to, or of the lamp.
    """

    family: str
    thing: str
    place: str

    @property
    def needed(self) -> dict[str, int]:
        """How many things of which types the goal needs."""
        goal = Goal(self.family, "", "")
        return {self.thing: goal.count} | ({self.place: 1} if goal.lamp else {})

    @property
    def spoiled_by_start(self) -> bool:
        """Whether things that start in their place would be goals reached: none does officially."""
        goal = Goal(self.family, "", "")
        return not goal.lamp and goal.state is None


@dataclass(slots=True)
class Thing:
    """An object of the game.

    Attributes:
        id: Its PDDL id.
        kind: Its type as the official files spell it.
        places: The receptacles that list it: none, one, or several as in some official games.
        location: PDDL id of its location.
        cold: Whether it is cool from the start.
        inside: Id of the container that it is in, or None.
    """

    id: str
    kind: str
    places: tuple[Receptacle, ...]
    location: str
    cold: bool = False
    inside: str | None = None


def choose_target(room: Layout, family: str, level: Difficulty, draws: Draws) -> Target | None:
    """Draw a goal that occurs in official rooms and can be set in this one; None if there is none.

    Example:
        >>> from comap.envs.alfworld.rooms import layout
        >>> room = layout("kitchen", 1, (20, 54))
        >>> family = "pick_heat_then_place_in_recep"
        >>> choose_target(room, family, Difficulty.of("normal"), Draws("a")).family == family
        True
    """
    found = {}
    for kind, thing, place, count in load_table("statistics")["rooms"][room.room]["goals"]:
        target = Target(kind, thing, place)
        if kind == family and _can_set(target, _Chances(room, target, level)):
            found[target] = count
    return draws.weighted(found) if found else None


def _can_set(target: Target, chances: _Chances) -> bool:
    """Return whether the room has all that the goal needs."""
    appliance = load_table("generator")["appliances"].get(target.family)
    if appliance is not None and appliance not in chances.room.by_kind:
        return False
    if not all(chances.wanted(kind) for kind in target.needed):
        return False
    return target.place in target.needed or (
        target.place in chances.room.by_kind
        and target.thing in chances.table["can_contain"].get(target.place, ())
    )


def furnish(room: Layout, target: Target, level: Difficulty, draws: Draws) -> list[Thing]:
    """Draw the things of a game and put each in its place.

    Example:
        >>> from comap.envs.alfworld.rooms import layout
        >>> room, level = layout("kitchen", 1, (20, 54)), Difficulty.of("normal")
        >>> target = choose_target(room, "pick_two_obj_and_place", level, Draws("a"))
        >>> things = furnish(room, target, level, Draws("a"))
        >>> sum(thing.kind == target.thing for thing in things) >= 2
        True
    """
    chances = _Chances(room, target, level)
    counts = _draw_counts(chances, level, draws)
    order = [kind for kind, n in target.needed.items() for _ in range(n)]
    counts.subtract(order)
    first = len(order)
    order += draws.shuffled(kind for kind in sorted(counts) for _ in range(counts[kind]))
    used = {receptacle.id.partition("_bar_")[2] for receptacle in room.receptacles}
    things = []
    for number, kind in enumerate(order):
        places = chances.draw_places(kind, number < first, draws)
        location = chances.draw_location(places, draws)
        things.append(Thing(f"{kind}_bar_{point(draws, used)}", kind, places, location))
    _chill(things, target, draws)
    _fill_containers(things, draws)
    return things


@dataclass
class _Chances:
    """Where things of one room may be, and how likely each place is."""

    room: Layout
    target: Target
    level: Difficulty
    load: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.table = load_table("statistics")
        self.counted: dict[str, Any] = self.table["rooms"][self.room.room]
        self.share = {_NOWHERE: 1.0} | {
            place: 1 - scenes.get("0", 0) / self.counted["scenes"]
            for place, scenes in self.counted["receptacles"].items()
        }

    def usual(self, kind: str) -> dict[str, float]:
        """Return how often things of this type are where; `_NOWHERE` is a place too.

        Counts are over all rooms, so they are divided by the share of rooms with such a place.
        """
        target = self.target
        named = kind in target.needed
        avoided = target.place if named and (target.spoiled_by_start or self.level.hidden) else None
        return {
            place: count / self.share[place]
            for place, count in self.counted["places"].get(kind, {}).items()
            if (place == _NOWHERE or place in self.room.by_kind) and place != avoided
        }

    def wanted(self, kind: str) -> dict[str, float]:
        """Return the weights for a thing that the goal needs: somewhere, and hidden if possible."""
        usual = {place: n for place, n in self.usual(kind).items() if place != _NOWHERE}
        if not self.level.hidden:
            return usual
        closed = [
            place
            for place in self.table["openable"]
            if place in self.room.by_kind and place != self.target.place
        ]
        hidden = {place: usual[place] for place in closed if place in usual}
        fits = self.table["can_contain"]
        return hidden or {p: 1.0 for p in closed if kind in fits.get(p, ())} or usual

    def draw_places(self, kind: str, needed: bool, draws: Draws) -> tuple[Receptacle, ...]:
        """Draw where a thing is."""
        named = kind in self.target.needed
        hide = named and self.level.hidden
        weights = self.wanted(kind) if needed or hide else self.usual(kind)
        if not hide:
            several = self._draw_several(kind, weights, draws)
            if several:
                return several
        free = {p: n for p, n in weights.items() if p == _NOWHERE or self._with_space(p)}
        if not free and not needed:
            return ()
        place = draws.weighted(free or weights)
        if place == _NOWHERE:
            return ()
        receptacle = draws.pick(self._with_space(place) or self.room.by_kind[place])
        self.load[receptacle.id] += 1
        return (receptacle,)

    def _with_space(self, place: str) -> list[Receptacle]:
        """Return the receptacles of a type that hold fewer things than official ones do at most."""
        capacity = self.table["capacity"][place]
        return [r for r in self.room.by_kind[place] if self.load[r.id] < capacity]

    def _draw_several(
        self, kind: str, weights: Mapping[str, float], draws: Draws
    ) -> tuple[Receptacle, ...]:
        """Draw receptacles that all list one thing; mostly none, as in the official games."""
        table = [(at, n) for other, at, n in self.table["several"] if other == kind]
        share = draws.share() * self.table["seen"][kind]
        found: list[str] = []
        for at, n in table:
            if 0 <= share < n:
                found = at
            share -= n
        chosen: list[Receptacle] = []
        for place in found:
            here = self._with_space(place) if place in weights else []
            here = [receptacle for receptacle in here if receptacle not in chosen]
            if not here:
                return ()
            beside = [r for r in here if chosen and r.location == chosen[0].location]
            chosen.append(draws.pick(beside or here))
        self.load.update(receptacle.id for receptacle in chosen)
        return tuple(chosen)

    def draw_location(self, places: tuple[Receptacle, ...], draws: Draws) -> str:
        """Draw the location of a thing: nearly always that of its receptacle."""
        part, whole = self.table["astray" if places else "loose_at_receptacle"]
        if draws.chance(part / whole):
            return draws.pick(self.room.receptacles).location
        return places[0].location if places else draws.pick(self.room.free)


def _draw_counts(chances: _Chances, level: Difficulty, draws: Draws) -> Counter[str]:
    """Draw how many things of each type there are."""
    counted, needed = chances.counted, chances.target.needed
    portable = set(chances.table["properties"]["pickupable"])
    counts: Counter[str] = Counter()
    usual: dict[str, float] = {}
    for kind, numbers in counted["objects"].items():
        if not chances.usual(kind):
            continue
        weights = {int(number): games for number, games in numbers.items()}
        usual[kind] = sum(n * games for n, games in weights.items()) / counted["games"]
        weights[0] = counted["games"] - sum(weights.values())
        counts[kind] = max(draws.weighted(weights), needed.get(kind, 0))
    for kind, least in needed.items():
        counts[kind] = max(counts[kind], least)
    total = sum(n for kind, n in counts.items() if kind in portable)
    low, high = level.objects
    wanted = total if low <= total <= high else draws.integer(low, high)
    while total > wanted:
        spare = {k: n - needed.get(k, 0) for k, n in counts.items() if k in portable}
        counts[draws.weighted(spare)] -= 1
        total -= 1
    more = {kind: mean for kind, mean in usual.items() if kind in portable}
    while total < wanted:
        counts[draws.weighted(more)] += 1
        total += 1
    return counts


def _chill(things: list[Thing], target: Target, draws: Draws) -> None:
    """Make some things cool from the start, but none that the goal wants cooled."""
    table = load_table("statistics")
    to_cool = target.thing if Goal(target.family, "", "").state == "cool" else None
    for thing in things:
        cold = draws.chance(table["cold"].get(thing.kind, 0) / table["seen"][thing.kind])
        thing.cold = cold and thing.kind != to_cool


def _fill_containers(things: list[Thing], draws: Draws) -> None:
    """Put some things into containers beside them."""
    table = load_table("statistics")
    containers = set(table["properties"]["container"])
    odds = {(inner, outer): n / beside for inner, outer, n, beside in table["inside"]}
    beside: defaultdict[str, list[Thing]] = defaultdict(list)
    for thing in things:
        if thing.places:
            beside[thing.places[0].id].append(thing)
    filled: set[str] = set()
    for outer in things:
        if outer.kind not in containers or not outer.places or outer.inside:
            continue
        for inner in beside[outer.places[0].id]:
            if inner is outer or inner.inside or inner.id in filled:
                continue
            if draws.chance(odds.get((inner.kind, outer.kind), 0)):
                inner.inside = outer.id
                filled.add(outer.id)
