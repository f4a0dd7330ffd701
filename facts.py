"""State facts: the one data type in which environments, world models and metrics meet.

A *fact* is a tuple of strings, a predicate and its arguments, for example
``("in", "apple 1", "fridge 1")``. A `State` is what is believed to be true after a step, a `Delta`
is what an action changed. The text form, one fact a line, is for people, prompts and files::

    at(agent, fridge 1)
    in(apple 1, fridge 1)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from .errors import FactSyntaxError

Fact: TypeAlias = tuple[str, ...]
"""A predicate and its arguments, in lower case: ``("in", "apple 1", "fridge 1")``."""

_UNPARSED = "!unparsed"
_EMPTY = "\\e"
_ESCAPES = {char: f"\\{char}" for char in "\\(),!"} | {"\n": "\\n", "\r": "\\r"}
_TRANSLATION = str.maketrans(_ESCAPES)
_LETTERS = {"n": "\n", "r": "\r", "e": ""}


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
        given: Any = self.facts
        if type(given) is not frozenset:
            found = list(given) if isinstance(given, Iterable) else [given]
            facts = [one for one in found if isinstance(one, tuple | list)]
            if len(facts) < len(found) or not all(
                isinstance(part, str) for one in facts for part in one
            ):
                raise FactSyntaxError(
                    "expected facts, tuples such as ('in', 'apple 1', 'fridge 1'), found "
                    f"{given if isinstance(given, str) else found!r:.120}; State.from_text reads text"
                )
            object.__setattr__(self, "facts", frozenset(map(tuple, found)))

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
        """Read what `to_text` wrote.

        Args:
            text: One fact a line, optionally after a line ``!unparsed``.

        Raises:
            FactSyntaxError: A line is not a fact; the message says which line and where.

        Example:
            >>> sorted(State.from_text("holding(apple 1)").facts)
            [('holding', 'apple 1')]
        """
        lines = text.split("\n") if text else []
        parsed = not (lines and lines[0] == _UNPARSED)
        body = lines if parsed else lines[1:]
        return cls(frozenset(_read_fact(line) for line in body), parsed)


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


_NOTHING = Delta()


def diff(before: State, after: State) -> Delta:
    """Return the facts that `after` has and `before` has not, and the reverse.

    Example:
        >>> diff(State(frozenset({("a",)})), State(frozenset({("b",)})))
        Delta(added=frozenset({('b',)}), removed=frozenset({('a',)}))
    """
    old, new = before.facts, after.facts
    if old is new:
        return _NOTHING
    return Delta(new - old, old - new)


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
    """Read one line of `State.to_text`."""
    parts, current, position, depth = [], "", 0, 0
    while position < len(line):
        char = line[position]
        if char == "\\":
            current += _unescape(line, position)
            position += 2
        elif char == "(" and depth == 0:
            parts.append(current)
            current, depth, position = "", 1, position + 1
        elif char == ")" and depth == 1 and position == len(line) - 1:
            return (*parts, current)
        elif depth == 1 and line.startswith(", ", position):
            parts.append(current)
            current, position = "", position + 2
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
    shown = line if len(line) <= 120 else line[:117] + "..."
    return FactSyntaxError(
        f"expected a fact such as 'in(apple 1, fridge 1)', found {shown!r} "
        f"(wrong at character {position}); write facts with comap.facts.State.to_text"
    )
