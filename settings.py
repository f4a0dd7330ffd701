"""How settings are checked: the fields of a dataclass by their types, and by the ranges beside these.

A number's range stands in its annotation, as in ``rounds: NonNegativeInt`` or
``temperature: Annotated[float, Range(0, 10)]``.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from .errors import OptionError, check_choice


class Range(NamedTuple):
    """The numbers that a setting can be; `above` and `below` leave out the bound itself."""

    least: float
    most: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, float | int)
        is_high_enough = value > self.least if self.above else value >= self.least
        is_low_enough = value < self.most if self.below else value <= self.most
        return is_high_enough and is_low_enough

    def __str__(self) -> str:
        if self.most == math.inf:
            return f"above {self.least:g}" if self.above else f"of at least {self.least:g}"
        if not self.above and not self.below:
            return f"from {self.least:g} to {self.most:g}"
        lower_bound = f"above {self.least:g}" if self.above else f"of at least {self.least:g}"
        upper_bound = f"below {self.most:g}" if self.below else f"at most {self.most:g}"
        return f"{lower_bound} and {upper_bound}"


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
PositiveFloat = Annotated[float, Range(0, above=True)]
NonNegativeFloat = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
PositiveShare = Annotated[float, Range(0, 1, above=True)]


def check_fields(config: Any, prefix: str = "") -> None:
    """Raise `OptionError`, which names the field, if one of a dataclass has a value that it cannot have.

    Args:
        config: The dataclass, at the end of its making.
        prefix: What stands before the fields' names in errors, where it is part of other settings.
    """
    for name, kind in _kinds(type(config)).items():
        value = getattr(config, name)
        if value is None and kind.is_optional:
            continue
        if get_origin(kind.type) is Literal and isinstance(value, str):
            check_choice(f"{prefix}{name}", value, get_args(kind.type))
        elif not kind.admits(value):
            raise OptionError(f"{prefix}{name} must be {kind.in_words()}, not {value!r:.80}")


def ranges_of(config: type) -> dict[str, Range]:
    """Return the range of each number among the fields of a dataclass that has one."""
    kinds = _kinds(config)
    return {name: kind.range for name, kind in kinds.items() if kind.range is not None}


class _Kind(NamedTuple):
    """What a field's annotation says."""

    type: Any
    range: Range | None
    is_optional: bool

    def admits(self, value: Any) -> bool:
        """Return whether a value, other than None, is of this kind."""
        if is_dataclass(self.type):
            return isinstance(value, self.type)  # type: ignore[arg-type]
        if self.type is bool:
            return isinstance(value, bool)
        if self.type in (int, float):
            # True is no number here, though it is an int in Python.
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            if isinstance(value, float) and (self.type is int or not math.isfinite(value)):
                return False
            return self.range is None or value in self.range
        if self.type is str:
            return isinstance(value, str) and value != ""
        if get_origin(self.type) is Mapping:
            return isinstance(value, Mapping)
        if get_origin(self.type) is tuple:
            are_texts = isinstance(value, tuple) and all(
                isinstance(text, str) and text for text in value
            )
            return are_texts and 0 < len(value) == len(set(value))
        return False  # a Literal; a value of any other kind is nobody's

    def in_words(self) -> str:
        """Return which values there are, for an error."""
        words = self._type_in_words()
        return f"{words}, or None" if self.is_optional else words

    def _type_in_words(self) -> str:
        if is_dataclass(self.type):
            return f"a {self.type.__name__}"  # type: ignore[union-attr]
        if get_origin(self.type) is Literal:
            return f"one of {', '.join(map(repr, get_args(self.type)))}"
        if self.type is bool:
            return "True or False"
        if self.type in (int, float):
            number = "a whole number" if self.type is int else "a number"
            return number if self.range is None else f"{number} {self.range}"
        if self.type is str:
            return "a text"
        if get_origin(self.type) is Mapping:
            return "a mapping of values by name"
        return "a tuple of different texts"


def _read_kinds(config: type) -> dict[str, _Kind]:
    """Return what the annotation of each field of a dataclass says."""
    hints = get_type_hints(config, include_extras=True)
    return {field.name: _kind(hints[field.name]) for field in fields(config)}


# Evaluating annotations takes longer than all checks. The type is for mypy, to which classes have no hash.
_kinds: Callable[[type], dict[str, _Kind]] = cache(_read_kinds)


def _kind(hint: Any) -> _Kind:
    is_union = get_origin(hint) in (Union, types.UnionType)
    members = get_args(hint) if is_union else (hint,)
    member = next(member for member in members if member is not type(None))

    number_range = None
    if get_origin(member) is Annotated:
        member, *notes = get_args(member)
        number_range = next((note for note in notes if isinstance(note, Range)), None)
    return _Kind(member, number_range, type(None) in members)
