"""What agents read, and the belief facts of it and back: observations, `ToolCanonicalizer`, suggestions."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

from ...facts import Fact, State
from ...trajectory import Turn
from ..canon import collapse
from .calls import (
    Call,
    NotJSON,
    digest,
    parse_call,
    read_answer,
    read_json_text,
    write_call,
    written_form,
)
from .functions import FINISH, FINISH_OFFER, Offer, signature

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
_LETTERS = re.compile(r"[^\W_]{3,32}")
_ID = re.compile(r"(?:(?P<kind>\w+)_)?(?:id|sku|code)", re.IGNORECASE)


def error_kind(error: str) -> str:
    """Return the kind of an error's text; empty for no error."""
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
        error if isinstance(error, str) else written_form(error),
        response,
        bool(data.get("truncated")),
    )


def returned(turn: str, response: Any) -> set[Fact]:
    """Return the facts of a response: what it returned, identifiers, and what was changed."""
    facts: set[Fact] = set()
    changed = response.get("changed") if isinstance(response, dict) else None
    if isinstance(changed, list):
        for part in changed[:_MOST]:
            if isinstance(part, dict) and isinstance(part.get("set"), dict):
                table = written_form(part.get("table"))
                key = written_form(part.get("id"))
                for column, value in list(part["set"].items())[:_MOST]:
                    facts.add(("db", table, key, written_form(column), written_form(value)))
        response = {name: value for name, value in response.items() if name != "changed"}
    if isinstance(response, str) and len(response) > _LONGEST:
        words = dict.fromkeys(word.lower() for word in _LETTERS.findall(response))
        return facts | {("ret_word", turn, word) for word in list(words)[:_MOST_WORDS]}
    return facts | set(islice(_walk(turn, "$", response, 0, ""), _MOST))


def _walk(turn: str, path: str, data: Any, depth: int, owner: str) -> Iterator[Fact]:
    if isinstance(data, dict):
        if depth >= _DEPTH:
            return
        for name, value in list(data.items())[:_MOST]:
            key = str(name).lower()[:_LONGEST]
            if isinstance(value, str | int) and not isinstance(value, bool):
                yield from _entity(key, value, owner)
            yield from _walk(turn, f"{path}.{key}", value, depth + 1, key)
    elif isinstance(data, list):
        yield ("retlen", turn, path, str(len(data)))
        if depth >= _DEPTH:
            return
        for number, value in enumerate(data[:_FIRST_ITEMS]):
            yield from _walk(turn, f"{path}[{number}]", value, depth + 1, owner)
    elif data != "":
        value = written_form(data)
        if len(value) <= _LONGEST:
            yield ("ret", turn, path, value)


def _entity(key: str, value: Any, owner: str) -> Iterator[Fact]:
    match = _ID.fullmatch(key)
    text = written_form(value)
    if match is not None and text and len(text) <= _LONGEST:
        kind = match["kind"] or owner.removesuffix("s") or "thing"
        yield ("entity", kind, text)


