"""Checks of settings that several agents have in common."""

from __future__ import annotations

from ..errors import OptionError
from .config import AgentConfig

__all__ = ["require_whole"]


def require_whole(config: AgentConfig, least: int, *names: str) -> None:
    """Do nothing, if these settings are whole numbers of at least `least`.

    Raises:
        OptionError: One of them is not.

    Example:
        >>> require_whole(AgentConfig(), 1, "max_length")
    """
    for name in names:
        value = getattr(config, name)
        if type(value) is not int or value < least:
            raise OptionError(f"{name} must be a whole number of at least {least}, not {value!r}")
