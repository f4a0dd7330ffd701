"""ZeroSearch's curriculum: documents of the simulated engine get noisier as training goes on.

The simulated engine itself is in `comap.trainers.paw.simulated_search` (METHODS.md 3, "ZeroSearch").
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from ...errors import OptionError
from .config import PaWTraining

__all__ = ["NoiseCurriculum", "noise_probability"]


def noise_probability(
    update: int, updates: int, *, start: float, end: float, base: float = 4.0
) -> float:
    """Return the probability that a search is answered by noisy documents (METHODS.md 3).

    It is ``start + (base ** (update / updates) - 1) / (base - 1) * (end - start)``, in the limit a
    straight line for base 1. Updates after the last are like the last.

    Args:
        update: How many updates are done, from 0.
        updates: How many there will be.
        start: The probability before the first.
        end: The probability after the last.
        base: How late it changes; 4 in the paper.

    Raises:
        OptionError: A number is out of range.

    Example:
        >>> [round(noise_probability(i, 2, start=0.0, end=0.6), 3) for i in range(4)]
        [0.0, 0.2, 0.6, 0.6]
    """
    if update < 0 or updates < 1:
        raise OptionError(f"expected an update of at least 1 in all, found {update} of {updates}")
    if not (0 <= start <= 1 and 0 <= end <= 1):
        raise OptionError(f"start and end must be probabilities, not {start!r} and {end!r}")
    if not (math.isfinite(base) and base >= 1):
        raise OptionError(f"base must be a number of at least 1, not {base!r}")
    done = min(update / updates, 1.0)
    rise = math.log(base)
    risen = math.expm1(rise * done) / math.expm1(rise) if rise else done
    return min(max(start + risen * (end - start), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class NoiseCurriculum:
    """Says how often, and when, the simulated engine of a training gives noisy documents.

    Attributes:
        updates: The training's updates.
        start: Probability of noisy documents at its first update.
        end: Their probability after its last.
        base: How late it rises.
        seed: Seed of what is drawn.

    Example:
        >>> from .presets import paw_preset
        >>> curriculum = NoiseCurriculum.of(paw_preset("zerosearch"), updates=203)
        >>> curriculum.probability(0), curriculum.probability(203)
        (0.25, 0.5)
    """

    updates: int
    start: float
    end: float
    base: float = 4.0
    seed: int = 0

    @classmethod
    def of(cls, config: PaWTraining, updates: int) -> NoiseCurriculum:
        """Return the curriculum of a training.

        Args:
            config: Its settings.
            updates: Its updates, as the settings may leave them to the training split.
        """
        ends = (config.noise_start, config.noise_end)
        return cls(updates, *ends, config.noise_base, config.seed)

    def probability(self, update: int) -> float:
        """Return the probability of noisy documents at an update, from 0."""
        ends = {"start": self.start, "end": self.end}
        return noise_probability(update, self.updates, **ends, base=self.base)

    def noisy(self, update: int, episode: int, turn: int) -> bool:
        """Return whether a search gets noisy documents.

        The answer depends on these numbers and the seed alone: neither on processes, nor on the order
        in which searches come in.

        Args:
            update: The update, from 0.
            episode: What tells the episode from the others of the update, in whatever process: its
                seed.
            turn: Number of the search within the episode.
        """
        rng = random.Random(f"noise\n{self.seed}\n{update}\n{episode}\n{turn}")
        return rng.random() < self.probability(update)
