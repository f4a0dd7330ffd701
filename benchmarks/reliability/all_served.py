"""All servers of `comap serve`, as the benchmark asks them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from ...envs.stabletoolbench.apps import world_of
from ...envs.stabletoolbench.serving import VirtualTools
from .episodes import WORDS, Guest, converse, overfill
from .guests import MCP_HEADERS, AgentGymGuest, McpGuest, call
from .served import Line, Served, asked_once
from .socket_guest import OpenEnvGuest, knock_socket

__all__ = ["SERVED"]

_EPISODE = 16
_LIBRARY = {"category": "Media", "tool_name": "library", "api_name": "search"}


def _query(number: int) -> dict[str, Any]:
    return {"queries": [f"a town number {number % 7}", "the river"], "topk": 1 + number % 3}


def _passages(number: int, told: Any) -> bool:
    rows = told.get("result") if isinstance(told, dict) else None
    return isinstance(rows, list) and len(rows) == 2 and all(len(r) == 1 + number % 3 for r in rows)


@cache
def _words() -> tuple[str, ...]:
    """Return words of titles in the embedded library."""
    books = world_of(0).tables["book"].values()
    return tuple(sorted({max(book["title"].split(), key=len) for book in books}))


def _call(number: int) -> dict[str, Any]:
    asked = {"word": _words()[number % len(_words())]}
    return _LIBRARY | {"tool_input": json.dumps(asked) if number % 2 else asked}


@cache
def _expected(number: int) -> dict[str, Any]:
    """Return what the embedded tools answer, asked here."""
    return VirtualTools([], world=0).answer(_call(number))


def _answered(number: int, told: Any) -> bool:
    right = _expected(number)
    same: bool = told == json.loads(json.dumps(right))
    return right["error"] == "" and same


def _environments(style: str, guest: Callable[[Line], Guest], **options: Any) -> Served:
    """Return the server of environments in a style."""

    def talk(line: Line, number: int) -> None:
        converse(line, guest(line))

    def fill(line: Line) -> None:
        overfill(line, partial(guest, line))

    words = ("env", *WORDS, "--style", style)
    name = f"comap serve env --style {style}"
    return Served(name, words, talk, length=_EPISODE, overfill=fill, **options)


SERVED: tuple[Served, ...] = (
    asked_once("comap serve search", ("search",), _query, _passages, _query(0)),
    asked_once(
        "comap serve tools",
        ("tools",),
        _call,
        _answered,
        _LIBRARY | {"tool_input": {"word": "sea"}},
        ("fastapi", "uvicorn"),
    ),
    _environments(
        "agentgym",
        AgentGymGuest,
        samples=(
            ("/create", {"env": "comap/ALFWorld-v0", "options": {"split": "train"}}),
            ("/reset", {"id": 1, "seed": 1, "task": "x"}),
            ("/step", {"id": 1, "action": "look"}),
            ("/close", {"id": 1}),
        ),
        routes=("/reset", "/step"),
    ),
    _environments(
        "openenv",
        OpenEnvGuest,
        samples=(
            ("/reset", {"seed": 1, "episode_id": "x", "task": "x"}),
            ("/step", {"action": {"action": "look"}, "timeout_s": 1.0}),
            ("/mcp", call("tools/list", {"x": 1})),
        ),
        routes=("/step",),
        needs=("openenv", "uvicorn", "websockets"),
        knock=(knock_socket,),
    ),
    _environments(
        "mcp",
        McpGuest,
        samples=(("", McpGuest.hello), ("", call("tools/call", {"name": "act", "arguments": {}}))),
        headers=MCP_HEADERS,
        needs=("mcp", "uvicorn"),
    ),
)
"""All servers; a further one is one more."""
