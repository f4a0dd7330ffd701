"""What web applications of other packages are wrapped in: a token, no web pages, bounded requests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from ..envs.json_server import MAX_REQUEST_BYTES, Refused, check_exposure, is_loopback, same_token

__all__ = ["Guard"]

_Scope: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """An ASGI application that hands on what may ask, by the rules of `comap.envs.json_server`.

    Requests must tell the token where there is one; those of web pages (with ``Origin``) are refused,
    and where only this machine reaches the server those for another host. A body is at most
    `MAX_REQUEST_BYTES`. Refusals are ``{"error": ...}``.

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
        try:
            self._check(_headers(scope))
            if scope["type"] == "http":
                receive = await _whole(receive)
        except Refused as refused:
            await _refuse(scope["type"], refused, send)
            return
        await self._app(scope, receive, send)

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


def _headers(scope: _Scope) -> dict[str, str]:
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


async def _whole(receive: _Receive) -> _Receive:
    """Read a body and return what tells it again, and then what comes after it."""
    body = bytearray()
    last: MutableMapping[str, Any] | None = None
    while True:
        message = await receive()
        if message["type"] != "http.request":
            last = message
            break
        body += message.get("body", b"")
        if len(body) > MAX_REQUEST_BYTES:
            raise _too_large()
        if not message.get("more_body"):
            break
    waiting = [{"type": "http.request", "body": bytes(body), "more_body": False}, last]

    async def again() -> MutableMapping[str, Any]:
        while waiting:
            message = waiting.pop(0)
            if message is not None:
                return message
        return await receive()

    return again


def _too_large() -> Refused:
    return Refused(413, f"expected at most {MAX_REQUEST_BYTES:,} bytes")


async def _refuse(kind: str, refused: Refused, send: _Send) -> None:
    if kind == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": str(refused)[:100]})
        return
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    body = json.dumps({"error": str(refused)}).encode()
    await send({"type": "http.response.body", "body": body})
