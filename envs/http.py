"""JSON over HTTP: applications behind one guard, run by uvicorn.

- `Guard`: the middleware of every server. It checks the token, refuses web pages (by Origin, Host and
  Content-Type), and bounds the size of requests and answers and the time to receive a request.
- `Server`: uvicorn with limits, at an address of this machine.
- `json_app`: an application of JSON routes; a limit of time for each answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import logging
import os
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn, TypeAlias
from urllib.parse import urlsplit

from ..errors import CoMapError, OptionError, needs_extra

MAX_REQUEST_BYTES = 2**20
MOST_CONNECTIONS = 512
"""How many connections a server has at the same time; a further one gets status 503."""
MAX_ANSWER_BYTES = 2**23
"""The largest answer."""
MOST_UNSENT_BYTES = 2**26
"""How much of all large answers may wait in memory until clients read it."""
ANSWER_SECONDS = 60.0
"""The most seconds for an answer: a search, a call of a tool, a step."""
CLIENT: ContextVar[str] = ContextVar("CLIENT", default="")
"""The address of the client whose request is answered."""

_TIMEOUT = 30.0  # seconds for headers, for a body, and for each part of an answer to be read
_KEEP_ALIVE = 75  # idle seconds after an answer, in which a client's model may think
_LINGER = 2.0  # seconds for the rest of a refused request
_PART_BYTES = 2**16
_LOG = logging.getLogger("comap.serve")
_SHORTEST_TOKEN = 16
_TOKEN_VARIABLE = "COMAP_SERVE_TOKEN"
_JSON = "application/json"

_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]


class Refused(CoMapError):
    """A request that is not answered, with the status that says so."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def is_loopback(host: str) -> bool:
    """Return whether only this machine itself reaches an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_exposure(host: str, token: str | None, *, is_private: bool = False) -> None:
    """Raise unless `host` is loopback, a token is set, or nobody else reaches the network."""
    if token is not None and len(token) < _SHORTEST_TOKEN:
        raise OptionError(
            f"expected a token of at least {_SHORTEST_TOKEN} characters, found {len(token)}; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
        )
    if token is None and not is_loopback(host) and not is_private:
        raise OptionError(
            f"other machines can reach {host}: expected a token that requests must send, found "
            f"none; leave --no-token out, give a file with one (--token-file) or set {_TOKEN_VARIABLE}"
        )


def read_token(path: str | os.PathLike[str] | None = None) -> str | None:
    """Return the token in a file, or else that of the variable ``COMAP_SERVE_TOKEN``, or else None."""
    if path is None:
        token = os.environ.get(_TOKEN_VARIABLE, "").strip()
        if not token:
            return None
    else:
        try:
            token = Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"expected a file with a token: {error}; write one there") from error

    # The token travels in a header, which has neither blanks at its ends nor letters beyond ASCII.
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise OptionError(
            f"expected a token of plain characters without blanks in {path or _TOKEN_VARIABLE}, found "
            "something else; write one there"
        )
    return token


def new_token() -> str:
    return secrets.token_urlsafe(24)


class Guard:
    """An ASGI middleware that passes on requests of programs, with the token, and of bounded size."""

    def __init__(self, app: Any, host: str, token: str | None = None, *, is_private: bool = False):
        check_exposure(host, token, is_private=is_private)
        self._app = app
        self._token = token
        self._is_local = is_loopback(host)
        self.unsent = 0  # bytes of large answers that clients have not read

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] not in ("http", "websocket"):  # the lifespan of the application
            await self._app(scope, receive, send)
            return

        CLIENT.set((scope.get("client") or ("",))[0])
        answer = _Answer(self, scope, send)
        is_request = scope["type"] == "http"
        try:
            try:
                self._check_headers(_headers(scope))
            except Refused:
                if is_request:
                    await _discard_rest(receive)
                raise
            await self._app(scope, await _whole(receive) if is_request else receive, answer.send)
        except Refused as refusal:
            await answer.refuse(refusal)
        except Exception as error:
            await answer.fail(error)
        finally:
            self.unsent -= answer.unsent

    def reserve(self, size: int) -> int:
        """Count an answer's bytes as unsent; return how many were counted."""
        if size > MAX_ANSWER_BYTES:
            raise Refused(
                422,
                f"expected to ask for at most {MAX_ANSWER_BYTES:,} bytes, found {size:,}; ask for less",
            )
        if size <= _PART_BYTES:  # the socket's buffer holds a small answer
            return 0
        if self.unsent + size > MOST_UNSENT_BYTES:
            raise Refused(503, "other answers wait to be read; try later")
        self.unsent += size
        return size

    def _check_headers(self, headers: Mapping[str, str]) -> None:
        if self._token is not None:
            sent = headers.get("authorization", "").encode("utf-8", "replace")
            expected = f"Bearer {self._token}".encode()
            # The comparison takes the same time however many letters are right.
            if not hmac.compare_digest(sent, expected):
                raise Refused(
                    401, "expected the header 'Authorization: Bearer TOKEN' with the token"
                )

        # A browser sends Origin or Sec-Fetch-Site with what a page of another site asks for.
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            raise Refused(403, "expected a program, found a web page (the header Origin)")

        # A page may have its own name lead to 127.0.0.1 (DNS rebinding); Host still has that name.
        try:
            host = urlsplit(f"//{headers.get('host', '')}").hostname or "localhost"
        except ValueError:
            raise Refused(400, "expected a name in the header Host, found none") from None
        if self._is_local and not is_loopback(host):
            raise Refused(403, "expected a request for this machine itself (the header Host)")

        # Pages can send forms and plain text to other sites without being asked; JSON they cannot.
        content_type = headers.get("content-type", _JSON).partition(";")[0].strip().lower()
        if content_type != _JSON:
            raise Refused(415, f"expected Content-Type: {_JSON}, found {content_type:.60}")

        # Two lengths are how requests are smuggled past a proxy.
        if {"content-length", "transfer-encoding"} <= headers.keys():
            raise Refused(400, "expected one of Content-Length and Transfer-Encoding, found both")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 9 or int(length) > MAX_REQUEST_BYTES:
            raise _too_large()


