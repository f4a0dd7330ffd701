"""Reading the options of an item page.

Lines with marks tell groups from values. Where nothing is marked, the first part is a group, and so
is each later one that has a known name and a value before and after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import TypeAlias

from ...facts import Fact
from .cleaning import clean, clean_short

__all__ = ["Pairs", "known_groups", "offers", "options_of_lines", "options_of_parts"]

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of group and value."""

_TOLD = "Selected "


@lru_cache(maxsize=1)
def known_groups() -> frozenset[str]:
    """Return the names of option groups by which a group is told from a value in text mode."""
    text = files(__package__).joinpath("data/option_groups.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text))


@lru_cache(maxsize=1024)
def offers(options: Pairs) -> frozenset[Fact]:
    """Return the facts ``option`` of pairs.

    Example:
        >>> offers((("size", "m"),))
        frozenset({('option', 'size', 'm')})
    """
    return frozenset(("option", group, value) for group, value in options)


def options_of_lines(parts: Sequence[str], marks: Sequence[str]) -> tuple[Pairs, Pairs, str]:
    """Read options where values are marked: all options, the chosen ones, and the title.

    Args:
        parts: The lines above the price.
        marks: Of each line ``" button"`` or ``" clicked"`` where it is a value.

    Example:
        >>> options_of_lines(["size", "m", "A Rug"], ["", " clicked", ""])
        ((('size', 'm'),), (('size', 'm'),), ' A Rug')
    """
    inset = tuple([mark[:1] == " " for mark in marks])
    pairs, title = _laid_out(tuple(parts), inset)
    options = tuple([pair for pair in pairs if pair is not None])
    if " clicked" not in marks:
        return options, (), title
    chosen = [pair for pair, mark in zip(pairs, marks, strict=True) if mark == " clicked"]
    return options, tuple([pair for pair in chosen if pair is not None]), title


@lru_cache(maxsize=1024)
def _laid_out(
    parts: tuple[str, ...], inset: tuple[bool, ...]
) -> tuple[tuple[tuple[str, str] | None, ...], str]:
    """Return for each line its option, or None, and the title: the same whatever is chosen."""
    pairs: list[tuple[str, str] | None] = [None] * len(parts)
    group, title = "", ""
    for place, (part, value) in enumerate(zip(parts, inset, strict=True)):
        if value:
            pairs[place] = (group, clean_short(part))
        elif place + 1 < len(parts) and inset[place + 1]:
            group = clean_short(part)
        else:
            title = f"{title} {part}"
    return tuple(pairs), title


def options_of_parts(parts: Sequence[str]) -> tuple[Pairs, Pairs, str]:
    """Read options where nothing is marked: all options, the chosen ones, and the title.

    Args:
        parts: The parts above the price; those chosen are told by the last ones before the title.

    Example:
        >>> options_of_parts(["size", "s", "m", "color", "red", "Selected size: m", "A Rug"])
        ((('size', 's'), ('size', 'm'), ('color', 'red')), (('size', 'm'),), 'A Rug')
    """
    left = list(parts)
    title = left.pop() if left else ""
    told: list[str] = []
    while len(left) > 2 and left[-1].startswith(_TOLD) and ": " in left[-1]:
        told.append(clean(left.pop()[len(_TOLD) :]))
    heads = {head for text in told for head in _heads(text)}
    options = _pairs(tuple(left), frozenset(heads - known_groups()))
    return options, _told(told, options), title


@lru_cache(maxsize=1024)
def _pairs(parts: tuple[str, ...], heads: frozenset[str]) -> Pairs:
    """Read options where nothing is marked, by known names of groups."""
    names = known_groups() | heads if heads else known_groups()
    options: list[tuple[str, str]] = []
    group, empty = "", False
    for place, text in enumerate(map(clean, parts), start=1):
        if not group or (text in names and not empty and place < len(parts)):
            group, empty = text, True
        else:
            options.append((group, text))
            empty = False
    return tuple(options)


def _told(told: Sequence[str], options: Pairs) -> Pairs:
    """Return the options that ``Selected`` parts tell."""
    if not told:
        return ()
    offered = set(options)
    pairs = ((head, text[len(head) + 2 :]) for text in told for head in _heads(text))
    return tuple(sorted(pair for pair in pairs if pair in offered))


def _heads(text: str) -> list[str]:
    """Return each part of a text that stands before one of its colons."""
    return [text[: found.start()] for found in re.finditer(": ", text)]
