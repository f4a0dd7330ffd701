"""Episodes to measure the viewer by: real environment, agent, prompts, gates; a model that draws lots.

CoMap plays generated games to their step limit. Its language model draws an action among those that it
is offered, its world model is the oracle with errors, so that texts, beliefs, predictions and gates are
as long and as many as those of a real run, at no cost.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium

from ..agents import create_agent, run_episode
from ..agents.calls import Keep
from ..errors import LanguageModelError
from ..lm import (
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
from ..trajectory import Trajectory
from ..worldmodel import NoisyWorldModel

__all__ = ["Lots", "episodes"]


class Lots:
    """A language model that draws lots, each request's from its own text.

    Attributes:
        name: ``"lots"``.
        capabilities: What agents ask for: choices, a given beginning, tokens, scores, words.
        usage: Not counted.

    Example:
        >>> from comap.lm import Message
        >>> asked = Generate((Message("user", "Which?"),), choices=("look",))
        >>> Lots().generate([asked])[0].text
        'look'
    """

    name = "lots"
    capabilities = frozenset({"generate", "choices", "prefix", "tokens", "score", "words"})

    def __init__(self) -> None:
        self.usage = Usage()

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        """Return one of the choices, or a thought and an action without any."""
        return [self._completion(request) for request in requests]

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        """Return log-probabilities between 0.05 and 1 a word."""
        replies: list[Scores | LanguageModelError] = []
        for request in requests:
            draws = _draws(request)
            logs = (tuple(_log(draws) for _ in text.split()) for text in request.completions)
            replies.append(Scores(tuple(logs)))
        return replies

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        """Return the probabilities of words, which sum to 1."""
        replies: list[WordProbabilities | LanguageModelError] = []
        for request in requests:
            draws = _draws(request)
            weights = [draws.random() + 0.01 for _ in request.words]
            total = sum(weights)
            replies.append(WordProbabilities(tuple(weight / total for weight in weights)))
        return replies

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        """Refuse: it has no hidden states."""
        return [LanguageModelError("lots have no hidden states") for _ in requests]

    def count_tokens(self, text: str) -> int:
        """Return the number of words."""
        return len(text.split())

    def config(self) -> dict[str, Any]:
        """Return what it is."""
        return {"name": self.name}

    def _completion(self, request: Generate) -> Completion:
        draws = _draws(request)
        said = draws.choice(request.choices) if request.choices else _thought(draws)
        tokens = tuple(f" {word}" for word in said.split())
        logs = tuple(_log(draws) for _ in tokens)
        ids = tuple(draws.randrange(50_000) for _ in tokens)
        read = sum(len(message.content.split()) for message in request.messages)
        return Completion(said, ids, logs, "stop", read, len(tokens), tokens)


def episodes(number: int, steps: int, keep: Keep, seed: int = 0) -> Iterator[Trajectory]:
    """Yield episodes of up to so many steps; most go on to the limit.

    Args:
        number: How many.
        steps: The step limit.
        keep: What they keep of calls.
        seed: Of the lots.

    Example:
        >>> [len(episode.steps) for episode in episodes(1, 3, "replies")]
        [3]
    """
    options: dict[str, Any] = {"source": "generated", "max_episode_steps": steps}
    env = gymnasium.make("comap/ALFWorld-v0", split="train", **options)
    tasks = env.get_wrapper_attr("tasks").ids[:number]
    settings: dict[str, Any] = {"decoding": "masked", "prompts": "brief", "state_text": "belief"}
    agent = create_agent("comap", p_source="verbalizer", seed=seed, **settings)
    for task in tasks:
        model = NoisyWorldModel(error_rate=0.2, seed=seed)
        yield run_episode(env, agent, task=task, seed=seed, lm=Lots(), world_model=model, keep=keep)


def _draws(request: Any) -> random.Random:
    """Return lots that depend on the request's text alone."""
    return random.Random("\n".join(message.content for message in request.messages))


def _log(draws: random.Random) -> float:
    return round(math.log(1 - 0.95 * draws.random() ** 3), 6)


_SUBJECTS = ("The drawer", "The fridge", "A plate", "The shelf", "My goal", "The last action")
_VERBS = ("is open now", "has not been seen", "may hold what I need", "is where I stand")


def _thought(draws: random.Random) -> str:
    parts = [f"{draws.choice(_SUBJECTS)} {draws.choice(_VERBS)}." for _ in range(3)]
    return f"Thought: {' '.join(parts)}\nDecision: {draws.choice(('KEEP', 'REVISE'))}"
