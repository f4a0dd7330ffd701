"""A cache around a language model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from ..errors import LanguageModelError, OptionError
from .base import (
    Completion,
    Encode,
    Encoding,
    Generate,
    LanguageModel,
    LMRequest,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
    answer,
)

__all__ = ["CacheStatistics", "CachedLanguageModel"]

Reply = TypeVar("Reply", Completion, Scores, WordProbabilities, Encoding)


class CacheStatistics(NamedTuple):
    """What a cache has done: requests answered from it, requests passed on, entries now kept."""

    hits: int
    misses: int
    size: int


class CachedLanguageModel:
    """Answers a request that was asked before from memory, and asks the model each only once.

    Requests are equal when all but their purpose is equal, the seed included. Sampled requests are
    cached as well as others, since a language model answers the same request with the same seed the
    same way; where a server does not keep to that, the first answer stays. Whoever wants several
    samples asks with several seeds. Errors are not kept.

    Args:
        model: The language model behind it.
        max_size: The number of answers kept, the least recently used going first.

    Attributes:
        name: The model's name.
        capabilities: Those of the model.
        usage: The model's own: only what it was really asked.

    Raises:
        OptionError: `max_size` is not a whole number of at least 1.
        LanguageModelError: `model` is no language model.

    Example:
        >>> from comap.lm.openai import OpenAILanguageModel
        >>> CachedLanguageModel(OpenAILanguageModel("m", "http://localhost:1/v1")).statistics()
        CacheStatistics(hits=0, misses=0, size=0)
    """

    def __init__(self, model: LanguageModel, max_size: int = 100_000):
        if type(max_size) is not int or max_size < 1:
            raise OptionError(f"max_size must be a whole number of at least 1, not {max_size!r}")
        if not isinstance(model, LanguageModel):
            raise LanguageModelError(
                f"expected a language model, found {type(model).__name__}; give an object with the "
                "methods of comap.lm.LanguageModel"
            )
        self.model, self.max_size = model, max_size
        self.name: str = model.name
        self.capabilities: frozenset[str] = model.capabilities
        self.usage: Usage = model.usage
        self._answers: OrderedDict[LMRequest, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = 0

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        """Return the text that answers each request."""
        return self._answer(requests)

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        """Return the log-probabilities of given texts."""
        return self._answer(requests)

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        """Return next-word probabilities."""
        return self._answer(requests)

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        """Return hidden states."""
        return self._answer(requests)

    def count_tokens(self, text: str) -> int:
        """Return the model's number of tokens of a text."""
        return self.model.count_tokens(text)

    def config(self) -> dict[str, Any]:
        """Return JSON data that says how this model was made."""
        return {"id": "cached", "model": self.model.config(), "max_size": self.max_size}

    def statistics(self) -> CacheStatistics:
        """Return hits, misses and size."""
        with self._lock:
            return CacheStatistics(self._hits, self._misses, len(self._answers))

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        with self._lock:
            answers = {r: self._answers[r] for r in requests if r in self._answers}
        new = list(dict.fromkeys(request for request in requests if request not in answers))
        if new:
            answers.update(zip(new, answer(self.model, new), strict=True))
            self.usage = self.model.usage
        with self._lock:
            self._hits += len(requests) - len(new)
            self._misses += len(new)
            for request, reply in answers.items():
                if not isinstance(reply, LanguageModelError):
                    self._answers[request] = reply
                    self._answers.move_to_end(request)
            while len(self._answers) > self.max_size:
                self._answers.popitem(last=False)
        return [answers[request] for request in requests]
