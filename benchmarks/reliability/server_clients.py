"""Clients of comap's servers: they talk rightly, and ask wrongly in between."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from .hostile import hostile
from .served import TIMEOUT, Line

__all__ = ["client", "malformed_bodies"]

_MALFORMED = 0.3
_WAITS = (0.01, 5.0)
_RAW = (
    b"GARBAGE\r\n\r\n",
    b"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: nine\r\n\r\n",
    b"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
    b"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
    b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    b"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)


@cache
def malformed_bodies() -> tuple[bytes, ...]:
    """Return bodies that no server of comap takes for a request.

    Example:
        >>> b"" in malformed_bodies()
        True
    """
    return (
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"nothing",
        b'{"query": "half',
        b"[" * 50_000,
        b'{"a":' * 20_000,
        b" " * (2**20 + 10),
        b'{"queries": ["x"], "topk": 1' + b"0" * 5000 + b"",
        json.dumps({"text": "x" * 2**20}).encode(),
        b"\x00" * 100,
    )


def client(line: Line, rounds: int) -> None:
    """Talk and ask wrongly, one after the other, and look at the answers.

    Args:
        line: To the server.
        rounds: How often.
    """
    for number in range(rounds):
        draw = line.rng.random()
        try:
            if draw > _MALFORMED:
                line.served.talk(line, number)
                line.found.count("conversations")
            elif draw > _MALFORMED / 2:
                _malformed(line)
            elif draw > _MALFORMED / 4:
                _hostile(line)
            else:
                _raw(line)
        except Exception as error:  # what came is nothing that the client could read
            line.check(False, f"{type(error).__name__}: {error}")


def _malformed(line: Line) -> None:
    """Send a body that is no request."""
    body = line.rng.choice(malformed_bodies())
    status = line.send(line.rng.choice(line.served.routes), body).status
    line.check_refused("malformed bodies", status, body[:60])


def _hostile(line: Line) -> None:
    """Send JSON whose texts and types are hostile: any status but one of the server's own faults."""
    path, sample = line.rng.choice(line.served.samples)
    asked, name = altered(sample, line.rng)
    status = line.ask(path, asked).status
    line.found.count("hostile requests")
    line.found.tell(f"status {status}")
    full = status == 503 and line.served.overfill is not None
    right = status == 200 or 400 <= status < 500 or full
    line.check(right, f"status {status} for a hostile {name} to {path or '/'}")


def altered(sample: Mapping[str, Any], rng: random.Random) -> tuple[dict[str, Any], str]:
    """Return a request with a hostile value in one place, and the name of the place.

    Example:
        >>> altered({"action": 1}, random.Random(1))[1]
        'action'
    """
    asked, name = dict(sample), rng.choice(sorted(sample))
    inner = asked[name]
    if isinstance(inner, Mapping) and inner and rng.random() < 0.8:
        asked[name], deeper = altered(inner, rng)
        return asked, f"{name}.{deeper}"
    asked[name] = rng.choice((hostile(rng)[:5000], None, -1, 1e300, [], {}, [None], True))
    return asked, name


def _raw(line: Line) -> None:
    """Send bytes that are no request, and break off: what counts is that the server goes on."""
    place = urlsplit(line.url)
    path = f"{place.path}{line.rng.choice(line.served.routes)}"
    said = line.rng.choice(_RAW).replace(b"{path}", path.encode())
    line.found.count("broken connections")
    try:
        with socket.create_connection((place.hostname, place.port or 80), timeout=TIMEOUT) as end:
            end.sendall(said)
            end.settimeout(line.rng.choice(_WAITS))
            told = end.recv(100)
    except OSError:
        return
    status = told.split(b" ")[1:2]
    if told.startswith(b"HTTP/") and status:
        code = status[0].decode("ascii", "replace")
        line.found.tell(f"status {code}")
        line.check(code.startswith("4"), f"status {code} for {said[:40]!r}")
