"""What is generally known of kinds of things: facts gathered from the official training games.

An agent may know these (a mug can be heated, soap is often in a cabinet); they say nothing about
where a thing is in the game at hand.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache
from importlib.resources import files
from typing import Any

from .goal import kind_of

__all__ = ["can", "fits", "likelihood", "statistics"]


@lru_cache(maxsize=1)
def statistics() -> dict[str, Any]:
    """Return the statistics file, as it is."""
    text = files("comap.envs.alfworld").joinpath("data/statistics.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@lru_cache(maxsize=1)
def _properties() -> dict[str, frozenset[str]]:
    return {
        name: frozenset(kind.lower() for kind in kinds)
        for name, kinds in statistics()["properties"].items()
    }


@lru_cache(maxsize=1)
def _pairs() -> frozenset[tuple[str, str]]:
    return frozenset(
        (place.lower(), thing.lower())
        for place, things in statistics()["can_contain"].items()
        for thing in things
    )


@lru_cache(maxsize=1)
def _shares() -> dict[tuple[str, str], float]:
    """Return how often each kind of thing is in each kind of receptacle, per such receptacle."""
    counts: defaultdict[tuple[str, str], float] = defaultdict(float)
    number: defaultdict[str, float] = defaultdict(float)
    for room in statistics()["rooms"].values():
        for place, sizes in room["receptacles"].items():
            scenes = sum(sizes.values())
            mean = sum(int(size) * n for size, n in sizes.items()) / scenes
            number[place.lower()] += mean * room["games"]
        for thing, places in room["places"].items():
            for place, n in places.items():  # "" is the floor
                counts[thing.lower(), place.lower()] += n
    return {pair: n / number[pair[1]] for pair, n in counts.items() if number[pair[1]]}


def can(thing: str, ability: str) -> bool:
    """Return whether things of this kind are generally so.

    Args:
        thing: A name such as ``"mug 1"``.
        ability: ``"pickupable"``, ``"cleanable"``, ``"heatable"``, ``"coolable"``, ``"sliceable"``,
            ``"toggleable"`` or ``"container"``.

    Example:
        >>> can("mug 1", "heatable"), can("bed 1", "pickupable")
        (True, False)
    """
    return kind_of(thing) in _properties()[ability]


def fits(thing: str, place: str) -> bool:
    """Return whether a receptacle of this kind takes things of that kind.

    Example:
        >>> fits("mug 1", "coffeemachine 1"), fits("mug 1", "toiletpaperhanger 1")
        (True, False)
    """
    return (kind_of(place), kind_of(thing)) in _pairs()


def likelihood(thing_kind: str, place: str) -> float:
    """Return how many things of a kind a receptacle of the kind of `place` holds on average.

    Example:
        >>> likelihood("kettle", "stoveburner 1") > likelihood("kettle", "drawer 1")
        True
    """
    return _shares().get((thing_kind, kind_of(place)), 0.0)
