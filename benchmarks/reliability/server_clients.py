"""Clients of comap's servers: what they ask rightly, and what they ask wrongly."""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from ...envs.stabletoolbench.apps import world_of
from ...envs.stabletoolbench.serving import VirtualTools
from .findings import Findings
from .hostile import hostile

__all__ = ["SERVED", "Served", "client", "malformed_bodies", "post"]

_TIMEOUT = 300.0
_MALFORMED = 0.3
_RAW = (
    b"GARBAGE\r\n\r\n",
    b"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: nine\r\n\r\n",
    b"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
    b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    b"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and what is asked of it.

    Attributes:
        name: What results call it.
        words: The words after ``comap serve``.
        asks: Returns the well-formed request of a number, as JSON data.
        right: Whether an answer is that of a number's request.
    """

    name: str
    words: tuple[str, ...]
    asks: Callable[[int], Any]
    right: Callable[[int, Any], bool]


def _query(number: int) -> dict[str, Any]:
    return {"queries": [f"a town number {number % 7}", "the river"], "topk": 1 + number % 3}


def _passages(number: int, told: Any) -> bool:
    rows = told.get("result") if isinstance(told, dict) else None
    return isinstance(rows, list) and len(rows) == 2 and all(len(r) == 1 + number % 3 for r in rows)


@cache
def _words() -> tuple[str, ...]:
    """Return words of titles in the embedded library."""
    books = world_of(0).tables["book"].values()
    return tuple(sorted({max(book["title"].split(), key=len) for book in books}))


def _call(number: int) -> dict[str, Any]:
    names = {"category": "Media", "tool_name": "library", "api_name": "search"}
    asked = {"word": _words()[number % len(_words())]}
    return names | {"tool_input": json.dumps(asked) if number % 2 else asked}


@cache
def _expected(number: int) -> dict[str, Any]:
    """Return what the embedded tools answer, asked here."""
    return VirtualTools([], world=0).answer(_call(number))


def _answered(number: int, told: Any) -> bool:
    right = _expected(number)
    same: bool = told == json.loads(json.dumps(right))
    return right["error"] == "" and same


SERVED: tuple[Served, ...] = (
    Served("comap serve search", ("search",), _query, _passages),
    Served("comap serve tools", ("tools",), _call, _answered),
)
"""All servers that answer POST with JSON; see `Served`."""


def malformed_bodies() -> list[bytes]:
    """Return bodies that no server of comap takes for a request.

    Example:
        >>> b"" in malformed_bodies()
        True
    """
    return [
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
    ]


def post(url: str, body: bytes, token: str | None = None) -> tuple[int, Any]:
    """Return the status of a request and its answer as JSON data; status 0 where none came.

    Args:
        url: The address.
        body: The body.
        token: What the request tells; None for nothing.
    """
    place = urlsplit(url)
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_TIMEOUT)
    try:
        connection.request("POST", place.path, body, headers)
        answer = connection.getresponse()
        said = answer.read()
        return answer.status, json.loads(said) if said else None
    except (OSError, ValueError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()


def client(found: Findings, served: Served, url: str, token: str, seed: int, requests: int) -> None:
    """Send requests one after the other, malformed ones among them, and look at the answers.

    Args:
        found: Where to note what came.
        served: The server.
        url: Its address.
        token: Its token.
        seed: Of the requests.
        requests: How many.
    """
    rng, bodies = random.Random(seed), malformed_bodies()
    for number in range(requests):
        draw = rng.random()
        if draw > _MALFORMED:
            status, told = post(url, json.dumps(served.asks(number)).encode(), token)
            found.count("well-formed requests")
            right = status == 200 and served.right(number, told)
            found.check(
                right, f"{served.name}: status {status} for a well-formed request: {told!r:.200}"
            )
        elif draw > _MALFORMED / 2:
            body = rng.choice(bodies)
            status, _ = post(url, body, token)
            found.count("malformed bodies")
            found.tell(f"status {status}")
            found.check(400 <= status < 500, f"{served.name}: status {status} for {body[:60]!r}")
        elif draw > _MALFORMED / 4:
            _hostile(found, served, url, token, rng)
        else:
            _raw(found, served, url, rng)


def _hostile(found: Findings, served: Served, url: str, token: str, rng: random.Random) -> None:
    """Send JSON whose texts and types are hostile: any status but one of the server's own faults."""
    asked = served.asks(0)
    name = rng.choice(sorted(asked))
    asked[name] = rng.choice((hostile(rng)[:5000], None, -1, 1e300, [], {}, [None], True))
    status, _ = post(url, json.dumps(asked).encode(), token)
    found.count("hostile requests")
    found.tell(f"status {status}")
    right = status == 200 or 400 <= status < 500
    found.check(right, f"{served.name}: status {status} for a hostile {name}")


def _raw(found: Findings, served: Served, url: str, rng: random.Random) -> None:
    """Send bytes that are no request, and break off: what counts is that the server goes on."""
    place = urlsplit(url)
    said = rng.choice(_RAW).replace(b"{path}", place.path.encode())
    found.count("broken connections")
    try:
        with socket.create_connection((place.hostname, place.port or 80), timeout=_TIMEOUT) as line:
            line.sendall(said)
            line.settimeout(rng.choice((0.01, 5.0)))
            told = line.recv(100)
    except OSError:
        return
    status = told.split(b" ")[1:2]
    if told.startswith(b"HTTP/") and status:
        code = status[0].decode("ascii", "replace")
        found.tell(f"status {code}")
        found.check(code.startswith("4"), f"{served.name}: status {code} for {said[:40]!r}")
