"""Reading ``game.tw-pddl``: from a file's text to a checked `Problem`."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from ...errors import DataCorrupt, DataNotFound
from .goal import FAMILIES, Goal
from .wording import HELP

__all__ = ["REMEDY", "SIGNATURES", "Problem", "read_game", "read_problem"]

REMEDY = "compare with the official files: comap data verify alfworld"
"""What helps with a file that is not what it should be."""

SIGNATURES: dict[str, tuple[str, ...]] = {
    "atlocation": ("agent", "location"),
    "receptacleatlocation": ("receptacle", "location"),
    "objectatlocation": ("object", "location"),
    "openable": ("receptacle",),
    "opened": ("receptacle",),
    "inreceptacle": ("object", "receptacle"),
    "isreceptacleobject": ("object",),
    "inreceptacleobject": ("object", "object"),
    "receptacletype": ("receptacle", "rtype"),
    "cancontain": ("rtype", "otype"),
    "objecttype": ("object", "otype"),
    "holds": ("agent", "object"),
    "holdsany": ("agent",),
    "isclean": ("object",),
    "cleanable": ("object",),
    "ishot": ("object",),
    "heatable": ("object",),
    "iscool": ("object",),
    "coolable": ("object",),
    "pickupable": ("object",),
    "moveable": ("object",),
    "toggleable": ("object",),
    "ison": ("object",),
    "istoggled": ("object",),
    "sliceable": ("object",),
    "issliced": ("object",),
}
"""Predicates that a problem may state at its start, and the types of their arguments."""

_SHAPES = frozenset((name, 1 + len(kinds)) for name, kinds in SIGNATURES.items())
_KEYS = ("pddl_domain", "grammar", "pddl_problem", "solvable")
_TASK = re.compile(r"Your task is to: ([^\"\n]*)")
_HELP = re.compile(r'action help \{.*?feedback :: "([^"]*)"', re.DOTALL)
_THING = r"\(objecttype \?{0} (?P<object>\S+?)type\)"
_PLACE = r"\(receptacletype \?r (?P<target>\S+?)type\)"
_ONE = r"\(:goal \(and \(exists \(\?r - receptacle\) \(exists \(\?o - object\) \(and "
_STATE_GOAL = (
    _ONE
    + r"\({0} \?o\) "
    + _THING.format("o")
    + " "
    + _PLACE
    + r" \({1} \?o\) \(inreceptacle \?o \?r\) \) \) \) \) \)"
)
_GOALS = tuple(
    (family, re.compile(pattern))
    for family, pattern in zip(
        FAMILIES,
        (
            _ONE + r"\(inreceptacle \?o \?r\) " + _THING.format("o") + " " + _PLACE + r"[ )]*",
            r"\(:goal \(and \(exists \(\?ot - object \?r - receptacle \?a - agent \?l - location\) "
            r"\(and \(objecttype \?ot (?P<target>\S+?)type\) \(toggleable \?ot\) "
            r"\(istoggled \?ot\) \(receptacleatlocation \?r \?l\) \(atlocation \?a \?l\) "
            r"\(inreceptacle \?ot \?r\) \) \) \(exists \(\?o - object \?a - agent\) \(and "
            + _THING.format("o")
            + r" \(holds \?a \?o\)[ )]*",
            _STATE_GOAL.format("cleanable", "isclean").removesuffix(r" \) \) \) \) \)") + r"[ )]*",
            _STATE_GOAL.format("heatable", "ishot").removesuffix(r" \) \) \) \) \)") + r"[ )]*",
            _STATE_GOAL.format("coolable", "iscool").removesuffix(r" \) \) \) \) \)") + r"[ )]*",
            r"\(:goal \(and \(exists \(\?r - receptacle\) \(exists \(\?o1 - object\) \(and "
            + _THING.format("o1")
            + " "
            + _PLACE
            + r" \(inreceptacle \?o1 \?r\) \(exists \(\?o2 - object\) \(and "
            r"\(not \(= \?o1 \?o2\)\) \(objecttype \?o2 (?P=object)type\) "
            r"\(receptacletype \?r (?P=target)type\) \(inreceptacle \?o2 \?r\)[ )]*",
        ),
        strict=True,
    )
)


@dataclass(frozen=True)
class Problem:
    """One game as its file tells it.

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
        raise _corrupt(path, "JSON", f"{_opening(raw)} ({error})") from None
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
    task = _TASK.search(texts[1])
    try:
        facts, goal = read_problem(texts[2])
    except DataCorrupt as error:
        raise DataCorrupt(f"{path}: {error}; {REMEDY}") from None
    return Problem(
        facts,
        goal,
        task.group(1) if task else goal.sentence(),
        tuple(walkthrough),
        _read_help(texts[1]),
        raw,
    )


def read_problem(text: str) -> tuple[tuple[tuple[str, ...], ...], Goal]:
    """Read the PDDL problem of a game: its initial facts and its goal.

    Raises:
        DataCorrupt: A part is missing, a fact is none of ALFWorld's, or the goal is of no family.
    """
    text = text.lower()
    start, end = text.find("(:init"), text.find("(:goal")
    if start < 0 or end < start:
        found = "no (:init" if start < 0 else "no (:goal after it"
        raise DataCorrupt(
            f"expected a PDDL problem with (:init ...) and (:goal ...), found {found}"
        )
    body = text[start + len("(:init") : end]
    facts = tuple(filter(None, map(_read_fact, body.split(")"))))
    if body.count("(") != len(facts):
        raise DataCorrupt("expected initial facts of one or two arguments, found something else")
    goal = " ".join(text[end:].split())
    for family, pattern in _GOALS:
        match = pattern.fullmatch(goal)
        if match:
            return facts, Goal(family, match["object"], match["target"])
    raise DataCorrupt(f"expected a goal of one of ALFWorld's six families, found {goal[:200]!r}")


@lru_cache(maxsize=16_384)
def _read_fact(piece: str) -> tuple[str, ...]:
    """Return the fact in a piece of text up to a closing bracket; empty where there is none.

    Most of a reset is spent here, and most facts recur in other games of the same room, so they are
    remembered. (Splitting at the bracket is twice as fast as a regular expression.)
    """
    fact = tuple(piece.replace("(", "", 1).split())
    if fact and (fact[0], len(fact)) not in _SHAPES:
        raise DataCorrupt(
            f"expected facts of the ALFWorld domain, found ({fact[0]:.60} ...) with "
            f"{len(fact) - 1} arguments"
        )
    return fact


def _read_help(grammar: str) -> str:
    """Return the answer to ``help``, which a grammar gives at once or by way of a rule's name."""
    found = _HELP.search(grammar)
    text = found[1] if found else ""
    if found and text.startswith("#"):
        rule = re.search(
            rf'"{re.escape(text[1:-1])}":\s*\[\s*\{{\s*"rhs":\s*("(?:[^"\\]|\\.)*")', grammar
        )
        try:
            text = json.loads(rule[1]) if rule else ""
        except ValueError:
            text = ""
    return text.removeprefix("\n") or HELP


def _opening(raw: bytes) -> str:
    """Return how a file that is not JSON begins, for messages."""
    if not raw:
        return "an empty file"
    return f"{len(raw):,} bytes that start with {raw[:20]!r}"


def _corrupt(path: Path, expected: str, found: str) -> DataCorrupt:
    return DataCorrupt(f"expected {expected} in {path}, found {found}; {REMEDY}")
