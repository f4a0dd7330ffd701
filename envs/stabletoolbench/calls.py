"""Reading what agents write: function calls, final answers, and the one written form of values."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
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
    """Return the data of a JSON text.

    Raises:
        NotJSON: The text is no JSON, has a number that JSON has not, or is nested too deeply.
    """
    try:
        data = _DECODER.decode(text)
    except RecursionError:
        raise NotJSON("nested too deeply") from None
    except ValueError as error:
        raise NotJSON(str(error)) from None
    if _is_too_deep(data):
        raise NotJSON("nested too deeply")
    return data


def _is_too_deep(data: Any) -> bool:
    """Return whether lists and objects are nested in more than `MAX_DEPTH` levels."""
    # Level by level: recursion would itself fail where the nesting is too deep.
    level = [data]
    for _ in range(MAX_DEPTH):
        next_level: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                next_level.extend(node.values())
            elif isinstance(node, list):
                next_level.extend(node)
        if not next_level:
            return False
        level = next_level
    return True


def canonical_json(data: Any) -> str:
    """Return the one JSON text of some data: keys in order, no blanks."""
    return _ENCODER.encode(data)


def digest(data: Any) -> str:
    """Return eight hexadecimal digits that stand for some data."""
    return hashlib.sha256(canonical_json(data).encode("utf-8", "replace")).hexdigest()[:8]


def written_form(value: Any) -> str:
    """Return the form in which values are compared: numbers to two places, texts in lower case."""
    # True is an `int` to Python: truth values come before the numbers.
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

    # A text that is a number is compared as one, but a code such as 007 stays a text.
    text = " ".join(value.lower().split()).rstrip(".")
    number = _THOUSANDS.sub("", text)
    is_code = number.startswith("0") and number[1:2].isdigit()
    if is_code or not _NUMBER.fullmatch(number):
        return text
    return _number(float(number))


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "no number"
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


_ACTION = re.compile(r"^[ \t]*Action[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)
_ACTION_INPUT = re.compile(r"^[^\S\n]*Action[ \t]+Input[ \t]*:[ \t]*", re.IGNORECASE | re.MULTILINE)
_SHORT_CALL = re.compile(r"(?P<name>[\w^.-]{1,128})\s*(?P<arguments>\(.*\)|\{.*\})?", re.DOTALL)
_RETURN_TYPE = re.compile(r'"return_type"\s*:\s*"(\w+)')
_FINAL_ANSWER = re.compile(r'"final_answer"\s*:\s*"(.*)', re.DOTALL)
_FINISH = "Finish"  # the same as `functions.FINISH`, whose module imports this one
_MOST_WRAPPERS = 3


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
    first_tag = next(tagged(text, "tool_call"), None)
    if first_tag is not None:
        _, start, end = first_tag
        text = text[start:end].strip()

    if text.startswith(("{", "[")):
        return _call_of_json(text)
    action_label = _ACTION.search(text)
    if action_label is None:
        return _call_of_short(text)

    # Some models write the whole call after "Action:", and no "Action Input:".
    input_label = _ACTION_INPUT.search(text, action_label.end())
    if input_label is None:
        action = text[action_label.end() :].strip()
        return _call_of_json(action) if action.startswith("{") else _call_of_short(action)

    name = text[action_label.end() : input_label.start()].strip()
    if not _SHORT_CALL.fullmatch(name):
        return None
    return _call_of(name, text[input_label.end() :])


def write_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call in OpenAI's form, on one line.

    Example:
        >>> write_call("search", {"q": "rug"})
        '{"name":"search","arguments":{"q":"rug"}}'
    """
    # Put together by hand, since `canonical_json` would have the arguments before the name.
    arguments_text = canonical_json(dict(arguments))
    return f'{{"name":{canonical_json(name)},"arguments":{arguments_text}}}'


def _call_of_short(text: str) -> Call | None:
    """Return the call that ``name``, ``name({...})`` or ``name {...}`` is; None for other text."""
    match = _SHORT_CALL.fullmatch(text)
    if match is None:
        return None
    arguments_text = match["arguments"] or ""
    if arguments_text.startswith("("):
        arguments_text = arguments_text[1:-1]
    return _call_of(match["name"], arguments_text)


