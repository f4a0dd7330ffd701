"""StableToolBench's canonicalizer: from calls and answers to belief facts, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ...facts import Fact, State
from ...trajectory import Turn
from ..canon import collapse
from .answers import read_answer
from .calls import Call, parse_call, write_call
from .facts import error_kind, read_observation, returned
from .functions import FINISH
from .values import NotJSON, digest, read_json_text, written

__all__ = ["ToolCanonicalizer", "calls_made"]

_LINE = re.compile(r"- (?P<name>[\w^-]+)\((?P<parameters>.*?)\)(?::|$)")
_PARAMETER = re.compile(r"\s*(?P<name>[\w^]+)(?P<free>\?)?: (?P<type>[^,]+)")
_BUDGET = re.compile(r"^Calls left: (\d{1,6})$", re.MULTILINE)
_LONGEST = 80
_FINISHED = {"give_answer": "give_answer", "give_up_and_restart": "give_up"}


class ToolCanonicalizer:
    r"""Folds function calls and their answers into a belief.

    The facts are those of `comap.envs.stabletoolbench.facts`. Which backend answered is not among them:
    no text tells it, ``info["tool_source"]`` does.

    Example:
        >>> canon = ToolCanonicalizer()
        >>> start = "Task: Convert.\n- rate(to: string): A rate.\nCalls left: 9"
        >>> state = canon.initial("Convert.", start)
        >>> told = '{"error": "", "response": {"rate": 1.5}}'
        >>> after = canon.update(state, '{"name": "rate", "arguments": {"to": "TRN"}}', told)
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
        told = read_observation(observation)
        if told is None:
            return State(state.facts, parsed=False)
        error, response, cut = told
        place, left = _place(state)
        call = parse_call(action)
        added = _of_call(place, call)
        removed: set[Fact] = set()
        kind = error_kind(error)
        added.add(("status", place, f"error:{kind}" if kind else "ok"))
        if kind == "missing_arg":
            added.add(("arg_missing", place, written(error.partition(":")[2])[:_LONGEST]))
        if left is not None:
            removed.add(("budget", str(left)))
            added.add(("budget", str(max(left - 1, 0))))
        if cut:
            added.add(("cut", place))
        if not kind and call is not None and call.name == FINISH:
            added |= _finished(call)
        elif not kind:
            added |= returned(place, response)
            removed |= set(_overwritten(state, added))
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
        place = _place(before)[0]
        new = after.facts - before.facts
        kinds = [fact[2] for fact in new if fact[0] == "status" and fact[1] == place]
        error = ""
        if kinds and kinds[0].startswith("error:"):
            error = _error_of(kinds[0].removeprefix("error:"), place, new)
        told: dict[str, Any] = {"error": error, "response": _response_of(place, new)}
        if ("cut", place) in new:
            told["truncated"] = True
        return json.dumps(told, ensure_ascii=False)

    def reveals(
        self, goal: str, history: Sequence[Turn], before: State, action: str, after: State
    ) -> bool:
        """Return whether a value was told that no text so far has: see `comap.envs.Revealer`."""
        parts = [goal, action]
        for turn in history:
            parts += [turn.action or "", turn.observation]
        seen = " ".join(parts).lower()
        values = {fact[-1] for fact in after.facts - before.facts if fact[0] in ("ret", "ret_word")}
        return any(value not in seen for value in values)


def calls_made(state: State) -> set[tuple[str, str]]:
    """Return function and hash of the calls that a belief knows to have gone well.

    Example:
        >>> calls_made(State(frozenset({("call", "1", "rate", "ab"), ("status", "1", "ok")})))
        {('rate', 'ab')}
    """
    well = {fact[1] for fact in state.facts if fact[0] == "status" and fact[2:] == ("ok",)}
    return {
        (fact[2], fact[3])
        for fact in state.facts
        if fact[0] == "call" and len(fact) == 4 and fact[1] in well
    }


