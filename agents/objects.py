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
    members: Mapping[str, Any]


def object_at(text: str, start: int) -> WrittenObject | None:
    """Return the object that begins at a place of a text."""
    try:
        members, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return WrittenObject(start, end, members) if isinstance(members, dict) else None


def objects_in(text: str, limit: int) -> Iterator[WrittenObject]:
    """Yield the objects of a text that are not parts of others, as far as a limit."""
    start = text.find("{", 0, limit)
    for _ in range(_TRIED):
        if start < 0:
            return

        json_object = object_at(text, start)
        next_place = start + 1
        if json_object is not None:
            yield json_object
            next_place = json_object.end
        start = text.find("{", next_place, limit)


def member(members: Mapping[str, Any], kinds: Sequence[str]) -> Any:
    """Return the first member of an object that tells a field of one of these kinds, None without one."""
    return next((value for key, value in members.items() if key_kind(key) in kinds), None)


def action_in(
    json_object: WrittenObject, text: str, admissible: Sequence[str] | None, kinds: Sequence[str]
) -> str | None:
    """Return the action that an object tells: a member's text, or the object itself if it is a call."""
    members = json_object.members
    action = member(members, kinds)
    if action is None:
        if "action" not in kinds or not _is_call(members):
            return None
        return _call(members, text[json_object.start : json_object.end], admissible)

    if isinstance(action, list):  # of several actions the first
        action = action[0] if action else None
    if isinstance(action, dict):  # {"action": {"action": "open safe 1"}}, or a call in its place
        inner_action = member(action, kinds)
        if not isinstance(inner_action, str):
            return _call(action, json.dumps(action, ensure_ascii=False), admissible)
        action = inner_action
    if not isinstance(action, str):
        return None

    arguments = member(members, ("action input",))
    if arguments is None:
        arguments = next((members[key] for key in _ARGUMENTS if key in members), None)
    return action if arguments is None else joined_action(action, arguments, admissible)


def joined_action(name: str, arguments: Any, admissible: Sequence[str] | None) -> str:
    """Return an action of a name and its arguments, as the environment writes it if it lists it.

    Example:
        >>> joined_action("click", "Buy Now", ["click[buy now]"])
        'click[buy now]'
        >>> joined_action("find", {"title": "Low Tide"}, None)
        'find {"title": "Low Tide"}'
    """
    values = [*arguments.values()] if isinstance(arguments, dict) else [arguments]
    words = " ".join(str(value) for value in values if not isinstance(value, dict | list))
    for action in (f"{name} {words}", f"{name}[{words}]", name):
        listed = _listed(action, admissible)
        if listed is not None:
            return listed

    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"{name} {text}".rstrip()


def _listed(text: str, admissible: Sequence[str] | None) -> str | None:
    """Return the admissible action that a text is as a whole, in whatever case."""
    if not admissible:
        return None
    text = text.strip()
    mention = meant_action(text, admissible)
    if mention is None or (mention.start, mention.end) != (0, len(text)):
        return None
    return mention.action


def _is_call(members: Mapping[str, Any]) -> bool:
    """Return whether an object is a call: it has one as a member, or a name with arguments."""
    if any(isinstance(members.get(key), dict | list) for key in _CALLS):
        return True
    return isinstance(members.get("name"), str) and any(key in members for key in _ARGUMENTS)


def _call(members: Mapping[str, Any], text: str, admissible: Sequence[str] | None) -> str:
    """Return the action that a call is: the call, or the admissible action that it comes to."""
    # {"tool_calls": [{"function": {"name": ..., "arguments": ...}}]}, or a part of that.
    function: Any = next((members[key] for key in _CALLS if key in members), members)
    if isinstance(function, list) and function:
        function = function[0]
    if isinstance(function, dict):
        function = function.get("function", function)
    else:
        function = members

    name = None
    arguments: Any = {}
    if isinstance(function, dict):
        name = function.get("name")
    if name:
        arguments = next((function[key] for key in _ARGUMENTS if key in function), {})
    if isinstance(arguments, str):  # as OpenAI's servers send them
        json_object = object_at(arguments, len(arguments) - len(arguments.lstrip()))
        if json_object is not None:
            arguments = json_object.members

    # Where the one tool is ours the action is its argument. Else an admissible action is looked for.
    action = arguments.get("action") if isinstance(arguments, dict) else None
    if isinstance(action, str) and name == _TOOL:
        return action
    if not admissible or not isinstance(name, str):
        return _line(text)
    listed = _listed(action, admissible) if isinstance(action, str) else None
    if listed is None:
        listed = _listed(joined_action(name, arguments, admissible), admissible)
    return listed or _line(text)


def _line(text: str) -> str:
    """Return a JSON text on one line, as it is where it has one."""
    if "\n" not in text:
        return text
    return json.dumps(json.loads(text, strict=False), ensure_ascii=False)