def _headers(scope: _Message) -> dict[str, str]:
    pairs = scope["headers"]
    return {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in pairs}


async def _whole(receive: _Receive) -> _Receive:
    """Read a request's body, check it, and return a function that receives it in one message."""
    body = bytearray()
    try:
        async with asyncio.timeout(_TIMEOUT):
            while True:
                message = await receive()
                body += message.get("body", b"")
                if len(body) > MAX_REQUEST_BYTES:
                    break
                if not message.get("more_body"):  # the last part, or the client has hung up
                    break
    except TimeoutError as error:
        raise Refused(408, f"expected the request within {_TIMEOUT:.0f} seconds") from error

    if len(body) > MAX_REQUEST_BYTES:
        if message.get("more_body"):
            await _discard_rest(receive)
        raise _too_large()
    _check_json(bytes(body))

    waiting = [{"type": "http.request", "body": bytes(body), "more_body": False}]
    if message["type"] != "http.request":
        waiting.append(dict(message))

    async def receive_again() -> _Message:
        return waiting.pop(0) if waiting else await receive()

    return receive_again


async def _discard_rest(receive: _Receive) -> None:
    """Read what is left of a body, for a moment.

    Closing a connection with unread bytes resets it, and the client would see the reset in place of the
    refusal.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while (await receive()).get("more_body"):
                pass


def _check_json(body: bytes) -> None:
    """Raise unless a body is empty, or JSON whose texts are UTF-8."""
    if not body:
        return
    try:
        content = json.loads(body, parse_constant=_refuse_constant)

        # Only an escape can be half of a surrogate pair, which no later reader could encode.
        if b"\\u" in body:
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Refused(400, "expected texts of whole characters, found half of one") from error
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"expected JSON, found something else ({error})"[:300]) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _too_large() -> Refused:
    return Refused(413, f"expected at most {MAX_REQUEST_BYTES:,} bytes")


class _Answer:
    """The answer to one client: sent at the pace at which it reads, or refused."""

    def __init__(self, guard: Guard, scope: _Message, send: _Send):
        self._guard = guard
        self._send = send
        self._path = scope.get("path", "")
        self._is_websocket = scope["type"] == "websocket"
        # Servers with this extension can answer a WebSocket's handshake by a status and a text.
        self._has_status = "websocket.http.response" in (scope.get("extensions") or {})
        self._is_begun = False
        self._is_refused = False
        self.unsent = 0  # bytes that the guard counts for this answer

    async def send(self, message: _Message) -> None:
        """Send a message, a large body in parts: each once the client has read enough of the last."""
        if message["type"] == "http.response.start":
            size = int(dict(message.get("headers", ())).get(b"content-length", 0))
            try:
                self.unsent = self._guard.reserve(size)
            except Refused as refusal:
                await self.refuse(refusal)
        if self._is_refused:
            return

        self._is_begun = True
        rest = memoryview(message.get("body", b""))
        while len(rest) > _PART_BYTES:
            part = bytes(rest[:_PART_BYTES])
            await self._send({**message, "body": part, "more_body": True})
            rest = rest[_PART_BYTES:]
        await self._send({**message, "body": bytes(rest)} if "body" in message else message)

    async def refuse(self, refusal: Refused) -> None:
        """Send why nothing is answered, and close the connection."""
        self._is_refused = True
        if self._is_websocket and not self._has_status:
            reason = str(refusal)[:100]
            await self._send({"type": "websocket.close", "code": 1008, "reason": reason})
            return

        prefix = "websocket.http" if self._is_websocket else "http"
        body = json.dumps({"error": str(refusal)}).encode()
        headers = [
            (b"content-type", _JSON.encode()),
            (b"connection", b"close"),
            (b"content-length", str(len(body)).encode()),
        ]
        start = {"type": f"{prefix}.response.start", "status": refusal.status, "headers": headers}
        await self._send(start)
        await self._send({"type": f"{prefix}.response.body", "body": body})

    async def fail(self, error: Exception) -> None:
        """Log in one line that the application failed, and say so to the client if it is there."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} at line {frame.lineno} of {frame.name}"
        _LOG.warning("a request of %.80r failed (%s)", self._path, place)

        with contextlib.suppress(Exception):  # the client may have hung up
            if not self._is_begun:
                await self.refuse(Refused(500, f"the request failed ({type(error).__name__})"))
            elif self._is_websocket:
                await self._send({"type": "websocket.close", "code": 1011, "reason": "it failed"})


