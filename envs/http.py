"""JSON over HTTP: applications behind one guard, run by uvicorn, and exchanges with other servers.

The guard wants a token where other machines can reach the server, refuses requests of web pages (the
headers Origin and Host), and bounds the size of a body and the time in which it must come.
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
import socket
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from ..errors import CoMapError, OptionError, needs_extra

MAX_REQUEST_BYTES = 2**20
MOST_CONNECTIONS = 512
"""How many connections a server has at the same time; a further one gets status 503."""

_TIMEOUT = 30.0
_LINGER, _MOST_LINGERED = 2.0, 2**26
_LOG = logging.getLogger("comap.serve")
_SHORTEST_TOKEN = 16
_TOKEN_VARIABLE = "COMAP_SERVE_TOKEN"

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
            f"other machines can reach {host}: expected a token that requests must tell, found "
            f"none; give a file with one (--token-file) or set {_TOKEN_VARIABLE}"
        )


def read_token(path: str | os.PathLike[str] | None = None) -> str | None:
    """Return the token in a file, or else that of the variable ``COMAP_SERVE_TOKEN``, or else None."""
    if path is None:
        found = os.environ.get(_TOKEN_VARIABLE, "").strip()
    else:
        try:
            found = Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"expected a file with a token, found {path} ({error})") from error
    if not found and path is None:
        return None
    if not (found.isascii() and found.isprintable() and found) or " " in found:
        raise OptionError(
            "expected a token of plain characters without blanks, found something else"
        )
    return found


class Guard:
    """An ASGI application that passes requests on: of programs, with the token, and of bounded size."""

    def __init__(self, app: Any, host: str, token: str | None = None):
        check_exposure(host, token)
        self._app, self._token = app, token
        self._only_here = is_loopback(host)

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        answer, body = _Answer(scope, send), _Body(receive)
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
        except Exception as error:
            await answer.fail(error)

    def _check(self, headers: dict[str, str]) -> None:
        given = headers.get("authorization", "").encode("utf-8", "replace")
        wanted = f"Bearer {self._token}".encode()
        if self._token is not None and not hmac.compare_digest(given, wanted):
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
        found = json.loads(body)
        if b"\\u" in body:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Refused(400, "expected texts of whole characters, found half of one") from error
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"expected JSON, found something else ({error})"[:300]) from error


def _too_large() -> Refused:
    return Refused(413, f"expected at most {MAX_REQUEST_BYTES:,} bytes")


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


def json_app(
    routes: Mapping[str, tuple[str, ...]],
    answer: Callable[[str, str, Any], Any],
    *,
    host: str,
    token: str | None = None,
    only_json: bool = True,
    lifespan: Any = None,
) -> Guard:
    """Return an application that answers requests with JSON.

    `routes` has the methods of each path. `answer`, called in a thread, gets a method, a path and what
    was asked: the JSON data of a body, or the names and texts of a query. With `only_json`, bodies of
    another Content-Type are refused.
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
                said = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if body and only_json and said != "application/json":
                    raise Refused(415, f"expected Content-Type: application/json, found {said:.60}")
                asked = json.loads(body) if body else {}
            return JSONResponse(await run_in_threadpool(answer, method, path, asked))
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


MAX_ANSWER_BYTES = 8 * 2**20
_PART = 2**16
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}


class ExchangeFailure(Exception):
    """An exchange that came to nothing; its message names no address."""

    def __init__(self, said: str, again: bool = False):
        super().__init__(said)
        self.again = again


def post_json(url: str, body: bytes, timeout: float) -> bytes:
    """Send a JSON text and return the body of the answer."""
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
        try:
            with contextlib.closing(kind(*address, timeout=self._timeout)) as connection:
                connection.connect()
                # A connection forgets its socket where the server wants it closed; `hang_up` must not.
                self._socket = connection.sock
                if self._over.is_set():
                    raise TimeoutError
                connection.request("POST", self._url.path or "/", self._body, _HEADERS)
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
