"""What a retriever is; retrievers made of others (functions, fusions, recordings), or asked over HTTP."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from ...errors import EngineError, OptionError, check_choice, check_number, check_url
from ..http import json_app
from ..http_client import ExchangeFailure, post_json

LONGEST_TITLE = 300
LONGEST_TEXT = 6_000
"""Characters of a title and of a text; what a retriever returns beyond is cut."""

_LONGEST_ID = 200
_MOST_QUERIES = 4_096
_MOST_HITS = 1_000


class Hit(NamedTuple):
    """A passage that was found.

    Attributes:
        id: The passage's id in its corpus.
        title: Its title, without the quotes that corpora put around it.
        text: Its text, without the title.
        score: How well it fits; greater is better, the scale is the retriever's own.
    """

    id: str
    title: str
    text: str
    score: float


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds passages for queries.

    `identity` names what answers (kind, corpus, settings) in results: two retrievers of the same
    identity return the same.
    """

    identity: str

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, ties by id."""
        ...


class CallableRetriever:
    r"""A retriever made of any function: your own search engine, or a model that plays one.

    Args:
        function: Called with the queries and `k`; returns for each query its passages, best first,
            each a `Hit`, or ``{"id", "contents"}``, or ``{"id", "title", "text"}``, with a ``score``
            or without (then 1 / rank).
        name: What results call it.

    Raises:
        OptionError: `function` cannot be called.

    Example:
        >>> def engine(queries, k):
        ...     return [[{"contents": f'"{query}"\nNothing.'}] for query in queries]
        >>> echo = CallableRetriever(engine)
        >>> echo.search(["Emma"])[0][0].title
        'Emma'
    """

    def __init__(
        self,
        function: Callable[[Sequence[str], int], Iterable[Iterable[Any]]],
        name: str = "callable",
    ):
        if not callable(function):
            raise OptionError(
                f"expected a function of queries and k, found {type(function).__name__}; pass one, or "
                "an object with search(queries, k)"
            )
        self.function = function
        self.identity = name

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return what the function returns, checked.

        Raises:
            EngineError: It returns something else, or too few lists.
        """
        check_queries(queries, k)
        rows = self.function(list(queries), k)

        # The function may return any iterables, without end as well: `k` of each are taken.
        answers = []
        try:
            for row in rows:
                ranked = zip(range(1, k + 1), row, strict=False)
                answers.append([hit_of(passage, rank) for rank, passage in ranked])
        except (TypeError, ValueError) as error:
            raise EngineError(f"expected passages from {self.identity!r}, found {error}") from error
        if len(answers) != len(queries):
            raise EngineError(
                f"expected {len(queries)} lists of passages from {self.identity!r}, found "
                f"{len(answers)}"
            )
        return answers


def check_queries(queries: Sequence[str], k: int) -> None:
    """Refuse what is no list of queries, or no number of passages."""
    if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
        raise OptionError(f"queries must be a list of texts, not {queries!r:.80}; write [query]")
    if len(queries) > _MOST_QUERIES:
        raise OptionError(
            f"expected at most {_MOST_QUERIES:,} queries at a time, found {len(queries):,}"
        )
    check_number("k", k, 1, _MOST_HITS)


def split_contents(contents: str) -> tuple[str, str]:
    r"""Return title and text of a passage as corpora write them: the first line is the title."""
    title, _, text = contents.partition("\n")
    title = title.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, text


def contents_of(title: str, text: str) -> str:
    """Return a passage as corpora write it: see `split_contents`."""
    return f'"{title}"\n{text}'


def hit_of(passage: Any, rank: int = 1) -> Hit:
    """Return a `Hit` from what a function or a server calls a passage; cut where it is too long."""
    if isinstance(passage, Hit):
        return passage
    if not isinstance(passage, dict):
        raise ValueError(f"a passage that is no JSON object: {passage!r:.80}")

    title = passage.get("title")
    text = passage.get("text")
    if isinstance(passage.get("contents"), str):
        # Cut before it is split: a server may send megabytes.
        title, text = split_contents(passage["contents"][: LONGEST_TITLE + LONGEST_TEXT])
    if not isinstance(text, str):
        raise ValueError(f"a passage without 'contents' or 'text': {passage!r:.80}")

    name = passage.get("id", "")
    # True is an int, but no id.
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ValueError(f"a passage whose id is no text: {name!r:.80}")

    score = passage.get("score", 1 / rank)
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    if not is_number or not math.isfinite(score):
        raise ValueError(f"a score that is no number: {score!r:.80}")

    title = title[:LONGEST_TITLE] if isinstance(title, str) else ""
    # Ids go into infos and records, where a lone surrogate cannot be written.
    name = str(name)[:_LONGEST_ID].encode("utf-8", "replace").decode()
    return Hit(name, title, text[:LONGEST_TEXT], float(score))


