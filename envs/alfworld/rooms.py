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
        """The receptacles of each kind."""
        receptacles: dict[str, tuple[Receptacle, ...]] = {}
        for receptacle in self.receptacles:
            receptacles[receptacle.kind] = (*receptacles.get(receptacle.kind, ()), receptacle)
        return receptacles

    @property
    def signature(self) -> _Signature:
        """The types that stand together at each location: what a player can tell of a room."""
        kinds_by_location: dict[str, list[str]] = {}
        for receptacle in self.receptacles:
            kinds_by_location.setdefault(receptacle.location, []).append(receptacle.kind)
        return tuple(sorted(tuple(sorted(kinds)) for kinds in kinds_by_location.values()))


@functools.lru_cache(maxsize=4096)
def layout(room: str, number: int, size: _Range) -> tuple[Layout, frozenset[_Signature]]:
    """Return layout `number` of a room, from 1, unlike all before it; and the signatures up to it."""
    earlier: frozenset[_Signature] = frozenset()
    if number > 1:
        earlier = layout(room, number - 1, size)[1]

    for attempt in range(_ATTEMPTS):
        candidate = _draw(room, size, Draws("layout", room, *size, number, attempt))
        if candidate.signature not in earlier:
            return candidate, earlier | {candidate.signature}

    raise OptionError(
        f"expected receptacles=(fewest, most) that leave room for {number} different rooms, found "
        f"{size}; allow more"
    )


def _draw(room: str, size: _Range, draws: Draws) -> Layout:
    """Draw a room: how many receptacles of each kind, which stand together, and where."""
    counts = _draw_counts(room, size, draws)
    kinds = draws.shuffled(kind for kind in sorted(counts) for _ in range(counts[kind]))

    receptacles: list[Receptacle] = []
    names_in_use: set[str] = set()
    for group in _draw_groups(room, kinds, draws):
        location = _unused_location(draws, names_in_use)
        for kind in group:
            # A basin is part of its sink or bathtub.
            name = f"{kind.removesuffix('Basin')}_bar_{point(draws, names_in_use)}"
            if kind.endswith("Basin"):
                name += f"_bar_{kind}"
            receptacles.append(Receptacle(name, kind, location))

    free = tuple(_unused_location(draws, names_in_use) for _ in range(draws.integer(2, 4)))
    return Layout(room, tuple(receptacles), free)


def _draw_counts(room: str, size: _Range, draws: Draws) -> dict[str, int]:
    """Draw how many receptacles of each kind a room has, `size` in all."""
    table = load_table("statistics")["rooms"][room]
    scenes = table["scenes"]

    # As the official rooms have them, each kind by itself.
    means = {}
    presence = {}  # the share of scenes that have the kind at all
    counts = {}
    for kind, scenes_by_number in table["receptacles"].items():
        weights = {int(number): n for number, n in scenes_by_number.items()}
        means[kind] = sum(number * weight for number, weight in weights.items()) / scenes
        presence[kind] = 1 - weights.get(0, 0) / scenes
        counts[kind] = draws.weighted(weights)

    low, high = size
    total = sum(counts.values())
    goal_total = total if low <= total <= high else draws.integer(low, high)

    # Too many: one goes of those of which there are several; then kinds go that official rooms can
    # do without, but none that a goal may need.
    while total > goal_total:
        spare: dict[str, float] = {kind: n - 1 for kind, n in counts.items() if n > 1}
        spare = spare or {
            kind: 1 - presence[kind] + _LEAST
            for kind, n in counts.items()
            if n and kind not in _APPLIANCES
        }
        counts[draws.weighted(spare)] -= 1
        total -= 1

    # Too few: more of the kinds of which rooms have several.
    means_above_one = {kind: mean for kind, mean in means.items() if mean >= 1.2}
    while total < goal_total:
        counts[draws.weighted(means_above_one)] += 1
        total += 1
    return {kind: n for kind, n in counts.items() if n}


def _draw_groups(room: str, kinds: list[str], draws: Draws) -> list[list[str]]:
    """Split receptacles into those that share a location, as official rooms do."""
    together = load_table("statistics")["rooms"][room]["together"]
    unplaced = Counter(kinds)
    groups = []
    for kind in kinds:
        if not unplaced[kind]:
            continue

        # A group of the official rooms that has this kind, and of which enough are left.
        weights = {}
        for index, (group, count) in enumerate(together):
            if kind in group and all(unplaced[member] >= group.count(member) for member in group):
                weights[index] = count * group.count(kind)
        group = together[draws.weighted(weights)][0] if weights else [kind]
        unplaced.subtract(group)
        groups.append(group)
    return groups


