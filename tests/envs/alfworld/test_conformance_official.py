"""ALFWorld, on the official games, keeps every rule that all environments keep."""

from __future__ import annotations

import pytest

from comap.envs.conformance import EnvConformance


class TestOfficialALFWorld(EnvConformance):
    env_id = "comap/ALFWorld-v0"

    @pytest.fixture(autouse=True)
    def data(self, official, request):
        request.cls.kwargs = {"data_dir": str(official.folder), "split": "valid_unseen"}


class TestOfficialALFWorldOlderDialect(EnvConformance):
    env_id = "comap/ALFWorld-v0"

    @pytest.fixture(autouse=True)
    def data(self, official, request):
        request.cls.kwargs = {
            "data_dir": str(official.folder),
            "split": "valid_seen",
            "dialect": "put",
            "informative_errors": True,
            "expert": "explore",
        }
