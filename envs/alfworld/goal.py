"""What engine and canonicalizer share: goals, kinds of things, and the game's words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from ...facts import Fact, State
from ..storage import packaged

FAMILIES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""The six kinds of tasks, as ALFRED names them."""

_SIMPLE, _LIGHT, _CLEAN, _HEAT, _COOL, _TWO = FAMILIES
_STATES = {_CLEAN: "clean", _HEAT: "hot", _COOL: "cool"}
APPLIANCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "clean": ("clean", ("sinkbasin", "sink")),
    "hot": ("heat", ("microwave",)),
    "cool": ("cool", ("fridge",)),
}
"""How a thing comes into each state: the verb, and the kinds of receptacles that do it."""

_FAMILY_OF_WORD = {"clean": _CLEAN, "heat": _HEAT, "hot": _HEAT, "cool": _COOL}

# One goal has several wordings: "put a hot mug in fridge", "heat some mug and put it in fridge".
_SENTENCES = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:look at|examine)(?: an?| the)? (?P<object>\w+) (?:under|with) the (?P<target>\w+)",
        r"(?P<state>clean|heat|cool) (?:some|an?) (?P<object>\w+) and put it (?:in|on) (?P<target>\w+)",
        r"put (?:an?|some) (?P<state>clean|hot|cool) (?P<object>\w+) (?:in|on) (?P<target>\w+)",
        r"(?:find )?(?:put )?(?P<two>two) (?P<object>\w+) (?:and put them )?(?:in|on) (?P<target>\w+)",
        r"put (?:an?|some) (?P<object>\w+) (?:in|on) (?P<target>\w+)",
    )
)


def kind_of(name: str) -> str:
    return name.rpartition(" ")[0] or name  # a name without a number is its own kind


@dataclass(frozen=True, slots=True)
class Goal:
    """What a task asks for.

    Attributes:
        family: One of `FAMILIES`.
        object_kind: Kind of the thing to bring (or to look at), as names spell it: ``"apple"``.
        target_kind: Kind of the receptacle to bring it to, or of the lamp to look at it with.

    Example:
        >>> goal = Goal.from_sentence("put a clean pot in stoveburner.")
        >>> goal.family, goal.object_kind, goal.target_kind
        ('pick_clean_then_place_in_recep', 'pot', 'stoveburner')
        >>> goal.sentence()
        'put a clean pot in stoveburner.'
    """

    family: str
    object_kind: str
    target_kind: str

    @property
    def state(self) -> str | None:
        """``"clean"``, ``"hot"`` or ``"cool"`` where the thing must be so, else None."""
        return _STATES.get(self.family)

    @property
    def lamp(self) -> bool:
        """Whether the thing is to be held beside a lit lamp."""
        return self.family == _LIGHT

    @property
    def count(self) -> int:
        """How many things must be in one receptacle."""
        return 2 if self.family == _TWO else 1

    @classmethod
    def from_sentence(cls, text: str) -> Goal | None:
        """Read a goal from a task's words; None where they say none."""
        words = " ".join(text.lower().split()).rstrip(". ")
        # A first observation says it behind these words; a sentence alone is read, too.
        words = words.rpartition("your task is to: ")[2]
        for pattern in _SENTENCES:
            match = pattern.fullmatch(words)
            if match is None:
                continue

            parts = match.groupdict()
            if "state" in parts:
                family = _FAMILY_OF_WORD[parts["state"]]
            elif "two" in parts:
                family = _TWO
            elif parts["target"].endswith("lamp"):
                family = _LIGHT
            else:
                family = _SIMPLE
            return cls(family, parts["object"], parts["target"])
        return None

    def sentence(self) -> str:
        """Return the goal in words that `from_sentence` reads."""
        thing = self.object_kind
        target = self.target_kind
        if self.lamp:
            return f"look at {thing} under the {target}."
        if self.count == 2:
            return f"put two {thing} in {target}."
        if self.state is not None:
            return f"put a {self.state} {thing} in {target}."
        return f"put a {thing} in {target}."

    def conditions(self, state: State) -> tuple[int, int]:
        """Return how many goal conditions the facts meet, and how many there are.

        ALFRED's goal conditions (Shridhar et al. 2020): one for the thing in its place; for two
        things one each; for a thing that must be clean, hot or cool one more for any thing so and
        one for a thing that is both; for looking one for holding the thing, one for the lit lamp.
        """
        if self.lamp:
            holds_thing = any(
                f[0] == "holding" and kind_of(f[-1]) == self.object_kind for f in state.facts
            )
            return holds_thing + self._lamp_lit(state.facts), 2

        # Predicted beliefs may have facts of any length: those of the wrong one do not count.
        kinds = (self.object_kind, self.target_kind)
        inside = [f[1:] for f in state.facts if f[0] == "in" and len(f) == 3]
        placed = [pair for pair in inside if (kind_of(pair[0]), kind_of(pair[1])) == kinds]

        if self.count == 2:
            counts = Counter(receptacle for _, receptacle in placed)
            return min(2, max(counts.values(), default=0)), 2

        if self.state is None:
            return int(bool(placed)), 1

        treated = {f[1] for f in state.facts if f[0] == self.state and len(f) == 2}
        any_treated = any(kind_of(thing) == self.object_kind for thing in treated)
        any_placed_treated = any(thing in treated for thing, _ in placed)
        return bool(placed) + any_treated + any_placed_treated, 3

    def _lamp_lit(self, facts: frozenset[Fact]) -> bool:
        """Return whether a lamp of the goal's kind is lit where the agent is."""
        lit = {f[-1] for f in facts if f[0] == "lit" and kind_of(f[-1]) == self.target_kind}
        if not lit:
            return False

        agent_places = {f[2] for f in facts if f[:2] == ("at", "agent") and len(f) == 3}
        return any(
            f[0] in ("in", "near") and len(f) == 3 and f[1] in lit and f[2] in agent_places
            for f in facts
        )


