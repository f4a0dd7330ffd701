"""Asking a server for passages, by the two wire formats of ``/retrieve``."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from ...errors import EngineError, OptionError, suggest
from ..http_exchange import ExchangeFailure, post_json
from .retriever import Hit, check_queries, hit_of

__all__ = ["RemoteRetriever", "Wire"]

Wire: TypeAlias = Literal["queries", "query"]
"""How a server is asked: all queries at a time (Search-R1), or one (verl-agent)."""

_WIRES: tuple[Wire, ...] = ("queries", "query")
_PATH = "/retrieve"
_PAUSE = 0.1


class _Address(NamedTuple):
    """Where a server is: the URL to ask, its host, and how the retriever is told from others."""

    url: str
    host: str
    identity: str


class RemoteRetriever:
    """Asks a server such as Search-R1's, verl-agent's, or ``comap serve search``.

    ``POST /retrieve`` with ``{"queries": [...], "topk": 3, "return_scores": true}``, or with one
    ``"query"``; the answer is ``{"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}``,
    or documents without scores. Whatever the server does, `search` ends within `timeout`. Answers are
    data: they are cut where they are long, redirects are not followed, and no more than 8 MiB are read.

    Args:
        url: Such as ``http://127.0.0.1:8000/retrieve``; without a path ``/retrieve`` is meant.
        wire: How it is asked.
        timeout: The most seconds for all of one search, repetitions included.
        retries: How often it is asked again after a broken connection or a status of 429, 500 or more.

    Raises:
        OptionError: The URL or a number is none.

    Example:
        >>> RemoteRetriever("http://127.0.0.1:1").search(["Emma"])
        Traceback (most recent call last):
        ...
        comap.errors.EngineError: expected passages from the server at 127.0.0.1, found a broken ...
    """

    def __init__(
        self, url: str, wire: Wire = "queries", timeout: float = 10.0, retries: int = 1
    ) -> None:
        if wire not in _WIRES:
            raise OptionError(f"wire cannot be {wire!r}; {suggest(str(wire), _WIRES)}")
        number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not number or not 0 < timeout < math.inf:
            raise OptionError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        if type(retries) is not int or not 0 <= retries <= 10:
            raise OptionError(f"retries must be a whole number from 0 to 10, not {retries!r}")
        self._address = _address_of(url)
        self.wire, self.timeout, self.retries = wire, float(timeout), retries
        self.identity = self._address.identity

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, as the server ranks them.

        Raises:
            EngineError: No answer came in time, or none that can be read.
        """
        check_queries(queries, k)
        end = time.monotonic() + self.timeout
        if self.wire == "query":
            return [self._ask({"query": query}, 1, k, end)[0] for query in queries]
        return self._ask({"queries": list(queries)}, len(queries), k, end) if queries else []

    def _ask(self, asked: Mapping[str, Any], number: int, k: int, end: float) -> list[list[Hit]]:
        """Return the answer to one request, asked again where that may help."""
        body = json.dumps({**asked, "topk": k, "return_scores": True}).encode()
        attempt = 0
        while True:
            try:
                answer = post_json(self._address.url, body, end - time.monotonic())
                return _read(answer, number, k)
            except ExchangeFailure as failure:
                pause = _PAUSE * 2**attempt
                over = attempt == self.retries or not failure.again
                if over or time.monotonic() + pause >= end:
                    raise EngineError(
                        f"expected passages from the server at {self._address.host}, found "
                        f"{failure}; check that it runs and is a /retrieve server, or raise timeout "
                        f"({self.timeout:g} s)"
                    ) from None
            time.sleep(pause)
            attempt += 1


def _address_of(url: str) -> _Address:
    """Return the address that a URL names."""
    expected = "expected a URL like 'http://127.0.0.1:8000/retrieve'"
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise OptionError(f"{expected}, found another kind of value or strange characters in it")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise OptionError(f"{expected}, found a broken host or port") from None
    if parts.scheme not in ("http", "https") or not host:
        raise OptionError(f"{expected}, found the scheme {parts.scheme!r:.20}")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise OptionError(f"{expected}, found user info, a query or a fragment; leave them out")
    path = parts.path if parts.path not in ("", "/") else _PATH
    return _Address(parts._replace(path=path).geturl(), host, f"remote:{host}:{port}{path}")


def _read(body: bytes, number: int, k: int) -> list[list[Hit]]:
    """Return the passages of an answer."""
    try:
        rows = json.loads(body)["result"]
        if not isinstance(rows, list) or len(rows) != number:
            found = len(rows) if isinstance(rows, list) else type(rows).__name__
            raise ValueError(f"{found} results for {number} queries")
        return [_hits(row, k) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}"
        raise ExchangeFailure(f"an answer that cannot be read ({said:.200})") from None


def _hits(row: Any, k: int) -> list[Hit]:
    """Return the passages for one query."""
    if not isinstance(row, list):
        raise TypeError(f"expected a list of passages, found {type(row).__name__}")
    hits = []
    for rank, found in enumerate(row[:k], 1):
        if isinstance(found, dict) and isinstance(found.get("document"), dict):
            score = {"score": found["score"]} if found.get("score") is not None else {}
            found = {**found["document"], **score}
        hits.append(hit_of(found, rank))
    return hits