class Server:
    """An ASGI application at an address of this machine; port 0 is any that is free.

    `run` serves until the process is told to stop; as a context manager it serves from a thread.
    """

    def __init__(self, app: Any, host: str = "127.0.0.1", port: int = 0):
        with needs_extra("serve", "serving"):
            import uvicorn

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((host, port))
            self._listener.listen(128)
        except OSError:
            self._listener.close()
            raise

        config = uvicorn.Config(
            app,
            http=_timed_protocol(),
            log_level="warning",
            ws_max_size=MAX_REQUEST_BYTES,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE,  # 5 seconds by default, in which few models answer
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.run, daemon=True, name="comap-serve")

    @property
    def base(self) -> str:
        host, port = self._listener.getsockname()[:2]
        if ":" in host:
            host = f"[{host}]"
        return f"http://{host}:{port}"

    def run(self) -> None:
        with self._listener:
            self._server.run(sockets=[self._listener])

    def __enter__(self) -> Server:
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


def _timed_protocol() -> Any:
    """Return uvicorn's HTTP/1.1 with the two limits of time that it has not.

    uvicorn ends a connection that is idle after an answer. One that never sends a whole request, or does
    not read its answer, it keeps for ever: 512 of these would fill the server.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class TimedProtocol(H11Protocol):
        _request_timer: Any = None
        _reading_timer: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_request(_TIMEOUT)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            # uvicorn ends it where nothing comes; this is for a next request that never ends.
            self._await_request(_KEEP_ALIVE + _TIMEOUT)

        def _await_request(self, seconds: float) -> None:
            if self._request_timer is not None:
                self._request_timer.cancel()
            self._request_timer = self.loop.call_later(seconds, self._end_without_request)

        def _end_without_request(self) -> None:
            if self.transport.get_protocol() is not self:  # a WebSocket by now
                return
            is_answering = self.cycle is not None and not self.cycle.response_complete
            if is_answering and not self.transport.is_closing():
                self._await_request(_TIMEOUT)
            else:
                self.transport.abort()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._reading_timer = self.loop.call_later(_TIMEOUT, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._reading_timer.cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._request_timer, self._reading_timer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

    return TimedProtocol


def json_app(
    routes: Mapping[str, tuple[str, ...]],
    answer: Callable[[str, str, Any], Any],
    *,
    host: str,
    token: str | None = None,
    lifespan: Any = None,
    seconds: float = ANSWER_SECONDS,
) -> Guard:
    """Return an application that answers requests with JSON.

    `routes` has the methods of each path. `answer`, called in a thread, gets a method, a path and what
    was asked: the JSON data of a body, or the names and texts of a query. It may take some seconds.
    """
    with needs_extra("serve", "serving"):
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse
        from starlette.routing import Route, WebSocketRoute

    async def respond(request: Any) -> Any:
        method = request.method
        path = request.url.path.rstrip("/") or "/"
        _check_route(routes, method, path)

        body = await request.body()
        if method == "GET":
            if body:
                raise Refused(400, "expected GET without a body, found one")
            parameters: Any = dict(request.query_params)
        else:
            parameters = json.loads(body) if body else {}

        answering = asyncio.ensure_future(run_in_threadpool(answer, method, path, parameters))
        done, _ = await asyncio.wait([answering], timeout=seconds)
        if not done:
            # Its thread cannot be ended; a late error is read, so that asyncio does not log it.
            answering.add_done_callback(lambda late: late.exception())
            raise Refused(504, f"expected an answer within {seconds:g} s, found none")
        return JSONResponse(await answering)

    async def handle(request: Any) -> Any:
        try:
            return await respond(request)
        except Refused as refusal:
            return JSONResponse({"error": str(refusal)}, refusal.status)
        except OptionError as error:  # what the client asked for cannot be had
            return JSONResponse({"error": str(error)}, 422)
        except CoMapError as error:
            return JSONResponse({"error": str(error)}, 500)
        except Exception as error:
            path = request.url.path.rstrip("/") or "/"
            _LOG.warning("a request of %.80r failed (%s)", path, type(error).__name__)
            return JSONResponse({"error": f"the request failed ({type(error).__name__})"}, 500)

    async def handle_socket(socket: Any) -> None:
        path = socket.url.path
        raise Refused(404, f"expected requests of HTTP, found a WebSocket to {path!r:.80}")

    # One route takes all paths and methods, so that a wrong one is told what there is.
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
    route = Route("/{path:path}", handle, methods=methods)
    socket_route = WebSocketRoute("/{path:path}", handle_socket)
    return Guard(Starlette(routes=[route, socket_route], lifespan=lifespan), host, token)


def _check_route(routes: Mapping[str, tuple[str, ...]], method: str, path: str) -> None:
    if path not in routes:
        offers = ", ".join(f"{' or '.join(methods)} {route}" for route, methods in routes.items())
        raise Refused(404, f"expected {offers}; found {method} {path!r:.80}")
    if method not in routes[path]:
        allowed = " or ".join(routes[path])
        raise Refused(405, f"expected {allowed} {path}, found {method}")
