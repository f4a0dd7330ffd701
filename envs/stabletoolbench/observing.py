"""Observations: what an answer looks like to an agent, within a length."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["MIN_LENGTH", "observation_of"]

MIN_LENGTH = 64
"""The shortest limit of an observation that makes sense."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)
_STEPS = ((16, 400), (8, 200), (5, 120), (3, 80), (2, 40), (1, 20))


def observation_of(error: str, response: Any, longest: int, compat: str = "strict") -> str:
    """Return an answer as JSON text of at most so many characters.

    Strictly, what is too long loses items of lists and ends of texts and is marked ``truncated``; it
    stays JSON. With ``compat="reference"`` the text itself is cut, and ``...`` follows.

    Example:
        >>> observation_of("", {"items": [1, 2]}, 1024)
        '{"error": "", "response": {"items": [1, 2]}}'
        >>> observation_of("", "a" * 99, 64), observation_of("", "a" * 99, 64, "reference")[-5:]
        ('{"error": "", "response": "aaaaaaaaa...", "truncated": true}', 'aa...')
    """
    text = _json(error, response)
    if len(text) <= longest:
        return text
    if compat == "reference":
        return f"{text[:longest]}..."
    for items, characters in _STEPS:
        text = _json(_cut(error, 1, longest // 2), _cut(response, items, characters), True)
        if len(text) <= longest:
            return text
    said = response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)
    error = _cut(error, 1, max(longest // 4, 8))
    for characters in range(longest, 0, -3):
        text = _json(error, _cut(said, 1, characters), True)
        if len(text) <= longest:
            return text
    return _json("", "", True)


def _json(error: str, response: Any, cut: bool = False) -> str:
    told = {"error": error, "response": response} | ({"truncated": True} if cut else {})
    return _ENCODER.encode(told)


def _cut(data: Any, items: int, characters: int, depth: int = 0) -> Any:
    if isinstance(data, str):
        return data if len(data) <= characters else f"{data[: max(characters - 3, 0)]}..."
    if depth > 6:
        return "..."
    if isinstance(data, dict):
        kept = list(data.items())[: 4 * items]
        return {str(name)[:80]: _cut(value, items, characters, depth + 1) for name, value in kept}
    if isinstance(data, list):
        return [_cut(value, items, characters, depth + 1) for value in data[:items]]
    return data
