"""Final answers: their fields, and whether these are right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .values import NotJSON, read_json_text, written

__all__ = ["read_answer", "share_right"]

_NAMED = re.compile(r"\"?([\w -]{1,40}?)\"?\s*[:=]")
_BREAK = re.compile(r"[\n;,]\s*")
_MOST_FIELDS = 16


def read_answer(text: str) -> dict[str, str]:
    """Return the fields of a final answer, in written form: an object's, ``name: value`` pairs, or one.

    An answer that has no fields is the field ``answer``.

    Example:
        >>> read_answer('{"flight": "FL-7", "price": 120.0}')
        {'flight': 'fl-7', 'price': '120'}
        >>> read_answer("Flight: FL-7, price: 120"), read_answer("FL-7")
        ({'flight': 'fl-7', 'price': '120'}, {'answer': 'fl-7'})
    """
    try:
        data = read_json_text(text)
    except NotJSON:
        data = None
    if isinstance(data, dict):
        pairs = list(data.items())[:_MOST_FIELDS]
        return {_name(name): written(value) for name, value in pairs}
    parts = [(part, _NAMED.match(part)) for part in _parts(text)]
    pairs = [(name[1], part[name.end() :].strip()) for part, name in parts if name is not None]
    if pairs and len(pairs) == len(parts) <= _MOST_FIELDS and all(value for _, value in pairs):
        return {_name(name): written(value.strip("\"' ")) for name, value in pairs}
    return {"answer": written(text)}


def _parts(text: str) -> list[str]:
    """Return the lines of an answer, and what commas part of one where a name follows."""
    starts, ends = [0], []
    for found in _BREAK.finditer(text):
        if found[0][0] != "," or _NAMED.match(text, found.end()):
            ends.append(found.start())
            starts.append(found.end())
    parts = (text[start:end].strip() for start, end in zip(starts, [*ends, None], strict=True))
    return [part for part in parts if part]


def _name(name: Any) -> str:
    return "_".join(str(name).lower().split())[:64]


def share_right(
    expected: Mapping[str, Any],
    fields: Mapping[str, str],
    effects: Mapping[tuple[str, str, str], str],
    found: Mapping[tuple[str, str, str], str],
) -> float:
    """Return the share of answer fields and changes that are right, 1 only if nothing else was changed.

    Args:
        expected: The right answer's fields. Where there is but one, an answer without a name is it.
        fields: The fields of the answer that was given.
        effects: What was to be changed, by table, id and column, in written form.
        found: What was changed.

    Example:
        >>> share_right({"price": 120}, {"answer": "120"}, {}, {})
        1.0
        >>> share_right({"flight": "FL-7", "price": 120}, {"price": "120"}, {}, {})
        0.5
    """
    right = sum(fields.get(name) == written(value) for name, value in expected.items())
    if len(expected) == 1 and not right and set(fields) == {"answer"}:
        right = int(fields["answer"] == written(next(iter(expected.values()))))
    held = sum(found.get(cell) == value for cell, value in effects.items())
    extra = sum(cell not in effects for cell in found)
    return (right + held) / max(len(expected) + len(effects) + extra, 1)