MIN_LENGTH = 64
"""The shortest limit of an observation that makes sense."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)
_STEPS = ((16, 400), (8, 200), (5, 120), (3, 80), (2, 40), (1, 20))


def observation_of(error: str, response: Any, longest: int, compat: str = "strict") -> str:
    """Return an answer as JSON text of at most so many characters."""
    text = _json(error, response)
    if len(text) <= longest:
        return text
    if compat == "reference":
        return f"{text[:longest]}..."

    # Cut so that it is still JSON: fewer items and shorter texts, in steps, and at last one text.
    for items, characters in _STEPS:
        text = _json(_cut(error, 1, longest // 2), _cut(response, items, characters), True)
        if len(text) <= longest:
            return text
    response_text = response
    if not isinstance(response, str):
        response_text = json.dumps(response, ensure_ascii=False)
    error = _cut(error, 1, max(longest // 4, 8))
    for characters in range(longest, 0, -3):
        text = _json(error, _cut(response_text, 1, characters), True)
        if len(text) <= longest:
            return text
    return _json("", "", True)


def _json(error: str, response: Any, cut: bool = False) -> str:
    end = {"truncated": True} if cut else {}
    return _ENCODER.encode({"error": error, "response": response, **end})


def _cut(data: Any, items: int, characters: int, depth: int = 0) -> Any:
    if isinstance(data, str):
        return data if len(data) <= characters else f"{data[: max(characters - 3, 0)]}..."
    if depth > 6:
        return "..."
    if isinstance(data, dict):
        members = list(data.items())[: 4 * items]
        return {
            str(name)[:80]: _cut(value, items, characters, depth + 1) for name, value in members
        }
    if isinstance(data, list):
        return [_cut(value, items, characters, depth + 1) for value in data[:items]]
    return data


FORMATS = ("signatures", "json")
"""How functions are shown: on a line each, or as their whole JSON schemas."""

_LAST = 6
_LONGEST_TURN = 300


def first_observation(goal: str, offers: Sequence[Offer], budget: int, form: str) -> str:
    lines = [f"Task: {goal}", "Functions:"]
    for offer in (*offers, FINISH_OFFER):
        schema = json.dumps(offer.schema(), ensure_ascii=False, default=str)
        lines.append(f"- {schema if form == 'json' else signature(offer)}")
    return "\n".join([*lines, f"Calls left: {budget}"])


def narrate(goal: str, history: Sequence[Turn], state: State, action: str | None = None) -> str:
    """Return the task, the functions' parameters, the last calls with their answers, and what is left."""
    parameters: dict[str, list[str]] = {fact[1]: [] for fact in state.facts if fact[0] == "tool"}
    for fact in sorted(state.facts):
        if fact[0] == "param" and len(fact) == 5 and fact[1] in parameters:
            mark = "?" if fact[3] == "optional" else ""
            parameters[fact[1]].append(fact[2] + mark)

    # For a prediction only the function that is called matters.
    call = parse_call(action) if action is not None else None
    function_names = sorted(parameters) if call is None else [call.name.lower()]
    lines = [f"goal: {goal}"]
    for name in function_names:
        if name in parameters:
            lines.append(f"{name}({', '.join(parameters[name])})")
    for turn in history[1:][-_LAST:]:
        lines.append(f"> {_short(turn.action or '')}")
        lines.append(_short(turn.observation))

    budgets = [fact[1] for fact in state.facts if fact[0] == "budget" and len(fact) == 2]
    lines.append(f"left: {budgets[0] if budgets else '?'}")
    return "\n".join(lines)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TURN else f"{text[: _LONGEST_TURN - 3]}..."


_LINE = re.compile(r"- (?P<name>[\w^-]+)\((?P<parameters>.*?)\)(?::|$)")
_PARAMETER = re.compile(r"\s*(?P<name>[\w^]+)(?P<free>\?)?: (?P<type>[^,]+)")
_BUDGET = re.compile(r"^Calls left: (\d{1,6})$", re.MULTILINE)
_FINISHED = {"give_answer": "give_answer", "give_up_and_restart": "give_up"}


