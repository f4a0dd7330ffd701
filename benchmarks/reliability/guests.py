"""Clients of `comap serve env` in the styles of AgentGym and MCP, by plain HTTP."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from .served import Answer, Line

__all__ = ["MCP_HEADERS", "WRONG_TASKS", "AgentGymGuest", "McpGuest", "call"]

_NOWHERE = 2**52 + 1
WRONG_TASKS: tuple[dict[str, Any], ...] = (
    {"task": "../../etc/passwd"},
    {"task": "x" * 10_000},
    {"data_idx": -1},
    {"data_idx": 10**9},
    {"seed": "x"},
    {"seed": -1},
    {"task": 1},
)
"""Resets that name no task, or no seed."""


class AgentGymGuest:
    """A client in AgentGym's style: ``/create``, ``/reset``, ``/step``, ``/close``.

    Args:
        line: To the server.
    """

    def __init__(self, line: Line):
        self._line, self._id = line, _NOWHERE

    def open(self) -> Answer:
        """Create an environment."""
        answer = self._line.ask("/create", {})
        if answer.status == 200:
            self._id = answer.told["id"]
        return answer

    def reset(self, seed: int) -> Answer:
        """Start the episode of a seed."""
        return self._line.ask("/reset", {"id": self._id, "seed": seed})

    def step(self, action: str) -> Answer:
        """Take an action."""
        return self._line.ask("/step", {"id": self._id, "action": action})

    def wrong(self, rng: random.Random) -> Answer:
        """Ask something wrong: of others' environments, unknown ones, tasks and options."""
        mine = {"id": self._id}
        asked: list[tuple[str, dict[str, Any]]] = [
            ("/step", {"id": rng.randrange(2**53), "action": "look"}),
            ("/step", {"id": str(self._id), "action": "look"}),
            ("/step", mine | {"action": 3}),
            ("/step", mine),
            ("/reset", {"id": rng.randrange(2**53)}),
            ("/create", {"env": "comap/Nothing-v0"}),
            ("/create", {"options": {"data_dir": "/etc"}}),
            *(("/reset", mine | task) for task in WRONG_TASKS),
        ]
        if rng.random() < 0.1:
            return self._line.send(f"/detail?id={rng.randrange(2**53)}", b"", method="GET")
        return self._line.ask(*rng.choice(asked))

    def close(self) -> Answer:
        """Close the environment."""
        answer = self._line.ask("/close", {"id": self._id})
        closed = answer.status == 200 and answer.told["closed"]
        return answer if closed else Answer(answer.status if answer.status != 200 else 404)

    def leave(self) -> None:
        """Go away without a word."""


MCP_HEADERS = {"Accept": "application/json, text/event-stream"}
"""What MCP's requests must tell besides the token."""

_VERSION = "2025-06-18"


def call(method: str, parameters: Mapping[str, Any], number: int | None = 1) -> dict[str, Any]:
    """Return a message of JSON-RPC; without a number a notification.

    Example:
        >>> call("ping", {})
        {'jsonrpc': '2.0', 'id': 1, 'method': 'ping', 'params': {}}
    """
    numbered = {} if number is None else {"id": number}
    return {"jsonrpc": "2.0", **numbered, "method": method, "params": dict(parameters)}


class McpGuest:
    """A client of MCP's streamable HTTP.

    Args:
        line: To the server.
    """

    hello = call(
        "initialize",
        {
            "protocolVersion": _VERSION,
            "capabilities": {},
            "clientInfo": {"name": "siege", "version": "1"},
        },
    )
    """What a session begins with."""

    def __init__(self, line: Line):
        self._line, self._session, self._number = line, "", 1

    def open(self) -> Answer:
        """Begin a session."""
        self._session = ""
        answer = self._line.ask("", self.hello)
        self._session = answer.headers.get("mcp-session-id", "")
        if answer.status != 200:
            return answer
        status = self._send(call("notifications/initialized", {}, None)).status
        return answer if status == 202 else Answer(status)

    def reset(self, seed: int) -> Answer:
        """Start the episode of a seed."""
        return self._tool("reset", {"seed": seed})

    def step(self, action: str) -> Answer:
        """Take an action."""
        return self._tool("act", {"action": action})

    def wrong(self, rng: random.Random) -> Answer:
        """Ask something wrong: of unknown sessions, tools, methods and tasks."""
        kind = rng.randrange(6)
        if kind == 0:
            other = {"mcp-session-id": f"{rng.getrandbits(128):032x}"}
            return self._line.ask("", call("tools/list", {}), headers=other)
        if kind == 1:
            return self._line.ask("", call("tools/list", {}))
        if kind == 2:
            return self._tool("no such tool", {})
        if kind == 3:
            return self._tool("act", {})
        if kind == 4:
            return self._answered(self._send(call("no/such/method", {}, 99)))
        return self._tool("reset", rng.choice(WRONG_TASKS))

    def close(self) -> Answer:
        """End the session."""
        headers = {"mcp-session-id": self._session, "mcp-protocol-version": _VERSION}
        return self._line.send("", b"", method="DELETE", headers=headers)

    def leave(self) -> None:
        """Go away without a word."""

    def _tool(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        self._number += 1
        asked = call("tools/call", {"name": name, "arguments": arguments}, self._number)
        return self._answered(self._send(asked))

    def _send(self, asked: Any) -> Answer:
        headers = {"mcp-protocol-version": _VERSION}
        if self._session:
            headers["mcp-session-id"] = self._session
        return self._line.ask("", asked, headers=headers)

    @staticmethod
    def _answered(answer: Answer) -> Answer:
        """Return a tool's answer as one of HTTP: an error that it tells has the status 400."""
        if answer.status != 200 or not isinstance(answer.told, Mapping):
            return Answer(answer.status or 0, answer.told)
        result = answer.told.get("result")
        if not isinstance(result, Mapping) or result.get("isError"):
            return Answer(400, answer.told)
        return Answer(200, result.get("structuredContent"))
