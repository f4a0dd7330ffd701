"""The client of `EnvironmentServer`, in the standard library alone."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlencode, urlsplit

from ..envs.http_exchange import MAX_ANSWER_BYTES
from ..errors import CoMapError, EngineError, OptionError

__all__ = ["RemoteEnvironment", "RequestRefused"]

_FRESH = (
    4.0  # seconds that a connection may rest and be used again; servers hang up some time after
)


class RequestRefused(CoMapError):
    """A server did not do what it was asked; the message is its own.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, status: int, said: str):
        super().__init__(f"the server refused ({status}): {said}")
        self.status = status


class RemoteEnvironment:
    """An environment on an `EnvironmentServer`; opened when it is made, closed by `close` or ``with``.

    Its methods return the server's answers as they are: see `EnvironmentServer`. It keeps its
    connection from one request to the next, so that it is for one thread at a time.

    Args:
        url: The server's address, without a path.
        env: Which of the server's environments; None for its first.
        options: Its options, those that the server allows.
        token: The server's token.
        timeout: Seconds that an answer may take.

    Raises:
        OptionError: The address is none.
        RequestRefused: The server does not open such an environment.
        EngineError: There is no such server, or it does not answer in time.
    """

    def __init__(
        self,
        url: str,
        env: str | None = None,
        options: Mapping[str, Any] | None = None,
        token: str | None = None,
        timeout: float = 60.0,
    ):
        self._line: http.client.HTTPConnection | None = None
        self._used = 0.0
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise OptionError(
                "expected an address such as http://127.0.0.1:8000, found something else"
            )
        self._secure, self._place = parts.scheme == "https", (parts.hostname, parts.port)
        self._path, self._timeout, self._token = parts.path.rstrip("/"), timeout, token
        asked: dict[str, Any] = {} if env is None else {"env": env}
        asked |= {"options": dict(options)} if options else {}
        try:
            created = self._ask("POST", "/create", asked)
        except BaseException:
            self.hang_up()
            raise
        self.id = created["id"]
        self.tasks: int = created["tasks"]

    def reset(self, **asked: Any) -> dict[str, Any]:
        """Start an episode of a ``task``, of that at ``data_idx``, or of any (by its ``seed``)."""
        told: dict[str, Any] = self._ask("POST", "/reset", {"id": self.id} | asked)
        return told

    def step(self, action: str) -> dict[str, Any]:
        """Take an action."""
        told: dict[str, Any] = self._ask("POST", "/step", {"id": self.id, "action": action})
        return told

    def observation(self) -> str:
        """Return the present observation."""
        return str(self._ask("GET", f"/observation?{urlencode({'id': self.id})}"))

    def available_actions(self) -> list[str] | None:
        """Return the actions that would do something, or None where any text may."""
        told: list[str] | None = self._ask(
            "GET", f"/available_actions?{urlencode({'id': self.id})}"
        )
        return told

    def close(self) -> None:
        """Close the environment on the server."""
        try:
            self._ask("POST", "/close", {"id": self.id})
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        """End the connection, if there is one; the next request makes another."""
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def __enter__(self) -> RemoteEnvironment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, method: str, path: str, asked: Mapping[str, Any] | None = None) -> Any:
        headers = {"content-type": "application/json"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        body = None if asked is None else json.dumps(asked).encode()
        try:
            line = self._connection()
            line.request(method, self._path + path, body, headers)
            response = line.getresponse()
            found, status = response.read(MAX_ANSWER_BYTES + 1), response.status
        except (OSError, http.client.HTTPException) as error:
            self.hang_up()
            raise EngineError(
                f"expected an answer of the environment server, found {type(error).__name__}: {error}"
            ) from error
        except (
            BaseException
        ):  # stopped while it waited: the answer would be taken for the next one's
            self.hang_up()
            raise
        self._used = time.monotonic()
        if len(found) > MAX_ANSWER_BYTES:
            self.hang_up()
            raise EngineError(f"expected an answer of at most {MAX_ANSWER_BYTES:,} bytes")
        try:
            told = json.loads(found)
        except (ValueError, RecursionError) as error:
            raise EngineError(f"expected JSON of the environment server, found {error}") from error
        if status != 200:
            said = told.get("error", "") if isinstance(told, dict) else told
            raise RequestRefused(status, f"{said!s:.500}")
        return told

    def _connection(self) -> http.client.HTTPConnection:
        """Return a connection; one that rested is not trusted, for a step must not be asked twice."""
        if time.monotonic() - self._used > _FRESH:
            self.hang_up()
        if self._line is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._line = kind(*self._place, timeout=self._timeout)
        return self._line
