"""State facts: the one data type in which environments, world models and metrics meet.

A *fact* is a tuple of strings, a predicate and its arguments, for example
``("in", "apple 1", "fridge 1")``. A `State` is what is believed to be true after a step, a `Delta`
is what an action changed. The text form, one fact a line, is for people, prompts and files::

    at(agent, fridge 1)
    in(apple 1, fridge 1)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .errors import FactSyntaxError

Fact: TypeAlias = tuple[str, ...]
"""A predicate and its arguments, in lower case: ``("in", "apple 1", "fridge 1")``."""

_UNPARSED = "!unparsed"
_EMPTY = "\\e"  # a predicate without letters: an empty line would be no fact
_ESCAPES = {char: f"\\{char}" for char in "\\(),!"} | {"\n": "\\n", "\r": "\\r"}
_TRANSLATION = str.maketrans(_ESCAPES)
_LETTERS = {"n": "\n", "r": "\r", "e": ""}
_PART = r"[^\\(),!\n\r]*"
_PLAIN_FACT = re.compile(rf"({_PART})\(({_PART}(?:, {_PART})*)\)")


@dataclass(frozen=True, slots=True)
class State:
    """A set of facts, all believed to be true at one moment; `print` shows `to_text`.

    Attributes:
        facts: The facts, as a frozen set of tuples of strings; any collection of facts becomes one.
        parsed: False when the text that led here fitted no rule of the canonicalizer; the facts are
            then those of the moment before.

    Raises:
        FactSyntaxError: `facts` is text, or has something else than tuples in it.

    Example:
        >>> state = State([("at", "agent", "fridge 1"), ("closed", "fridge 1")])
        >>> print(state)
        at(agent, fridge 1)
        closed(fridge 1)
        >>> State.from_text(state.to_text()) == state
        True
    """

    facts: frozenset[Fact] = frozenset()
    parsed: bool = True

    def __post_init__(self) -> None:
        # States are made at each step of each imagined branch: a frozen set is trusted without a look.
        facts: Any = self.facts
        if type(facts) is frozenset:
            return

        members = list(facts) if isinstance(facts, Iterable) else [facts]
        if not all(map(_is_fact, members)):
            wrong = facts if isinstance(facts, str) else members
            raise FactSyntaxError(
                "expected facts, tuples such as ('in', 'apple 1', 'fridge 1'), found "
                f"{wrong!r:.120}; State.from_text reads text"
            )
        object.__setattr__(self, "facts", frozenset(map(tuple, members)))

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """Return the facts as text, sorted, one a line; `from_text` is the inverse.

        A state that was not parsed starts with the line ``!unparsed``.

        Example:
            >>> State(frozenset({("lit", "desklamp 1")})).to_text()
            'lit(desklamp 1)'
        """
        lines = [fact_to_text(fact) for fact in sorted(self.facts)]
        return "\n".join(lines if self.parsed else [_UNPARSED, *lines])

    @classmethod
    def from_text(cls, text: str) -> State:
        """Return the state that a text describes, as `to_text` writes it.

        Args:
            text: One fact a line, optionally after a line ``!unparsed``.

        Raises:
            FactSyntaxError: A line is not a fact; the message says which line and where.

        Example:
            >>> sorted(State.from_text("holding(apple 1)").facts)
            [('holding', 'apple 1')]
        """
        # Not `splitlines`: it also splits at signs that stand in facts as they are, such as a form feed.
        lines = text.split("\n") if text else []
        parsed = lines[:1] != [_UNPARSED]
        fact_lines = lines if parsed else lines[1:]
        return cls(frozenset(map(_read_fact, fact_lines)), parsed)


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed between two states.

    Attributes:
        added: Facts that are true after and were not before.
        removed: Facts that were true before and are not after.

    Example:
        >>> delta = Delta(frozenset({("open", "fridge 1")}), frozenset({("closed", "fridge 1")}))
        >>> print(delta)
        + open(fridge 1)
        - closed(fridge 1)
    """

    added: frozenset[Fact] = frozenset()
    removed: frozenset[Fact] = frozenset()

    def __len__(self) -> int:
        return len(self.added) + len(self.removed)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """Return one changed fact a line, ``+`` for added and ``-`` for removed, sorted."""
        return "\n".join(
            [f"+ {fact_to_text(fact)}" for fact in sorted(self.added)]
            + [f"- {fact_to_text(fact)}" for fact in sorted(self.removed)]
        )


