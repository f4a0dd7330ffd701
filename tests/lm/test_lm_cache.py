"""A cache around a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from comap.errors import LanguageModelError, OptionError
from comap.lm import (
    Completion,
    Encode,
    Encoding,
    Generate,
    LanguageModel,
    LMRequest,
    Message,
    Sampling,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
    answer,
)
from comap.lm.cache import CachedLanguageModel, CacheStatistics

LOOK = (Message("user", "look"),)


class Model:
    """Answers with the number of the request."""

    name = "counting"
    capabilities = frozenset({"generate"})

    def __init__(self) -> None:
        self.usage = Usage()
        self.batches: list[int] = []

    def _answer(self, requests: Sequence[Any], make: Any) -> list[Any]:
        self.batches.append(len(requests))
        replies = []
        for request in requests:
            self.usage.requests += 1
            failed = "fail" in request.messages[-1].content
            number = self.usage.requests
            replies.append(LanguageModelError(f"{number}") if failed else make(number))
        return replies

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        return self._answer(requests, lambda n: Completion(str(n)))

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        return self._answer(requests, lambda n: Scores(((float(-n),),)))

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        return self._answer(requests, lambda n: WordProbabilities((1 / n,)))

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        return self._answer(requests, lambda n: Encoding((float(n),)))

    def count_tokens(self, text: str) -> int:
        return len(text)

    def config(self) -> dict[str, Any]:
        return {"id": "counting"}


def said(text: str, **fields: Any) -> Generate:
    return Generate((Message("user", text),), **fields)


def test_repeated_requests_are_answered_from_memory() -> None:
    model = Model()
    cached: LanguageModel = CachedLanguageModel(model)
    requests: list[LMRequest] = [
        Generate(LOOK),
        Score(LOOK, ("a",)),
        Words(LOOK, ("a",)),
        Encode(LOOK),
    ]
    first = answer(cached, requests)
    assert answer(cached, requests) == first
    assert model.usage.requests == cached.usage.requests == 4
    assert isinstance(cached, CachedLanguageModel)
    assert cached.statistics() == CacheStatistics(4, 4, 4)


def test_duplicates_within_a_call_are_asked_once() -> None:
    model = Model()
    cached = CachedLanguageModel(model)
    replies = cached.generate([said("a"), said("b"), said("a", purpose="draft")])
    assert replies[0] == replies[2] != replies[1]
    assert model.batches == [2] and cached.statistics() == CacheStatistics(1, 2, 2)
    assert cached.generate([]) == [] and model.batches == [2]


def test_other_seeds_are_other_requests() -> None:
    cached = CachedLanguageModel(Model())
    base = said("a", sampling=Sampling(temperature=1.0))
    others = [replace(base, sampling=replace(base.sampling, seed=seed)) for seed in range(3)]
    assert len(set(map(str, cached.generate(others)))) == 3
    assert cached.generate(others) == cached.generate(others)
    assert cached.statistics().misses == 3


def test_errors_are_asked_again() -> None:
    model = Model()
    cached = CachedLanguageModel(model)
    (first, copy), (second,) = cached.generate([said("fail")] * 2), cached.generate([said("fail")])
    assert str(first) == str(copy) == "1" and str(second) == "2"
    assert cached.statistics() == CacheStatistics(1, 2, 0)


def test_the_least_recently_used_goes_first() -> None:
    model = Model()
    cached = CachedLanguageModel(model, max_size=2)
    for text in ("a", "b", "a", "c", "a"):
        cached.generate([said(text)])
    assert model.usage.requests == 3
    cached.generate([said("b")])
    assert model.usage.requests == 4 and cached.statistics().size == 2
    replies = cached.generate([said(str(i)) for i in range(5)])
    assert len(set(map(str, replies))) == 5 and cached.statistics().size == 2


def test_it_stands_for_its_model() -> None:
    model = Model()
    cached = CachedLanguageModel(model, max_size=7)
    assert (cached.name, cached.capabilities) == (model.name, model.capabilities)
    assert cached.count_tokens("abc") == 3
    assert cached.config() == {"id": "cached", "model": {"id": "counting"}, "max_size": 7}


def test_wrong_arguments() -> None:
    for size in (0, -1, 2.5, True, "2"):
        with pytest.raises(OptionError):
            CachedLanguageModel(Model(), max_size=size)  # type: ignore[arg-type]
    with pytest.raises(LanguageModelError):
        CachedLanguageModel("model")  # type: ignore[arg-type]
