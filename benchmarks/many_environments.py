"""Many environments in one process: what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .record import resident_bytes

__all__ = ["measure_environments"]


def measure_environments(env_id: str, options: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Play an expert's episode in each of so many environments and return ``resident_bytes``.

    Args:
        env_id: Such as ``comap/WebShop-v0``.
        options: Of each environment.
        count: How many.

    Example:
        >>> sorted(measure_environments("comap/SearchQA-v0", {"source": "generated"}, 1))
        ['resident_bytes']
    """
    import gymnasium

    envs = [gymnasium.make(env_id, **options) for _ in range(count)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.get_wrapper_attr("expert_action")())
            over = terminated or truncated
    return {"resident_bytes": resident_bytes()}