def _call_of_json(text: str) -> Call | None:
    """Return the call in OpenAI's form, bare or wrapped; None where the text is none."""
    try:
        data = read_json_text(text)
    except NotJSON:
        return None

    # An assistant's whole message is read too: ``{"tool_calls": [{"function": {"name": ...}}]}``.
    for _ in range(1 + _MOST_WRAPPERS):
        if isinstance(data, list):
            data = data[0] if data else None
        if not isinstance(data, dict):
            return None

        name = data.get("name")
        if isinstance(name, str):
            for key in ("arguments", "parameters", "args"):
                if key in data:
                    return _call_of(name, data[key])
            return Call(name, {})

        wrappers = [key for key in ("function", "function_call", "tool_calls") if data.get(key)]
        if not wrappers:
            return None
        data = data[wrappers[0]]
    return None


def _call_of(name: str, arguments: Any) -> Call:
    """Return the call of a function with arguments as data or as text."""
    if isinstance(arguments, dict):
        return Call(name, arguments)
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return Call(name, {})
    if not isinstance(arguments, str):
        return Call(name, {}, f"expected an object, found {type(arguments).__name__}")

    try:
        data = read_json_text(arguments)
    except NotJSON as error:
        return _repaired(name, arguments, str(error))
    if not isinstance(data, dict):
        return Call(name, {}, f"expected an object, found {type(data).__name__}")
    return Call(name, data)


def _repaired(name: str, arguments_text: str, problem: str) -> Call:
    """Return the call of ``Finish`` that a broken JSON text means; else a call with the problem.

    As upstream does: answers often have quotes that are not escaped, and would be lost.
    """
    return_type = _RETURN_TYPE.search(arguments_text)
    if name != _FINISH or return_type is None:
        return Call(name, {}, problem)

    arguments = {"return_type": return_type[1]}
    answer = _FINAL_ANSWER.search(arguments_text)
    if answer is not None:
        arguments["final_answer"] = answer[1].rstrip().removesuffix("}").rstrip().removesuffix('"')
    return Call(name, arguments)


_FIELD_LABEL = re.compile(r"\"?([\w -]{1,40}?)\"?\s*[:=]")
_FIELD_BREAK = re.compile(r"[\n;,]\s*")
_MOST_FIELDS = 16


def read_answer(text: str) -> dict[str, str]:
    """Return the fields of a final answer, in written form: an object's, ``name: value`` pairs, or one."""
    try:
        data = read_json_text(text)
    except NotJSON:
        data = None
    if isinstance(data, dict):
        pairs = list(data.items())[:_MOST_FIELDS]
        return {_field_name(name): written_form(value) for name, value in pairs}

    return _labeled_fields(_answer_parts(text)) or {"answer": written_form(text)}


def _labeled_fields(parts: Sequence[str]) -> dict[str, str]:
    """Return the fields of an answer's parts; none unless every part is ``name: value``."""
    if len(parts) > _MOST_FIELDS:
        return {}
    fields: dict[str, str] = {}
    for part in parts:
        label = _FIELD_LABEL.match(part)
        value = "" if label is None else part[label.end() :].strip()
        if label is None or not value:
            return {}
        fields[_field_name(label[1])] = written_form(value.strip("\"' "))
    return fields


def _answer_parts(text: str) -> list[str]:
    """Return the lines of an answer, and what semicolons part, and commas where a name follows."""
    parts = []
    start = 0
    for separator in _FIELD_BREAK.finditer(text):
        # Other commas belong to a value: "price: 1,200" or "name: Doe, Jane".
        if separator[0][0] == "," and not _FIELD_LABEL.match(text, separator.end()):
            continue
        parts.append(text[start : separator.start()].strip())
        start = separator.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _field_name(name: Any) -> str:
    return "_".join(str(name).lower().split())[:64]


def share_right(
    expected_fields: Mapping[str, Any],
    fields: Mapping[str, str],
    expected_changes: Mapping[tuple[str, str, str], str],
    changes: Mapping[tuple[str, str, str], str],
) -> float:
    """Return the share of answer fields and changes that are right, 1 only if nothing else was changed."""
    right_fields = sum(
        fields.get(name) == written_form(value) for name, value in expected_fields.items()
    )

    # Where one field is asked for, an answer without its name can mean no other.
    if len(expected_fields) == 1 and not right_fields and set(fields) == {"answer"}:
        (expected,) = expected_fields.values()
        right_fields = int(fields["answer"] == written_form(expected))

    right_changes = sum(changes.get(cell) == value for cell, value in expected_changes.items())
    needless_changes = sum(cell not in expected_changes for cell in changes)
    total = len(expected_fields) + len(expected_changes) + needless_changes
    return (right_fields + right_changes) / max(total, 1)
