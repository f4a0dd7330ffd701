"""A retriever that has only what a recorded episode shows."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import EngineError
from .protocol import read_results
from .retriever import Hit, check_queries

__all__ = ["RecalledRetriever"]


class RecalledRetriever:
    r"""Answers searches by what observations showed, where the retriever itself is out of reach.

    Example:
        >>> recalled = RecalledRetriever()
        >>> shown = '\n\n<information>Doc 1(Title: "Emma") A novel.</information>\n\n'
        >>> recalled.learn("who?", shown), recalled.search(["who?"])[0][0].title
        (True, 'Emma')
    """

    identity = "recalled"

    def __init__(self) -> None:
        self._known: dict[str, list[Hit]] = {}

    def learn(self, query: str, observation: str) -> bool:
        """Take the answer to a query from an observation; return whether it shows one.

        Args:
            query: The query.
            observation: What followed it.
        """
        shown = read_results(observation)
        if shown is None:
            return False
        self._known[query] = [
            Hit(str(number), one.title, one.text, 1 / number) for number, one in enumerate(shown, 1)
        ]
        return True

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return what was shown, all of it: a record shows as many passages as were asked for.

        Raises:
            EngineError: The record shows no answer to a query.
        """
        check_queries(queries, k)
        for query in queries:
            if query not in self._known:
                raise EngineError(f"expected a recorded answer to {query!r:.80}, found none")
        return [self._known[query] for query in queries]
