"""A small server of JSON over HTTP: bounded requests, told refusals, a token."""

from __future__ import annotations

import contextlib
import hmac
import io
import ipaddress
import json
import math
import os
import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from ..errors import CoMapError, OptionError

__all__ = [
    "MAX_REQUEST_BYTES",
    "MOST_CONNECTIONS",
    "JsonServer",
    "Refused",
    "check_exposure",
    "is_loopback",
    "read_token",
    "same_token",
]

MAX_REQUEST_BYTES = 2**20
"""A larger request is refused."""

MOST_CONNECTIONS = 512
"""How many connections a server has at the same time; a further one is told 503."""

_TIMEOUT = 30.0
_LINGER, _MOST_LINGERED, _PART = 2.0, 2**26, 2**16
_SHORTEST_TOKEN = 16
_TOKEN_VARIABLE = "COMAP_SERVE_TOKEN"
_BUSY = b'{"error": "expected fewer connections at the same time; try again later"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BUSY), _BUSY)
)


class Refused(CoMapError):
    """A request that is not answered.

    Attributes:
        status: The HTTP status that tells it.

    Example:
        >>> Refused(404, "expected POST /step, found /jump").status
        404
    """

    def __init__(self, status: int, said: str):
        super().__init__(said)
        self.status = status


def is_loopback(host: str) -> bool:
    """Return whether only this machine itself reaches an address.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_exposure(host: str, token: str | None) -> None:
    """Do nothing, if a server may listen at an address.

    Args:
        host: The address.
        token: What requests must tell, or None.

    Raises:
        OptionError: Other machines reach the address and there is no token, or the token is short.

    Example:
        >>> check_exposure("127.0.0.1", None)
        >>> check_exposure("0.0.0.0", None)
        Traceback (most recent call last):
        ...
        comap.errors.OptionError: other machines can reach 0.0.0.0: expected a token that requests \