Dialect: TypeAlias = Literal["move", "put"]
"""``"move"``: alfworld 0.4 (``move X to Y``); ``"put"``: alfworld up to 0.3 (``put X in/on Y``)."""

DIALECTS: tuple[Dialect, ...] = ("move", "put")
BANNER = "-= Welcome to TextWorld, ALFRED! =-"
NOTHING_HAPPENS = "Nothing happens."
HELP = """Available commands:
  look                               describe what is here
  inventory                          tell what you carry
  go to (receptacle)                 walk to a receptacle
  open (receptacle)                  open a receptacle
  close (receptacle)                 close a receptacle
  take (object) from (receptacle)    pick an object up
  move (object) to (receptacle)      put an object down
  examine (something)                look at a receptacle or at what you hold
  use (object)                       switch an object on
  heat (object) with (receptacle)    make an object hot
  clean (object) with (receptacle)   make an object clean
  cool (object) with (receptacle)    make an object cool
  slice (object) with (object)       cut an object with a knife
"""
"""The help of generated games; official files bring their own."""


def join_names(names: Sequence[str]) -> str:
    """Return names as the game joins them without articles, or "nothing"."""
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


def listing(names: Sequence[str]) -> str:
    """Return names as the game lists things: each with the article "a", or "nothing"."""
    if len(names) < 2:
        return f"a {names[0]}" if names else "nothing"
    # "a apple", too: the game knows no "an".
    return f"a {', a '.join(names[:-1])}, and a {names[-1]}"


def load_table(name: str) -> Any:
    """Return one of the tables ``"statistics"`` (of official games) and ``"generator"``."""
    return packaged(__package__, name)


@lru_cache(maxsize=1)
def _properties() -> dict[str, frozenset[str]]:
    """Return the kinds of things that can be picked up, cleaned, and so on."""
    # The table spells kinds as ALFRED does ("AlarmClock"), texts in lower case.
    return {
        name: frozenset(kind.lower() for kind in kinds)
        for name, kinds in load_table("statistics")["properties"].items()
    }


@lru_cache(maxsize=1)
def _fitting_pairs() -> frozenset[tuple[str, str]]:
    """Return the kinds of receptacles, each with a kind of things that it takes."""
    pairs: set[tuple[str, str]] = set()
    for place, things in load_table("statistics")["can_contain"].items():
        pairs.update((place.lower(), thing.lower()) for thing in things)
    return frozenset(pairs)


@lru_cache(maxsize=1)
def _shares() -> dict[tuple[str, str], float]:
    """Return how often each kind of thing is in each kind of receptacle, per such receptacle."""
    thing_counts: defaultdict[tuple[str, str], float] = defaultdict(float)
    place_counts: defaultdict[str, float] = defaultdict(float)
    for room in load_table("statistics")["rooms"].values():
        # A kind of receptacle counts as often as games in this room have one: the mean of the
        # room's scenes, for each game.
        for place, scenes_by_number in room["receptacles"].items():
            scenes = sum(scenes_by_number.values())
            mean = sum(int(number) * n for number, n in scenes_by_number.items()) / scenes
            place_counts[place.lower()] += mean * room["games"]

        for thing, places in room["places"].items():
            for place, count in places.items():  # "" is the floor
                thing_counts[thing.lower(), place.lower()] += count

    shares = {}
    for (thing, place), count in thing_counts.items():
        if place_counts[place]:
            shares[thing, place] = count / place_counts[place]
    return shares


def can(thing: str, ability: str) -> bool:
    """Return whether things of this kind are ``"pickupable"``, ``"cleanable"`` and so on."""
    return kind_of(thing) in _properties()[ability]


def fits(thing: str, place: str) -> bool:
    """Return whether a receptacle of this kind takes things of that kind."""
    return (kind_of(place), kind_of(thing)) in _fitting_pairs()


def likelihood(thing_kind: str, place: str) -> float:
    """Return how many things of a kind a receptacle of the kind of `place` holds on average."""
    return _shares().get((thing_kind, kind_of(place)), 0.0)
