"""ALFWorld, on its embedded tasks, keeps every rule that all environments keep."""

from __future__ import annotations

from typing import ClassVar

from comap.envs.conformance import EnvConformance


class TestALFWorld(EnvConformance):
    env_id = "comap/ALFWorld-v0"


class TestALFWorldValidSeen(EnvConformance):
    env_id = "comap/ALFWorld-v0"
    kwargs: ClassVar = {"split": "valid_seen"}
    memory_episodes = 60
