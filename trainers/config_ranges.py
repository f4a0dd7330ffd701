"""Which values the settings of a training can have: checked before anything is begun."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from ..errors import OptionError

__all__ = ["Range", "check_fields"]

_INFINITE = math.inf


class Range(NamedTuple):
    """Which numbers a setting can be.

    Attributes:
        least: The least.
        most: The most.
        above: Whether it must be above the least.
        below: Whether it must be below the most.

    Example:
        >>> Range(0, above=True).told, Range(0, 1, below=True).told, Range(1).has(0.5)
        ('above 0', 'at least 0 and below 1', False)
    """

    least: float
    most: float = _INFINITE
    above: bool = False
    below: bool = False

    def has(self, value: float) -> bool:
        """Return whether a number is among them."""
        high_enough = value > self.least if self.above else value >= self.least
        return high_enough and (value < self.most if self.below else value <= self.most)

    @property
    def told(self) -> str:
        """The range in words."""
        low = f"{'above' if self.above else 'at least'} {self.least:g}"
        if self.most == _INFINITE:
            return low
        return f"{low} and {'below' if self.below else 'at most'} {self.most:g}"


def check_fields(config: Any, ranges: Mapping[str, Range]) -> None:
    """Raise an error that names the field if one of a dataclass has a value that it cannot have.

    What a field can be is said by its annotation (a flag, a whole number, a number, a text, texts, one
    of some values; perhaps None), and of numbers by its range.

    Args:
        config: The settings.
        ranges: The range of each field that is a number.

    Raises:
        OptionError: A field has such a value.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Some:
        ...     rounds: int = 3
        >>> check_fields(Some(rounds=-1), {"rounds": Range(0)})
        Traceback (most recent call last):
        comap.errors.OptionError: rounds must be a whole number of at least 0, not -1
    """
    hints = get_type_hints(type(config))
    for part in fields(config):
        value, hint = getattr(config, part.name), hints[part.name]
        kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        if value is None and type(None) in kinds:
            continue
        kind = next(kind for kind in kinds if kind is not type(None))
        wanted = _wanted(kind, value, ranges.get(part.name))
        if wanted:
            also = ", or None" if type(None) in kinds else ""
            raise OptionError(f"{part.name} must be {wanted}{also}, not {value!r:.80}")


def _wanted(kind: Any, value: Any, allowed: Range | None) -> str:
    """Return what was expected; nothing where the value is that."""
    if get_origin(kind) is Literal:
        listed = ", ".join(repr(option) for option in get_args(kind))
        return "" if _is_option(value, get_args(kind)) else f"one of {listed}"
    if kind is bool:
        return "" if type(value) is bool else "True or False"
    if kind is str:
        return "" if isinstance(value, str) and value else "a text"
    if kind in (int, float):
        whole = kind is int
        number = type(value) is int or (not whole and type(value) is float)
        sound = number and math.isfinite(value) and (allowed is None or allowed.has(value))
        told = "a whole number" if whole else "a number"
        if allowed is not None:
            told += f" {'' if allowed.above else 'of '}{allowed.told}"
        return "" if sound else told
    texts = isinstance(value, tuple) and value and all(isinstance(x, str) and x for x in value)
    return "" if texts and len(set(value)) == len(value) else "a tuple of different texts"


def _is_option(value: Any, options: tuple[Any, ...]) -> bool:
    return isinstance(value, str) and value in options