class ToolCanonicalizer:
    r"""Folds function calls and their answers into a belief.

    Which backend answered is not among the facts: no text names it, ``info["tool_source"]`` does.

    Example:
        >>> canon = ToolCanonicalizer()
        >>> start = "Task: Convert.\n- rate(to: string): A rate.\nCalls left: 9"
        >>> state = canon.initial("Convert.", start)
        >>> answer = '{"error": "", "response": {"rate": 1.5}}'
        >>> after = canon.update(state, '{"name": "rate", "arguments": {"to": "TRN"}}', answer)
        >>> print("\n".join(after.to_text().splitlines()[:4]))
        arg(1, to, trn)
        budget(8)
        call(1, rate, ...)
        param(rate, to, required, string)
        >>> canon.action('rate({"to": "TRN"})')
        '{"name":"rate","arguments":{"to":"TRN"}}'
    """

    version = "stabletoolbench-1"

    def initial(self, goal: str, observation: str) -> State:
        """Return the functions that are offered and how many calls are left."""
        facts: set[Fact] = set()
        budget = _BUDGET.search(observation)
        if budget:
            facts.add(("budget", str(int(budget[1]))))
        for line in observation.splitlines():
            if line.startswith("- "):
                facts |= _offered(line)
        parsed = any(fact[0] == "tool" for fact in facts) or budget is not None
        return State(frozenset(facts), parsed=parsed)

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the belief after `action` was answered with `observation`."""
        answer = read_observation(observation)
        if answer is None:
            return State(state.facts, parsed=False)
        error, response, is_cut = answer
        turn, calls_left = _turn(state)
        call = parse_call(action)
        added = _of_call(turn, call)
        removed: set[Fact] = set()

        kind = error_kind(error)
        added.add(("status", turn, f"error:{kind}" if kind else "ok"))
        if kind == "missing_arg":
            added.add(("arg_missing", turn, written_form(error.partition(":")[2])[:_LONGEST]))
        if calls_left is not None:
            removed.add(("budget", str(calls_left)))
            added.add(("budget", str(max(calls_left - 1, 0))))
        if is_cut:
            added.add(("cut", turn))

        # Answers stay, each under its turn; of a table's cell only the last value is true.
        if not kind and call is not None and call.name == FINISH:
            added |= _finished(call)
        elif not kind:
            added |= returned(turn, response)
            cells = {fact[1:4] for fact in added if fact[0] == "db"}
            if cells:
                values_before = {
                    fact for fact in state.facts if fact[0] == "db" and fact[1:4] in cells
                }
                removed |= values_before - added
        return State((state.facts - removed) | added)

    def action(self, text: str) -> str:
        """Return the canonical form of a call: OpenAI's, keys in order; other text in lower case."""
        call = parse_call(text)
        if call is not None:
            return write_call(call.name, call.arguments)
        words = collapse(text)
        return words if parse_call(words) is None else f"{words} ."  # what is no call stays none

    def describe(self, before: State, action: str, after: State) -> str:
        """Return an observation from which `update` reads `after`: see `Describer`."""
        turn = _turn(before)[0]
        new = after.facts - before.facts
        kinds = [fact[2] for fact in new if fact[0] == "status" and fact[1] == turn]
        error = ""
        if kinds and kinds[0].startswith("error:"):
            error = _error_of(kinds[0].removeprefix("error:"), turn, new)
        end = {"truncated": True} if ("cut", turn) in new else {}
        data = {"error": error, "response": _response_of(turn, new), **end}
        return json.dumps(data, ensure_ascii=False)

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a value appeared that no text so far has: see `comap.envs.Revealer`."""
        parts = [goal, action]
        for turn in history:
            parts += [turn.action or "", turn.observation]
        texts = " ".join(parts).lower()
        values = {fact[-1] for fact in after.facts - before.facts if fact[0] in ("ret", "ret_word")}
        return any(value not in texts for value in values)


def calls_made(state: State) -> set[tuple[str, str]]:
    """Return function and hash of the calls that a belief knows to have gone well."""
    turns = {fact[1] for fact in state.facts if fact[0] == "status" and fact[2:] == ("ok",)}
    return {
        (fact[2], fact[3])
        for fact in state.facts
        if fact[0] == "call" and len(fact) == 4 and fact[1] in turns
    }


def _turn(state: State) -> tuple[str, int | None]:
    """Return the number of the next call, and how many are left; None where no fact says so."""
    calls_left = None
    call_count = 0
    for fact in state.facts:
        if fact[0] == "status":
            call_count += 1
        elif fact[0] == "budget" and len(fact) == 2 and fact[1].isdecimal():
            calls_left = int(fact[1])
    return str(call_count + 1), calls_left


def _offered(line: str) -> set[Fact]:
    if line.startswith("- {"):
        return _offered_json(line[2:])
    match = _LINE.match(line)
    if match is None:
        return set()
    name = match["name"].lower()
    facts: set[Fact] = {("tool", name)}
    for part in _PARAMETER.finditer(match["parameters"]):
        need = "optional" if part["free"] else "required"
        facts.add(("param", name, part["name"].lower(), need, part["type"].strip().lower()))
    return facts


def _offered_json(text: str) -> set[Fact]:
    try:
        data = read_json_text(text)
        name = str(data["name"]).lower()
        parameters = data["parameters"]
        facts: set[Fact] = {("tool", name)}
        for key, schema in parameters["properties"].items():
            need = "required" if key in parameters.get("required", ()) else "optional"
            kind = "|".join(map(str, schema["enum"])) if schema.get("enum") else str(schema["type"])
            facts.add(("param", name, str(key).lower(), need, kind.lower()))
        return facts
    except (NotJSON, KeyError, TypeError, AttributeError):
        return set()


def _of_call(turn: str, call: Call | None) -> set[Fact]:
    if call is None:
        return set()
    facts: set[Fact] = {("call", turn, call.name.lower()[:_LONGEST], digest(call.arguments))}
    if call.name != FINISH:
        for name, value in list(call.arguments.items())[:16]:
            facts.add(("arg", turn, str(name).lower()[:_LONGEST], written_form(value)[:_LONGEST]))
    return facts


def _finished(call: Call) -> set[Fact]:
    kind = _FINISHED.get(written_form(call.arguments.get("return_type", "")), "")
    if not kind:
        return set()
    facts: set[Fact] = {("finished", kind)}
    if kind == "give_answer":
        answer = call.arguments.get("final_answer", "")
        text = answer if isinstance(answer, str) else json.dumps(answer, default=str)
        for name, value in read_answer(text).items():
            facts.add(("answer_field", name, value[:200]))
    return facts


def _error_of(kind: str, turn: str, new: frozenset[Fact]) -> str:
    """Return an error's text from which its kind is read."""
    if kind == "not_found":
        return "not found"
    start = next((text for text, kind_of_text in ERROR_KINDS if kind_of_text == kind), "failed")
    missing = [fact[2] for fact in new if fact[0] == "arg_missing" and fact[1] == turn]
    return f"{start}: {missing[0]}" if missing else start


