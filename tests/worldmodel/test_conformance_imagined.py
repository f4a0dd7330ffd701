"""Imagined environments keep every rule that real ones keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym

from comap.envs.conformance import EnvConformance
from comap.worldmodel import ImaginedEnv


def make(world_model: Any, **options: Any) -> gym.Env[str, str]:
    env = gym.make("comap/ALFWorld-v0", split="valid_seen", source="generated", expert="explore")
    return ImaginedEnv(env, world_model, **options)


class Imagined(EnvConformance):
    maker = f"{Path(__file__)}:make"


class TestOracle(Imagined):
    maker_args: ClassVar = {"world_model": "oracle"}
    memory_episodes: ClassVar = 100


class TestEveryThirdStepReal(Imagined):
    maker_args: ClassVar = {"world_model": {"id": "noisy", "error_rate": 0.3}, "real_every": 3}
    memory_episodes: ClassVar = 20  # after a real step the engine plays the episode again
