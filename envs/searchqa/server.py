"""A server of passages that speaks both wire formats of ``/retrieve``."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ...errors import CoMapError, OptionError
from .retriever import Hit, Retriever, contents_of

__all__ = ["MAX_QUERIES", "MAX_REQUEST_BYTES", "RetrievalServer", "answer"]

MAX_REQUEST_BYTES = 2**20
"""A larger request is refused."""

MAX_QUERIES = 512
"""More queries in one request are refused."""

_LONGEST_QUERY = 10_000
_TIMEOUT = 30.0
_LINGER, _MOST_LINGERED, _PART = 2.0, 2**26, 2**16
_MOST_AT_ONCE = 64
_DEFAULT_TOPK = 3


class _Refused(Exception):
    """A request that is not answered, with its status."""

    def __init__(self, status: int, said: str):
        super().__init__(said)
        self.status = status


def answer(retriever: Retriever, asked: Any, max_topk: int = 100) -> dict[str, Any]:
    """Return the answer to a request, as JSON data.

    Args:
        retriever: What searches.
        asked: The request: ``{"queries": [...]}`` or ``{"query": "..."}``, with ``topk`` (or
            ``top_k``), 3 by default. Scores are returned always, so that ``return_scores`` changes
            nothing.
        max_topk: The most passages of a query; who asks for more gets so many.

    Raises:
        OptionError: The request is none; the message says why.

    Example:
        >>> from comap.envs.searchqa.retriever import CallableRetriever
        >>> engine = CallableRetriever(lambda queries, k: [[{"id": "7", "contents": "Emma"}]])
        >>> answer(engine, {"query": "who?"})["result"][0][0]["document"]["id"]
        '7'
    """
    if not isinstance(asked, Mapping):
        raise OptionError(f"expected a JSON object, found {type(asked).__name__}")
    if ("query" in asked) == ("queries" in asked):
        raise OptionError("expected either 'query' or 'queries', found both or none")
    queries = [asked["query"]] if "query" in asked else asked["queries"]
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise OptionError("expected 'query' to be a text, or 'queries' a list of texts")
    if len(queries) > MAX_QUERIES:
        raise OptionError(f"expected at most {MAX_QUERIES} queries, found {len(queries)}")
    if any(len(query) > _LONGEST_QUERY for query in queries):
        raise OptionError(f"expected queries of at most {_LONGEST_QUERY:,} characters")
    topk = asked.get("topk", asked.get("top_k"))
    topk = _DEFAULT_TOPK if topk is None else topk
    if type(topk) is not int or topk < 1:
        raise OptionError(f"expected 'topk' to be a whole number of at least 1, found {topk!r:.40}")
    found = retriever.search(queries, min(topk, max_topk)) if queries else []
    return {"result": [[_row(hit) for hit in hits] for hits in found]}


def _row(hit: Hit) -> dict[str, Any]:
    contents = contents_of(hit.title, hit.text)
    document = {"id": hit.id, "contents": contents, "title": hit.title, "text": hit.text}
    return {"document": document, "score": hit.score}


class RetrievalServer(ThreadingHTTPServer):
    """Serves ``POST /retrieve`` and ``GET /health`` until it is shut down.

    Args:
        retriever: What searches; it is called by several threads.
        host: The address to listen at.
        port: The port; 0 for any that is free, see `url`.
        max_topk: As for `answer`.

    Raises:
        OptionError: `max_topk` is not from 1 to 1,000.
        OSError: The address is taken, or not this machine's.

    Example:
        >>> from comap.envs.searchqa.remote import RemoteRetriever
        >>> from comap.envs.searchqa.retriever import CallableRetriever
        >>> engine = CallableRetriever(lambda queries, k: [[{"id": "7", "contents": "Emma"}]])
        >>> with RetrievalServer(engine, port=0) as server:
        ...     thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        ...     thread.start()
        ...     print(RemoteRetriever(server.url).search(["who?"])[0][0].title)
        ...     server.shutdown()
        Emma
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, retriever: Retriever, host: str = "127.0.0.1", port: int = 8000, max_topk: int = 100
    ):
        if type(max_topk) is not int or not 1 <= max_topk <= 1000:
            raise OptionError(f"max_topk must be a whole number from 1 to 1,000, not {max_topk!r}")
        self.retriever, self.max_topk = retriever, max_topk
        self.slots = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """The address of ``/retrieve``."""
        host, port = self.server_address[:2]
        name = host if isinstance(host, str) else host.decode()
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/retrieve"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that clients broke off."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: RetrievalServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "comap", ""
    timeout = _TIMEOUT

    def do_POST(self) -> None:
        """Answer a search."""
        try:
            if self.path.partition("?")[0].rstrip("/") != "/retrieve":
                raise _Refused(404, f"expected POST /retrieve, found {self.path!r:.80}")
            asked = self._body()
            with self.server.slots:
                told = answer(self.server.retriever, asked, self.server.max_topk)
        except _Refused as refused:
            self._reply(refused.status, {"error": str(refused)}, close=True)
            self._linger()
        except OptionError as error:
            self._reply(422, {"error": str(error)})
        except CoMapError as error:
            self._reply(500, {"error": str(error)})
        except OSError:
            self.close_connection = True
        except Exception as error:
            self._reply(500, {"error": f"the search failed ({type(error).__name__})"})
        else:
            self._reply(200, told)

    def do_GET(self) -> None:
        """Say that the server is there, and what it searches."""
        if self.path.partition("?")[0].rstrip("/") == "/health":
            self._reply(200, {"status": "ok", "retriever": str(self.server.retriever.identity)})
        else:
            self._reply(404, {"error": "expected GET /health or POST /retrieve"})

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""

    def _body(self) -> Any:
        """Return the request as JSON data."""
        length = self.headers.get("content-length", "")
        if not (length.isascii() and length.isdecimal()):
            raise _Refused(411, "expected a Content-Length, found none")
        if len(length) > 9 or int(length) > MAX_REQUEST_BYTES:
            raise _Refused(413, f"expected at most {MAX_REQUEST_BYTES:,} bytes, found {length:.20}")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise _Refused(400, f"expected {length} bytes, found {len(body)}")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _Refused(400, f"expected JSON, found something else ({error})") from error

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
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if close:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
