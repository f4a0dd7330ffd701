"""A simulator for the tests of ScienceWorld, or a word on why there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.envs.scienceworld import keep_idle
from comap.envs.scienceworld.simulator import find_java, simulator_jar
from comap.errors import CoMapError

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "scienceworld"
ENV_ID = "comap/ScienceWorld-v0"


@pytest.fixture(scope="session")
def simulator() -> None:
    """The package scienceworld and a Java."""
    try:
        simulator_jar()
        find_java()
    except CoMapError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="package", autouse=True)
def few_jvms() -> Iterator[None]:
    """Let closed environments' JVMs serve the next tests: each takes seconds to start."""
    keep_idle(2)
    yield
    keep_idle(0)


@pytest.fixture(scope="module")
def shared_env(simulator: None) -> Iterator[gym.Env[str, str]]:
    """One environment for the tests of a module that leave it as they found it."""
    env: gym.Env[str, str] = gym.make(ENV_ID, split="train")
    yield env
    env.close()


@pytest.fixture
def play(shared_env: gym.Env[str, str]) -> Any:
    """A function that plays actions from the start of a task and returns all that was told."""

    def played(task: str, *actions: str) -> list[tuple[Any, ...]]:
        told: list[tuple[Any, ...]] = [shared_env.reset(options={"task": task})]
        return told + [shared_env.step(action) for action in actions]

    return played


@pytest.fixture(scope="session")
def eto() -> Path:
    """ETO's lists."""
    if not (SHARED / "dev_indices.json").is_file():
        pytest.skip(f"ETO's lists are not at {SHARED}")
    return SHARED
