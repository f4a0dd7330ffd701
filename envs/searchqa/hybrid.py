"""Several retrievers as one, by reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import OptionError
from .retriever import Hit, Retriever, check_queries, top

__all__ = ["HybridRetriever"]


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
        for name, value in (("depth", depth), ("constant", constant)):
            if type(value) is not int or value < 1:
                raise OptionError(f"{name} must be a whole number of at least 1, not {value!r}")
        self.retrievers, self.depth, self.constant = tuple(retrievers), depth, constant
        names = "+".join(str(one.identity) for one in retrievers)
        self.identity = f"hybrid({names},{depth},{constant})"

    def search(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """Return at most `k` passages for each query, best first, ties by id."""
        check_queries(queries, k)
        found = [one.search(queries, max(k, self.depth)) for one in self.retrievers]
        return [self._fuse(lists, k) for lists in zip(*found, strict=True)]

    def _fuse(self, lists: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
        passages: dict[str, Hit] = {}
        scores: dict[str, float] = {}
        for hits in lists:
            for rank, hit in enumerate(hits, 1):
                passages.setdefault(hit.id, hit)
                scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (self.constant + rank)
        return top((hit._replace(score=scores[name]) for name, hit in passages.items()), k)
