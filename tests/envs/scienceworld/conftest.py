"""One environment for many tests of ScienceWorld."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

ENV_ID = "comap/ScienceWorld-v0"


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
        answers: list[tuple[Any, ...]] = [shared_env.reset(options={"task": task})]
        return answers + [shared_env.step(action) for action in actions]

    return played


@pytest.fixture(scope="module")
def eto(shared: Any) -> Path:
    """The folder of ETO's lists."""
    folder: Path = shared.file("dev_indices.json").parent
    return folder
