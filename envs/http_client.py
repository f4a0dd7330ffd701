"""One exchange of JSON with a server, that ends in time whatever the server does."""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import socket
import threading
from urllib.parse import urlsplit

from .http import MAX_ANSWER_BYTES

_TOKEN_VARIABLE = "COMAP_CLIENT_TOKEN"
# An answer that is not compressed has the size that was read: no small answer becomes a huge one.
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
_READ_BYTES = 2**16


class ExchangeFailure(Exception):
    """An exchange without an answer; its message names no address."""

    def __init__(self, message: str, again: bool = False):
        super().__init__(message)
        self.again = again
        """Whether the same request may succeed later."""


def post_json(url: str, body: bytes, timeout: float) -> bytes:
    """Send a JSON text, with the token in ``COMAP_CLIENT_TOKEN``, and return the body of the answer."""
    if timeout <= 0:
        raise ExchangeFailure("no time left to ask")

    exchange = _Exchange(url, body, timeout)
    exchange.start()
    try:
        outcome = exchange.outcomes.get(timeout=timeout)
    except queue.Empty:
        raise _late(timeout) from None
    finally:
        exchange.hang_up()

    if isinstance(outcome, ExchangeFailure):
        raise outcome
    return outcome


class _Exchange(threading.Thread):
    """A thread that sends one request and puts the answer, or the failure, into `outcomes`.

    The time limits of HTTP clients are for one read each, and none covers the lookup of a name: a server
    that sends a byte now and then holds them for ever. A thread whose socket is shut down ends at once.
    """

    def __init__(self, url: str, body: bytes, timeout: float):
        super().__init__(daemon=True, name="comap-exchange")
        self.outcomes: queue.SimpleQueue[bytes | ExchangeFailure] = queue.SimpleQueue()
        self._url = urlsplit(url)
        self._body = body
        self._timeout = timeout
        self._is_over = threading.Event()
        self._socket: socket.socket | None = None

    def run(self) -> None:
        """Send the request once."""
        try:
            self.outcomes.put(self._answer())
        except ExchangeFailure as failure:
            self.outcomes.put(failure)
        except TimeoutError:
            self.outcomes.put(_late(self._timeout))
        except Exception as error:
            message = f"a broken connection ({type(error).__name__})"
            self.outcomes.put(ExchangeFailure(message, again=True))

    def _answer(self) -> bytes:
        """Return the body of the answer; raise `ExchangeFailure` where it is none."""
        is_secure = self._url.scheme == "https"
        connection_class = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        connection = connection_class(
            self._url.hostname or "", self._url.port, timeout=self._timeout
        )

        token = os.environ.get(_TOKEN_VARIABLE, "").strip()
        headers = dict(_HEADERS)
        if token:
            headers["authorization"] = f"Bearer {token}"

        with contextlib.closing(connection):
            connection.connect()

            # A connection forgets its socket where the server wants it closed; `hang_up` must not.
            self._socket = connection.sock

            # `hang_up` may have come before there was a socket to shut down.
            if self._is_over.is_set():
                raise TimeoutError

            connection.request("POST", self._url.path or "/", self._body, headers)
            with connection.getresponse() as response:
                return _read_answer(response)

    def hang_up(self) -> None:
        """End the exchange, whatever its thread is waiting for."""
        self._is_over.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _read_answer(response: http.client.HTTPResponse) -> bytes:
    status = response.status
    if status == 401:
        raise ExchangeFailure(f"the status 401: set {_TOKEN_VARIABLE} to the server's token")
    if status != 200:
        raise ExchangeFailure(f"the status {status}", again=status >= 500 or status == 429)
    if response.getheader("content-encoding", "identity").lower() not in ("", "identity"):
        raise ExchangeFailure("a compressed answer, which was not asked for")

    # `read1` returns what has come. `read` of so much waits for all of it, however slowly it comes.
    body = bytearray()
    while part := response.read1(_READ_BYTES):
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            raise ExchangeFailure(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")

    if response.length:  # of the announced bytes, those that never came
        raise ExchangeFailure("an answer that broke off", again=True)
    return bytes(body)


def _late(timeout: float) -> ExchangeFailure:
    return ExchangeFailure(f"no whole answer within {timeout:.3g} s", again=True)