_STEP = re.compile(r"\.([^.\[\]]*)|\[(\d{1,3})\]")


def _response_of(turn: str, new: frozenset[Fact]) -> Any:
    """Return data that has the lengths and values that facts tell."""
    root: dict[str, Any] = {}
    lengths = [fact for fact in new if fact[0] == "retlen" and fact[1] == turn and len(fact) == 4]
    values = [fact for fact in new if fact[0] == "ret" and fact[1] == turn and len(fact) == 4]
    words = sorted(fact[2] for fact in new if fact[0] == "ret_word" and fact[1] == turn)
    if words:
        # A text of more characters than a value may have is read as words.
        return " ".join(words).ljust(_LONGEST + 1, ".")

    # Outer lists first: what is in them needs its place.
    for _, _, path, number in sorted(lengths, key=lambda fact: (fact[2].count("."), fact[2])):
        if number.isdecimal() and int(number) < 10_000:
            _set(root, path, [""] * int(number))
    for _, _, path, value in sorted(values):
        _set(root, path, value)
    response = root.get("$", "")

    cells: dict[tuple[str, str], dict[str, str]] = {}
    for fact in sorted(new):
        if fact[0] == "db" and len(fact) == 5:
            cells.setdefault((fact[1], fact[2]), {})[fact[3]] = fact[4]
    if cells:
        changed = [
            {"table": table, "id": key, "set": columns} for (table, key), columns in cells.items()
        ]
        members = response if isinstance(response, dict) else {}
        response = members | {"changed": changed}
    return response


