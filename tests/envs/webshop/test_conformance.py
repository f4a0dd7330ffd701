"""WebShop, on embedded tasks and on its own data, keeps every rule that all environments keep."""

from __future__ import annotations

from typing import ClassVar

import pytest

from comap.envs.conformance import EnvConformance


class TestWebShop(EnvConformance):
    env_id = "comap/WebShop-v0"
    kwargs: ClassVar = {"source": "generated"}


class TestWebShopRich(EnvConformance):
    env_id = "comap/WebShop-v0"
    kwargs: ClassVar = {
        "source": "generated",
        "observation_mode": "text_rich",
        "split": "test",
        "goals": "human",
        "strict_options": True,
        "show_attrs": True,
    }
    memory_episodes = 100


class TestOfficialWebShop(EnvConformance):
    env_id = "comap/WebShop-v0"
    memory_episodes = 200

    @pytest.fixture(autouse=True)
    def data(self, official, request):
        request.cls.kwargs = {"data_dir": str(official), "split": "legacy-test"}
