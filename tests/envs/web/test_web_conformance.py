"""`comap/Web-v0` keeps the rules that all environments keep."""

from __future__ import annotations

import pytest

from comap.envs.conformance import EnvConformance
from comap.envs.conformance.suite import Snapshots


class TestWeb(EnvConformance):
    env_id = "comap/Web-v0"
    kwargs = {"split": "test"}  # noqa: RUF012 (as in the suite)
    steps = 15
    memory_episodes = 150


@pytest.mark.usefixtures("browser")
class TestWebInChromium(Snapshots):
    """The rest of the rules does not depend on the engine."""

    env_id = "comap/Web-v0"
    kwargs = {"split": "test", "engine": "chromium"}  # noqa: RUF012 (as in the suite)
    seeds = (0,)
    steps = 3
