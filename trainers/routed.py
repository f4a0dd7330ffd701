"""One language model out of several: each request goes to the model that its adapter names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ..errors import LanguageModelError, OptionError, suggest
from ..lm import LanguageModel
from ..lm.base import (
    Completion,
    Encode,
    Encoding,
    Generate,
    LMRequest,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
    answer,
)

__all__ = ["RoutedLanguageModel"]


class RoutedLanguageModel:
    """Sends each request to the model that its `adapter` names; it obeys `LanguageModel`.

    So agents and world models name a role and need not know whether roles are adapters of one model
    or models of their own. The model that answers is asked without an adapter, and all requests of a
    call that it shall answer are one batch. A model may have several names.

    Attributes:
        name: How results call it.
        adapters: The names of the models, sorted.
        capabilities: What all of the models can do.
        usage: What all of the models have done, as of the last request made here.

    Args:
        models: The models by name.
        default: The name of the one that answers requests without an adapter; it counts tokens too.
        name: How results shall call it; else the default model's name.

    Raises:
        OptionError: There are no models, or none of the default's name.
        LanguageModelError: One of them is no language model.

    Example:
        >>> from comap.lm.base import Generate, Message
        >>> from comap.lm.openai import OpenAILanguageModel
        >>> server = "http://127.0.0.1:1/v1"
        >>> models = {name: OpenAILanguageModel(name, server) for name in ("agent", "wm")}
        >>> lm = RoutedLanguageModel(models, "agent")
        >>> lm.adapters
        ('agent', 'wm')
        >>> lm.generate([Generate((Message("user", "Hello"),), adapter="agnt")])[0]
        LanguageModelError("there is no model 'agnt'; did you mean 'agent'?")
    """

    def __init__(self, models: Mapping[str, LanguageModel], default: str, name: str | None = None):
        if not models or default not in models:
            raise OptionError(
                f"the default must be the name of a model; {suggest(str(default), sorted(models))}, "
                f"not {default!r}"
                if models
                else "expected at least one model, found none"
            )
        for key, model in models.items():
            if not isinstance(model, LanguageModel):
                raise LanguageModelError(
                    f"expected a language model as {key!r}, found {type(model).__name__}; give an "
                    "object with the methods of comap.lm.LanguageModel"
                )
        self._models = dict(models)
        self.default = default
        self.name: str = models[default].name if name is None else name
        self.adapters: tuple[str, ...] = tuple(sorted(models))
        self.capabilities: frozenset[str] = frozenset.intersection(
            *(model.capabilities for model in models.values())
        )
        self.usage: Usage = self._sum()

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
        """Return the default model's number of tokens of a text."""
        return self._models[self.default].count_tokens(text)

    def config(self) -> dict[str, Any]:
        """Return JSON data that says how all of the models were made."""
        return {
            "name": self.name,
            "kind": "routed",
            "adapters": list(self.adapters),
            "adapter": self.default,
            "models": {key: self._models[key].config() for key in self.adapters},
        }

    def _answer(self, requests: Sequence[LMRequest]) -> list[Any]:
        """Answer requests, those of a model together."""
        replies: list[Any] = [None] * len(requests)
        groups: dict[int, tuple[LanguageModel, list[int]]] = {}
        for place, request in enumerate(requests):
            key = self.default if request.adapter is None else request.adapter
            model = self._models.get(key)
            if model is None:
                replies[place] = LanguageModelError(
                    f"there is no model {key!r}; {suggest(str(key), self.adapters)}"
                )
                continue
            groups.setdefault(id(model), (model, []))[1].append(place)
        for model, places in groups.values():
            asked = [replace(requests[place], adapter=None) for place in places]
            for place, reply in zip(places, _ask(model, asked), strict=True):
                replies[place] = reply
        self.usage = self._sum()
        return replies

    def _sum(self) -> Usage:
        """Return what the models have done, each counted once."""
        models = {id(model): model for model in self._models.values()}.values()
        names = [part.name for part in fields(Usage)]
        return Usage(**{name: sum(getattr(m.usage, name) for m in models) for name in names})


def _ask(model: LanguageModel, requests: Sequence[LMRequest]) -> list[Any]:
    """Return a model's replies; where it can answer nothing, that in each place."""
    try:
        return answer(model, requests)
    except LanguageModelError as error:
        return [error] * len(requests)
