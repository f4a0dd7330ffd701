"""One game: read from ``game.tw-pddl``, checked, and turned into the tables of the native engine."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path

from ...errors import DataCorrupt, DataNotFound
from ...facts import Fact
from .goal import FAMILIES, HELP, Dialect, Goal

REMEDY = "compare with the official files: comap data verify alfworld"
_UNARY = (
    "openable",
    "opened",
    "isreceptacleobject",
    "holdsany",
    "isclean",
    "cleanable",
    "ishot",
    "heatable",
    "iscool",
    "coolable",
    "pickupable",
    "moveable",
    "toggleable",
    "ison",
    "istoggled",
    "sliceable",
    "issliced",
)
_BINARY = (
    "atlocation",
    "receptacleatlocation",
    "objectatlocation",
    "inreceptacle",
    "inreceptacleobject",
    "receptacletype",
    "cancontain",
    "objecttype",
    "holds",
)
_WORD_COUNTS = dict.fromkeys(_UNARY, 2) | dict.fromkeys(_BINARY, 3)
"""Predicates that a problem may state at its start, and how many words such a fact has."""

_KEYS = ("pddl_domain", "grammar", "pddl_problem", "solvable")
_TASK = re.compile(r"Your task is to: ([^\"\n]*)")
_HELP = re.compile(r'action help \{.*?feedback :: "([^"]*)"', re.DOTALL)

# The official 4,027 files word their goals by six templates, one a family, and in no other way.
_THING = r"\(objecttype \?{0} (?P<object>\S+?)type\)"
_PLACE = r"\(receptacletype \?r (?P<target>\S+?)type\)"
_EXISTS = r"\(:goal \(and \(exists \(\?r - receptacle\) \(exists \(\?o - object\) \(and "
_SIMPLE_GOAL = _EXISTS + r"\(inreceptacle \?o \?r\) " + _THING.format("o") + " " + _PLACE + r"[ )]*"
_LIGHT_GOAL = (
    r"\(:goal \(and \(exists \(\?ot - object \?r - receptacle \?a - agent \?l - location\) "
    r"\(and \(objecttype \?ot (?P<target>\S+?)type\) \(toggleable \?ot\) "
    r"\(istoggled \?ot\) \(receptacleatlocation \?r \?l\) \(atlocation \?a \?l\) "
    r"\(inreceptacle \?ot \?r\) \) \) \(exists \(\?o - object \?a - agent\) \(and "
    + _THING.format("o")
    + r" \(holds \?a \?o\)[ )]*"
)
_STATE_GOAL = (
    _EXISTS
    + r"\({0} \?o\) "
    + _THING.format("o")
    + f" {_PLACE}"
    + r" \({1} \?o\) \(inreceptacle \?o \?r\)[ )]*"
)
_TWO_GOAL = (
    r"\(:goal \(and \(exists \(\?r - receptacle\) \(exists \(\?o1 - object\) \(and "
    + _THING.format("o1")
    + " "
    + _PLACE
    + r" \(inreceptacle \?o1 \?r\) \(exists \(\?o2 - object\) \(and "
    r"\(not \(= \?o1 \?o2\)\) \(objecttype \?o2 (?P=object)type\) "
    r"\(receptacletype \?r (?P=target)type\) \(inreceptacle \?o2 \?r\)[ )]*"
)
_GOAL_PATTERNS = (
    _SIMPLE_GOAL,
    _LIGHT_GOAL,
    _STATE_GOAL.format("cleanable", "isclean"),
    _STATE_GOAL.format("heatable", "ishot"),
    _STATE_GOAL.format("coolable", "iscool"),
    _TWO_GOAL,
)
_GOALS = {
    family: re.compile(pattern) for family, pattern in zip(FAMILIES, _GOAL_PATTERNS, strict=True)
}


@dataclass(frozen=True)
class Problem:
    """One game as its file describes it.

    Attributes:
        facts: The initial facts, lower case, with the file's own ids.
        goal: What must be reached.
        task: The task sentence, exactly as the game prints it.
        walkthrough: A list of commands that wins, or empty.
        help: What the game answers to ``help``.
        source: The bytes that all this was read from.
    """

    facts: tuple[tuple[str, ...], ...]
    goal: Goal
    task: str
    walkthrough: tuple[str, ...]
    help: str
    source: bytes

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of `source`."""
        return hashlib.sha256(self.source).hexdigest()