def _set(root: dict[str, Any], path: str, value: Any) -> None:
    """Set what a path leads to, making what is missing on the way; a path that cannot be is left."""
    steps: list[str | int] = ["$"]
    for name, number in _STEP.findall(path[1:]):
        steps.append(int(number) if number else name)
    container: Any = root
    for step, next_step in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(step, int):
            if not isinstance(container, list) or step >= len(container):
                return
            member = container[step]
        else:
            if not isinstance(container, dict):
                return
            member = container.get(step, "")

        if next_step is None:
            container[step] = value
            return
        if member == "" or member is None:
            member = {} if isinstance(next_step, str) else []
            container[step] = member
        container = member


_WORD = re.compile(r"[A-Za-z0-9][\w.:-]*[\w]|\d+")
_MOST_VALUES = 5
_MOST_CALLS = 8
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(r"\d{2}:\d{2}")
_PHRASE = re.compile(r"(?:[A-Z]\w+ )+[A-Z]\w+")
_OF_PEOPLE = frozenset(("name", "owner", "reader", "title"))
_NEVER = frozenset(("JSON", "Give"))
_NUMBERS = ("integer", "number")
_OTHERS: Mapping[str, tuple[Any, ...]] = {"boolean": (True, False), "array": ([],), "object": ({},)}


def suggested(goal: str, offers: Sequence[Offer], state: State) -> tuple[str, ...]:
    """Return calls of each function, and two ends: giving up, and the last value as the answer."""
    words = [word for word in dict.fromkeys(_WORD.findall(goal)) if word not in _NEVER]
    words += _PHRASE.findall(goal)
    entities: dict[str, list[str]] = {}
    for fact in sorted(state.facts):
        if fact[0] == "entity" and len(fact) == 3:
            entities.setdefault(fact[1], []).append(fact[2].upper())

    # Every function with every value that fits a parameter, up to a few calls each.
    calls: list[str] = []
    for offer in offers:
        choices = [
            _values(name, offer.parameters["properties"][name], words, entities)
            for name in offer.required
        ]
        for values in islice(product(*choices), _MOST_CALLS):
            calls.append(write_call(offer.name, dict(zip(offer.required, values, strict=True))))

    last_value = "unknown"
    returns = [fact for fact in state.facts if fact[0] == "ret" and fact[1].isdecimal()]
    if returns:
        last_value = max(returns, key=lambda fact: (int(fact[1]), fact))[-1]
    calls.append(write_call(FINISH, {"return_type": "give_answer", "final_answer": last_value}))
    calls.append(write_call(FINISH, {"return_type": "give_up_and_restart"}))
    return tuple(dict.fromkeys(calls))


def _values(
    name: str,
    schema: Mapping[str, Any],
    words: Sequence[str],
    entities: Mapping[str, Sequence[str]],
) -> list[Any]:
    """Return values that a parameter may have, by its schema and its name; never none."""
    if schema.get("enum"):
        return list(schema["enum"])[:_MOST_VALUES]
    kind = str(schema.get("type"))
    if kind in _NUMBERS:
        numbers = [int(word) for word in words if word.isdecimal() and len(word) < 9]
        return numbers[:_MOST_VALUES] or [1]
    if kind in _OTHERS:
        return list(_OTHERS[kind])

    if "date" in name:
        values = [word for word in words if _DATE.fullmatch(word)]
    elif name == "start":
        values = [word for word in words if _TIME.fullmatch(word)]
    elif name in _OF_PEOPLE and any(" " in word for word in words):
        values = [word for word in words if " " in word]
    else:
        values = _names_or_ids(name, words, entities)
    examples = [str(example) for example in schema.get("examples", [])[:1]]
    return values[:_MOST_VALUES] or examples or [name]


def _names_or_ids(
    name: str, words: Sequence[str], entities: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the things that answers told of, and what the goal writes in capitals; ids where they fit."""
    stem = name.removesuffix("_id")
    values = [*entities.get(stem, ())]
    values += [word for word in words if word[0].isupper() and word not in values][1:]
    if not name.endswith("_id") and stem not in entities:
        return values

    ids = []
    for word in values:
        if "-" in word and any(character.isdecimal() for character in word):
            ids.append(word)
    return ids or values