class HybridRetriever:
    """Ranks by the sum of ``1 / (constant + rank)`` over retrievers; passages are the same by id.

    Args:
        retrievers: Two or more, of one corpus.
        depth: How many passages of each count, at least; where more are asked for, as many as these.
        constant: 60 in the paper (Cormack et al. 2009).

    Raises:
        OptionError: There are less than two retrievers, or a number is less than 1.

    Example:
        >>> from comap.envs.searchqa.retriever import CallableRetriever
        >>> def finding(ids):
        ...     return CallableRetriever(lambda queries, k: [[{"id": i, "contents": i} for i in ids]])
        >>> one, two = finding("abc"), finding("cb")
        >>> [hit.id for hit in HybridRetriever([one, two]).search(["?"], k=3)[0]]
        ['c', 'b', 'a']
    """

    def __init__(self, retrievers: Sequence[Retriever], depth: int = 20, constant: int = 60):
        if len(retrievers) < 2:
            raise OptionError(f"expected two retrievers or more, found {len(retrievers)}")
        check_number("depth", depth)
        check_number("constant", constant)
        self.retrievers = tuple(retrievers)
        self.depth = depth
        self.constant = constant
        names = "+".join(str(retriever.identity) for retriever in retrievers)
        self.identity = f"hybrid({names},{depth},{constant})"

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, ties by id."""
        check_queries(queries, k)
        # Deeper than `k`: a passage that is in the middle of all lists may be the best.
        depth = max(k, self.depth)
        answers = [retriever.search(queries, depth) for retriever in self.retrievers]
        return [self._fuse(lists, k) for lists in zip(*answers, strict=True)]

    def _fuse(self, lists: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
        """Return the best passages of several lists (reciprocal rank fusion)."""
        passages: dict[str, Hit] = {}
        scores: dict[str, float] = {}
        for hits in lists:
            for rank, hit in enumerate(hits, 1):
                passages.setdefault(hit.id, hit)
                scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (self.constant + rank)
        best = sorted(passages, key=lambda name: (-scores[name], name))[:k]
        return [passages[name]._replace(score=scores[name]) for name in best]


class RememberingRetriever:
    """Asks another retriever, each query once while it is remembered."""

    def __init__(self, retriever: Retriever, most: int = 1024):
        check_number("most", most)
        self.retriever = retriever
        self.identity = retriever.identity
        self._most = most
        self._remembered: OrderedDict[tuple[str, int], tuple[Hit, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return RememberingRetriever, (self.retriever, self._most)

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, ties by id."""
        check_queries(queries, k)
        with self._lock:
            # A dictionary: a query that comes twice is asked once.
            answers = {query: self._remembered.get((query, k)) for query in queries}

        # The lock is not held while the other retriever searches.
        new_queries = [query for query, hits in answers.items() if hits is None]
        if new_queries:
            new_answers = self.retriever.search(new_queries, k)
            for query, hits in zip(new_queries, new_answers, strict=True):
                answers[query] = tuple(hits)

        with self._lock:
            for query in new_queries:
                self._remembered[query, k] = answers[query] or ()
            while len(self._remembered) > self._most:
                self._remembered.popitem(last=False)
        return [list(answers[query] or ()) for query in queries]


class RecalledRetriever:
    r"""Answers searches by what observations showed, where the retriever itself is out of reach."""

    identity = "recalled"

    def __init__(self) -> None:
        self._hits_by_query: dict[str, list[Hit]] = {}

    def learn(self, query: str, passages: Sequence[tuple[str, str]]) -> None:
        """Take in the passages, each a title and a text, that an observation showed for a query."""
        self._hits_by_query[query] = [
            Hit(str(rank), title, text, 1 / rank) for rank, (title, text) in enumerate(passages, 1)
        ]

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return what was shown, all of it: a record shows as many passages as were asked for."""
        check_queries(queries, k)
        for query in queries:
            if query not in self._hits_by_query:
                raise EngineError(f"expected a recorded answer to {query!r:.80}, found none")
        return [self._hits_by_query[query] for query in queries]


Wire: TypeAlias = Literal["queries", "query"]
"""How a server is asked: all queries at a time (Search-R1), or one (verl-agent)."""

_WIRES: tuple[Wire, ...] = ("queries", "query")
_PATH = "/retrieve"
_PAUSE = 0.1


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
        check_choice("wire", wire, _WIRES)
        if type(timeout) not in (int, float) or not 0 < timeout < math.inf:
            raise OptionError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        check_number("retries", retries, 0, 10)

        parts = check_url("the retriever", url, "http://127.0.0.1:8000/retrieve")
        path = parts.path if parts.path not in ("", "/") else _PATH
        self._url = parts._replace(path=path).geturl()
        self._host = parts.hostname
        self.wire = wire
        self.timeout = float(timeout)
        self.retries = retries
        self.identity = f"remote:{self._host}:{parts.port}{path}"

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, as the server ranks them.

        Raises:
            EngineError: No answer came in time, or none that can be read.
        """
        check_queries(queries, k)
        # One end for all requests: a list of queries takes no longer than one of them.
        end = time.monotonic() + self.timeout
        if self.wire == "query":
            return [self._ask({"query": query}, 1, k, end)[0] for query in queries]
        if not queries:
            return []
        return self._ask({"queries": list(queries)}, len(queries), k, end)

    def _ask(self, request: Mapping[str, Any], number: int, k: int, end: float) -> list[list[Hit]]:
        """Return the answer to one request, sent again where that may help."""
        body = json.dumps({**request, "topk": k, "return_scores": True}).encode()
        attempt = 0
        while True:
            # Twice as long each time; where no time is left behind it, no pause is made.
            pause = _PAUSE * 2**attempt
            try:
                return _read(post_json(self._url, body, end - time.monotonic()), number, k)
            except ExchangeFailure as failure:
                over = attempt == self.retries or not failure.again
                if over or time.monotonic() + pause >= end:
                    raise EngineError(
                        f"expected passages from the server at {self._host}, found "
                        f"{failure}; check that it runs and is a /retrieve server, or raise timeout "
                        f"({self.timeout:g} s)"
                    ) from None
            time.sleep(pause)
            attempt += 1


