"""A cache around a world model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium

from ..errors import OptionError
from .base import Configured, Grounded, Prediction, Query, WorldModel, ask, checked

__all__ = ["CacheStatistics", "CachedWorldModel"]


class CacheStatistics(NamedTuple):
    """What a cache has done: queries answered from it, queries passed on, entries now kept."""

    hits: int
    misses: int
    size: int


class CachedWorldModel:
    """Answers a query that was asked before from memory, and asks the model each query only once.

    Right only for models that answer the same query the same way; grounding a model on a real
    episode empties the cache, as it may change the answers.

    Args:
        model: The world model behind it.
        max_size: The number of answers kept, the least recently used going first.

    Raises:
        OptionError: `max_size` is not a whole number of at least 1.
        WorldModelError: `model` is no world model.

    Example:
        >>> from comap.facts import State
        >>> from comap.worldmodel import NullWorldModel
        >>> cached = CachedWorldModel(NullWorldModel())
        >>> query = Query("id", "goal", (), State(), "look")
        >>> answers = cached.predict([query, query])
        >>> cached.statistics()
        CacheStatistics(hits=1, misses=1, size=1)
    """

    def __init__(self, model: WorldModel, max_size: int = 100_000):
        if type(max_size) is not int or max_size < 1:
            raise OptionError(f"max_size must be a whole number of at least 1, not {max_size!r}")
        self.model, self.max_size = checked(model), max_size
        self._answers: OrderedDict[Query, Prediction] = OrderedDict()
        self._hits = self._misses = 0

    def ground(self, env: gymnasium.Env[str, str]) -> None:
        """Tell the model behind, where it wants to know."""
        if isinstance(self.model, Grounded):
            self._answers.clear()
            self.model.ground(env)

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return one prediction for each query, asking the model only what it was not asked yet."""
        answers = {query: self._answers[query] for query in queries if query in self._answers}
        new = list(dict.fromkeys(query for query in queries if query not in answers))
        if new:
            answers.update(zip(new, ask(self.model, new), strict=True))
        self._hits += len(queries) - len(new)
        self._misses += len(new)
        for query, answer in answers.items():
            self._answers[query] = answer
            self._answers.move_to_end(query)
        while len(self._answers) > self.max_size:
            self._answers.popitem(last=False)
        return [answers[query] for query in queries]

    def statistics(self) -> CacheStatistics:
        """Return hits, misses and size."""
        return CacheStatistics(self._hits, self._misses, len(self._answers))

    def config(self) -> dict[str, Any] | None:
        """Return what makes an equal model, with an empty cache."""
        base = self.model.config() if isinstance(self.model, Configured) else None
        return None if base is None else {"id": "cached", "model": base, "max_size": self.max_size}
