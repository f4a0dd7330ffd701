"""Rooms of generated games: receptacles, things in them, and how hard that is."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...errors import OptionError, suggest
from ..generated import Draws
from .goal import FAMILIES, Goal, load_table

_Range: TypeAlias = tuple[int, int]
_Signature: TypeAlias = tuple[tuple[str, ...], ...]
_ATTEMPTS = 500
_APPLIANCES = ("Fridge", "Microwave", "SinkBasin")
_LEAST = 0.03
"""Weight with which small rooms leave out what every official room has."""


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A place for things."""

    id: str
    kind: str
    location: str


@dataclass(frozen=True)
class Layout:
    """One room."""

    room: str
    receptacles: tuple[Receptacle, ...]
    free: tuple[str, ...]

    @functools.cached_property
    def by_kind(self) -> dict[str, tuple[Receptacle, ...]]:
        found: dict[str, tuple[Receptacle, ...]] = {}
        for receptacle in self.receptacles:
            found[receptacle.kind] = (*found.get(receptacle.kind, ()), receptacle)
        return found

    @property
    def signature(self) -> _Signature:
        """The types that stand together at each location: what a player can tell of a room."""
        at: dict[str, list[str]] = {}
        for receptacle in self.receptacles:
            at.setdefault(receptacle.location, []).append(receptacle.kind)
        return tuple(sorted(tuple(sorted(kinds)) for kinds in at.values()))


@functools.lru_cache(maxsize=4096)
def layout(room: str, number: int, size: _Range) -> tuple[Layout, frozenset[_Signature]]:
    """Return layout `number` of a room, from 1, unlike all before it; and the signatures up to it."""
    known: frozenset[_Signature] = frozenset()
    if number > 1:
        known = layout(room, number - 1, size)[1]
    for attempt in range(_ATTEMPTS):
        drawn = _draw(room, size, Draws("layout", room, *size, number, attempt))
        if drawn.signature not in known:
            return drawn, known | {drawn.signature}
    raise OptionError(
        f"expected receptacles=(fewest, most) that leave room for {number} different rooms, found "
        f"{size}; allow more"
    )


def _draw(room: str, size: _Range, draws: Draws) -> Layout:
    counts = _draw_counts(room, size, draws)
    kinds = draws.shuffled(kind for kind in sorted(counts) for _ in range(counts[kind]))
    receptacles: list[Receptacle] = []
    taken: set[str] = set()
    for group in _draw_groups(room, kinds, draws):
        location = _unused_location(draws, taken)
        for kind in group:
            # A basin is part of its sink or bathtub.
            name = f"{kind.removesuffix('Basin')}_bar_{point(draws, taken)}"
            if kind.endswith("Basin"):
                name += f"_bar_{kind}"
            receptacles.append(Receptacle(name, kind, location))
    free = tuple(_unused_location(draws, taken) for _ in range(draws.integer(2, 4)))
    return Layout(room, tuple(receptacles), free)


def _draw_counts(room: str, size: _Range, draws: Draws) -> dict[str, int]:
    table = load_table("statistics")["rooms"][room]
    scenes = table["scenes"]
    usual, share, counts = {}, {}, {}
    for kind, numbers in table["receptacles"].items():
        weights = {int(number): scenes_with for number, scenes_with in numbers.items()}
        usual[kind] = sum(n * weight for n, weight in weights.items()) / scenes
        share[kind] = 1 - weights.get(0, 0) / scenes
        counts[kind] = draws.weighted(weights)
    low, high = size
    total = sum(counts.values())
    wanted = total if low <= total <= high else draws.integer(low, high)
    while total > wanted:
        spare: dict[str, float] = {kind: n - 1 for kind, n in counts.items() if n > 1}
        spare = spare or {
            kind: 1 - share[kind] + _LEAST
            for kind, n in counts.items()
            if n and kind not in _APPLIANCES
        }
        counts[draws.weighted(spare)] -= 1
        total -= 1
    several = {kind: n for kind, n in usual.items() if n >= 1.2}
    while total < wanted:
        counts[draws.weighted(several)] += 1
        total += 1
    return {kind: n for kind, n in counts.items() if n}


def _draw_groups(room: str, kinds: list[str], draws: Draws) -> list[list[str]]:
    """Split receptacles into those that share a location, as official rooms do."""
    together = load_table("statistics")["rooms"][room]["together"]
    left = Counter(kinds)
    groups = []
    for kind in kinds:
        if not left[kind]:
            continue
        fitting = {
            index: n * group.count(kind)
            for index, (group, n) in enumerate(together)
            if kind in group and all(left[other] >= group.count(other) for other in group)
        }
        group = together[draws.weighted(fitting)][0] if fitting else [kind]
        left.subtract(group)
        groups.append(group)
    return groups


