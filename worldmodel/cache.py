"""A cache around a world model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import gymnasium

from ..envs.registry import canonical_action
from ..errors import check_choice, check_number
from .base import Configured, Grounded, Prediction, Query, WorldModel, ask, checked
from .naming import name_of

CacheKey: TypeAlias = Literal["query", "belief"]


class CacheStatistics(NamedTuple):
    """What a cache has done: queries answered from it, queries passed on, entries now kept."""

    hits: int
    misses: int
    size: int


class CachedWorldModel:
    """Answers a query that was asked before from memory, and asks the model each query only once.

    Right only for models that answer the same query the same way; grounding a model on a real
    episode empties the cache, as it may change the answers.

    With ``key="query"`` the same query is the same task in the same place after the same turns: what
    is answered is what the model would answer. With ``key="belief"`` it is the same goal, belief and
    action (canonical), however one got there: an approximation, since the belief does not hold all
    that was read, and a model may read the turns. Where the belief could not be read, the whole query
    counts.

    Args:
        model: The world model behind it.
        max_size: The number of answers kept, the least recently used going first.
        key: By what answers are remembered.

    Raises:
        OptionError: `max_size` is not a whole number of at least 1, or there is no such key.
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

    def __init__(self, model: WorldModel, max_size: int = 100_000, key: CacheKey = "query"):
        check_choice("key", key, get_args(CacheKey))
        check_number("max_size", max_size)
        self.model = checked(model)
        self.max_size = max_size
        self.key = key
        self._answers: OrderedDict[Hashable, Prediction] = OrderedDict()
        self._hits = 0
        self._misses = 0

    @property
    def name(self) -> str:
        """What records call it: the model behind, and how its answers are remembered."""
        return f"{name_of(self.model)}, cached by {self.key}"

    def ground(self, env: gymnasium.Env[str, str]) -> None:
        """Empty the cache and ground the model behind, if that is `Grounded`."""
        # A model that is not grounded answers from the query alone, and its answers stay right.
        if isinstance(self.model, Grounded):
            self._answers.clear()
            self.model.ground(env)

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return one prediction for each query, asking the model only what it was not asked yet."""
        keys = [self._key(query) for query in queries]
        answers = {key: self._answers[key] for key in keys if key in self._answers}

        new_queries: dict[Hashable, Query] = {}
        for key, query in zip(keys, queries, strict=True):
            if key not in answers:
                new_queries.setdefault(key, query)

        # Nothing is stored before the model has answered: one that fails leaves the cache as it was.
        if new_queries:
            predictions = ask(self.model, list(new_queries.values()))
            answers.update(zip(new_queries, predictions, strict=True))
        self._hits += len(queries) - len(new_queries)
        self._misses += len(new_queries)

        for key, answer in answers.items():
            self._answers[key] = answer
            self._answers.move_to_end(key)
        while len(self._answers) > self.max_size:
            self._answers.popitem(last=False)

        # From this call's answers: a batch may be larger than the cache, which has lost some by now.
        return [answers[key] for key in keys]

    def _key(self, query: Query) -> Hashable:
        """Return by what a query's answer is remembered."""
        # Beliefs that could not be read are all alike, and would share one answer.
        if self.key == "query" or not query.state.parsed:
            return query
        action = canonical_action(query.env_id, query.action)
        return query.env_id, query.goal, query.state, action

    def statistics(self) -> CacheStatistics:
        """Return hits, misses and size."""
        return CacheStatistics(self._hits, self._misses, len(self._answers))

    def config(self) -> dict[str, Any] | None:
        """Return what makes an equal model, with an empty cache."""
        base = self.model.config() if isinstance(self.model, Configured) else None
        if base is None:
            return None
        return {"id": "cached", "model": base, "max_size": self.max_size, "key": self.key}