def read_game(path: Path) -> Problem:
    """Read and check a ``game.tw-pddl`` file.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: It is not a solvable ALFWorld game; the message says in what it differs.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataNotFound(
            f"expected a game at {path}, found no file; run: comap data verify alfworld"
        ) from None
    except OSError as error:
        raise DataNotFound(
            f"expected to read the game {path}, found: {error.strerror}; make it a readable file, or "
            "run: comap data verify alfworld"
        ) from error

    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        beginning = f"{len(raw):,} bytes that start with {raw[:20]!r}" if raw else "an empty file"
        raise _corrupt(path, "JSON", f"{beginning} ({error})") from None

    if not isinstance(content, dict) or any(key not in content for key in _KEYS):
        raise _corrupt(path, f"a JSON object with {', '.join(_KEYS)}", "other JSON")
    texts = [content[key] for key in _KEYS[:3]]
    if not all(isinstance(text, str) for text in texts) or "domain alfred" not in texts[0]:
        raise _corrupt(path, "the PDDL domain 'alfred'", "another game")
    if content["solvable"] is not True:
        raise _corrupt(path, "a solvable game", "one that its file calls unsolvable")
    walkthrough = content.get("walkthrough") or []
    if not isinstance(walkthrough, list) or not all(isinstance(c, str) for c in walkthrough):
        raise _corrupt(path, "a walkthrough of texts", "something else")

    _, grammar, pddl = texts
    try:
        facts, goal = read_problem(pddl)
    except DataCorrupt as error:
        raise DataCorrupt(f"{path}: {error}; {REMEDY}") from None

    # The task sentence is nowhere but in the grammar, in the text that starts the game.
    task = _TASK.search(grammar)
    return Problem(
        facts=facts,
        goal=goal,
        task=task.group(1) if task else goal.sentence(),
        walkthrough=tuple(walkthrough),
        help=_read_help(grammar),
        source=raw,
    )


def read_problem(text: str) -> tuple[tuple[tuple[str, ...], ...], Goal]:
    """Read the PDDL problem of a game: its initial facts and its goal."""
    text = text.lower()  # as upstream's reader of PDDL does
    start = text.find("(:init")
    end = text.find("(:goal")
    if start < 0 or end < start:
        missing = "no (:init" if start < 0 else "no (:goal after it"
        raise DataCorrupt(
            f"expected a PDDL problem with (:init ...) and (:goal ...), found {missing}"
        )

    # No fact has another inside: each ends at the next bracket. Anything else changes the number of
    # opening ones.
    body = text[start + len("(:init") : end]
    facts = tuple(filter(None, map(_read_fact, body.split(")"))))
    if body.count("(") != len(facts):
        raise DataCorrupt("expected initial facts of one or two arguments, found something else")

    goal = " ".join(text[end:].split())
    for family, pattern in _GOALS.items():
        match = pattern.fullmatch(goal)
        if match:
            return facts, Goal(family, match["object"], match["target"])
    raise DataCorrupt(f"expected a goal of one of ALFWorld's six families, found {goal[:200]!r}")


@lru_cache(maxsize=16_384)  # what fits where, for one, is the same in many games
def _read_fact(piece: str) -> tuple[str, ...]:
    """Return the fact in a piece of text up to a closing bracket; empty where there is none."""
    fact = tuple(piece.replace("(", "", 1).split())
    if fact and _WORD_COUNTS.get(fact[0]) != len(fact):
        raise DataCorrupt(
            f"expected facts of the ALFWorld domain, found ({fact[0]:.60} ...) with "
            f"{len(fact) - 1} arguments"
        )
    return fact


def _read_help(grammar: str) -> str:
    """Return the answer to ``help``, which a grammar gives at once or by way of a rule's name."""
    match = _HELP.search(grammar)
    text = match[1] if match else ""
    if text.startswith("#"):
        name = re.escape(text[1:-1])
        rule = re.search(rf'"{name}":\s*\[\s*\{{\s*"rhs":\s*("(?:[^"\\]|\\.)*")', grammar)
        try:
            text = json.loads(rule[1]) if rule else ""
        except ValueError:
            text = ""
    return text.removeprefix("\n") or HELP


def _corrupt(path: Path, expected: str, actual: str) -> DataCorrupt:
    return DataCorrupt(f"expected {expected} in {path}, found {actual}; {REMEDY}")


_DYNAMIC = frozenset(
    (
        "atlocation",
        "opened",
        "isclean",
        "ishot",
        "iscool",
        "issliced",
        "istoggled",
        "ison",
        "inreceptacle",
        "objectatlocation",
    )
)
"""The predicates of facts that a command can change."""

_KNIVES = frozenset({"knifetype", "butterknifetype"})


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """Return the name that the game shows for each id, in the order of the sorted ids."""
    names = {}
    counts: defaultdict[str, int] = defaultdict(int)

    # alfworld's demangler sorts the ids and takes each kind's numbers from the end: the first id of
    # a kind gets the highest number.
    for key in sorted(set(ids), reverse=True):
        base, bar, _ = key.partition("_bar_")
        if not bar:
            names[key] = key
            continue

        # The id of a basin begins as its sink's: "sink_bar_..._bar_sinkbasin".
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

    def __missing__(self, location: str) -> dict[str, str]:
        # One cannot go to a receptacle that shares one's location (alfworld's issues 97 and 131).
        ways = {command: name for command, (name, place) in self._ways.items() if place != location}
        self[location] = ways
        return ways


