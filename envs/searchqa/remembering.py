"""A retriever that remembers answers, for groups of episodes that ask the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from ...errors import OptionError
from .retriever import Hit, Retriever, check_queries

__all__ = ["RememberingRetriever"]


class RememberingRetriever:
    """Asks another retriever, each query once while it is remembered.

    Args:
        retriever: The other.
        most: How many queries are remembered; the oldest go first.

    Raises:
        OptionError: `most` is less than 1.

    Example:
        >>> from comap.envs.searchqa.retriever import CallableRetriever
        >>> asked = []
        >>> found = CallableRetriever(lambda queries, k: [asked.append(q) or [] for q in queries])
        >>> memory = RememberingRetriever(found)
        >>> memory.search(["a"]) == memory.search(["a"]), asked
        (True, ['a'])
    """

    def __init__(self, retriever: Retriever, most: int = 1024):
        if type(most) is not int or most < 1:
            raise OptionError(f"most must be a whole number of at least 1, not {most!r}")
        self.retriever, self.identity, self._most = retriever, retriever.identity, most
        self._known: OrderedDict[tuple[str, int], tuple[Hit, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return RememberingRetriever, (self.retriever, self._most)

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first."""
        check_queries(queries, k)
        with self._lock:
            known = {query: self._known.get((query, k)) for query in queries}
        new = [query for query, hits in known.items() if hits is None]
        if new:
            for query, hits in zip(new, self.retriever.search(new, k), strict=True):
                known[query] = tuple(hits)
        with self._lock:
            for query in new:
                self._known[query, k] = known[query] or ()
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return [list(known[query] or ()) for query in queries]