def _place(state: State) -> tuple[str, int | None]:
    """Return the number of the next call, and how many are left."""
    left = None
    made = 0
    for fact in state.facts:
        if fact[0] == "status":
            made += 1
        elif fact[0] == "budget" and len(fact) == 2 and fact[1].isdecimal():
            left = int(fact[1])
    return str(made + 1), left


def _offered(line: str) -> set[Fact]:
    """Return the facts of a line that offers a function, as signature or as JSON."""
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
        name, parameters = str(data["name"]).lower(), data["parameters"]
        facts: set[Fact] = {("tool", name)}
        for key, told in parameters["properties"].items():
            need = "required" if key in parameters.get("required", ()) else "optional"
            kind = "|".join(map(str, told["enum"])) if told.get("enum") else str(told["type"])
            facts.add(("param", name, str(key).lower(), need, kind.lower()))
        return facts
    except (NotJSON, KeyError, TypeError, AttributeError):
        return set()


def _of_call(place: str, call: Call | None) -> set[Fact]:
    if call is None:
        return set()
    facts: set[Fact] = {("call", place, call.name.lower()[:_LONGEST], digest(call.arguments))}
    if call.name != FINISH:
        for name, value in list(call.arguments.items())[:16]:
            facts.add(("arg", place, str(name).lower()[:_LONGEST], written(value)[:_LONGEST]))
    return facts


def _finished(call: Call) -> set[Fact]:
    kind = _FINISHED.get(written(call.arguments.get("return_type", "")), "")
    if not kind:
        return set()
    facts: set[Fact] = {("finished", kind)}
    if kind == "give_answer":
        answer = call.arguments.get("final_answer", "")
        text = answer if isinstance(answer, str) else json.dumps(answer, default=str)
        for name, value in read_answer(text).items():
            facts.add(("answer_field", name, value[:200]))
    return facts


def _overwritten(state: State, added: set[Fact]) -> Iterator[Fact]:
    """Yield what is no longer true of tables."""
    cells = {fact[1:4] for fact in added if fact[0] == "db"}
    if cells:
        for fact in state.facts:
            if fact[0] == "db" and fact[1:4] in cells and fact not in added:
                yield fact


def _error_of(kind: str, place: str, new: frozenset[Fact]) -> str:
    """Return an error of a kind."""
    from .facts import ERROR_KINDS

    if kind == "not_found":
        return "not found"
    start = next((text for text, known in ERROR_KINDS if known == kind), "failed")
    missing = [fact[2] for fact in new if fact[0] == "arg_missing" and fact[1] == place]
    return f"{start}: {missing[0]}" if missing else start


_STEP = re.compile(r"\.([^.\[\]]*)|\[(\d{1,3})\]")


def _response_of(place: str, new: frozenset[Fact]) -> Any:
    """Return data that has the lengths and values that facts tell."""
    root: dict[str, Any] = {}
    lengths = [fact for fact in new if fact[0] == "retlen" and fact[1] == place and len(fact) == 4]
    values = [fact for fact in new if fact[0] == "ret" and fact[1] == place and len(fact) == 4]
    words = sorted(fact[2] for fact in new if fact[0] == "ret_word" and fact[1] == place)
    if words:
        return " ".join(words).ljust(_LONGEST + 1, ".")
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
        changed = [{"table": t, "id": key, "set": values} for (t, key), values in cells.items()]
        base = response if isinstance(response, dict) else {}
        response = base | {"changed": changed}
    return response


def _set(root: dict[str, Any], path: str, value: Any) -> None:
    """Set what a path leads to, making what is missing on the way; a path that cannot be is left."""
    steps: list[str | int] = ["$"]
    for name, number in _STEP.findall(path[1:]):
        steps.append(int(number) if number else name)
    here: Any = root
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(step, int):
            if not isinstance(here, list) or step >= len(here):
                return
            there = here[step]
        else:
            if not isinstance(here, dict):
                return
            there = here.get(step, "")
        if following is None:
            here[step] = value
            return
        if there == "" or there is None:
            there = here[step] = {} if isinstance(following, str) else []
        here = there
