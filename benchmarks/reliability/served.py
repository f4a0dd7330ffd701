"""What a server of comap is to the benchmark, and the line on which a client talks to it."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .findings import Findings

__all__ = ["TIMEOUT", "Answer", "Line", "Served", "asked_once", "exchange"]

TIMEOUT = 300.0
"""Seconds that an answer may take on a busy machine."""


class Answer(NamedTuple):
    """What came of a request.

    Attributes:
        status: The HTTP status; 0 where no answer came.
        told: The body as JSON data; None where there is none.
        headers: The headers, their names in small letters.
    """

    status: int
    told: Any = None
    headers: Mapping[str, str] = {}


def exchange(
    url: str,
    body: bytes,
    token: str | None = None,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request and return what came of it.

    Args:
        url: The address.
        body: The body.
        token: What the request tells; None for nothing.
        method: The method.
        headers: Further headers.
    """
    place = urlsplit(url)
    told = {"Content-Type": "application/json"} | dict(headers or {})
    if token is not None:
        told["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=TIMEOUT)
    try:
        connection.request(method, place.path or "/", body, told)
        answer = connection.getresponse()
        said = answer.read()
        kept = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, _data(said, kept), kept)
    except (OSError, ValueError, http.client.HTTPException):
        return Answer(0)
    finally:
        connection.close()


def _data(said: bytes, headers: Mapping[str, str]) -> Any:
    """Return a body's data; of a stream of events that of the last one."""
    if headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line[5:] for line in said.splitlines() if line.startswith(b"data:")]
        said = lines[-1] if lines else b""
    return json.loads(said) if said.strip() else None


@dataclass(slots=True)
class Line:
    """A client's line to a server.

    Attributes:
        served: The server.
        url: Its address.
        token: Its token.
        rng: Draws what the client does.
        found: Where it notes what came.
    """

    served: Served
    url: str
    token: str
    rng: random.Random
    found: Findings = field(default_factory=Findings)

    def ask(self, path: str, data: Any, **options: Any) -> Answer:
        """Send JSON data with the token, and return what came of it."""
        return self.send(path, json.dumps(data).encode(), **options)

    def send(self, path: str, body: bytes, **options: Any) -> Answer:
        """Send a body with the token, and return what came of it."""
        headers = dict(self.served.headers) | dict(options.pop("headers", {}))
        return exchange(f"{self.url}{path}", body, self.token, headers=headers, **options)

    def check(self, right: bool, what: str) -> bool:
        """Note a loss of this server unless something is right, and return whether it is."""
        return self.found.check(right, f"{self.served.name}: {what}")

    def check_refused(self, what: str, status: int, said: object = "") -> bool:
        """Note how something wrong was told, and a loss where it was not.

        Args:
            what: What is counted.
            status: The status that came.
            said: What was sent, for who reads of a loss.
        """
        self.found.count(what)
        self.found.tell(f"status {status}")
        full = status == 503 and self.served.overfill is not None
        return self.check(400 <= status < 500 or full, f"status {status} for {what} {said!r:.60}")


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and what is asked of it.

    Attributes:
        name: What results call it.
        words: The words after ``comap serve``.
        talk: One whole well-formed conversation of a client; it is told a number to choose it by.
        samples: Paths behind the address with well-formed requests, whose parts are made hostile.
        routes: Paths that take none of the malformed bodies.
        headers: What each request tells besides the token.
        length: About how many requests a conversation has.
        needs: Modules without which it is left out.
        overfill: For servers with sessions: see `comap.benchmarks.reliability.episodes.overfill`.
        knock: Further ways to come without the token: each returns a status.
    """

    name: str
    words: tuple[str, ...]
    talk: Callable[[Line, int], None]
    samples: tuple[tuple[str, Mapping[str, Any]], ...]
    routes: tuple[str, ...] = ("",)
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int = 1
    needs: tuple[str, ...] = ()
    overfill: Callable[[Line], None] | None = None
    knock: tuple[Callable[[str, str | None], int], ...] = ()


def asked_once(
    name: str,
    words: tuple[str, ...],
    asks: Callable[[int], Any],
    right: Callable[[int, Any], bool],
    sample: Mapping[str, Any],
    needs: tuple[str, ...] = (),
) -> Served:
    """Return a server that is asked a question, and answers it, and that is all.

    Args:
        name: What results call it.
        words: The words after ``comap serve``.
        asks: Returns the well-formed request of a number, as JSON data.
        right: Whether an answer is that of a number's request.
        sample: A well-formed request, whose parts are made hostile.
        needs: Modules without which it is left out.
    """

    def talk(line: Line, number: int) -> None:
        answer = line.ask("", asks(number))
        line.found.count("well-formed requests")
        good = answer.status == 200 and right(number, answer.told)
        told = f"status {answer.status} for a well-formed request: {answer.told!r:.200}"
        line.check(good, told)

    return Served(name, words, talk, samples=(("", sample),), needs=needs)
