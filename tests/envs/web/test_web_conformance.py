"""`comap/Web-v0` keeps the rules that all environments keep."""

from __future__ import annotations

from comap.envs.conformance import EnvConformance


class TestWeb(EnvConformance):
    env_id = "comap/Web-v0"
    kwargs = {"split": "test"}  # noqa: RUF012 (as in the suite)
    steps = 15
    memory_episodes = 150
