"""What web applications of other packages are wrapped in: a token, no web pages, bounded requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from ..envs.json_server import MAX_REQUEST_BYTES, Refused, check_exposure, is_loopback, same_token

__all__ = ["Guard"]

_TIMEOUT = 30.0
_LINGER, _MOST_LINGERED = 2.0, 2**26
_LOG = logging.getLogger("comap.serve")

_Scope: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """An ASGI application that hands on what may ask, by the rules of `comap.envs.json_server`.

    Requests must tell the token where there is one; those of web pages (with ``Origin``) are refused,
    and where only this machine reaches the server those for another host. A body is at most
    `MAX_REQUEST_BYTES`, of JSON whose texts are whole characters, and comes within 30 seconds. Refusals
    are ``{"error": ...}``; so is what fails in the application, with the status 500 and one line of log
    that says where.

    Args:
        app: What answers.
        host: Where it listens.
        token: What requests must tell as ``Authorization: Bearer TOKEN``.

    Raises:
        OptionError: Other machines reach the address and there is no token, or the token is short.
    """

    def __init__(self, app: Any, host: str, token: str | None = None):
        check_exposure(host, token)
        self._app, self._token = app, token
        self._only_here = is_loopback(host)

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer one request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        answer, body = _Answer(scope, send), _Body(receive)
        try:
            self._check(_headers(scope))
            handed = await body.whole() if scope["type"] == "http" else receive
        except Refused as refused:
            if scope["type"] == "http":
                await body.drain()
            await answer.refuse(refused)
            return
        try:
            await self._app(scope, handed, answer.send)
        except Exception as error:
            await answer.fail(error)

    def _check(self, headers: dict[str, str]) -> None:
        if self._token is not None and not same_token(headers.get("authorization"), self._token):
            raise Refused(401, "expected the header 'Authorization: Bearer TOKEN' with the token")
        if "origin" in headers:
            raise Refused(403, "expected a program, found a web page (the header Origin)")
        host = urlsplit(f"//{headers.get('host', '')}").hostname or "localhost"
        if self._only_here and not is_loopback(host):
            raise Refused(403, "expected a request for this machine itself (the header Host)")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 9 or int(length) > MAX_REQUEST_BYTES:
            raise _too_large()


class _Answer:
    """What is sent to one client, and how far it is."""

    def __init__(self, scope: _Scope, send: _Send):
        self._kind, self._path, self._send = scope["type"], scope.get("path", ""), send
        self._by_status = "websocket.http.response" in (scope.get("extensions") or {})
        self._begun = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send what the application says."""
        self._begun = True
        await self._send(message)

    async def refuse(self, refused: Refused) -> None:
        """Tell why nothing is answered."""
        if self._kind == "websocket" and not self._by_status:
            reason = str(refused)[:100]
            await self._send({"type": "websocket.close", "code": 1008, "reason": reason})
            return
        kind = "http" if self._kind == "http" else "websocket.http"
        body = json.dumps({"error": str(refused)}).encode()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        headers.append((b"content-length", str(len(body)).encode()))
        start = {"type": f"{kind}.response.start", "status": refused.status, "headers": headers}
        await self._send(start)
        await self._send({"type": f"{kind}.response.body", "body": body})

    async def fail(self, error: Exception) -> None:
        """Tell that the application failed: in one line of log, and to the client if it is there."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__} at line {frame.lineno} of {frame.name}"
        _LOG.warning("a request of %.80r failed (%s)", self._path, told)
        with contextlib.suppress(Exception):  # who has hung up is told nothing
            if not self._begun:
                await self.refuse(Refused(500, f"the request failed ({type(error).__name__})"))
            elif self._kind == "websocket":
                await self._send({"type": "websocket.close", "code": 1011, "reason": "it failed"})


def _headers(scope: _Scope) -> dict[str, str]:
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


class _Body:
    """The body of a request, and how far it was read."""

    def __init__(self, receive: _Receive):
        self._receive, self._over = receive, False

    async def whole(self) -> _Receive:
        """Read it and return what tells it again, and then what comes after it."""
        try:
            body, last = await asyncio.wait_for(self._read(), _TIMEOUT)
        except asyncio.TimeoutError as error:
            raise Refused(408, f"expected the request within {_TIMEOUT:.0f} seconds") from error
        _check_json(body)
        waiting = [{"type": "http.request", "body": body, "more_body": False}, last]

        async def again() -> MutableMapping[str, Any]:
            while waiting:
                message = waiting.pop(0)
                if message is not None:
                    return message
            return await self._receive()

        return again

    async def drain(self) -> None:
        """Let the rest of it come, for a moment: a reset would lose the refusal."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._rest(), _LINGER)

    async def _rest(self) -> None:
        left = _MOST_LINGERED
        while left > 0 and not self._over:
            left -= len((await self._next()).get("body", b""))

    async def _read(self) -> tuple[bytes, MutableMapping[str, Any] | None]:
        """Return the body, and what came in place of its end."""
        body = bytearray()
        while not self._over:
            message = await self._next()
            if message["type"] != "http.request":
                return bytes(body), message
            body += message.get("body", b"")
            if len(body) > MAX_REQUEST_BYTES:
                raise _too_large()
        return bytes(body), None

    async def _next(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self._over = message["type"] != "http.request" or not message.get("more_body")
        return message


def _check_json(body: bytes) -> None:
    """Do nothing, if a body is empty, or JSON that can be told in UTF-8."""
    if not body:
        return
    try:
        found = json.loads(body)
        if b"\\u" in body:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Refused(400, "expected texts of whole characters, found half of one") from error
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"expected JSON, found something else ({error})"[:300]) from error


def _too_large() -> Refused:
    return Refused(413, f"expected at most {MAX_REQUEST_BYTES:,} bytes")
