"""What `comap bench runner` plays with: a model and an agent that cost nothing, and a watch."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

import gymnasium

from ..agents import Decision, Reply, Request, View
from ..errors import LanguageModelError
from ..lm import (
    CAPABILITIES,
    Completion,
    Encode,
    Encoding,
    Generate,
    Message,
    Sampling,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
)

__all__ = ["ConstantLanguageModel", "OneCallAgent", "TimedEnv"]


class ConstantLanguageModel:
    """Answers every request for text with one text, at once: what is left is the runner's time.

    Example:
        >>> ConstantLanguageModel().generate([Generate(())])[0].text
        'look'
    """

    name = "constant"
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self.usage = Usage()
        self._reply = Completion("look", prompt_tokens=64, completion_tokens=2)

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        """Return the constant for each."""
        return [self._reply for _ in requests]

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        """Return errors."""
        return [LanguageModelError("it answers with text alone") for _ in requests]

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        """Return errors."""
        return [LanguageModelError("it answers with text alone") for _ in requests]

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        """Return errors."""
        return [LanguageModelError("it answers with text alone") for _ in requests]

    def count_tokens(self, text: str) -> int:
        """Return the number of words."""
        return len(text.split())

    def config(self) -> dict[str, Any]:
        """Return what this is."""
        return {"kind": "constant"}


class OneCallAgent:
    """Makes one request a decision, and then takes admissible actions in turn, whatever the reply.

    Args:
        tokens: The most tokens of the reply.

    Example:
        >>> OneCallAgent().name
        'one-call'
    """

    name = "one-call"

    def __init__(self, tokens: int = 16):
        self._sampling = Sampling(tokens)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Ask once, then act."""
        number = view.task.rpartition("-")[2].lstrip("0")  # of equal requests one alone is answered
        text = f"{number} {view.goal}\n{view.history[-1].observation}"
        yield Generate((Message("user", text),), self._sampling)
        actions = view.admissible_actions or ("look",)
        return Decision(actions[view.step % len(actions)])


class TimedEnv(gymnasium.Wrapper[str, str, str, str]):
    """Adds up the processor seconds inside an environment.

    Args:
        env: The environment.
        spent: The seconds are added to its first item.

    Example:
        >>> import comap
        >>> spent = [0.0]
        >>> observation, info = TimedEnv(gymnasium.make("comap/ALFWorld-v0"), spent).reset(seed=0)
        >>> spent[0] > 0
        True
    """

    def __init__(self, env: gymnasium.Env[str, str], spent: list[float]):
        super().__init__(env)
        self._spent = spent

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        start = time.process_time()
        answer = self.env.reset(**options)
        self._spent[0] += time.process_time() - start
        return answer

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Take an action."""
        start = time.process_time()
        answer = self.env.step(action)
        self._spent[0] += time.process_time() - start
        return answer
