"""Rooms of generated games: which receptacles there are and which stand together.

All numbers come from ``data/statistics.json``, counted in the official training games by
``benchmarks/gather_alfworld_statistics.py``.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias

from ...errors import OptionError
from ..draws import Draws

__all__ = ["Layout", "Receptacle", "layout", "load_table", "point"]

_Range: TypeAlias = tuple[int, int]
_Signature: TypeAlias = tuple[tuple[str, ...], ...]
_ATTEMPTS = 500
_APPLIANCES = ("Fridge", "Microwave", "SinkBasin")
_LEAST = 0.03
"""Weight with which small rooms leave out what every official room has."""


@functools.cache
def load_table(name: str) -> dict[str, Any]:
    """Return one of the generator's tables, ``"statistics"`` or ``"generator"``.

    Example:
        >>> load_table("statistics")["games"]
        3553
    """
    file = resources.files(__package__) / "data" / f"{name}.json"
    table: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return table


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A place for things.

    Attributes:
        id: Its PDDL id.
        kind: Its type as the official files spell it, such as ``"CounterTop"``.
        location: PDDL id of where the agent stands to use it.
    """

    id: str
    kind: str
    location: str


@dataclass(frozen=True)
class Layout:
    """One room.

    Attributes:
        room: ``"kitchen"``, ``"livingroom"``, ``"bedroom"`` or ``"bathroom"``.
        receptacles: What things can be in or on.
        free: Locations without a receptacle; the agent starts at one.
    """

    room: str
    receptacles: tuple[Receptacle, ...]
    free: tuple[str, ...]

    @functools.cached_property
    def by_kind(self) -> dict[str, tuple[Receptacle, ...]]:
        """The receptacles of each type."""
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


def layout(room: str, number: int, size: tuple[int, int]) -> Layout:
    """Return layout `number` of a room, numbered from 1; no two are alike to a player.

    Args:
        room: One of the four rooms.
        number: Which layout.
        size: Fewest and most receptacles.

    Example:
        >>> kitchen = layout("kitchen", 1, (20, 54))
        >>> "Fridge" in kitchen.by_kind, kitchen == layout("kitchen", 1, (20, 54))
        (True, True)
    """
    return _draw_distinct(room, size, number)[0]


@functools.lru_cache(maxsize=4096)
def _draw_distinct(room: str, size: _Range, number: int) -> tuple[Layout, frozenset[_Signature]]:
    """Return a layout unlike all with lower numbers, and the signatures up to it."""
    known: frozenset[_Signature] = frozenset()
    if number > 1:
        known = _draw_distinct(room, size, number - 1)[1]
    for attempt in range(_ATTEMPTS):
        drawn = _draw(room, size, Draws("layout", room, *size, number, attempt))
        if drawn.signature not in known:
            return drawn, known | {drawn.signature}
    raise OptionError(
        f"expected receptacles=(fewest, most) that leave room for {number} different rooms, found "
        f"{size}; allow more"
    )


def _draw(room: str, size: _Range, draws: Draws) -> Layout:
    """Draw one layout."""
    counts = _draw_counts(room, size, draws)
    kinds = draws.shuffled(kind for kind in sorted(counts) for _ in range(counts[kind]))
    receptacles: list[Receptacle] = []
    taken: set[str] = set()
    for group in _draw_groups(room, kinds, draws):
        location = _unused_location(draws, taken)
        for kind in group:
            name = f"{_stem(kind)}_bar_{point(draws, taken)}"
            if kind.endswith("Basin"):
                name += f"_bar_{kind}"
            receptacles.append(Receptacle(name, kind, location))
    free = tuple(_unused_location(draws, taken) for _ in range(draws.integer(2, 4)))
    return Layout(room, tuple(receptacles), free)


def _draw_counts(room: str, size: _Range, draws: Draws) -> dict[str, int]:
    """Draw how many receptacles of each type there are."""
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
            place: n * group.count(kind)
            for place, (group, n) in enumerate(together)
            if kind in group and all(left[other] >= group.count(other) for other in group)
        }
        group = together[draws.weighted(fitting)][0] if fitting else [kind]
        left.subtract(group)
        groups.append(group)
    return groups


def _stem(kind: str) -> str:
    """Return the first part of an id: a basin is part of its sink or bathtub."""
    return kind.removesuffix("Basin")


def point(draws: Draws, taken: set[str]) -> str:
    """Return a point in the room as ids spell it, and note it in `taken`.

    Example:
        >>> point(Draws("a"), set()).count("_bar_")
        2
    """
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