def point(draws: Draws, taken: set[str]) -> str:
    """Return a point in the room as ids spell it, and note it in `taken`."""
    while True:
        spot = "_bar_".join(
            f"_{sign}_{centimetres // 100:02d}_dot_{centimetres % 100:02d}"
            for sign, centimetres in (
                (draws.pick(("plus", "minus")), draws.integer(0, 399)),
                ("plus", draws.integer(0, 219)),
                (draws.pick(("plus", "minus")), draws.integer(0, 399)),
            )
        )
        if spot not in taken:
            taken.add(spot)
            return spot


def _unused_location(draws: Draws, taken: set[str]) -> str:
    """Return a location as ids spell it (a grid cell, a heading and a tilt), new to `taken`."""
    while True:
        numbers = (
            draws.integer(-16, 16),
            draws.integer(-16, 16),
            draws.integer(0, 3),
            draws.pick((-30, 0, 15, 30, 45, 60)),
        )
        name = "loc_bar_" + "_bar_".join(
            f"_minus_{-number}" if number < 0 else str(number) for number in numbers
        )
        if name not in taken:
            taken.add(name)
            return name


_CODE = re.compile(r"r(\d{1,3})-(\d{1,3})\.o(\d{1,3})-(\d{1,3})\.f([1-6]{1,6})(\.h)?", re.ASCII)
_LIMITS = {"receptacles": (6, 100), "objects": (3, 200)}


@dataclass(frozen=True, slots=True)
class Difficulty:
    """A difficulty setting. Rooms outside a range are made smaller or larger to fit."""

    receptacles: tuple[int, int]
    objects: tuple[int, int]
    families: tuple[str, ...] = FAMILIES
    hidden: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            low, high = getattr(self, name)
            if not least <= low <= high <= most:
                raise OptionError(
                    f"expected {name}=(fewest, most) within {least} to {most}, "
                    f"found ({low}, {high})"
                )
        for family in self.families:
            if family not in FAMILIES:
                raise OptionError(f"there is no family {family!r}; {suggest(family, FAMILIES)}")
        if not self.families or len(set(self.families)) < len(self.families):
            raise OptionError(
                f"expected at least one family and each once, found {self.families!r}; "
                f"known: {', '.join(FAMILIES)}"
            )

    @property
    def name(self) -> str:
        """What task ids call it: the preset's name, or a code of all fields."""
        for name, preset in presets().items():
            if preset == self:
                return name
        families = "".join(str(FAMILIES.index(family) + 1) for family in self.families)
        low, high = self.receptacles
        few, many = self.objects
        return f"r{low}-{high}.o{few}-{many}.f{families}{'.h' if self.hidden else ''}"

    @classmethod
    def of(cls, name: str) -> Difficulty:
        """Return the difficulty that `Difficulty.name` calls so."""
        if name in presets():
            return presets()[name]
        match = _CODE.fullmatch(name)
        if match is None:
            raise OptionError(
                f"there is no difficulty {name[:80]!r}; {suggest(name[:80], presets())} "
                "(or a code such as 'r8-10.o5-9.f123.h')"
            )
        low, high, few, many = map(int, match.groups()[:4])
        families = tuple(FAMILIES[int(digit) - 1] for digit in match[5])
        return cls((low, high), (few, many), families, match[6] is not None)


@functools.cache
def presets() -> dict[str, Difficulty]:
    table = load_table("generator")["difficulties"]
    return {
        name: Difficulty(
            tuple(fields["receptacles"]),
            tuple(fields["objects"]),
            tuple(fields["families"]),
            fields["hidden"],
        )
        for name, fields in table.items()
    }


_NOWHERE = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A goal, in the official files' spelling."""

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
    """An object of the game."""

    id: str
    kind: str
    places: tuple[Receptacle, ...]
    location: str
    cold: bool = False
    inside: str | None = None


def choose_target(room: Layout, family: str, level: Difficulty, draws: Draws) -> Target | None:
    """Draw a goal that occurs in official rooms and can be set in this one; None if there is none."""
    found = {}
    for kind, thing, place, count in load_table("statistics")["rooms"][room.room]["goals"]:
        target = Target(kind, thing, place)
        if kind == family and _can_set(target, _Chances(room, target, level)):
            found[target] = count
    return draws.weighted(found) if found else None


def _can_set(target: Target, chances: _Chances) -> bool:
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
    """Draw the things of a game and put each in its place."""
    chances = _Chances(room, target, level)
    counts = _draw_numbers(chances, level, draws)
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
        """Return how often things of this type are where; `_NOWHERE` is a place too."""
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


def _draw_numbers(chances: _Chances, level: Difficulty, draws: Draws) -> Counter[str]:
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
