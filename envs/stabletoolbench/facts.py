"""The facts of tool use, and what an observation says.

| fact | meaning |
|---|---|
| ``tool(fn)``, ``param(fn, name, need, type)`` | an offer; ``need`` is required or optional |
| ``budget(n)`` | so many calls are left |
| ``call(i, fn, hash)``, ``arg(i, name, value)`` | the i-th call |
| ``status(i, ok)``, ``status(i, error:kind)`` | how it went; kinds are those of `ERROR_KINDS` |
| ``arg_missing(i, name)`` | which argument it lacked |
| ``ret(i, path, value)``, ``retlen(i, path, n)`` | what it returned; of lists three items |
| ``ret_word(i, word)`` | a word of a long text that it returned |
| ``cut(i)`` | its answer was cut |
| ``entity(type, id)`` | an identifier that was seen |
| ``db(table, id, column, value)`` | what a call changed |
| ``finished(kind)``, ``answer_field(name, value)`` | the end: give_answer or give_up, and the answer |
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from ...facts import Fact
from .values import NotJSON, read_json_text, written

__all__ = ["ERROR_KINDS", "REFUSALS", "error_kind", "read_observation", "returned"]

ERROR_KINDS: tuple[tuple[str, str], ...] = (
    ("action not understood", "bad_action"),
    ("tool input parse error", "bad_input"),
    ("no such function name", "no_function"),
    ("missing required parameter", "missing_arg"),
    ("unknown parameter", "bad_arg"),
    ("invalid parameter", "bad_arg"),
    ("bad value", "bad_value"),
    ("rate limit", "rate"),
    ("too many requests", "rate"),
    ("conflict", "conflict"),
    ("cache miss", "cache_miss"),
    ("timeout", "timeout"),
    ("request invalid", "request"),
    ("api not working", "not_working"),
    ("unauthorized", "unauthorized"),
    ("unsubscribed", "unsubscribed"),
)
"""How errors begin, in lower case, and their kinds; others are ``not_found`` or ``failed``."""

REFUSALS = frozenset(("bad_action", "bad_input", "no_function", "missing_arg", "bad_arg"))
"""Kinds of errors of calls that reach no tool."""

_FIRST_ITEMS = 3
_DEPTH = 4
_LONGEST = 80
_MOST = 48
_MOST_WORDS = 20
_HEAD = re.compile(r'\s*\{\s*"error"\s*:\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)
_WORD = re.compile(r"[^\W_]{3,32}")
_ID = re.compile(r"(?:(?P<kind>\w+)_)?(?:id|sku|code)", re.IGNORECASE)


def error_kind(error: str) -> str:
    """Return the kind of an error's text; empty for no error.

    Example:
        >>> error_kind("Missing required parameter: date"), error_kind("flight 'x' not found")
        ('missing_arg', 'not_found')
    """
    text = error.strip().lower()
    if not text:
        return ""
    for start, kind in ERROR_KINDS:
        if text.startswith(start):
            return kind
    return "not_found" if "not found" in text else "failed"


def read_observation(text: str) -> tuple[str, Any, bool] | None:
    """Return the error, the response, and whether it was cut; None where the text is no observation.

    A response that is JSON in a text is read as JSON. Of an observation that was cut anywhere, as
    upstream cuts, only the error is known.

    Example:
        >>> read_observation('{"error": "", "response": "[1, 2]"}')
        ('', [1, 2], False)
        >>> read_observation('{"error": "", "response": "once upon...')
        ('', '', True)
    """
    try:
        data = read_json_text(text)
    except NotJSON:
        head = _HEAD.match(text)
        return None if head is None else (head[1], "", True)
    if not isinstance(data, dict) or "error" not in data:
        return None
    response = data.get("response", "")
    if isinstance(response, str) and response.lstrip().startswith(("{", "[")):
        with contextlib.suppress(NotJSON):
            response = read_json_text(response)
    error = data["error"]
    return (
        error if isinstance(error, str) else written(error),
        response,
        bool(data.get("truncated")),
    )


def returned(place: str, response: Any) -> set[Fact]:
    """Return the facts of a response: what it returned, identifiers, and what was changed.

    Args:
        place: Number of the call.
        response: Its data.

    Example:
        >>> sorted(returned("1", {"flights": [{"id": "FL-7", "price": 9.5}], "page": 1}))[:2]
        [('entity', 'flight', 'fl-7'), ('ret', '1', '$.flights[0].id', 'fl-7')]
    """
    facts: set[Fact] = set()
    changed = response.get("changed") if isinstance(response, dict) else None
    if isinstance(changed, list):
        facts |= set(_changes(changed))
        response = {name: value for name, value in response.items() if name != "changed"}
    if isinstance(response, str) and len(response) > _LONGEST:
        words = dict.fromkeys(word.lower() for word in _WORD.findall(response))
        return facts | {("ret_word", place, word) for word in list(words)[:_MOST_WORDS]}
    for number, fact in enumerate(_walk(place, "$", response, 0, "")):
        if number >= _MOST:
            break
        facts.add(fact)
    return facts


def _changes(changed: list[Any]) -> Iterator[Fact]:
    for part in changed[:_MOST]:
        if isinstance(part, dict) and isinstance(part.get("set"), dict):
            table, key = written(part.get("table")), written(part.get("id"))
            for column, value in list(part["set"].items())[:_MOST]:
                yield ("db", table, key, written(column), written(value))


def _walk(place: str, path: str, data: Any, depth: int, owner: str) -> Iterator[Fact]:
    if isinstance(data, dict):
        if depth >= _DEPTH:
            return
        for name, value in list(data.items())[:_MOST]:
            key = str(name).lower()[:_LONGEST]
            if isinstance(value, str | int) and not isinstance(value, bool):
                yield from _entity(key, value, owner)
            yield from _walk(place, f"{path}.{key}", value, depth + 1, key)
    elif isinstance(data, list):
        yield ("retlen", place, path, str(len(data)))
        if depth >= _DEPTH:
            return
        for number, value in enumerate(data[:_FIRST_ITEMS]):
            yield from _walk(place, f"{path}[{number}]", value, depth + 1, owner)
    elif data != "":
        value = written(data)
        if len(value) <= _LONGEST:
            yield ("ret", place, path, value)


def _entity(key: str, value: Any, owner: str) -> Iterator[Fact]:
    match = _ID.fullmatch(key)
    text = written(value)
    if match is not None and text and len(text) <= _LONGEST:
        kind = match["kind"] or owner.removesuffix("s") or "thing"
        yield ("entity", kind, text)