def _is_fact(member: object) -> bool:
    return isinstance(member, tuple | list) and all(isinstance(part, str) for part in member)


_NOTHING = Delta()


def diff(before: State, after: State) -> Delta:
    """Return the facts that `after` has and `before` has not, and the reverse.

    Example:
        >>> diff(State(frozenset({("a",)})), State(frozenset({("b",)})))
        Delta(added=frozenset({('b',)}), removed=frozenset({('a',)}))
    """
    if before.facts is after.facts:  # most steps change nothing: no sets are built for them
        return _NOTHING
    return Delta(after.facts - before.facts, before.facts - after.facts)


def apply(state: State, delta: Delta) -> State:
    """Return `state` with the changes of `delta`: the inverse of `diff`.

    Example:
        >>> before, after = State(frozenset({("a",)})), State(frozenset({("b",)}))
        >>> apply(before, diff(before, after)) == after
        True
    """
    return State((state.facts - delta.removed) | delta.added, state.parsed)


def fact_to_text(fact: Iterable[str]) -> str:
    r"""Return one fact as text on one line, with ``\ , ( ) !`` and line ends escaped.

    Raises:
        FactSyntaxError: The fact is empty: it needs at least a predicate.

    Example:
        >>> fact_to_text(("in", "apple 1", "fridge 1"))
        'in(apple 1, fridge 1)'
    """
    parts = [part.translate(_TRANSLATION) for part in fact]
    if not parts:
        raise FactSyntaxError("a fact needs at least a predicate, found an empty tuple")
    if len(parts) == 1:
        return parts[0] or _EMPTY
    return f"{parts[0]}({', '.join(parts[1:])})"


def _read_fact(line: str) -> Fact:
    """Return the fact that a line of `State.to_text` has."""
    # Nearly all facts have arguments and nothing that is escaped: read at once, 6 times as fast.
    plain = _PLAIN_FACT.fullmatch(line)
    if plain:
        predicate, arguments = plain.groups()
        return (predicate, *arguments.split(", "))

    parts = []  # the predicate and the arguments that are read to their ends
    current = ""  # the part that is being read
    position = 0
    depth = 0  # 1 among the arguments

    # By character, since any sign of the form may be escaped within a part.
    while position < len(line):
        char = line[position]
        if char == "\\":
            current += _unescape(line, position)
            position += 2
        elif char == "(" and depth == 0:
            parts.append(current)
            current = ""
            depth = 1
            position += 1
        elif char == ")" and depth == 1 and position == len(line) - 1:
            return (*parts, current)
        elif depth == 1 and line.startswith(", ", position):
            parts.append(current)
            current = ""
            position += 2
        elif char in _ESCAPES:
            raise _bad_line(line, position)
        else:
            current += char
            position += 1

    if depth:
        raise _bad_line(line, position)
    return (current,)


def _unescape(line: str, position: int) -> str:
    """Return the character that the escape at `position` stands for."""
    char = line[position + 1 : position + 2]
    if char in _LETTERS:
        return _LETTERS[char]
    if char and char in _ESCAPES:
        return char
    raise _bad_line(line, position)


def _bad_line(line: str, position: int) -> FactSyntaxError:
    excerpt = line if len(line) <= 120 else line[:117] + "..."
    return FactSyntaxError(
        f"expected a fact such as 'in(apple 1, fridge 1)', found {excerpt!r} "
        f"(wrong at character {position}); write facts with comap.facts.State.to_text"
    )
