"""Settings that are numbers in a range."""

from __future__ import annotations

import math

from ..errors import OptionError
from .config import AgentConfig

__all__ = ["require_between"]


def require_between(config: AgentConfig, low: float, high: float, *names: str) -> None:
    """Do nothing, if these settings are numbers from `low` to `high`.

    Raises:
        OptionError: One of them is not.

    Example:
        >>> require_between(AgentConfig(temperature=0.7), 0, 10, "temperature")
    """
    for name in names:
        value = getattr(config, name)
        number = type(value) in (int, float) and math.isfinite(value)
        if not number or not low <= value <= high:
            raise OptionError(f"{name} must be a number from {low} to {high}, not {value!r}")
