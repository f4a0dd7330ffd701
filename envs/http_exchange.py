"""One HTTP exchange with a server that nobody vouches for: in time, of a bounded size, or a failure."""

from __future__ import annotations

import contextlib
import http.client
import queue
import socket
import threading
from urllib.parse import urlsplit

__all__ = ["MAX_ANSWER_BYTES", "ExchangeFailure", "post_json"]

MAX_ANSWER_BYTES = 8 * 2**20
"""A larger answer is refused."""

_PART = 2**16
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}


class ExchangeFailure(Exception):
    """An exchange that came to nothing; its message names no address.

    Attributes:
        again: Whether another try may help.

    Example:
        >>> ExchangeFailure("the status 503", again=True).again
        True
    """

    def __init__(self, said: str, again: bool = False):
        super().__init__(said)
        self.again = again


def post_json(url: str, body: bytes, timeout: float) -> bytes:
    """Send a JSON text and return the body of the answer.

    Redirects are not followed and proxies not used. The exchange runs in a thread, for names are looked
    up without any time limit.

    Args:
        url: An http or https URL, without user info, query or fragment.
        body: What to send.
        timeout: The most seconds from here to the answer's last byte, whatever the server does.

    Raises:
        ExchangeFailure: No such answer came: none in time, another status than 200, one that is
            compressed, too large or not whole.

    Example:
        >>> post_json("http://127.0.0.1:1/", b"{}", timeout=2)
        Traceback (most recent call last):
        ...
        comap.envs.http_exchange.ExchangeFailure: a broken connection (ConnectionRefusedError)
    """
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
        try:
            self.answers.put(self._ask())
        except ExchangeFailure as failure:
            self.answers.put(failure)
        except TimeoutError:
            self.answers.put(_late(self._timeout))
        except Exception as error:
            self.answers.put(
                ExchangeFailure(f"a broken connection ({type(error).__name__})", again=True)
            )

    def hang_up(self) -> None:
        """End the exchange, whatever its thread is waiting for."""
        self._over.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _ask(self) -> bytes:
        parts = self._url
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self._timeout)
        try:
            connection.connect()
            # The connection forgets its socket where the server wants it closed; `hang_up` must not.
            self._socket = connection.sock
            if self._over.is_set():
                raise TimeoutError
            connection.request("POST", parts.path or "/", self._body, _HEADERS)
            with connection.getresponse() as response:
                return self._read(response)
        finally:
            connection.close()

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        """Return the body of an answer."""
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
