"""How much faster overlapped rounds are than rounds, with models that take a while to answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..agents import run_episodes
from ..agents.run import Run
from ..errors import LanguageModelError, OptionError
from ..lm import (
    Completion,
    Encode,
    Encoding,
    Generate,
    LanguageModel,
    Score,
    Scores,
    WordProbabilities,
    Words,
)
from ..worldmodel import LanguageWorldModel
from .record import spread

__all__ = ["Waiting", "measure_overlap"]


class Waiting:
    """A language model whose every batch takes some time more, as of a server that is elsewhere.

    Args:
        lm: Answers.
        seconds: How much longer that takes.

    Example:
        >>> from comap.lm import create_language_model
        >>> lm = create_language_model("http://127.0.0.1:9/v1#nobody")
        >>> Waiting(lm, 0.1).name
        'nobody'
    """

    def __init__(self, lm: LanguageModel, seconds: float):
        self._lm, self._seconds = lm, seconds
        self.name, self.capabilities, self.usage = lm.name, lm.capabilities, lm.usage

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        """Wait, and generate text."""
        time.sleep(self._seconds)
        return self._lm.generate(requests)

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        """Wait, and score given texts."""
        time.sleep(self._seconds)
        return self._lm.score(requests)

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        """Wait, and return next-word probabilities."""
        time.sleep(self._seconds)
        return self._lm.words(requests)

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        """Wait, and return hidden states."""
        time.sleep(self._seconds)
        return self._lm.encode(requests)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return self._lm.count_tokens(text)

    def config(self) -> dict[str, Any]:
        """Return how the model behind was made."""
        return self._lm.config()


def measure_overlap(run: Run, live: int, pairs: int, latency: float) -> dict[str, Any]:
    """Play the same tasks in rounds and in overlapped rounds, in turns, and return the ratio of times.

    Args:
        run: What is played; agent and world model have language models.
        live: How many episodes run at the same time.
        pairs: How often each is played.
        latency: Seconds that every batch of either model takes more.

    Returns:
        ``ratio`` (rounds' time to overlapped rounds' of each pair: smallest, quartiles, largest),
        ``same`` (whether all episodes were), and what was played.

    Raises:
        OptionError: The world model is not a language model's.
    """
    world_model = run.world_model
    if run.lm is None or not isinstance(world_model, LanguageWorldModel):
        raise OptionError("overlapped rounds are timed with two language models; name them both")
    lm = Waiting(run.lm, latency)
    options: dict[str, Any] = dict(world_model.options)
    world = LanguageWorldModel(Waiting(world_model.lm, latency), **options)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    actions = set()
    for _ in range(pairs):
        for overlap, taken in seconds.items():
            begun = time.perf_counter()
            played = run_episodes(
                run.make_env,
                run.agent,
                run.tasks,
                lm=lm,
                world_model=world,
                live=live,
                seed=run.seed,
                overlap=overlap,
            )
            taken.append(time.perf_counter() - begun)
            actions.add(tuple(tuple(step.action for step in episode.steps) for episode in played))
    ratios = [one / other for one, other in zip(seconds[False], seconds[True], strict=True)]
    return {
        "episodes": len(run.tasks),
        "live": live,
        "latency": latency,
        "pairs": pairs,
        "seconds": {"rounds": spread(seconds[False]), "overlapped": spread(seconds[True])},
        "ratio": spread(ratios),
        "same": len(actions) == 1,
    }
