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
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from .browser import PageRequest, Served
from .engine import Refused, check_address

SECONDS = 8.0
MOST_BYTES = 10_000_000
MOST_SENT = 1_000_000
# Headers of one connection, which mean nothing on the next, and those that are written anew.
_NOT_PASSED_ON = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"}
_NOT_PASSED_ON |= {"proxy-connection", "trailer", "transfer-encoding", "upgrade", "alt-svc"}
_NOT_PASSED_ON |= {"host", "content-length", "accept-encoding"}


def is_public(ip: str) -> bool:
    """Return whether an address is one of the public internet, and names no other address inside.

    Example:
        >>> [is_public(ip) for ip in ("93.184.215.14", "10.0.0.1", "127.0.0.1", "::ffff:93.184.215.14")]
        [True, False, False, False]
    """
    address = ipaddress.ip_address(ip)
    # Outside 2000::/3 are mapped, translated and site-local addresses; 2002::/16 (6to4) holds IPv4's.
    if address.version == 6 and (int(address) >> 125 != 1 or int(address) >> 112 == 0x2002):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def resolve(host: str, port: int) -> Sequence[tuple[str, int]]:
    """Return where a host is: addresses and ports, all public. Tests put local servers in its place."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    ips = [str(socket_address[0]) for _, _, _, _, socket_address in infos]
    for ip in ips:
        if not is_public(ip):
            raise Refused(f"the host {host!r:.80} is at {ip}, which is not a public address")
    return [(ip, port) for ip in ips]


def fetch(request: PageRequest, hosts: Sequence[str]) -> Served:
    """Return a site's answer; raise `Refused` where there is none, or none that is allowed."""
    check_address(request.url, hosts)
    parts = urlsplit(request.url)
    host = str(parts.hostname)
    target = parts.path or "/"
    if len(request.body) > MOST_SENT:
        raise Refused(f"more than {MOST_SENT:,} bytes cannot be sent")
    try:
        with _Wire(host, parts.scheme == "https") as wire:
            connection: Any = HTTPConnection(host)  # it writes and reads; the wire is ours
            connection.sock = wire
            query = f"?{parts.query}" if parts.query else ""
            connection.putrequest(request.method, target + query, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in _NOT_PASSED_ON:
                    connection.putheader(name, value)
            connection.putheader("Accept-Encoding", "gzip")
            connection.putheader("Connection", "close")
            if request.body or request.method not in ("GET", "HEAD", "OPTIONS"):
                connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body or None)
            response = connection.getresponse()
            body = response.read(MOST_BYTES + 1)  # one more says that there would be more
            coding = response.getheader("Content-Encoding", "")

        # What is small when it is sent may be huge when it is unpacked: that has the same limit.
        if coding.lower() in ("gzip", "x-gzip"):
            body = zlib.decompressobj(31).decompress(body, MOST_BYTES + 1)  # 31: gzip's format
        elif coding.lower() not in ("", "identity"):
            raise Refused(f"{host} answers in the encoding {coding!r:.80}, which was not asked for")
    except TimeoutError as error:
        raise Refused(f"{host} did not answer within {SECONDS:g} s") from error
    # ValueError: a header or an address that HTTP cannot say.
    except (OSError, HTTPException, ValueError, zlib.error) as error:
        raise Refused(f"{host} cannot be read: {type(error).__name__}: {error!s:.200}") from error

    if len(body) > MOST_BYTES:
        raise Refused(f"{host} answers with more than {MOST_BYTES:,} bytes")
    for name in (*_NOT_PASSED_ON, "content-encoding"):
        del response.headers[name]
    return Served(response.status, response.headers, body)


class _Wire(io.RawIOBase):
    """A connection to a host, with one time limit for all that is sent and received."""

    def __init__(self, host: str, secure: bool):
        self._deadline = time.monotonic() + SECONDS

        # The addresses that were checked are connected to, by number: a second look-up of the name
        # could give another one. TLS still checks the certificate against the name.
        failure = OSError("it has no address")
        for address in resolve(host, 443 if secure else 80):
            try:
                self._socket = socket.create_connection(address, self._seconds_left())
                break
            except OSError as error:
                failure = error
        else:
            raise failure
        if secure:
            context = ssl.create_default_context()
            context.set_alpn_protocols(["http/1.1"])
            self._socket = context.wrap_socket(self._socket, server_hostname=host)

    def _seconds_left(self) -> float:
        """Return the time that is left; raise `TimeoutError` where none is."""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def sendall(self, data: bytes) -> None:
        self._socket.settimeout(self._seconds_left())
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        # A host that sends a byte a second would never meet a limit for each read.
        self._socket.settimeout(self._seconds_left())
        return self._socket.recv_into(buffer)

    def close(self) -> None:
        """Do nothing: `HTTPConnection` calls this before it has read the body."""

    def __exit__(self, *_: object) -> None:
        self._socket.close()