def point(draws: Draws, names_in_use: set[str]) -> str:
    """Return a point in the room as ids spell it, and note it in `names_in_use`."""
    while True:
        coordinates = (
            (draws.pick(("plus", "minus")), draws.integer(0, 399)),
            ("plus", draws.integer(0, 219)),  # the height
            (draws.pick(("plus", "minus")), draws.integer(0, 399)),
        )
        name = "_bar_".join(
            f"_{sign}_{centimeters // 100:02d}_dot_{centimeters % 100:02d}"
            for sign, centimeters in coordinates
        )
        if name not in names_in_use:
            names_in_use.add(name)
            return name


def _unused_location(draws: Draws, names_in_use: set[str]) -> str:
    """Return a location as ids spell it (a grid cell, a heading and a tilt), new to `names_in_use`."""
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
        if name not in names_in_use:
            names_in_use.add(name)
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
        receptacles = "r{}-{}".format(*self.receptacles)
        objects = "o{}-{}".format(*self.objects)
        code = f"{receptacles}.{objects}.f{families}"
        return f"{code}.h" if self.hidden else code

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

        receptacles = (int(match[1]), int(match[2]))
        objects = (int(match[3]), int(match[4]))
        families = tuple(FAMILIES[int(digit) - 1] for digit in match[5])
        return cls(receptacles, objects, families, match[6] is not None)


@functools.cache
def presets() -> dict[str, Difficulty]:
    """Return the difficulties that have names."""
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
        goal = Goal(self.family, "", "")  # what follows from the family alone
        counts = {self.thing: goal.count}
        if goal.lamp:
            counts[self.place] = 1
        return counts

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
    weights = {}
    for goal_family, thing, place, games in load_table("statistics")["rooms"][room.room]["goals"]:
        target = Target(goal_family, thing, place)
        if goal_family == family and _can_set(target, _Chances(room, target, level)):
            weights[target] = games
    return draws.weighted(weights) if weights else None


def _can_set(target: Target, chances: _Chances) -> bool:
    """Return whether a room has what a goal needs, and places for the things it names."""
    appliance = load_table("generator")["appliances"].get(target.family)
    if appliance is not None and appliance not in chances.room.by_kind:
        return False
    if not all(chances.needed_weights(kind) for kind in target.needed):
        return False

    # A lamp needs no place of its own; any other goal's receptacle must take the thing.
    return target.place in target.needed or (
        target.place in chances.room.by_kind
        and target.thing in chances.table["can_contain"].get(target.place, ())
    )


