"""`Game`: a problem turned into the tables that the native engine looks things up in.

Everything in a `Game` is fixed; one may be shared by any number of engines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from itertools import chain

from ...errors import DataCorrupt
from ...facts import Fact
from .problem import SIGNATURES, Problem
from .wording import Dialect

__all__ = ["Game", "display_names"]

_DYNAMIC = frozenset(
    ["atlocation", "opened", "isclean", "ishot", "iscool", "issliced", "istoggled", "ison"]
    + ["inreceptacle", "objectatlocation"]
)
_KNIVES = frozenset({"knifetype", "butterknifetype"})


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Return the name that the game shows for each id, in the order of the sorted ids.

    The name is the id up to ``_bar_`` (with "basin" added where the id has it) and a number: ids are
    sorted as text, and within one base name the first gets the highest number.

    Example:
        >>> display_names(["mug_bar_1", "mug_bar_2", "agent1"])
        {'agent1': 'agent1', 'mug_bar_1': 'mug 2', 'mug_bar_2': 'mug 1'}
    """
    names = {}
    counts: defaultdict[str, int] = defaultdict(int)
    for key in sorted(set(ids), reverse=True):
        base, bar, _ = key.partition("_bar_")
        if not bar:
            names[key] = key
            continue
        if "basin" in key:
            base += "basin"
        counts[base] += 1
        names[key] = f"{base} {counts[base]}"
    return dict(reversed(names.items()))


class _Going(dict[str, dict[str, str]]):
    """For each location the commands that lead away and where they lead, worked out when asked."""

    def __init__(self, location: dict[str, str]):
        super().__init__()
        self._ways = {f"go to {name}": (name, location[name]) for name in sorted(location)}

    def __missing__(self, here: str) -> dict[str, str]:
        ways = {command: name for command, (name, place) in self._ways.items() if place != here}
        self[here] = ways
        return ways


