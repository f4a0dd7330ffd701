"""ALFWorld, on the official games, keeps every rule that all environments keep."""

from __future__ import annotations

from typing import ClassVar

import pytest

from comap.envs.conformance import EnvConformance


class TestALFWorld(EnvConformance):
    env_id = "comap/ALFWorld-v0"
    memory_episodes = 150


class TestALFWorldValidSeen(EnvConformance):
    env_id = "comap/ALFWorld-v0"
    kwargs: ClassVar = {"split": "valid_seen"}
    memory_episodes = 60


class TestOfficialALFWorld(EnvConformance):
    env_id = "comap/ALFWorld-v0"
    memory_episodes = 100

    @pytest.fixture(autouse=True)
    def data(self, official, request):
        request.cls.kwargs = {"data_dir": str(official.folder), "split": "valid_unseen"}


class TestOfficialALFWorldOlderDialect(EnvConformance):
    env_id = "comap/ALFWorld-v0"
    memory_episodes = 60

    @pytest.fixture(autouse=True)
    def data(self, official, request):
        request.cls.kwargs = {
            "data_dir": str(official.folder),
            "split": "valid_seen",
            "dialect": "put",
            "expert": "explore",
        }
