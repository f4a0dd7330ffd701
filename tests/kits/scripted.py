"""Talking to an agent by hand: a view to decide on, and replies instead of a language model.

A scripted reply is what would come back, or short for it:

=====================  =============================================================================
`Generate`             a text; with choices, one of them, with or without the space before it
`Score`                one number for each completion (its total), or one sequence of numbers each
`NextWord`                one probability for each word
`Encode`               a sequence of numbers
`Imagine`              the predicted text
any                    an exception, which is raised at the agent's ``yield``
=====================  =============================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from comap.agents.base import Decision, Imagine, View, estimate_tokens
from comap.facts import Delta, State
from comap.lm import (
    CAPABILITIES,
    Completion,
    Encode,
    Encoding,
    Generate,
    NextWord,
    Score,
    Scores,
    Usage,
    WordProbabilities,
)
from comap.lm.base import BaseLanguageModel
from comap.trajectory import Turn
from comap.worldmodel import Imagined, Prediction

ROOM = "You are in a room. Looking around, you see a desk 1, a safe 1 and a shelf 1."
GOAL = "Your task is to: put a pen in safe."
ACTIONS = ("go to desk 1", "go to safe 1", "go to shelf 1", "look")


@dataclass
class Talk:
    """What an agent asked, what it was told, and what it made of it."""

    result: Any = None
    requests: list[Any] = field(default_factory=list)
    replies: list[Any] = field(default_factory=list)

    @property
    def decision(self) -> Decision:
        """The decision of ``decide``."""
        assert isinstance(self.result, Decision)
        return self.result

    @property
    def purposes(self) -> list[str]:
        """What each request was for; of a request to the world model its action."""
        return [
            f"imagine {part.action}" if isinstance(part, Imagine) else part.purpose
            for part in self.requests
        ]

    @property
    def kinds(self) -> list[str]:
        """The kind of each request."""
        return [type(part).__name__ for part in self.requests]


def view(
    *turns: tuple[str, str],
    observation: str = ROOM,
    goal: str = GOAL,
    actions: Sequence[str] | None = ACTIONS,
    env_id: str = "comap/ALFWorld-v0",
    task: str = "generated/valid_seen/0",
    facts: State | None = None,
    memory: dict[str, Any] | None = None,
    trial: int = 1,
    count: Callable[[str], int] = estimate_tokens,
) -> View:
    """Return the view of an agent after some turns, pairs of action and observation."""
    history = (
        Turn(None, observation),
        *(Turn(action, turn_observation) for action, turn_observation in turns),
    )
    return View(
        env_id,
        task,
        goal,
        history,
        facts if facts is not None else State(frozenset({("exists", "desk 1")})),
        None if actions is None else tuple(actions),
        len(turns),
        lambda: None,
        count,
        {} if memory is None else memory,
        trial,
    )


def converse_with(
    agent: Any, current_view: View, replies: Iterable[Any] | Callable[[Any], Any]
) -> Talk:
    """Drive ``agent.decide(current_view)`` to its decision.

    Args:
        agent: The agent.
        current_view: Its view.
        replies: A reply for each request in order (also for each within a list of requests), or a
            function from request to reply. Too few replies fail, and so do too many.
    """
    return drive(agent.decide(current_view), replies, current_view.facts)


def drive(
    thinking: Generator[Any, Any, Any],
    replies: Iterable[Any] | Callable[[Any], Any],
    facts: State | None = None,
) -> Talk:
    """Drive any generator of requests (``review``, ``draft_action``) to its result."""
    talk = Talk()
    queue = None if callable(replies) else list(replies)
    reply: Any = None
    fault: BaseException | None = None
    while True:
        try:
            request = thinking.throw(fault) if fault else thinking.send(reply)
        except StopIteration as stop:
            assert not queue, f"the agent did not ask for {queue!r:.300}"
            talk.result = stop.value
            return talk
        fault = None
        parts = request if isinstance(request, list) else [request]
        answers = [_next_reply(talk, part, replies, queue, facts or State()) for part in parts]
        faults = [answer for answer in answers if isinstance(answer, BaseException)]
        if faults:
            fault = faults[0]
        reply = answers if isinstance(request, list) else answers[0]


def _next_reply(talk: Talk, part: Any, replies: Any, queue: list[Any] | None, facts: State) -> Any:
    if queue is not None:
        assert queue, f"after {talk.purposes} the agent asked for more: {part!r:.600}"
    talk.requests.append(part)
    reply = reply_to(part, replies(part) if queue is None else queue.pop(0), facts)
    talk.replies.append(reply)
    return reply


def reply_to(request: Any, script: Any, facts: State) -> Any:
    """Return a scripted reply as what a backend or a world model would return."""
    whole = (Completion, Scores, WordProbabilities, Encoding, Imagined, BaseException)
    if isinstance(script, whole):
        return script
    if isinstance(request, Imagine):
        return imagined(script, request.action, facts)
    if isinstance(request, Generate):
        return _generated(request, script)
    if isinstance(request, Score):
        scores = tuple((float(n),) if isinstance(n, int | float) else tuple(n) for n in script)
        assert len(scores) == len(request.completions), f"{len(scores)} scores for {request!r:.300}"
        return Scores(scores, 7)
    if isinstance(request, NextWord):
        assert len(script) == len(request.words), f"{script!r} for {request!r:.300}"
        return WordProbabilities(tuple(map(float, script)), 7)
    assert isinstance(request, Encode), f"an unknown request: {request!r:.300}"
    return Encoding(tuple(map(float, script)), 7)


def _generated(request: Generate, text: str) -> Completion:
    assert isinstance(text, str), f"the reply {text!r} for {request!r:.600}"
    if request.choices is not None:
        choices = [choice for choice in request.choices if text in (choice, choice.strip())]
        assert choices, f"{text!r} is none of {request.choices}"
        text = choices[0]
    else:
        for stop in request.sampling.stop:
            text = text.partition(stop)[0]
    count = len(text.split()) + 1
    return Completion(text, tuple(range(count)), (-0.5,) * count, "stop", 7, count)


def imagined(text: str, action: str = "", facts: State | None = None) -> Imagined:
    """Return a prediction of this text that changes no fact."""
    state = facts or State()
    prediction = Prediction(text, source="scripted")
    return Imagined(text, state, Delta(), None, prediction, action, None)


class HashedModel(BaseLanguageModel):
    """A language model whose every answer follows from the request alone, by a hash; no sense in it.

    About half of its texts obey the format that agents ask for.
    """

    name, capabilities = "hashed", CAPABILITIES

    def __init__(self) -> None:
        self.usage = Usage()
        self.asked: list[Any] = []

    def _draw(self, *parts: Any) -> int:
        return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big")

    def _took(self, requests: Sequence[Any]) -> None:
        self.asked += requests
        self.usage.requests += len(requests)

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        self._took(requests)
        kinds: dict[type, Callable[[Any], Any]] = {
            Generate: self._one,
            Score: self._scores,
            NextWord: self._words,
            Encode: self._encoding,
        }
        return [kinds[type(request)](request) for request in requests]

    def _one(self, request: Generate) -> Completion:
        draw = self._draw(request.messages, request.sampling, request.prefix, request.choices)
        if request.choices is not None:
            text = request.choices[draw % len(request.choices)]
        else:
            action = ("look", "go to desk 1", "inventory", "open drawer 1", "search[pen]")[draw % 5]
            text = (
                f"Thought: Perhaps.\nAction: {action}",
                f"Reflection: Hm.\nDecision: REVISE\nFinal Action: {action}\n"
                "Revise Probability: 0.8",
                action,
                "3",
                "",
                f"$goal <|im_end|> \x00 {action} Action",
            )[draw // 8 % 6]
            for stop in request.sampling.stop:
                text = text.partition(stop)[0]
        return Completion(text, (1, 2), (-0.25, -0.5), "stop", 9, 2)

    def _scores(self, r: Score) -> Scores:
        draws = (self._draw(r.messages, r.prefix, text) % 977 for text in r.completions)
        return Scores(tuple((-draw / 977, -0.125) for draw in draws), 9)

    def _words(self, r: NextWord) -> WordProbabilities:
        weights = [self._draw(r.messages, word) % 97 + 1 for word in r.words]
        return WordProbabilities(tuple(weight / (sum(weights) + 1) for weight in weights), 9)

    def _encoding(self, r: Encode) -> Encoding:
        return Encoding(
            tuple(self._draw(r.messages, r.prefix, i) % 7 / 7 - 0.4 for i in range(4)), 9
        )

    def count_tokens(self, text: str) -> int:
        """Return the careful guess."""
        return estimate_tokens(text)

    def config(self) -> dict[str, Any]:
        """Return who this is."""
        return {"id": "hashed"}
