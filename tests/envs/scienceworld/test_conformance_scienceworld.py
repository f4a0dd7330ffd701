"""ScienceWorld keeps every rule that all environments keep; less is played, as each step costs more."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest

from comap.envs.conformance import EnvConformance
from comap.envs.conformance.suite import Answers

WORDS = ("look around", "go to kitchen", "open door", "0", "wait1", "pick up orange", "inventory")


@pytest.mark.usefixtures("simulator")
class TestScienceWorld(EnvConformance):
    env_id = "comap/ScienceWorld-v0"
    kwargs: ClassVar = {"split": "dev"}
    seeds = (11, 7)  # of dev's tasks these load, and are solved, soonest
    steps = 5
    memory_episodes = 6

    def policy(self, observation: str, info: dict[str, Any], rng: random.Random) -> str:
        return rng.choice(info["admissible_actions"] or WORDS)


@pytest.mark.usefixtures("simulator")
class TestScienceWorldListing(Answers):
    """With the actions listed and the truth told: the tests that this changes."""

    env_id = "comap/ScienceWorld-v0"
    kwargs: ClassVar = {
        "split": "dev",
        "admissible_actions": True,
        "info_level": "privileged",
        "simplification": "",
    }
    seeds = (11,)
    steps = 3
