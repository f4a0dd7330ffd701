"""JSON over HTTP: applications behind one guard, run by uvicorn, and exchanges with other servers.

The guard of every server checks the token and refuses web pages (by Origin, Host and Content-Type). It
bounds the size of requests and answers, and the time for a request, an answer and the reading of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http.client
import ipaddress
import json
import logging
import os
import queue
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
MAX_ANSWER_BYTES, MOST_UNSENT_BYTES = 2**23, 2**26
"""The largest answer, and how much of all answers may wait until clients read it."""
ANSWER_SECONDS = 60.0
"""The most seconds for an answer: a search, a call of a tool, a step."""
CLIENT: ContextVar[str] = ContextVar("CLIENT", default="")
"""The address of the client whose request is answered."""

_TIMEOUT = 30.0  # seconds for headers, for a body, and for each part of an answer to be read
_PART = 2**16
_LINGER, _MOST_LINGERED = 2.0, 2**26
_LOG = logging.getLogger("comap.serve")
_SHORTEST_TOKEN = 16
_TOKEN_VARIABLE = "COMAP_SERVE_TOKEN"
_JSON = "application/json"

_Scope: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Refused(CoMapError):
    """A request that is not answered."""

    def __init__(self, status: int, said: str):
        super().__init__(said)
        self.status = status


def is_loopback(host: str) -> bool:
    """Return whether only this machine itself reaches an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_exposure(host: str, token: str | None) -> None:
    """Raise unless `host` is loopback or a token is set."""
    if token is not None and len(token) < _SHORTEST_TOKEN:
        raise OptionError(
            f"expected a token of at least {_SHORTEST_TOKEN} characters, found {len(token)}; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
        )
    if token is None and not is_loopback(host):
        raise OptionError(
            f"other machines can reach {host}: expected a token that requests must send, found "
            f"none; leave --no-token out, give a file with one (--token-file) or set {_TOKEN_VARIABLE}"
        )


def read_token(path: str | os.PathLike[str] | None = None) -> str | None:
    """Return the token in a file, or else that of the variable ``COMAP_SERVE_TOKEN``, or else None."""
    if path is None:
        found = os.environ.get(_TOKEN_VARIABLE, "").strip()
    else:
        try:
            found = Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"expected a file with a token: {error}; write one there") from error
    if not found and path is None:
        return None
    if not (found.isascii() and found.isprintable() and found) or " " in found:
        raise OptionError(
            f"expected a token of plain characters without blanks in {path or _TOKEN_VARIABLE}, found "
            "something else; write one there"
        )
    return found


def new_token() -> str:
    return secrets.token_urlsafe(24)


class Guard:
    """An ASGI application that passes requests on: of programs, with the token, and of bounded size."""

    def __init__(self, app: Any, host: str, token: str | None = None):
        check_exposure(host, token)
        self._app, self._token = app, token
        self._only_here = is_loopback(host)
        self.unsent = 0  # bytes of large answers that clients have not read

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        CLIENT.set((scope.get("client") or ("",))[0])
        answer, body = _Answer(scope, send, self), _Body(receive)
        try:
            headers = (
                (key.decode("latin-1"), part.decode("latin-1")) for key, part in scope["headers"]
            )
            self._check({key.lower(): value for key, value in headers})
            handed = await body.whole() if scope["type"] == "http" else receive
        except Refused as refused:
            if scope["type"] == "http":
                await body.drain()
            await answer.refuse(refused)
            return
        try:
            await self._app(scope, handed, answer.send)
        except Refused as refused:
            await answer.refuse(refused)
        except Exception as error:
            await answer.fail(error)
        finally:
            self.unsent -= answer.size

    def _check(self, headers: dict[str, str]) -> None:
        given = headers.get("authorization", "").encode("utf-8", "replace")
        wanted = f"Bearer {self._token}".encode()
        if self._token is not None and not hmac.compare_digest(given, wanted):
            raise Refused(401, "expected the header 'Authorization: Bearer TOKEN' with the token")
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            raise Refused(403, "expected a program, found a web page (the header Origin)")
        try:
            host = urlsplit(f"//{headers.get('host', '')}").hostname or "localhost"
        except ValueError:
            raise Refused(400, "expected a name in the header Host, found none") from None
        if self._only_here and not is_loopback(host):
            raise Refused(403, "expected a request for this machine itself (the header Host)")
        kind = headers.get("content-type", _JSON).partition(";")[0].strip().lower()
        if kind != _JSON:
            raise Refused(415, f"expected Content-Type: {_JSON}, found {kind:.60}")
        if {"content-length", "transfer-encoding"} <= headers.keys():
            raise Refused(400, "expected one of Content-Length and Transfer-Encoding, found both")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 9 or int(length) > MAX_REQUEST_BYTES:
            raise _too_large()