must tell, found none; give a file with one (--token-file) or set COMAP_SERVE_TOKEN
    """
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
    """Return the token in a file, or else that of the variable ``COMAP_SERVE_TOKEN``, or else None.

    Args:
        path: The file; blanks around the token do not count.

    Raises:
        OptionError: The file cannot be read, or what was found is no token in plain characters.
    """
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


def same_token(header: str | None, token: str) -> bool:
    """Return whether a header ``Authorization`` tells the token; it takes as long for any wrong one.

    Example:
        >>> same_token("Bearer abc", "abc"), same_token("Bearer abd", "abc"), same_token(None, "abc")
        (True, False, False)
    """
    told = (header or "").encode("utf-8", "replace")
    return hmac.compare_digest(told, f"Bearer {token}".encode())


class JsonServer(ThreadingHTTPServer):
    """Answers requests with JSON until it is shut down; subclasses write `answer`.

    A request's body is JSON of at most `MAX_REQUEST_BYTES`, a client whose request, as a whole, does
    not come within 30 seconds is hung up on, and there are at most `MOST_CONNECTIONS`: that bounds
    memory and threads. What is wrong is told as ``{"error": ...}`` with a status from 400 on, never
    as a traceback.

    Attributes:
        routes: Paths with the methods that they have.
        guarded: Whether web pages are kept out: requests with an ``Origin``, for another host than
            this machine where only this machine reaches the server, or whose body says that it is
            something else than JSON.

    Args:
        host: The address to listen at.
        port: The port; 0 for any that is free, see `base`.
        token: What requests must tell as ``Authorization: Bearer TOKEN``; None for nothing.
        at_once: How many requests are answered at the same time; others wait.

    Raises:
        OSError: The address is taken, or not this machine's.
    """

    routes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    guarded: ClassVar[bool] = False
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, token: str | None = None, at_once: int = 64
    ):
        self.token = token
        self.only_here = is_loopback(host)
        self.slots = threading.BoundedSemaphore(at_once)
        self._lines = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    @abstractmethod
    def answer(self, method: str, path: str, asked: Any) -> Any:
        """Return the answer to a request, as JSON data.

        Args:
            method: One of those of the path in `routes`.
            path: A path of `routes`.
            asked: The body as JSON data, for GET the query's names and texts.

        Raises:
            Refused: With the status that tells why.
            OptionError: The request is none that can be answered: the status is 422.
        """

    @property
    def base(self) -> str:
        """The server's address, without a path."""
        host, port = self.server_address[:2]
        name = host if isinstance(host, str) else host.decode()
        return f"http://{f'[{name}]' if ':' in name else name}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, if there are not too many."""
        if not self._lines.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.settimeout(0)
                request.send(_REFUSAL)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # the system has no thread more
            self._lines.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._lines.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that clients broke off."""

    def check(self, headers: Any) -> None:
        """Do nothing, if a request with these headers may ask.

        Raises:
            Refused: It may not.
        """
        if self.token is not None and not same_token(headers.get("authorization"), self.token):
            raise Refused(401, "expected the header 'Authorization: Bearer TOKEN' with the token")
        if not self.guarded:
            return
        if headers.get("origin") is not None:
            raise Refused(403, "expected a program, found a web page (the header Origin)")
        host = urlsplit(f"//{headers.get('host', '')}").hostname or "localhost"
        if self.only_here and not is_loopback(host):
            raise Refused(403, "expected a request for this machine itself (the header Host)")


class _Incoming(io.RawIOBase):
    """What a client says; each request as a whole has some seconds, however it is dripped."""

    def __init__(self, connection: socket.socket):
        self._connection, self._end = connection, math.inf

    def wait_for(self, seconds: float) -> None:
        """Begin to wait for a request."""
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes.

        Raises:
            TimeoutError: The request did not come in time.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request did not come in time")
        usual = self._connection.gettimeout()
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(usual)


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: JsonServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "comap", ""
    timeout = _TIMEOUT
    # An answer is sent as one: a body would wait 40 ms for the client's word that its headers came.
    wbufsize = -1
    disable_nagle_algorithm = True

    def setup(self) -> None:
        """Begin with a connection."""
        super().setup()
        self._incoming = _Incoming(self.connection)
        self.rfile.close()
        self.rfile = io.BufferedReader(self._incoming)

    def handle_one_request(self) -> None:
        """Answer the next request, if it comes in time."""
        self._incoming.wait_for(self.timeout or math.inf)
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer a question."""
        self._do("GET")

    def do_POST(self) -> None:
        """Answer a request with a body."""
        self._do("POST")

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Tell in JSON what is no HTTP request, or has no such method."""
        with contextlib.suppress(ValueError):
            message = message or HTTPStatus(code).phrase
        self._reply(code, {"error": str(message)}, close=True)

    def _do(self, method: str) -> None:
        try:
            path = self._path(method)
            self.server.check(self.headers)
            asked = self._query() if method == "GET" else self._body()
            with self.server.slots:
                told = self.server.answer(method, path, asked)
            body = json.dumps(told).encode()
        except Refused as refused:
            self._reply(refused.status, {"error": str(refused)}, close=True)
            self._linger()
        except OptionError as error:
            self._reply(422, {"error": str(error)})
        except CoMapError as error:
            self._reply(500, {"error": str(error)})
        except OSError:
            self.close_connection = True
        except Exception as error:
            self._reply(500, {"error": f"the request failed ({type(error).__name__})"})
        else:
            self._send(200, body)

    def _path(self, method: str) -> str:
        """Return the path that is asked for."""
        path = self.path.partition("?")[0].rstrip("/") or "/"
        known = self.server.routes.get(path)
        if known is None:
            told = ", ".join(
                f"{' or '.join(how)} {name}" for name, how in self.server.routes.items()
            )
            raise Refused(404, f"expected {told}; found {method} {path!r:.80}")
        if method not in known:
            raise Refused(405, f"expected {' or '.join(known)} {path}, found {method}")
        return path

    def _query(self) -> dict[str, str]:
        """Return the names and texts after the question mark."""
        if self.headers.get("content-length", "0") != "0" or self.headers.get("transfer-encoding"):
            raise Refused(400, "expected GET without a body, found one")
        try:
            pairs = parse_qsl(
                self.path.partition("?")[2], keep_blank_values=True, max_num_fields=20
            )
        except ValueError as error:
            raise Refused(
                400, f"expected a few names and values, found others ({error})"
            ) from error
        return dict(pairs)

    def _body(self) -> Any:
        """Return the request as JSON data; an empty one where none was sent."""
        length = self.headers.get("content-length", "")
        if not (length.isascii() and length.isdecimal()):
            raise Refused(411, "expected a Content-Length, found none")
        if len(length) > 9 or int(length) > MAX_REQUEST_BYTES:
            raise Refused(413, f"expected at most {MAX_REQUEST_BYTES:,} bytes, found {length:.20}")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise Refused(400, f"expected {length} bytes, found {len(body)}")
        if self.server.guarded:
            if not body:
                return {}
            said = self.headers.get_content_type()
            if said != "application/json":
                raise Refused(415, f"expected Content-Type: application/json, found {said:.60}")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"expected JSON, found something else ({error})") from error

    def _linger(self) -> None:
        """Let the rest of a refused request come, for a moment: a reset would lose it the answer."""
        end, left = time.monotonic() + _LINGER, _MOST_LINGERED
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LINGER)
            while left > 0 and time.monotonic() < end:
                part = self.connection.recv(_PART)
                if not part:
                    break
                left -= len(part)

    def _reply(self, status: int, told: Any, close: bool = False) -> None:
        self._send(status, json.dumps(told).encode(), close)

    def _send(self, status: int, body: bytes, close: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if close:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
