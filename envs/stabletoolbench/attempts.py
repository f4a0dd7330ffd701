"""Attempts at queries, of our episodes and of reference pipelines' files: calls and answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import DataCorrupt, DataNotFound
from ...trajectory import Trajectory
from .calls import parse_call
from .facts import error_kind, read_observation
from .functions import FINISH

__all__ = ["Attempt", "Made", "attempt_of", "read_attempts"]

_ANSWERED = 3
_SOURCE = "THUNLP-MT/StableToolBench's inference"


@dataclass(frozen=True, slots=True)
class Made:
    """A call that was made.

    Attributes:
        name: The function's name as it was written.
        arguments: The arguments' text or data as written.
        response: What came back, as text.
        status: ``ok`` or the kind of error.
    """

    name: str
    arguments: Any
    response: str
    status: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a query.

    Attributes:
        query_id: Which query.
        query: Its text.
        calls: What was called, without ``Finish``.
        finish: ``give_answer``, ``give_up_and_restart``, or empty where ``Finish`` was not called.
        answer: The final answer.
        functions: Names of the functions that were offered; empty where that is not known.
        sources: Which backend answered each call; empty where none did, or where that is not known.
    """

    query_id: str
    query: str
    calls: tuple[Made, ...]
    finish: str = ""
    answer: str = ""
    functions: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


def attempt_of(trajectory: Trajectory) -> Attempt:
    """Return the attempt that a trajectory of our environment is.

    Its sources are what the steps' records keep of ``info["tool_source"]``.

    Args:
        trajectory: An episode.

    Example:
        >>> from comap.facts import State
        >>> attempt_of(Trajectory("id", "G1_tool/7", "G1_tool", "Why?", "me", "", State())).query_id
        '7'
    """
    calls: list[Made] = []
    sources: list[str] = []
    finish = answer = ""
    for step in trajectory.steps:
        call = parse_call(step.action)
        told = read_observation(step.observation)
        kind = "" if told is None else error_kind(told[0])
        if call is not None and call.name == FINISH and not kind:
            finish = str(call.arguments.get("return_type", ""))
            said = call.arguments.get("final_answer", "")
            answer = said if isinstance(said, str) else json.dumps(said)
            continue
        name, arguments = ("", step.action) if call is None else (call.name, call.arguments)
        calls.append(Made(name, arguments, step.observation, kind or "ok"))
        sources.append(str(step.told.get("tool_source", "")))
    key = trajectory.task.rpartition("/")[2]
    return Attempt(key, trajectory.goal, tuple(calls), finish, answer, (), tuple(sources))


def read_attempts(path: str | os.PathLike[str]) -> dict[str, Attempt]:
    """Return the attempts of a reference pipeline, by query.

    Args:
        path: A folder of its answer files (``<query_id>_<method>.json``), one such file, or a file of
            converted answers, which has many.

    Raises:
        DataNotFound: There is nothing.
        DataCorrupt: A file is not what it should be.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise DataNotFound(
                f"expected answer files (<query_id>_<method>.json) in {path}, found none"
            )
        found = [attempt for file in files for attempt in _of_file(file)]
    elif path.is_file():
        found = list(_of_file(path))
    else:
        raise DataNotFound(
            f"expected answers of a reference pipeline at {path}, found nothing there"
        )
    return {attempt.query_id: attempt for attempt in found}


def _of_file(path: Path) -> Iterator[Attempt]:
    try:
        data = json.loads(path.read_bytes())
        if "answer_generation" in data:
            yield _raw(path.name.partition("_")[0], data)
            return
        for key, entry in data.items():
            yield _converted(str(key), entry)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise DataCorrupt(
            f"expected answers as {_SOURCE} writes them in {path}, found "
            f"{type(error).__name__}: {str(error)[:120]}"
        ) from error


def _raw(key: str, data: Mapping[str, Any]) -> Attempt:
    told = data["answer_generation"]
    if "tree" in data:
        nodes = _answering(data["tree"]["tree"])
    else:
        nodes = list(data["trys"][-1]["chain"]) if data.get("trys") else []
    finish, answer = _final(told.get("final_answer") or "")
    names = tuple(str(function["name"]) for function in told["function"])
    return Attempt(key, str(told["query"]), tuple(_calls(nodes)), finish, answer, names)


def _answering(root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the nodes of a search tree that lead to its last answer; all, where it has none."""
    nodes: list[Mapping[str, Any]] = []
    parents: dict[int, int] = {}
    waiting: list[tuple[Mapping[str, Any], int]] = [(root, -1)]
    place = -1
    while waiting:
        here, parent = waiting.pop()
        parents[len(nodes)] = parent
        if here.get("observation_code") == _ANSWERED:
            place = len(nodes)
        waiting.extend((child, len(nodes)) for child in reversed(here.get("children", [])))
        nodes.append(here)
    if place < 0:
        return nodes
    path: list[Mapping[str, Any]] = []
    while place >= 0:
        path.append(nodes[place])
        place = parents[place]
    return path[::-1]


def _calls(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Made]:
    """Yield the calls of nodes: an action, then its input with what was observed."""
    name = ""
    for node in nodes:
        kind = node.get("node_type")
        if kind == "Action":
            name = str(node["description"])
        elif kind == "Action Input" and name and name != FINISH:
            yield _made(name, node["description"], str(node.get("observation", "")))


def _made(name: str, arguments: Any, response: str) -> Made:
    told = read_observation(response)
    kind = "failed" if told is None else error_kind(told[0])
    return Made(name, arguments, response, kind or "ok")


def _converted(key: str, entry: Mapping[str, Any]) -> Attempt:
    answer = entry["answer"]
    calls: list[Made] = []
    for node in _steps(answer["answer_details"]):
        message = node["message"]
        if node["role"] == "tool" and isinstance(message, dict) and message.get("name") != FINISH:
            calls.append(
                _made(
                    str(message["name"]), message.get("arguments"), str(message.get("response", ""))
                )
            )
    finish, text = _final(answer.get("final_answer") or "")
    names = tuple(str(function["name"]) for function in entry["available_tools"])
    return Attempt(key, str(entry["query"]), tuple(calls), finish, text, names)


def _steps(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    waiting = list(reversed(nodes))
    while waiting:
        here = waiting.pop()
        yield here
        waiting.extend(reversed(here.get("next", [])))


def _final(text: str) -> tuple[str, str]:
    """Return how an attempt ended, and its answer."""
    if not text.strip():
        return "", ""
    call = parse_call(json.dumps({"name": FINISH, "arguments": text}))
    arguments = {} if call is None else call.arguments
    kind = arguments.get("return_type")
    if kind not in ("give_answer", "give_up_and_restart"):
        return "", ""
    return str(kind), str(arguments.get("final_answer", ""))