class _Answer:
    """What is sent to one client, and how far it is; `size` counts where it is large."""

    def __init__(self, scope: _Scope, send: _Send, guard: Guard):
        self._kind, self._path, self._send = scope["type"], scope.get("path", ""), send
        self._by_status = "websocket.http.response" in (scope.get("extensions") or {})
        self._guard, self._begun, self._refused, self.size = guard, False, False, 0

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a message in parts, each once the client has read enough of those before it."""
        if message["type"] == "http.response.start":
            size = int(dict(message.get("headers", ())).get(b"content-length", 0))
            if size > MAX_ANSWER_BYTES:
                await self.refuse(_too_much(size))
            elif size > _PART and self._guard.unsent + size > MOST_UNSENT_BYTES:
                await self.refuse(Refused(503, "other answers wait to be read; try later"))
            elif size > _PART:
                self.size = size
                self._guard.unsent += size
        if self._refused:
            return
        self._begun = True
        body = message.get("body", b"")
        start = 0
        while start + _PART < len(body):
            part = body[start : start + _PART]
            await self._send({**message, "body": part, "more_body": True})
            start += _PART
        await self._send({**message, "body": body[start:]} if start else message)

    async def refuse(self, refused: Refused) -> None:
        """Tell why nothing is answered."""
        self._refused = True
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
        where = f"{type(error).__name__} at line {frame.lineno} of {frame.name}"
        _LOG.warning("a request of %.80r failed (%s)", self._path, where)
        with contextlib.suppress(Exception):  # who has hung up is told nothing
            if not self._begun:
                await self.refuse(Refused(500, f"the request failed ({type(error).__name__})"))
            elif self._kind == "websocket":
                await self._send({"type": "websocket.close", "code": 1011, "reason": "it failed"})


class _Body:
    """The body of a request, and how far it was read."""

    def __init__(self, receive: _Receive):
        self._receive, self._over = receive, False

    async def whole(self) -> _Receive:
        """Read it and return what tells it again, and then what comes after it."""
        try:
            body, last = await asyncio.wait_for(self._read(), _TIMEOUT)
        except TimeoutError as error:
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
    """Raise unless a body is empty, or JSON whose texts are UTF-8."""
    if not body:
        return
    try:
        found = json.loads(body, parse_constant=_refuse_constant)
        if b"\\u" in body:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Refused(400, "expected texts of whole characters, found half of one") from error
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"expected JSON, found something else ({error})"[:300]) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _too_large() -> Refused:
    return Refused(413, f"expected at most {MAX_REQUEST_BYTES:,} bytes")


def _too_much(size: int) -> Refused:
    return Refused(
        422, f"expected to ask for at most {MAX_ANSWER_BYTES:,} bytes, found {size:,}; ask for less"
    )


class Server:
    """An ASGI application at an address of this machine; port 0 is any that is free.

    `run` serves until the process is told to stop; as a context manager it serves from a thread.
    """

    def __init__(self, app: Any, host: str = "127.0.0.1", port: int = 0):
        with needs_extra("serve", "serving"):
            import uvicorn
        self._listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((host, port))
            self._listener.listen(128)
        except OSError:
            self._listener.close()
            raise
        config = uvicorn.Config(
            app,
            http=_protocol(),
            log_level="warning",
            ws_max_size=MAX_REQUEST_BYTES,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.run, daemon=True, name="comap-serve")

    @property
    def base(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

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


def _protocol() -> Any:
    """Return uvicorn's HTTP/1.1 with limits of time where it has none."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Timed(H11Protocol):
        """Ends connections that send no whole headers in time, or do not read what is sent."""

        _idle: Any = None
        _stalled: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in filter(None, (self._idle, self._stalled)):
                timer.cancel()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = self.loop.call_later(_TIMEOUT, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stalled.cancel()

        def _watch(self) -> None:
            if self._idle is not None:
                self._idle.cancel()
            self._idle = self.loop.call_later(_TIMEOUT, self._end_if_idle)

        def _end_if_idle(self) -> None:
            if self.transport.get_protocol() is not self:  # a WebSocket by now
                return
            if self.cycle is None or self.cycle.response_complete or self.transport.is_closing():
                self.transport.abort()
            else:
                self._watch()

    return Timed


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
        from starlette.routing import Route

    async def handle(request: Any) -> Any:
        method, path = request.method, request.url.path.rstrip("/") or "/"
        try:
            if path not in routes:
                known = ", ".join(f"{' or '.join(how)} {name}" for name, how in routes.items())
                raise Refused(404, f"expected {known}; found {method} {path!r:.80}")
            if method not in routes[path]:
                allowed = " or ".join(routes[path])
                raise Refused(405, f"expected {allowed} {path}, found {method}")
            body = await request.body()
            if method == "GET":
                if body:
                    raise Refused(400, "expected GET without a body, found one")
                asked: Any = dict(request.query_params)
            else:
                asked = json.loads(body) if body else {}
            answering = asyncio.ensure_future(run_in_threadpool(answer, method, path, asked))
            if not (await asyncio.wait([answering], timeout=seconds))[0]:
                answering.add_done_callback(
                    lambda late: late.exception()
                )  # its thread cannot be ended
                raise Refused(504, f"expected an answer within {seconds:g} s, found none")
            return JSONResponse(await answering)
        except Refused as refused:
            return JSONResponse({"error": str(refused)}, refused.status)
        except CoMapError as error:
            status = 422 if isinstance(error, OptionError) else 500
            return JSONResponse({"error": str(error)}, status)
        except Exception as error:
            _LOG.warning("a request of %.80r failed (%s)", path, type(error).__name__)
            return JSONResponse({"error": f"the request failed ({type(error).__name__})"}, 500)

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
    route = Route("/{path:path}", handle, methods=methods)
    return Guard(Starlette(routes=[route], lifespan=lifespan), host, token)


_HEADERS = {"content-type": _JSON, "accept-encoding": "identity"}
_CLIENT_TOKEN = "COMAP_CLIENT_TOKEN"


class ExchangeFailure(Exception):
    """An exchange that came to nothing; its message names no address."""

    def __init__(self, said: str, again: bool = False):
        super().__init__(said)
        self.again = again


def post_json(url: str, body: bytes, timeout: float) -> bytes:
    """Send a JSON text, with the token in ``COMAP_CLIENT_TOKEN``, and return the body of the answer."""
    if timeout <= 0:
        raise ExchangeFailure("no time left to ask")
    exchange = _Exchange(url, body, timeout)
    exchange.start()
    try:
        answer = exchange.answers.get(timeout=timeout)
    except queue.Empty:
        raise _late(timeout) from None
    finally:
        exchange.hang_up()
    if isinstance(answer, bytes):
        return answer
    raise answer


class _Exchange(threading.Thread):
    """A thread that asks, and puts bytes or a failure into `answers`; `hang_up` ends it."""

    def __init__(self, url: str, body: bytes, timeout: float):
        super().__init__(daemon=True, name="comap-exchange")
        self.answers: queue.SimpleQueue[bytes | ExchangeFailure] = queue.SimpleQueue()
        self._url, self._body, self._timeout = urlsplit(url), body, timeout
        self._over = threading.Event()
        self._socket: socket.socket | None = None

    def run(self) -> None:
        """Ask once."""
        secure = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        address = (self._url.hostname or "", self._url.port)
        token = os.environ.get(_CLIENT_TOKEN, "").strip()
        headers = _HEADERS | ({"authorization": f"Bearer {token}"} if token else {})
        try:
            with contextlib.closing(kind(*address, timeout=self._timeout)) as connection:
                connection.connect()
                # A connection forgets its socket where the server wants it closed; `hang_up` must not.
                self._socket = connection.sock
                if self._over.is_set():
                    raise TimeoutError
                connection.request("POST", self._url.path or "/", self._body, headers)
                with connection.getresponse() as response:
                    self.answers.put(_read_answer(response))
        except ExchangeFailure as failure:
            self.answers.put(failure)
        except TimeoutError:
            self.answers.put(_late(self._timeout))
        except Exception as error:
            said = f"a broken connection ({type(error).__name__})"
            self.answers.put(ExchangeFailure(said, again=True))

    def hang_up(self) -> None:
        """End the exchange, whatever its thread is waiting for."""
        self._over.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _read_answer(response: http.client.HTTPResponse) -> bytes:
    status = response.status
    if status == 401:
        raise ExchangeFailure(f"the status 401: set {_CLIENT_TOKEN} to the server's token")
    if status != 200:
        raise ExchangeFailure(f"the status {status}", again=status >= 500 or status == 429)
    if response.getheader("content-encoding", "identity").lower() not in ("", "identity"):
        raise ExchangeFailure("a compressed answer, which was not asked for")
    found = bytearray()
    while part := response.read1(_PART):
        found += part
        if len(found) > MAX_ANSWER_BYTES:
            raise ExchangeFailure(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")
    if response.length:
        raise ExchangeFailure("an answer that broke off", again=True)
    return bytes(found)


def _late(timeout: float) -> ExchangeFailure:
    return ExchangeFailure(f"no whole answer within {timeout:.3g} s", again=True)
