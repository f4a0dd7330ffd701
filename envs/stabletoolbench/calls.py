"""Reading what agents write: function calls, final answers, and the one written form of values."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from ..canon import tagged

MAX_DEPTH = 64
_NUMBER = re.compile(r"[-+]?\d{1,15}(\.\d{1,15})?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


class NotJSON(ValueError):
    """A text is no JSON that is read here."""


def _refuse_constant(name: str) -> NoReturn:
    raise NotJSON(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


def read_json_text(text: str) -> Any:
    try:
        data = _DECODER.decode(text)
    except RecursionError:
        raise NotJSON("nested too deeply") from None
    except ValueError as error:
        raise NotJSON(str(error)) from None
    if _too_deep(data):
        raise NotJSON("nested too deeply")
    return data


def _too_deep(data: Any) -> bool:
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for item in level
            if isinstance(item, dict | list)
            for part in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def canonical_json(data: Any) -> str:
    """Return the one JSON text of some data: keys in order, no blanks."""
    return _ENCODER.encode(data)


def digest(data: Any) -> str:
    """Return eight hexadecimal digits that stand for some data."""
    return hashlib.sha256(canonical_json(data).encode("utf-8", "replace")).hexdigest()[:8]


def written(value: Any) -> str:
    """Return the form in which values are compared: numbers to two places, texts in lower case."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**15 else "a large number"
    if isinstance(value, float):
        return _number(value)
    if not isinstance(value, str):
        return canonical_json(value).lower()
    text = " ".join(value.lower().split()).rstrip(".")
    number = _THOUSANDS.sub("", text)
    if _NUMBER.fullmatch(number):
        sure = number.startswith("0") and number[1:2].isdigit()  # a code such as 007 is no number
        return text if sure else _number(float(number))
    return text


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "no number"
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


_ACTION = re.compile(r"^[ \t]*Action[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)
_INPUT = re.compile(r"^[^\S\n]*Action[ \t]+Input[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)
_SHORT = re.compile(r"(?P<name>[\w^.-]{1,128})\s*(?P<rest>\(.*\)|\{.*\})?", re.DOTALL)
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
    for _, start, end in tagged(text, "tool_call"):
        text = text[start:end].strip()
        break
    if text.startswith(("{", "[")):
        return _of_json(text)
    if written := _ACTION.search(text):
        given = _INPUT.search(text, written.end())
        action = text[written.end() : given.start() if given else None].strip()
        if given is not None:
            return _of_parts(action, text[given.end() :]) if _SHORT.fullmatch(action) else None
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


_NAMED = re.compile(r"\"?([\w -]{1,40}?)\"?\s*[:=]")
_BREAK = re.compile(r"[\n;,]\s*")
_MOST_FIELDS = 16


def read_answer(text: str) -> dict[str, str]:
    """Return the fields of a final answer, in written form: an object's, ``name: value`` pairs, or one."""
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
    """Return the share of answer fields and changes that are right, 1 only if nothing else was changed."""
    right = sum(fields.get(name) == written(value) for name, value in expected.items())
    if len(expected) == 1 and not right and set(fields) == {"answer"}:
        right = int(fields["answer"] == written(next(iter(expected.values()))))
    held = sum(found.get(cell) == value for cell, value in effects.items())
    extra = sum(cell not in effects for cell in found)
    return (right + held) / max(len(expected) + len(effects) + extra, 1)
