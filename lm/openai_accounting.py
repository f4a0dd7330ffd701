"""Counting what requests to a server cost in tokens and money."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

from ..errors import OptionError
from .base import Message, Usage

__all__ = ["Accounting", "checked_prices", "estimate_tokens", "prompt_estimate"]

_CHARACTERS_PER_TOKEN = 4
_PER = 1_000_000


def estimate_tokens(text: str) -> int:
    """Return an estimate of a text's tokens: its characters divided by four, rounded up.

    Right within a quarter or so for English; too low for most other languages and for numbers.

    Example:
        >>> estimate_tokens("go to shelf 1")
        4
    """
    return math.ceil(len(text) / _CHARACTERS_PER_TOKEN)


def prompt_estimate(messages: Sequence[Message], prefix: str = "") -> int:
    """Return an estimate of a prompt's tokens, the chat template's own tokens left out.

    Example:
        >>> prompt_estimate([Message("user", "look"), Message("assistant", "ok")], "Action:")
        4
    """
    return estimate_tokens("".join(content for _, content in messages) + prefix)


def checked_prices(prices: tuple[float, float] | None) -> tuple[float, float]:
    """Return prices per million prompt and completion tokens; None is free.

    Raises:
        OptionError: They are not two numbers of at least 0.

    Example:
        >>> checked_prices((0.5, 1.5))
        (0.5, 1.5)
    """
    if prices is None:
        return 0.0, 0.0
    if (
        not isinstance(prices, tuple | list)
        or len(prices) != 2
        or not all(
            type(price) in (int, float) and math.isfinite(price) and price >= 0 for price in prices
        )
    ):
        raise OptionError(
            "prices must be two numbers of at least 0, per million prompt tokens and per million "
            f"completion tokens, not {prices!r}"
        )
    return float(prices[0]), float(prices[1])


class Accounting:
    """Adds to a `Usage` from several threads.

    Args:
        prices: Per million prompt tokens and per million completion tokens.

    Attributes:
        usage: The sums so far.

    Example:
        >>> accounting = Accounting((1.0, 2.0))
        >>> accounting.answered(1_000_000, 500_000)
        >>> accounting.usage.cost
        2.0
    """

    def __init__(self, prices: tuple[float, float]):
        self.prices, self.usage = prices, Usage()
        self._lock = threading.Lock()

    def answered(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count one request that got its answer."""
        cost = (prompt_tokens * self.prices[0] + completion_tokens * self.prices[1]) / _PER
        with self._lock:
            self.usage.requests += 1
            self.usage.prompt_tokens += prompt_tokens
            self.usage.completion_tokens += completion_tokens
            self.usage.cost += cost

    def retried(self) -> None:
        """Count one request that was sent again."""
        with self._lock:
            self.usage.retries += 1
