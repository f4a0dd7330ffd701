"""The class behind a registered id."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import gymnasium

__all__ = ["class_of"]


@lru_cache(maxsize=64)
def class_of(env_id: str) -> type[Any] | None:
    """Return the class of the environment with this id; None where there is none of it.

    Of an id such as ``module:name/Env-v0`` the module is not imported here: see `evaluated_splits`.

    Example:
        >>> import comap
        >>> class_of("comap/ALFWorld-v0").__name__, class_of("another/World-v0")
        ('ALFWorldEnv', None)
    """
    spec = gymnasium.registry.get(env_id.rpartition(":")[2])
    if spec is None or spec.entry_point is None:
        return None
    entry: Any = spec.entry_point
    if isinstance(entry, str):
        entry = gymnasium.envs.registration.load_env_creator(entry)
    return entry if isinstance(entry, type) else None
