"""Running an agent's generator: its requests become questions, and their answers its replies."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ..errors import InvalidAction
from ..lm import Encode, Generate, LanguageModel, Score, Words
from ..trajectory import Call
from ..worldmodel import Prediction, imagined_of
from .answers import Foretold, Question
from .base import Agent, Imagine, Probe
from .calls import Keep, call_of, checked_reply, imagine_call_of
from .stage import Foresight, Probing, Stage

__all__ = ["Player", "Playing", "prediction_in", "think"]

_LM_REQUESTS = (Generate, Score, Words, Encode)

Result = TypeVar("Result")

Playing: TypeAlias = "Generator[list[Question], list[Any], Result]"
"""What is being played: it yields the questions that it waits for and is sent their answers, each of
which may be an exception that stands for it."""


@dataclass(frozen=True, slots=True)
class Player:
    """Who plays, with what, and what is kept of it.

    Attributes:
        agent: Who acts.
        lm: Its language model, if it has one.
        keep: What trajectories keep of language-model calls.
        settings: How the agent is set up, for trajectories.
    """

    agent: Agent
    lm: LanguageModel | None = None
    keep: Keep = "replies"
    settings: Mapping[str, Any] | None = None


def think(player: Player, stage: Stage, thinking: Any, calls: list[Call]) -> Playing[Any]:
    """Run an agent's generator to its end, have its requests answered, and return what it returns.

    Args:
        player: Whose generator it is.
        stage: Where.
        thinking: What `decide` or `review` returned.
        calls: Takes the record of each reply of a language model.

    Raises:
        InvalidAction: `thinking` is no generator.
        Exception: What the agent raised, or did not catch where a request failed.

    Example:
        >>> next(think(Player(None), None, (request for request in [[]]), []))
        []
    """
    if not isinstance(thinking, Generator):
        raise InvalidAction(
            "expected a generator of requests from the agent (a method that yields), found "
            f"{thinking!r:.80}"
        )
    reply: Any = None
    fault: Exception | None = None
    while True:
        try:
            request = thinking.send(reply) if fault is None else thinking.throw(fault)
        except StopIteration as stop:
            return stop.value
        try:
            reply, fault = (yield from _reply(player, stage, request, calls)), None
        except Exception as error:
            fault = error


def prediction_in(answer: Foretold, player: Player, calls: list[Call]) -> Prediction:
    """Return what a world model said, and keep the record of what that took.

    Args:
        answer: The answer to a `Foresight`.
        player: Who plays: says how much is kept.
        calls: Takes the record of the reply of a world model's language model.

    Example:
        >>> prediction_in(Foretold(Prediction("It is dark.")), Player(None), []).observation
        'It is dark.'
    """
    if answer.request is not None and answer.completion is not None:
        call = imagine_call_of(answer.request, answer.completion, player.keep, answer.lm)
        calls.append(call)
    return answer.prediction


def _reply(player: Player, stage: Stage, request: Any, calls: list[Call]) -> Playing[Any]:
    """Return the reply to a request: a list of replies to a list."""
    parts = request if isinstance(request, list) else [request]
    questions = [_question(stage, part) for part in parts]
    answers = yield questions
    replies: list[Any] = []
    faults: list[Exception] = []
    for question, answer in zip(questions, answers, strict=True):
        try:
            replies.append(_read(player, question, answer, calls))
        except Exception as error:
            faults.append(error)
    if faults:
        raise faults[0]
    return replies if isinstance(request, list) else replies[0]


def _question(stage: Stage, request: Any) -> Question:
    if isinstance(request, Imagine):
        return stage.foresee(request)
    if isinstance(request, Probe):
        return Probing(stage, request.action)
    if isinstance(request, _LM_REQUESTS):
        return request
    raise InvalidAction(
        "expected a request from the agent (Generate, Score, Words, Encode, Imagine, Probe, or a list "
        f"of such), found {request!r:.80}"
    )


def _read(player: Player, question: Question, answer: Any, calls: list[Call]) -> Any:
    """Return the reply that an answer is, and keep its record; raise what stands for it."""
    if isinstance(answer, Exception):
        raise answer
    if isinstance(question, Probing):
        return answer
    if isinstance(question, Foresight):
        prediction = prediction_in(answer, player, calls)
        return imagined_of(question.stage.env, question.query, prediction)
    reply = checked_reply(question, answer, "no model" if player.lm is None else player.lm.name)
    calls.append(call_of(question, reply, player.keep, player.lm))
    return reply
