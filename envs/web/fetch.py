"""Requests to live sites, made by Python for a browser that has no network of its own.

A request is made only to a host that the user allowed, at the standard port, and to an address that was
looked up once and is public: what is connected to is what was checked. Redirects are not followed; the
browser asks anew, and that request is checked like any other. Time and sizes have limits. Proxies that
the environment variables name are not used: they would look hosts up themselves.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import ssl
import time
import zlib
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

from .browser import Asked, Served
from .engine import Refused, check_address

SECONDS = 8.0
MOST_BYTES = 10_000_000
MOST_SENT = 1_000_000
# Headers of one connection, which mean nothing on the next; and those that are written anew.
_OF_THE_CONNECTION = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization"}
_OF_THE_CONNECTION |= {"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
_NOT_SENT = _OF_THE_CONNECTION | {"host", "content-length", "accept-encoding"}
_NOT_RETURNED = _OF_THE_CONNECTION | {"content-length", "content-encoding", "alt-svc"}


def is_public(ip: str) -> bool:
    """Return whether an address is one of the public internet, and names no other address inside.

    Example:
        >>> [is_public(ip) for ip in ("93.184.215.14", "10.0.0.1", "127.0.0.1", "::ffff:93.184.215.14")]
        [True, False, False, False]
    """
    address = ipaddress.ip_address(ip)
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    # Outside 2000::/3 are mapped, translated and site-local addresses; 2002::/16 (6to4) holds IPv4's.
    return int(address) >> 125 == 1 and address.sixtofour is None


def resolve(host: str, port: int) -> Sequence[tuple[str, int]]:
    """Return where a host is: addresses and ports, all public. Tests put local servers in its place."""
    found = [str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for ip in found:
        if not is_public(ip):
            raise Refused(f"the host {host!r:.80} is at {ip}, which is not a public address")
    return [(ip, port) for ip in found]


def fetch(asked: Asked, hosts: Sequence[str]) -> Served:
    """Return a site's answer; raise `Refused` where there is none, or none that is allowed."""
    check_address(asked.url, hosts)
    parts = urlsplit(asked.url)
    host, secure = str(parts.hostname), parts.scheme == "https"
    if len(asked.data) > MOST_SENT:
        raise Refused(f"more than {MOST_SENT:,} bytes cannot be sent")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        with _connected(host, secure) as wire:
            connection: Any = HTTPConnection(host)  # it writes and reads; the wire is ours
            connection.sock = wire
            connection.putrequest(asked.method, target, skip_accept_encoding=True)
            for name, value in asked.headers.items():
                if name.lower() not in _NOT_SENT:
                    connection.putheader(name, value)
            connection.putheader("Accept-Encoding", "gzip")
            connection.putheader("Connection", "close")
            if asked.data or asked.method not in ("GET", "HEAD", "OPTIONS"):
                connection.putheader("Content-Length", str(len(asked.data)))
            connection.endheaders(asked.data or None)
            return _served(connection.getresponse(), host)
    except TimeoutError as error:
        raise Refused(f"{host} did not answer within {SECONDS:g} s") from error
    # ValueError: a header or an address that HTTP cannot say.
    except (OSError, HTTPException, ValueError, zlib.error) as error:
        raise Refused(f"{host} cannot be read: {type(error).__name__}: {error!s:.200}") from error


def _served(response: HTTPResponse, host: str) -> Served:
    body, coding = response.read(MOST_BYTES + 1), response.headers.get("Content-Encoding", "")
    if coding.lower() in ("gzip", "x-gzip"):
        body = zlib.decompressobj(31).decompress(body, MOST_BYTES + 1)  # 31: gzip's format
    elif coding.lower() not in ("", "identity"):
        raise Refused(f"{host} answers in the encoding {coding!r:.80}, which was not asked for")
    if len(body) > MOST_BYTES:
        raise Refused(f"{host} answers with more than {MOST_BYTES:,} bytes")
    for name in _NOT_RETURNED:
        del response.headers[name]
    return Served(response.status, response.headers, body)


class _Wire:
    """A connection to one address, with one time limit for all that is sent and received."""

    def __init__(self, address: tuple[str, int], until: float):
        self._until = until
        self._socket = socket.create_connection(address, self._left())

    def secure(self, host: str) -> None:
        """Speak TLS from now on, with a server that proves that it is the host."""
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        self._socket.settimeout(self._left())
        self._socket = context.wrap_socket(self._socket, server_hostname=host)

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def sendall(self, data: bytes) -> None:
        self._socket.settimeout(self._left())
        self._socket.sendall(data)

    def receive(self, buffer: Any) -> int:
        self._socket.settimeout(self._left())
        return self._socket.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Received(self))

    def close(self) -> None:
        """Do nothing: `HTTPConnection` calls this before it has read the body."""

    def __enter__(self) -> _Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class _Received(io.RawIOBase):
    """What arrives on a wire, as a file."""

    def __init__(self, wire: _Wire):
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.receive(buffer)


def _connected(host: str, secure: bool) -> _Wire:
    """Return a wire to the first address of a host that takes one."""
    until, failure = time.monotonic() + SECONDS, OSError("it has no address")
    for address in resolve(host, 443 if secure else 80):
        try:
            wire = _Wire(address, until)
        except OSError as error:
            failure = error
            continue
        try:
            if secure:
                wire.secure(host)
        except BaseException:
            wire.__exit__()
            raise
        return wire
    raise failure
