"""Answering the questions of many episodes in as few batches as there are kinds of questions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

from ..errors import OptionError
from ..lm import LanguageModel, LMRequest, answer
from ..worldmodel import ask
from .stage import Foresight, is_grounded

__all__ = ["Answers", "Question"]

Question: TypeAlias = "LMRequest | Foresight"
"""What an episode waits for: a request to the language model, or a question to a world model."""

_Ask: TypeAlias = "Callable[[Sequence[Any]], list[Any]]"


class Answers:
    """Answers questions in batches; what fails has its exception in place of an answer.

    Each kind of language-model request is one batch, and so is everything that one world model is
    asked. World models that are `Grounded` know one episode at a time: they are told of it first, and
    asked for each episode by itself.

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
        """Return an answer, or the exception that stands for it, for each question, in order."""
        batches: dict[Hashable, list[int]] = {}
        for place, question in enumerate(questions):
            batches.setdefault(self._batch_of(question), []).append(place)
        answers: list[Any] = [None] * len(questions)
        for places in batches.values():
            batch = [questions[place] for place in places]
            for place, found in zip(places, self._answer(batch), strict=True):
                answers[place] = found
        return answers

    @staticmethod
    def _batch_of(question: Question) -> Hashable:
        """Return a key that questions have in common which can be asked together."""
        if not isinstance(question, Foresight):
            return type(question).__name__
        return id(question.model), id(question.stage) if is_grounded(question.model) else None

    def _answer(self, batch: Sequence[Any]) -> list[Any]:
        first = batch[0]
        if isinstance(first, Foresight):
            return _each(lambda part: self._foresee(part), batch)
        lm = self._lm
        if lm is None:
            return [_no_lm(question) for question in batch]
        return _each(lambda part: answer(lm, part), batch)

    def _foresee(self, batch: Sequence[Foresight]) -> list[Any]:
        model, _, stage = batch[0]
        if is_grounded(model) and self._grounded.get(id(model)) is not stage.moment:
            self._grounded.pop(id(model), None)
            stage.ground(model)
            self._grounded[id(model)] = stage.moment
        return list(ask(model, [question.query for question in batch]))


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
