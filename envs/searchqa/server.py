"""A server of passages that speaks both wire formats of ``/retrieve``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import OptionError
from ..json_server import JsonServer
from .retriever import Hit, Retriever, contents_of

__all__ = ["MAX_QUERIES", "RetrievalServer", "answer"]

MAX_QUERIES = 512
"""More queries in one request are refused."""

_LONGEST_QUERY = 10_000
_DEFAULT_TOPK = 3


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


class RetrievalServer(JsonServer):
    """Serves ``POST /retrieve`` and ``GET /health`` until it is shut down.

    Args:
        retriever: What searches; it is called by several threads.
        host: The address to listen at.
        port: The port; 0 for any that is free, see `url`.
        max_topk: As for `answer`.
        token: What requests must tell; None for nothing.

    Raises:
        OptionError: `max_topk` is not from 1 to 1,000.
        OSError: The address is taken, or not this machine's.

    Example:
        >>> import threading
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

    routes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "/retrieve": ("POST",),
        "/health": ("GET",),
    }

    def __init__(
        self,
        retriever: Retriever,
        host: str = "127.0.0.1",
        port: int = 8000,
        max_topk: int = 100,
        token: str | None = None,
    ):
        if type(max_topk) is not int or not 1 <= max_topk <= 1000:
            raise OptionError(f"max_topk must be a whole number from 1 to 1,000, not {max_topk!r}")
        self.retriever, self.max_topk = retriever, max_topk
        super().__init__(host, port, token)

    @property
    def url(self) -> str:
        """The address of ``/retrieve``."""
        return f"{self.base}/retrieve"

    def answer(self, method: str, path: str, asked: Any) -> Any:
        """Answer a search, or say that the server is there and what it searches."""
        if path == "/health":
            return {"status": "ok", "retriever": str(self.retriever.identity)}
        return answer(self.retriever, asked, self.max_topk)
