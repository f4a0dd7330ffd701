from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from comap.agents.needs import check_adapter
from comap.errors import LanguageModelError, OptionError
from comap.lm import LanguageModel, Message, answer
from comap.lm.base import (
    Completion,
    Encode,
    Encoding,
    Generate,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
)
from comap.trainers.routed import RoutedLanguageModel

TALK = (Message("user", "Hello"),)


class Spoken:
    """A language model that says its name and the batch, and keeps what it was asked."""

    def __init__(self, name: str, capabilities: str = "generate score words encode"):
        self.name = name
        self.capabilities = frozenset(capabilities.split())
        self.usage = Usage()
        self.batches: list[list[Any]] = []

    def _asked(self, requests: Sequence[Any]) -> range:
        self.batches.append(list(requests))
        self.usage.requests += len(requests)
        self.usage.prompt_tokens += 3 * len(requests)
        return range(len(requests))

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        return [
            Completion(f"{self.name}: {requests[i].messages[-1].content}")
            for i in self._asked(requests)
        ]

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        return [Scores(((-1.0 * i,),)) for i in self._asked(requests)]

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        return [WordProbabilities((0.1 * i,)) for i in self._asked(requests)]

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        return [Encoding((float(i),)) for i in self._asked(requests)]

    def count_tokens(self, text: str) -> int:
        return len(self.name) * len(text)

    def config(self) -> dict[str, Any]:
        return {"name": self.name}


class Broken(Spoken):
    """A language model that can answer nothing."""

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        raise LanguageModelError("the server is gone")


def ask(adapter: str | None, text: str = "Hello") -> Generate:
    return Generate((Message("user", text),), adapter=adapter, purpose="draft")


def texts(replies: Sequence[Any]) -> list[str]:
    return [getattr(reply, "text", str(reply)) for reply in replies]


def test_each_request_goes_to_its_model_and_the_order_is_kept() -> None:
    models = {"agent": Spoken("A"), "wm": Spoken("W")}
    lm = RoutedLanguageModel(models, "agent")
    asked = [ask("wm", "1"), ask(None, "2"), ask("agent", "3"), ask("wm", "4")]
    assert texts(lm.generate(asked)) == ["W: 1", "A: 2", "A: 3", "W: 4"]
    (one,), (two,) = models["agent"].batches, models["wm"].batches
    assert [len(one), len(two)] == [2, 2], "one batch for each model"
    assert all(request.adapter is None for request in one + two)
    assert all(request.purpose == "draft" for request in one + two)


def test_all_four_kinds_are_passed_on() -> None:
    lm = RoutedLanguageModel({"agent": Spoken("A"), "wm": Spoken("W")}, "agent")
    asked = [
        Score(TALK, ("x",), adapter="wm"),
        Words(TALK, ("x",), adapter="agent"),
        Encode(TALK, adapter="wm"),
        ask("wm"),
    ]
    found = [type(reply) for reply in answer(lm, asked)]
    assert found == [Scores, WordProbabilities, Encoding, Completion]
    assert isinstance(lm, LanguageModel)


def test_an_unknown_name_costs_only_its_own_request() -> None:
    lm = RoutedLanguageModel({"agent": Spoken("A"), "wm_ema": Spoken("T")}, "agent")
    found = texts(lm.generate([ask("wm_emma"), ask("wm_ema"), ask("x")]))
    assert found == [
        "there is no model 'wm_emma'; did you mean 'wm_ema'?",
        "T: Hello",
        "there is no model 'x'; known: 'agent', 'wm_ema'",
    ]
    assert lm.generate([]) == []


def test_a_model_that_fails_costs_only_its_own_requests() -> None:
    lm = RoutedLanguageModel({"agent": Spoken("A"), "wm": Broken("W")}, "agent")
    assert texts(lm.generate([ask("wm"), ask("agent")])) == ["the server is gone", "A: Hello"]


def test_a_model_of_several_names_gets_one_batch_and_is_counted_once() -> None:
    shared, other = Spoken("S"), Spoken("O")
    lm = RoutedLanguageModel({"agent": shared, "agent_ema": shared, "wm": other}, "wm")
    lm.generate([ask("agent"), ask("agent_ema"), ask("wm")])
    assert [len(batch) for batch in shared.batches] == [2]
    assert lm.usage == Usage(requests=3, prompt_tokens=9)


def test_what_it_tells_of_itself() -> None:
    models = {"wm": Spoken("W", "generate score"), "agent": Spoken("AA", "generate encode")}
    lm = RoutedLanguageModel(models, "agent", name="both")
    assert lm.capabilities == {"generate"}
    assert lm.count_tokens("abc") == 6, "the default counts"
    assert lm.adapters == ("agent", "wm")
    assert lm.config() == {
        "name": "both",
        "kind": "routed",
        "adapters": ["agent", "wm"],
        "adapter": "agent",
        "models": {"agent": {"name": "AA"}, "wm": {"name": "W"}},
    }
    check_adapter(lm, "wm")
    with pytest.raises(OptionError, match="has no adapter 'wn'"):
        check_adapter(lm, "wn")


def test_what_is_no_set_of_models_is_refused() -> None:
    with pytest.raises(OptionError, match="at least one model"):
        RoutedLanguageModel({}, "agent")
    with pytest.raises(OptionError, match="did you mean 'agent'"):
        RoutedLanguageModel({"agent": Spoken("A")}, "agnt")
    with pytest.raises(LanguageModelError, match="language model as 'agent', found str"):
        RoutedLanguageModel({"agent": "model"}, "agent")  # type: ignore[dict-item]
