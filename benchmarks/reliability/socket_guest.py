"""A client of `comap serve env --style openenv`, by WebSocket messages."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from typing import Any
from urllib.parse import urlsplit

from .guests import WRONG_TASKS
from .served import TIMEOUT, Answer, Line

__all__ = ["OpenEnvGuest", "knock_socket"]


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
            *({"type": "reset", "data": task} for task in WRONG_TASKS),
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

        with contextlib.suppress(
            ConnectionClosed
        ):  # what the server had said before is still there
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