def _read(body: bytes, number: int, k: int) -> list[list[Hit]]:
    """Return the passages in a server's answer; raise `ExchangeFailure` where it is none."""
    try:
        rows = json.loads(body)["result"]
        if not isinstance(rows, list) or len(rows) != number:
            count = len(rows) if isinstance(rows, list) else type(rows).__name__
            raise ValueError(f"{count} results for {number} queries")
        return [_hits(row, k) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"{type(error).__name__}: {error}"
        raise ExchangeFailure(f"an answer that cannot be read ({message:.200})") from None


def _hits(row: Any, k: int) -> list[Hit]:
    """Return the passages for one query, with scores or without."""
    if not isinstance(row, list):
        raise TypeError(f"expected a list of passages, found {type(row).__name__}")
    hits = []
    for rank, passage in enumerate(row[:k], 1):
        if isinstance(passage, dict) and isinstance(passage.get("document"), dict):
            score = passage.get("score")
            passage = dict(passage["document"])
            if score is not None:
                passage["score"] = score
        hits.append(hit_of(passage, rank))
    return hits


MAX_QUERIES = 512
MAX_PASSAGES = 5_120
_LONGEST_QUERY = 10_000
_DEFAULT_TOPK = 3


def answer(retriever: Retriever, request: Any, max_topk: int = 100) -> dict[str, Any]:
    """Return the answer to a request, as JSON data.

    A query of a batch that is too long has no passages, and its reason in ``errors``; the others are
    answered.
    """
    if not isinstance(request, Mapping):
        raise OptionError(f"expected a JSON object, found {type(request).__name__}")
    if ("query" in request) == ("queries" in request):
        raise OptionError("expected either 'query' or 'queries', found both or none")

    queries = [request["query"]] if "query" in request else request["queries"]
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise OptionError("expected 'query' to be a text, or 'queries' a list of texts")
    if len(queries) > MAX_QUERIES:
        raise OptionError(f"expected at most {MAX_QUERIES} queries, found {len(queries)}")
    short_queries = [query for query in queries if len(query) <= _LONGEST_QUERY]
    if queries and not short_queries:
        raise OptionError(f"expected queries of at most {_LONGEST_QUERY:,} characters")

    # ZeroSearch's clients write "top_k".
    topk = request.get("topk", request.get("top_k"))
    if topk is None:
        topk = _DEFAULT_TOPK
    if type(topk) is not int or topk < 1:
        raise OptionError(f"expected 'topk' to be a whole number of at least 1, found {topk!r:.40}")
    topk = min(topk, max_topk)
    if len(queries) * topk > MAX_PASSAGES:
        raise OptionError(
            f"expected at most {MAX_PASSAGES:,} passages in all, found {len(queries)} queries with "
            f"{topk} each"
        )

    answers = iter(retriever.search(short_queries, topk) if short_queries else [])
    rows: list[list[dict[str, Any]]] = []
    errors: list[str | None] = []
    for query in queries:
        is_too_long = len(query) > _LONGEST_QUERY
        rows.append([] if is_too_long else [_row(hit) for hit in next(answers)])
        length = f"expected at most {_LONGEST_QUERY:,} characters, found {len(query):,}"
        errors.append(length if is_too_long else None)
    return {"result": rows, "errors": errors} if any(errors) else {"result": rows}


def _row(hit: Hit) -> dict[str, Any]:
    """Return a passage as Search-R1's server writes it, with title and text beside the contents."""
    contents = contents_of(hit.title, hit.text)
    document = {"id": hit.id, "contents": contents, "title": hit.title, "text": hit.text}
    return {"document": document, "score": hit.score}


def retrieval_app(
    retriever: Retriever, max_topk: int = 100, *, host: str = "127.0.0.1", token: str | None = None
) -> Any:
    """Return a web application that answers ``POST /retrieve`` and ``GET /health``."""
    check_number("max_topk", max_topk, 1, 1000)

    def respond(method: str, path: str, request: Any) -> Any:
        if path == "/health":
            return {"status": "ok", "retriever": str(retriever.identity)}
        return answer(retriever, request, max_topk)

    routes = {"/retrieve": ("POST",), "/health": ("GET",)}
    return json_app(routes, respond, host=host, token=token)
