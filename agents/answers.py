"""Answering the questions of many episodes in as few batches as there are kinds of questions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..errors import OptionError
from ..lm import Completion, Generate, LanguageModel, LMRequest, answer
from ..worldmodel import CachedWorldModel, Prediction, ask
from ..worldmodel.language import LanguageWorldModel, prediction_of
from .calls import checked_reply
from .stage import Foresight, Probing, is_grounded

__all__ = ["Answers", "Foretold", "Question"]

Question: TypeAlias = "LMRequest | Foresight | Probing"
"""What an episode waits for: a request to the language model, or a question to a world model or to its
own environment."""

_Ask: TypeAlias = "Callable[[Sequence[Any]], list[Any]]"


class Foretold(NamedTuple):
    """What a world model said, and what a language model was asked for it.

    Attributes:
        prediction: What it said.
        request: What its language model was asked; None where it has none.
        completion: What that replied.
        lm: Its language model.
    """

    prediction: Prediction
    request: Generate | None = None
    completion: Completion | None = None
    lm: LanguageModel | None = None


class _Asked(NamedTuple):
    """A request, and the language model that it goes to."""

    lm: LanguageModel | None
    request: LMRequest


class Answers:
    """Answers questions in batches; what fails has its exception in place of an answer.

    Each kind of language-model request is one batch, and so is everything that one world model is
    asked. A question to a `LanguageWorldModel` becomes the request to its language model that it
    comes to: so one that fails costs its own episode alone, what it costs is known, and where agent
    and world model share a language model, so do their batches. World models that are `Grounded`
    know one episode at a time: they are told of it first, and asked for each episode by itself.
    Environments are probed one by one, and last: nothing then brings them back without need.

    Args:
        lm: The language model, if there is one.

    Example:
        >>> from comap.lm import Generate
        >>> Answers(None)([Generate(())])
        [OptionError('expected a language model to answer Generate, found none; pass lm=... ...')]
    """

    def __init__(self, lm: LanguageModel | None):
        self._lm = lm
        self._grounded: dict[int, object] = {}

    def __call__(self, questions: Sequence[Question]) -> list[Any]:
        """Return an answer, or the exception that stands for it, for each question, in order.

        The answer to a request is a reply of the language model; that to a `Foresight` is a
        `Foretold`, and that to a `Probing` a `Probed`.
        """
        routed = [self._routed(question) for question in questions]
        batches: dict[Hashable, list[int]] = {}
        for place, asked in enumerate(routed):
            if not isinstance(asked, Exception):
                batches.setdefault(_batch_of(asked), []).append(place)
        answers: list[Any] = list(routed)
        for places in sorted(batches.values(), key=lambda some: _is_probe(routed[some[0]])):
            found = self._answer([routed[place] for place in places])
            for place, one in zip(places, found, strict=True):
                answers[place] = _read(questions[place], routed[place], one)
        return answers

    def who(self, question: Question) -> Hashable:
        """Return a key for who answers a question; None for what only one thread may answer.

        That is the environments, and world models that belong to one episode at a time.

        Args:
            question: The question.
        """
        if isinstance(question, Probing):
            return None
        if not isinstance(question, Foresight):
            return id(self._lm)
        model: Any = question.model
        if is_grounded(model):
            return None
        while isinstance(model, CachedWorldModel):
            model = model.model
        return id(model.lm) if isinstance(model, LanguageWorldModel) else id(model)

    def _routed(self, question: Question) -> _Asked | Foresight | Probing | Exception:
        """Return what is asked of whom, or why it cannot be asked."""
        if isinstance(question, Probing):
            return question
        if not isinstance(question, Foresight):
            return _Asked(self._lm, question)
        model = question.model
        if type(model) is not LanguageWorldModel:  # a subclass may predict in a way of its own
            return question
        try:
            messages = model.prompt(question.query)
        except Exception as error:
            return error
        request = Generate(messages, model.sampling, adapter=model.adapter, purpose="world model")
        return _Asked(model.lm, request)

    def _answer(self, batch: Sequence[Any]) -> list[Any]:
        first = batch[0]
        if isinstance(first, Foresight):
            return _each(self._foresee, batch)
        if isinstance(first, Probing):
            return _each(lambda part: [one.stage.probe(one.action) for one in part], batch)
        lm, requests = first.lm, [asked.request for asked in batch]
        if lm is None:
            return [_no_lm(request) for request in requests]
        return _each(lambda part: answer(lm, part), requests)

    def _foresee(self, batch: Sequence[Foresight]) -> list[Any]:
        model, _, stage = batch[0]
        if is_grounded(model) and self._grounded.get(id(model)) is not stage.moment:
            self._grounded.pop(id(model), None)
            stage.ground(model)
            self._grounded[id(model)] = stage.moment
        return list(ask(model, [question.query for question in batch]))


def _is_probe(asked: object) -> bool:
    return isinstance(asked, Probing)


def _batch_of(asked: _Asked | Foresight | Probing) -> Hashable:
    """Return a key that questions have in common which can be asked together."""
    if isinstance(asked, _Asked):
        return id(asked.lm), type(asked.request)
    if isinstance(asked, Probing):
        return id(asked)
    return id(asked.model), id(asked.stage) if is_grounded(asked.model) else None


def _read(question: Question, asked: Any, found: Any) -> Any:
    """Return the answer that a reply is; an exception stays one."""
    if not isinstance(question, Foresight) or isinstance(found, Exception):
        return found
    model = question.model
    if not (isinstance(asked, _Asked) and isinstance(model, LanguageWorldModel)):
        return Foretold(found)
    request: Any = asked.request
    try:
        said: Any = checked_reply(request, found, model.lm.name)
        return Foretold(prediction_of(said, model.source, model.ending), request, said, model.lm)
    except Exception as error:
        return error


def _each(ask_all: _Ask, batch: Sequence[Any]) -> list[Any]:
    """Return the answers to a batch; where it fails, halve it until only the guilty ones fail."""
    try:
        return ask_all(batch)
    except Exception as error:
        if len(batch) == 1:
            return [error]
    half = len(batch) // 2
    return _each(ask_all, batch[:half]) + _each(ask_all, batch[half:])


def _no_lm(question: object) -> OptionError:
    return OptionError(
        f"expected a language model to answer {type(question).__name__}, found none; pass lm=... "
        "(on the command line: --model)"
    )
