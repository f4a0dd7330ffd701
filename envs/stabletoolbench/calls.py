"""Reading what an agent wrote as a function call: OpenAI's form, the ReAct form, and a short one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from .values import NotJSON, canonical_json, read_json_text

__all__ = ["Call", "parse_call", "write_call"]

_ACTION = re.compile(r"^[ \t]*Action[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)
_INPUT = re.compile(r"^[^\S\n]*Action[ \t]+Input[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)
_SHORT = re.compile(r"(?P<name>[\w^.-]{1,128})\s*(?P<rest>\(.*\)|\{.*\})?", re.DOTALL)
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_RETURN_TYPE = re.compile(r'"return_type"\s*:\s*"(\w+)')
_FINAL_ANSWER = re.compile(r'"final_answer"\s*:\s*"(.*)', re.DOTALL)
_FINISH = "Finish"


class Call(NamedTuple):
    """A function call as an agent meant it.

    Attributes:
        name: The function's.
        arguments: By parameter; empty where they could not be read.
        problem: What is wrong with the arguments' text; empty if nothing is.
    """

    name: str
    arguments: dict[str, Any]
    problem: str = ""


def parse_call(text: str) -> Call | None:
    r"""Return the function call that a text is, or None where it is none.

    Understood are OpenAI's form (``{"name": ..., "arguments": {...}}``, the arguments as data or as a
    JSON text, also inside ``function``, ``function_call``, ``tool_calls`` or ``<tool_call>`` tags), the
    ReAct form (``Action: name`` and ``Action Input: {...}``), and ``name({...})``. Of several calls the
    first counts. Nothing is ever evaluated.

    Example:
        >>> parse_call('{"name": "search", "arguments": "{\\"q\\": \\"rug\\"}"}')
        Call(name='search', arguments={'q': 'rug'}, problem='')
        >>> parse_call('Thought: look it up.\nAction: search\nAction Input: {"q": "rug"}').arguments
        {'q': 'rug'}
        >>> parse_call('search({"q": "rug"})').name, parse_call("I do not know.") is None
        ('search', True)
    """
    text = text.strip()
    if tagged := _TAGGED.search(text):
        text = tagged[1].strip()
    if text.startswith(("{", "[")):
        return _of_json(text)
    if written := _ACTION.search(text):
        told = _INPUT.search(text, written.end())
        action = text[written.end() : told.start() if told else None].strip()
        if told is not None:
            return _of_parts(action, text[told.end() :]) if _SHORT.fullmatch(action) else None
        return _of_json(action) if action.startswith("{") else _of_short(action)
    return _of_short(text)


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call in OpenAI's form, on one line.

    Example:
        >>> write_call("search", {"q": "rug"})
        '{"name":"search","arguments":{"q":"rug"}}'
    """
    inner = canonical_json(dict(arguments))
    return f'{{"name":{canonical_json(name)},"arguments":{inner}}}'


def _of_short(text: str) -> Call | None:
    match = _SHORT.fullmatch(text)
    if match is None:
        return None
    rest = match["rest"] or ""
    return _of_parts(match["name"], rest[1:-1] if rest.startswith("(") else rest)


def _of_json(text: str) -> Call | None:
    try:
        data = read_json_text(text)
    except NotJSON:
        return None
    for _ in range(4):
        if isinstance(data, list):
            data = data[0] if data else None
        if not isinstance(data, dict):
            return None
        name = data.get("name")
        if isinstance(name, str):
            for key in ("arguments", "parameters", "args"):
                if key in data:
                    return _of_parts(name, data[key])
            return Call(name, {})
        keys = [key for key in ("function", "function_call", "tool_calls") if data.get(key)]
        if not keys:
            return None
        data = data[keys[0]]
    return None


def _of_parts(name: str, said: Any) -> Call:
    """Return the call of a function with arguments as data or as text."""
    if isinstance(said, dict):
        return Call(name, said)
    if said is None or (isinstance(said, str) and not said.strip()):
        return Call(name, {})
    if not isinstance(said, str):
        return Call(name, {}, f"expected an object, found {type(said).__name__}")
    try:
        data = read_json_text(said)
    except NotJSON as error:
        return _repaired(name, said, str(error))
    if not isinstance(data, dict):
        return Call(name, {}, f"expected an object, found {type(data).__name__}")
    return Call(name, data)


def _repaired(name: str, said: str, problem: str) -> Call:
    """Return what a broken JSON text tells of a final answer, as upstream does; else the problem."""
    kind = _RETURN_TYPE.search(said)
    if name != _FINISH or kind is None:
        return Call(name, {}, problem)
    arguments = {"return_type": kind[1]}
    if answer := _FINAL_ANSWER.search(said):
        arguments["final_answer"] = answer[1].rstrip().removesuffix("}").rstrip().removesuffix('"')
    return Call(name, arguments)
