"""StableToolBench, on embedded tasks and on official queries, keeps every rule of environments."""

from __future__ import annotations

from typing import ClassVar

import pytest

from comap.envs.conformance import EnvConformance


class TestGeneratedTools(EnvConformance):
    env_id = "comap/StableToolBench-v0"
    kwargs: ClassVar = {"source": "generated", "admissible_actions": True}
    memory_episodes = 100


class TestReferenceTools(EnvConformance):
    env_id = "comap/StableToolBench-v0"
    kwargs: ClassVar = {
        "source": "generated",
        "split": "G3_instruction",
        "compat": "reference",
        "functions_as": "json",
        "max_observation_length": 128,
    }
    memory_episodes = 100

    def policy(self, observation, info, rng):
        """Call functions by names of their own, since no actions are listed."""
        return rng.choice(('{"name": "s", "arguments": {"page": 1}}', "list", "Action: cancel"))


class TestOfficialQueries(EnvConformance):
    env_id = "comap/StableToolBench-v0"
    memory_episodes = 100

    @pytest.fixture(autouse=True)
    def data(self, official, request):
        request.cls.kwargs = {
            "data_dir": str(official),
            "split": "G1_instruction",
            "admissible_actions": True,
        }