class Game:
    """The fixed side of one game, in display names.

    Args:
        problem: The content of the file.
        dialect: Whether things are "moved" or "put".

    Raises:
        DataCorrupt: The facts contradict what the engine needs (no agent, say).

    Attributes:
        order: For each object and receptacle its position in the order that texts list things in.
        here: The receptacles at each location, in that order.
        going: For each location the commands that lead away, with where they lead.
        kind: The PDDL type of each object and receptacle.
        start: Where the agent starts.
    """

    def __init__(self, problem: Problem, dialect: Dialect = "move"):
        self.problem = problem
        self.goal = problem.goal
        self.dialect = dialect

        names = display_names(set(chain.from_iterable(problem.facts)) - _WORD_COUNTS.keys())
        self._names = names
        self.order = {name: position for position, name in enumerate(names.values())}

        self._group_facts()
        self._lay_out()
        self._name_goal_things()
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

    def _group_facts(self) -> None:
        """Sort the facts by predicate, and the things by what can be done with them."""
        names = self._names
        things_by_predicate: defaultdict[str, list[str]] = defaultdict(list)
        pairs: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        for fact in self.problem.facts:
            if len(fact) == 2:
                things_by_predicate[fact[0]].append(names[fact[1]])
            else:
                pairs[fact[0]].append((names[fact[1]], names[fact[2]]))

        unary = {name: frozenset(things) for name, things in things_by_predicate.items()}
        self.pairs = pairs
        self.unary = unary
        self.kind = dict(pairs["objecttype"]) | dict(pairs["receptacletype"])
        self.fits = frozenset(pairs["cancontain"])

        no_things: frozenset[str] = frozenset()
        position = self.order.__getitem__
        self.openable = unary.get("openable", no_things)
        self.pickupable = unary.get("pickupable", no_things)
        self.cleanable = unary.get("cleanable", no_things)
        self.heatable = unary.get("heatable", no_things)
        self.coolable = unary.get("coolable", no_things)
        self.sliceable = unary.get("sliceable", no_things)
        self.containers = unary.get("isreceptacleobject", no_things)
        self.toggleable = sorted(unary.get("toggleable", no_things), key=position)
        self.knives = frozenset(name for name, kind in self.kind.items() if kind in _KNIVES)

        inside: defaultdict[str, list[str]] = defaultdict(list)
        for thing, container in pairs["inreceptacleobject"]:
            inside[container].append(thing)
        self.inside = {
            container: sorted(set(things), key=position) for container, things in inside.items()
        }

    def _lay_out(self) -> None:
        """Work out which receptacles are where, and which way commands lead."""
        # Each once, in the order in which texts list receptacles.
        stated_pairs = dict.fromkeys(self.pairs["receptacleatlocation"])
        located = sorted(stated_pairs, key=lambda pair: self.order[pair[0]])
        self.receptacles = tuple(dict.fromkeys(name for name, _ in located))
        self.location = dict(located)
        self.here: dict[str, tuple[str, ...]] = {}
        for name, place in located:
            self.here[place] = (*self.here.get(place, ()), name)

        agents = self.pairs["atlocation"]
        self.agent, self.start = agents[0] if agents else ("", "")
        self.going = _Going(self.location)

    def _name_goal_things(self) -> None:
        """Work out which things, receptacles and lamps can meet the goal."""
        goal = self.goal
        object_type = f"{goal.object_kind}type"
        target_type = f"{goal.target_kind}type"
        able = {"clean": self.cleanable, "hot": self.heatable, "cool": self.coolable}

        # The goal's PDDL asks for a thing that is cleanable (heatable, coolable), not only clean.
        goal_things = {name for name, kind in self.pairs["objecttype"] if kind == object_type}
        if goal.state is not None:
            goal_things &= able[goal.state]
        self.wanted = frozenset(goal_things)
        self.targets = tuple(
            name for name in self.receptacles if self.kind.get(name) == target_type
        )
        self.lamps = frozenset(
            name for name in self.toggleable if self.kind.get(name) == target_type
        )

    def _check(self) -> None:
        """Raise `DataCorrupt` where the engine could not play what the facts say."""
        # "atlocation" is said of agents only; of things "objectatlocation" is.
        agents = len(self.pairs["atlocation"])
        if agents != 1:
            raise DataCorrupt(f"expected one agent at one location, found {agents}")
        if self.unary.get("holdsany") or self.pairs.get("holds"):
            raise DataCorrupt(
                "expected an agent with empty hands at the start, found one that holds"
            )

        inside = self.pairs["inreceptacle"]
        for name in (*self.receptacles, *(thing for thing, _ in inside)):
            if name not in self.kind:
                raise DataCorrupt(f"expected a type for every thing, found none for {name!r}")

        # `location` has one place for each name, `here` all of them.
        if sum(map(len, self.here.values())) > len(self.receptacles):
            raise DataCorrupt("expected each receptacle at one location, found one at several")
        if lost := [receptacle for _, receptacle in inside if receptacle not in self.location]:
            raise DataCorrupt(
                f"expected a location for every receptacle, found none for {lost[0]!r}"
            )
        if not self.receptacles:
            raise DataCorrupt("expected at least one receptacle, found none")