class Game:
    """The fixed side of one game, in display names.

    Args:
        problem: What the file tells.
        dialect: Whether things are "moved" or "put".

    Raises:
        DataCorrupt: The facts contradict what the engine needs (no agent, say).

    Attributes:
        order: For each object and receptacle its place in the order that texts list things in.
        here: The receptacles at each location, in that order.
        going: For each location the commands that lead away, with where they lead.
        kind: The PDDL type of each object and receptacle.
        start: Where the agent starts.
    """

    def __init__(self, problem: Problem, dialect: Dialect = "move"):
        self.problem = problem
        self.goal = problem.goal
        self.dialect = dialect
        names = display_names(set(chain.from_iterable(problem.facts)) - SIGNATURES.keys())
        self._names = names
        self.order = {name: place for place, name in enumerate(names.values())}
        self._group()
        self._places()
        self._check()

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """The initial facts."""
        names = self._names
        return tuple((fact[0], *[names[part] for part in fact[1:]]) for fact in self.problem.facts)

    @cached_property
    def static(self) -> frozenset[Fact]:
        """The facts that no command can change."""
        return frozenset(fact for fact in self.facts if fact[0] not in _DYNAMIC)

    def _group(self) -> None:
        """Gather the facts by predicate."""
        one: defaultdict[str, list[str]] = defaultdict(list)
        two: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        names = self._names
        for fact in self.problem.facts:
            if len(fact) == 2:
                one[fact[0]].append(names[fact[1]])
            else:
                two[fact[0]].append((names[fact[1]], names[fact[2]]))
        self.pairs = two
        self.unary = {name: frozenset(things) for name, things in one.items()}
        self.kind = dict(two["objecttype"]) | dict(two["receptacletype"])
        self.fits = frozenset(two["cancontain"])
        nothing: frozenset[str] = frozenset()
        self.openable = self.unary.get("openable", nothing)
        self.pickupable = self.unary.get("pickupable", nothing)
        self.cleanable = self.unary.get("cleanable", nothing)
        self.heatable = self.unary.get("heatable", nothing)
        self.coolable = self.unary.get("coolable", nothing)
        self.sliceable = self.unary.get("sliceable", nothing)
        self.containers = self.unary.get("isreceptacleobject", nothing)
        self.toggleable = sorted(self.unary.get("toggleable", nothing), key=self.order.__getitem__)
        self.knives = frozenset(name for name, kind in self.kind.items() if kind in _KNIVES)
        inside: defaultdict[str, list[str]] = defaultdict(list)
        for thing, container in two["inreceptacleobject"]:
            inside[container].append(thing)
        self.inside = {key: sorted(set(v), key=self.order.__getitem__) for key, v in inside.items()}

    def _places(self) -> None:
        """Work out what is where and which way commands lead."""
        stated = dict.fromkeys(self.pairs["receptacleatlocation"])
        at = sorted(stated, key=lambda pair: self.order[pair[0]])
        self.receptacles = tuple(dict.fromkeys(name for name, _ in at))
        self.location = dict(at)
        self.here: dict[str, tuple[str, ...]] = {}
        for name, place in at:
            self.here[place] = (*self.here.get(place, ()), name)
        agents = self.pairs["atlocation"]
        self.agent, self.start = agents[0] if agents else ("", "")
        self.going = _Going(self.location)
        goal = self.goal
        self.targets = tuple(
            r for r in self.receptacles if self.kind.get(r) == f"{goal.target_kind}type"
        )
        self.wanted = frozenset(
            name
            for name, kind in self.pairs["objecttype"]
            if kind == f"{goal.object_kind}type" and self._can_become(name)
        )
        self.lamps = frozenset(
            name for name in self.toggleable if self.kind.get(name) == f"{goal.target_kind}type"
        )
        kinds = set(self.kind.values())
        self.has_microwave = "microwavetype" in kinds
        self.has_fridge = "fridgetype" in kinds

    def fact_text(self, fact: Fact) -> str:
        """Return one of the engine's facts, positive or negative, as TextWorld prints it.

        Names without a number keep the blank that TextWorld shows after them.
        """
        kinds = SIGNATURES.get(fact[0].removeprefix("not_")) or (self._sort_of(fact[1]),)
        shown = (
            f"{name if ' ' in name else name + ' '}: {kind}"
            for name, kind in zip(fact[1:], kinds, strict=True)
        )
        return f"{fact[0]}({', '.join(shown)})"

    def _sort_of(self, name: str) -> str:
        """Return the PDDL type of a thing that may be of any."""
        if name == self.agent:
            return "agent"
        if name in self.location:
            return "receptacle"
        return "location" if name in self.here or name == self.start else "object"

    def _can_become(self, thing: str) -> bool:
        """Return whether the goal's state can be asked of `thing`: PDDL goals say so."""
        allowed = {"clean": self.cleanable, "hot": self.heatable, "cool": self.coolable}
        return self.goal.state is None or thing in allowed[self.goal.state]

    def _check(self) -> None:
        if len(self.pairs["atlocation"]) != 1:
            found = len(self.pairs["atlocation"])
            raise DataCorrupt(f"expected one agent at one location, found {found}")
        if self.unary.get("holdsany") or self.pairs.get("holds"):
            raise DataCorrupt(
                "expected an agent that starts with empty hands, found one that holds"
            )
        untyped = [name for name in self.receptacles if name not in self.kind]
        untyped += [thing for thing, _ in self.pairs["inreceptacle"] if thing not in self.kind]
        if untyped:
            raise DataCorrupt(f"expected a type for every thing, found none for {untyped[0]!r}")
        if sum(map(len, self.here.values())) > len(self.receptacles):
            raise DataCorrupt("expected each receptacle at one location, found one at several")
        stray = [place for _, place in self.pairs["inreceptacle"] if place not in self.location]
        if stray:
            raise DataCorrupt(
                f"expected a location for every receptacle, found none for {stray[0]!r}"
            )
        if not self.receptacles:
            raise DataCorrupt("expected at least one receptacle, found none")
