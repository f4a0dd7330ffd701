"""Clients of `comap serve env` in each of its styles, by plain HTTP and WebSocket messages."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from .served import TIMEOUT, Answer, Line

__all__ = ["MCP_HEADERS", "AgentGymGuest", "McpGuest", "OpenEnvGuest", "call", "knock_socket"]

_NOWHERE = 2**52 + 1
_TASKS: tuple[dict[str, Any], ...] = (
    {"task": "../../etc/passwd"},
    {"task": "x" * 10_000},
    {"data_idx": -1},
    {"data_idx": 10**9},
    {"seed": "x"},
    {"seed": -1},
    {"task": 1},
)


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
            *(("/reset", mine | task) for task in _TASKS),
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
        return self._tool("reset", rng.choice(_TASKS))

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


class OpenEnvGuest:
    """A client of OpenEnv's WebSocket.

    Args:
        line: To the server.
    """

    def __init__(self, line: Line):
        self._line = line
        self._socket: Any = None

    def open(self) -> Answer:
        """Connect; the server tells at once where as many as may be are connected."""
        from websockets.exceptions import InvalidStatus, WebSocketException

        try:
            self._socket = _connected(self._line.url, self._line.token)
        except InvalidStatus as error:
            return Answer(error.response.status_code)
        except (OSError, WebSocketException):
            return Answer(0)
        answer = self._ask({"type": "state"})
        return Answer(200) if answer.status == 200 else answer

    def reset(self, seed: int) -> Answer:
        """Start the episode of a seed."""
        return self._ask({"type": "reset", "data": {"seed": seed}})

    def step(self, action: str) -> Answer:
        """Take an action."""
        return self._ask({"type": "step", "data": {"action": action}})

    def wrong(self, rng: random.Random) -> Answer:
        """Ask something wrong: messages, tasks, options; and by other connections sessions."""
        kind = rng.randrange(8)
        if kind == 0:
            return self._beside(f"?session_id={rng.getrandbits(64):x}", {"type": "state"})
        if kind == 1:
            odd = rng.choice(("[]", "[" * 50_000, b"\xff\x00", '{"type": ["x"]}', '"\\ud800"', "1"))
            return self._beside("", odd)
        if kind == 2:
            return self._told("{")
        asked: tuple[dict[str, Any], ...] = (
            {"type": "nonsense"},
            {"type": "\ud800"},
            {"type": "step", "data": {"act": "look"}},
            {"type": "step", "data": {"action": 3}},
            {"type": "step"},
            {"type": "reset", "data": {"data_dir": "/etc"}},
            *({"type": "reset", "data": task} for task in _TASKS),
        )
        return self._ask(rng.choice(asked))

    def close(self) -> Answer:
        """Say goodbye and hang up."""
        with contextlib.suppress(Exception):
            self._socket.send(json.dumps({"type": "close"}))
            self._socket.close()
            return Answer(200)
        return Answer(0)

    def leave(self) -> None:
        """Break the connection off."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.socket.shutdown(socket.SHUT_RDWR)

    def _beside(self, query: str, said: Any) -> Answer:
        """Say something on a connection of its own."""
        other = OpenEnvGuest(self._line)
        other._socket = _connected(self._line.url, self._line.token, query)
        answer = other._ask(said) if isinstance(said, dict) else other._told(said)
        other.close()
        return answer

    def _ask(self, data: Any) -> Answer:
        return self._told(json.dumps(data))

    def _told(self, said: str | bytes) -> Answer:
        """Say something and return the answer as one of HTTP."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):  # what the server had said before is still there
            self._socket.send(said)
        try:
            told = json.loads(self._socket.recv(TIMEOUT))
        except ConnectionClosed as error:
            return Answer(400 if error.rcvd is not None else 0, repr(error))
        except (TimeoutError, ValueError) as error:
            return Answer(0, repr(error))
        data = told["data"]
        if told["type"] == "error":
            return Answer(503 if data.get("code") == "CAPACITY_REACHED" else 400, data)
        observation = data.get("observation")
        if isinstance(observation, dict):
            return Answer(200, observation | {"reward": data.get("reward")})
        return Answer(200, data)


def _connected(url: str, token: str | None, query: str = "") -> Any:
    """Return a WebSocket to an OpenEnv server."""
    from websockets.sync.client import connect

    place = urlsplit(url)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return connect(
        f"ws://{place.netloc}/ws{query}",
        additional_headers=headers,
        proxy=None,
        compression=None,
        open_timeout=TIMEOUT,
        close_timeout=10,
        ping_interval=None,
        max_size=2**24,
    )


def knock_socket(url: str, token: str | None) -> int:
    """Return the status that a WebSocket is refused with; 101 where it is not."""
    from websockets.exceptions import InvalidStatus

    try:
        with _connected(url, token):
            return 101
    except InvalidStatus as error:
        return error.response.status_code
