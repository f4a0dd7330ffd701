"""What an environment's class says of its splits and embedded tasks, by its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

__all__ = ["embedded_tasks", "evaluated_splits"]


def evaluated_splits(env_id: str) -> tuple[str, ...]:
    """Return the splits that an environment is evaluated on unless one says otherwise.

    Args:
        env_id: A registered id.

    Returns:
        Their names, the hardest last; none where the environment does not say.

    Raises:
        gymnasium.error.Error: There is no such environment.

    Example:
        >>> import comap
        >>> evaluated_splits("comap/ALFWorld-v0")
        ('valid_seen', 'valid_unseen')
    """
    found: tuple[str, ...] = getattr(_creator(env_id), "test_splits", ())
    return found


def embedded_tasks(env_id: str) -> dict[str, Any]:
    """Return the options with which an environment plays its embedded tasks, whatever data is here.

    Args:
        env_id: A registered id.

    Raises:
        gymnasium.error.Error: There is no such environment.

    Example:
        >>> import comap
        >>> embedded_tasks("comap/ALFWorld-v0")
        {'source': 'generated'}
    """
    found: Mapping[str, Any] = getattr(_creator(env_id), "embedded", {})
    return dict(found)


def _creator(env_id: str) -> Any:
    entry = gymnasium.spec(env_id).entry_point
    return load_env_creator(entry) if isinstance(entry, str) else entry
