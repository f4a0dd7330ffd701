"""JSON objects in replies: an action as one of their members, and calls of functions, which are actions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .labels import key_kind
from .naming import meant_action

_DECODER = json.JSONDecoder(strict=False)
_TRIED = 16  # braces of a reply at which an object is looked for
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_CALLS = ("function", "function_call", "tool_calls")
_TOOL = "act"  # the one tool of our environments elsewhere: its argument is the action


class WrittenObject(NamedTuple):
    """A JSON object in a text, and where it stands."""

    start: int
    end: int
    data: Mapping[str, Any]


def object_at(text: str, start: int) -> WrittenObject | None:
    """Return the object that begins at a place of a text."""
    try:
        data, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return WrittenObject(start, end, data) if isinstance(data, dict) else None


def objects_in(text: str, limit: int) -> Iterator[WrittenObject]:
    """Yield the objects of a text that are not parts of others, as far as a limit."""
    start = text.find("{", 0, limit)
    for _ in range(_TRIED):
        if start < 0:
            return
        written = object_at(text, start)
        if written is not None:
            yield written
        start = text.find("{", start + 1 if written is None else written.end, limit)


def member(data: Mapping[str, Any], kinds: Sequence[str]) -> Any:
    """Return the first member of an object that tells a field of one of these kinds."""
    return next((value for key, value in data.items() if key_kind(key) in kinds), None)


def action_in(
    written: WrittenObject, text: str, admissible: Sequence[str] | None, kinds: Sequence[str]
) -> str | None:
    """Return the action that an object tells: a member's text, or the object itself if it is a call."""
    value = member(written.data, kinds)
    if value is None:
        is_action = "action" in kinds and _is_call(written.data)
        return (
            _call(written.data, text[written.start : written.end], admissible)
            if is_action
            else None
        )
    if isinstance(value, list):  # of several actions the first
        value = value[0] if value else None
    if isinstance(value, dict):
        inner = member(value, kinds)
        if not isinstance(inner, str):
            return _call(value, json.dumps(value, ensure_ascii=False), admissible)
        value = inner
    if not isinstance(value, str):
        return None
    given = member(written.data, ("action input",))
    if given is None:
        given = next((written.data[key] for key in _ARGUMENTS if key in written.data), None)
    return value if given is None else joined_action(value, given, admissible)


def joined_action(name: str, given: Any, admissible: Sequence[str] | None) -> str:
    """Return an action of a name and what is given with it, as the environment writes it if it lists it.

    Example:
        >>> joined_action("click", "Buy Now", ["click[buy now]"])
        'click[buy now]'
        >>> joined_action("find", {"title": "Low Tide"}, None)
        'find {"title": "Low Tide"}'
    """
    values = [*given.values()] if isinstance(given, dict) else [given]
    argument = " ".join(str(value) for value in values if not isinstance(value, dict | list))
    for action in (f"{name} {argument}", f"{name}[{argument}]", name):
        if (listed := _listed(action, admissible)) is not None:
            return listed
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return f"{name} {text}".rstrip()


def _listed(text: str, admissible: Sequence[str] | None) -> str | None:
    """Return the admissible action that a text is as a whole, in whatever case."""
    named = meant_action(text.strip(), admissible) if admissible else None
    whole = named is not None and (named.start, named.end) == (0, len(text.strip()))
    return named.action if named is not None and whole else None


def _is_call(data: Mapping[str, Any]) -> bool:
    if any(isinstance(data.get(key), dict | list) for key in _CALLS):
        return True
    return isinstance(data.get("name"), str) and any(key in data for key in _ARGUMENTS)


def _call(data: Mapping[str, Any], text: str, admissible: Sequence[str] | None) -> str:
    """Return the action that a call is: the call, or the admissible action that it comes to."""
    inner: Any = next((data[key] for key in _CALLS if key in data), data)
    inner = inner[0] if isinstance(inner, list) and inner else inner
    inner = inner.get("function", inner) if isinstance(inner, dict) else data
    name = inner.get("name") if isinstance(inner, dict) else None
    arguments = (inner[key] for key in _ARGUMENTS if key in inner) if name else iter(())
    given: Any = next(arguments, {})
    if isinstance(given, str):
        parsed = object_at(given, len(given) - len(given.lstrip()))
        given = given if parsed is None else parsed.data
    action = given.get("action") if isinstance(given, dict) else None
    if isinstance(action, str) and name == _TOOL:
        return action
    if admissible and isinstance(name, str):
        listed = _listed(action, admissible) if isinstance(action, str) else None
        return listed or _listed(joined_action(name, given, admissible), admissible) or _line(text)
    return _line(text)


def _line(text: str) -> str:
    """Return a JSON text on one line, as it is where it has one."""
    return (
        text if "\n" not in text else json.dumps(json.loads(text, strict=False), ensure_ascii=False)
    )