def furnish(room: Layout, target: Target, level: Difficulty, draws: Draws) -> list[Thing]:
    """Draw the things of a game and put each in its place."""
    chances = _Chances(room, target, level)
    counts = _draw_numbers(chances, level, draws)

    # What the goal needs is placed first, while every receptacle has space.
    kinds = list(Counter(target.needed).elements())
    counts.subtract(kinds)
    needed_count = len(kinds)
    kinds += draws.shuffled(kind for kind in sorted(counts) for _ in range(counts[kind]))

    points_in_use = {receptacle.id.partition("_bar_")[2] for receptacle in room.receptacles}
    things = []
    for number, kind in enumerate(kinds):
        places = chances.draw_places(kind, number < needed_count, draws)
        location = chances.draw_location(places, draws)
        things.append(Thing(f"{kind}_bar_{point(draws, points_in_use)}", kind, places, location))

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
        self.presence = {_NOWHERE: 1.0}
        for place, scenes_by_number in self.counted["receptacles"].items():
            self.presence[place] = 1 - scenes_by_number.get("0", 0) / self.counted["scenes"]

    def usual_weights(self, kind: str) -> dict[str, float]:
        """Return how often things of this type are where; `_NOWHERE` is a place too."""
        target = self.target
        avoided = None
        if kind in target.needed and (target.spoiled_by_start or self.level.hidden):
            avoided = target.place

        # A place that few rooms have is as likely, where there is one, as one that all rooms have.
        return {
            place: count / self.presence[place]
            for place, count in self.counted["places"].get(kind, {}).items()
            if (place == _NOWHERE or place in self.room.by_kind) and place != avoided
        }

    def needed_weights(self, kind: str) -> dict[str, float]:
        """Return the weights for a thing that the goal needs: somewhere, and hidden if possible."""
        usual = {place: n for place, n in self.usual_weights(kind).items() if place != _NOWHERE}
        if not self.level.hidden:
            return usual

        closed = [
            place
            for place in self.table["openable"]
            if place in self.room.by_kind and place != self.target.place
        ]
        hidden = {place: usual[place] for place in closed if place in usual}
        if hidden:
            return hidden

        can_contain = self.table["can_contain"]
        possible = {place: 1.0 for place in closed if kind in can_contain.get(place, ())}
        return possible or usual

    def draw_places(self, kind: str, is_needed: bool, draws: Draws) -> tuple[Receptacle, ...]:
        """Draw the receptacles that list a thing: mostly one, none for a thing on the floor."""
        hide = kind in self.target.needed and self.level.hidden
        weights = self.needed_weights(kind) if is_needed or hide else self.usual_weights(kind)
        if not hide:
            receptacles = self._draw_several(kind, weights, draws)
            if receptacles:
                return receptacles

        free = {p: n for p, n in weights.items() if p == _NOWHERE or self._with_space(p)}
        if not free and not is_needed:
            return ()

        # What the goal needs goes into a full receptacle rather than nowhere.
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
        rows = [(places, n) for row_kind, places, n in self.table["several"] if row_kind == kind]
        share = draws.share() * self.table["seen"][kind]
        drawn_places: list[str] = []
        for places, n in rows:
            if 0 <= share < n:
                drawn_places = places
            share -= n

        # Each must have space, and they stand together where they can.
        receptacles: list[Receptacle] = []
        for place in drawn_places:
            candidates = self._with_space(place) if place in weights else []
            candidates = [candidate for candidate in candidates if candidate not in receptacles]
            if not candidates:
                return ()

            beside = []
            if receptacles:
                location = receptacles[0].location
                beside = [candidate for candidate in candidates if candidate.location == location]
            receptacles.append(draws.pick(beside or candidates))

        self.load.update(receptacle.id for receptacle in receptacles)
        return tuple(receptacles)

    def draw_location(self, places: tuple[Receptacle, ...], draws: Draws) -> str:
        """Draw the location of a thing: nearly always that of its receptacle."""
        part, whole = self.table["astray" if places else "loose_at_receptacle"]
        if draws.chance(part / whole):
            return draws.pick(self.room.receptacles).location
        return places[0].location if places else draws.pick(self.room.free)


def _draw_numbers(chances: _Chances, level: Difficulty, draws: Draws) -> Counter[str]:
    """Draw how many things of each type a game has, all that the goal needs among them."""
    counted = chances.counted
    needed_counts = chances.target.needed
    portable = set(chances.table["properties"]["pickupable"])

    # As the official games have them, each type by itself.
    counts: Counter[str] = Counter()
    means: dict[str, float] = {}
    for kind, games_by_number in counted["objects"].items():
        if not chances.usual_weights(kind):
            continue
        weights = {int(number): games for number, games in games_by_number.items()}
        means[kind] = sum(number * games for number, games in weights.items()) / counted["games"]
        weights[0] = counted["games"] - sum(weights.values())
        counts[kind] = max(draws.weighted(weights), needed_counts.get(kind, 0))
    for kind, least in needed_counts.items():
        counts[kind] = max(counts[kind], least)

    # The difficulty counts what can be carried; of that, some go or come until its range is met.
    total = sum(n for kind, n in counts.items() if kind in portable)
    low, high = level.objects
    goal_total = total if low <= total <= high else draws.integer(low, high)
    while total > goal_total:
        spare = {
            kind: n - needed_counts.get(kind, 0) for kind, n in counts.items() if kind in portable
        }
        counts[draws.weighted(spare)] -= 1
        total -= 1

    portable_means = {kind: mean for kind, mean in means.items() if kind in portable}
    while total < goal_total:
        counts[draws.weighted(portable_means)] += 1
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
    """Put some things into containers, such as bowls, that stand beside them."""
    table = load_table("statistics")
    containers = set(table["properties"]["container"])
    odds = {(inner, outer): n / pairs for inner, outer, n, pairs in table["inside"]}

    beside: defaultdict[str, list[Thing]] = defaultdict(list)
    for thing in things:
        if thing.places:
            beside[thing.places[0].id].append(thing)

    # One level deep: what is inside something holds nothing, and what holds something is in nothing.
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
