"""What a retriever is: questions in, ranked passages out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ...errors import EngineError, OptionError

__all__ = [
    "LONGEST_TEXT",
    "LONGEST_TITLE",
    "CallableRetriever",
    "Hit",
    "Retriever",
    "check_queries",
    "contents_of",
    "hit_of",
    "split_contents",
    "top",
]

LONGEST_TITLE, LONGEST_TEXT = 300, 6_000
"""Characters of a title and of a text; what a retriever returns beyond is cut."""

_LONGEST_ID = 200
_MOST_QUERIES, _MOST_HITS = 4_096, 1_000


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
    r"""A retriever made of any function: a search engine of yours, or a model that plays one.

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
        self.function, self.identity = function, name

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return what the function returns, checked.

        Raises:
            EngineError: It returns something else, or too few lists.
        """
        check_queries(queries, k)
        answer = self.function(list(queries), k)
        try:
            found = [
                [hit_of(one, rank) for rank, one in zip(range(1, k + 1), row, strict=False)]
                for row in answer
            ]
        except (TypeError, ValueError) as error:
            raise EngineError(f"expected passages from {self.identity!r}, found {error}") from error
        if len(found) != len(queries):
            raise EngineError(
                f"expected {len(queries)} lists of passages from {self.identity!r}, found {len(found)}"
            )
        return found


def check_queries(queries: Sequence[str], k: int) -> None:
    """Refuse what is no list of queries, or no number of passages.

    Raises:
        OptionError: See above.

    Example:
        >>> check_queries(["who wrote Emma?"], 3)
    """
    if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
        raise OptionError(f"queries must be a list of texts, not {queries!r:.80}; write [query]")
    if len(queries) > _MOST_QUERIES:
        raise OptionError(
            f"expected at most {_MOST_QUERIES:,} queries at a time, found {len(queries):,}"
        )
    if type(k) is not int or not 1 <= k <= _MOST_HITS:
        raise OptionError(f"k must be a whole number from 1 to {_MOST_HITS:,}, not {k!r}")


def split_contents(contents: str) -> tuple[str, str]:
    r"""Return title and text of a passage as corpora write them: the first line is the title.

    Example:
        >>> split_contents('"Emma (novel)"\nEmma is a novel.')
        ('Emma (novel)', 'Emma is a novel.')
    """
    title, _, text = contents.partition("\n")
    title = title.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return title, text


def contents_of(title: str, text: str) -> str:
    r"""Return a passage as corpora write it: the inverse of `split_contents`.

    Example:
        >>> contents_of("Emma", "A novel.")
        '"Emma"\nA novel.'
    """
    return f'"{title}"\n{text}'


def hit_of(found: Any, rank: int = 1) -> Hit:
    """Return a `Hit` from what a function or a server calls a passage; cut where it is too long.

    Args:
        found: A `Hit`, or a mapping: see `CallableRetriever`.
        rank: Its place, for the score where there is none.

    Raises:
        ValueError: It is no passage.

    Example:
        >>> hit_of({"id": 7, "contents": "Emma"}, 2)
        Hit(id='7', title='Emma', text='', score=0.5)
    """
    if isinstance(found, Hit):
        return found
    if not isinstance(found, dict):
        raise ValueError(f"a passage that is no JSON object: {found!r:.80}")
    title, text = found.get("title"), found.get("text")
    if isinstance(found.get("contents"), str):
        title, text = split_contents(found["contents"][: LONGEST_TITLE + LONGEST_TEXT])
    if not isinstance(text, str):
        raise ValueError(f"a passage without 'contents' or 'text': {found!r:.80}")
    name, score = found.get("id", ""), found.get("score", 1 / rank)
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ValueError(f"a passage whose id is no text: {name!r:.80}")
    number = isinstance(score, int | float) and not isinstance(score, bool)
    if not number or not math.isfinite(score):
        raise ValueError(f"a score that is no number: {score!r:.80}")
    title = title[:LONGEST_TITLE] if isinstance(title, str) else ""
    name = str(name)[:_LONGEST_ID].encode("utf-8", "replace").decode()
    return Hit(name, title, text[:LONGEST_TEXT], float(score))


def top(hits: Iterable[Hit], k: int) -> list[Hit]:
    """Return the best `k`, ties by id.

    Example:
        >>> [hit.id for hit in top([Hit("b", "", "", 1.0), Hit("a", "", "", 1.0)], 1)]
        ['a']
    """
    return sorted(hits, key=lambda hit: (-hit.score, hit.id))[:k]
