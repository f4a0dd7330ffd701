"""Ways to get the messages that ``docs/troubleshooting.md`` explains, by the titles of its sections."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym

from comap.agents import ExpertAgent, Run, create_agent, run_episode, run_to
from comap.cli.train import CoMap
from comap.envs.registry import env_class
from comap.envs.scienceworld.simulator import find_java
from comap.errors import MissingExtra
from comap.facts import State
from comap.lm import Generate, Message, OpenAILanguageModel, create_language_model
from comap.trainers.comap.config import CoMapTraining, preset
from comap.worldmodel import (
    ImaginedEnv,
    Prediction,
    RetrievalWorldModel,
    create_world_model,
    imagine,
)

__all__ = ["FAULTS", "say"]

NOWHERE = "http://127.0.0.1:9/v1"


def alfworld(**options: Any) -> gym.Env[str, str]:
    return gym.make("comap/ALFWorld-v0", **{"source": "generated", **options})


def started(**options: Any) -> gym.Env[str, str]:
    env = alfworld(**options)
    env.reset(seed=0)
    return env


def forgotten_import(folder: Path) -> None:
    code = "import gymnasium; gymnasium.make('comap/ALFWorld-v0')"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder
    )
    raise RuntimeError(process.stderr.strip().splitlines()[-1])


def missing_extra(folder: Path) -> None:
    raise MissingExtra.of("alfworld", "the TextWorld engine")


def snapshot_of_another(folder: Path) -> None:
    moment = started().unwrapped.snapshot()
    started(dialect="put").unwrapped.restore(moment)


def other_folder(folder: Path) -> None:
    for task in alfworld().unwrapped.tasks.ids[:2]:
        run_to(folder / "run", Run(make_env=alfworld, agent=ExpertAgent(), tasks=(task,)))


def unlearned(folder: Path) -> None:
    imagine(started(), "look", RetrievalWorldModel())


class TooFew:
    """A world model that forgets to answer."""

    def predict(self, queries: Any) -> list[Prediction]:
        return []


def too_few(folder: Path) -> None:
    imagine(started(), "look", TooFew())


def nobody_there(folder: Path) -> None:
    lm = OpenAILanguageModel("m", NOWHERE, max_retries=0)
    reply = lm.generate([Generate((Message("user", "Hello"),))])[0]
    assert isinstance(reply, Exception)
    raise reply


def no_scores(folder: Path) -> None:
    lm = OpenAILanguageModel("m", NOWHERE)
    run_episode(started(), create_agent("react", decoding="scored"), lm=lm)


def no_adapter(folder: Path) -> None:
    lm = OpenAILanguageModel("m", NOWHERE)
    run_episode(started(), create_agent("react", adapter="actor"), lm=lm)


def no_model(folder: Path) -> None:
    CoMap(config=CoMapTraining(), out=folder).check()


def say(error: BaseException) -> str:
    """Return what Python shows of an error: its type's full name and its message."""
    kind = type(error)
    return str(error) if kind is RuntimeError else f"{kind.__module__}.{kind.__qualname__}: {error}"


FAULTS: dict[str, Callable[[Path], object]] = {
    "Namespace comap not found": forgotten_import,
    "Official data are not found": lambda folder: alfworld(source="official"),
    "A package is missing": missing_extra,
    "No Java": lambda folder: find_java(str(folder / "java")),
    "The module of an environment is not found": lambda folder: env_class("lampz:mine/Lamps-v0"),
    "An environment has no such option": lambda folder: alfworld(splits="train"),
    "No such split": lambda folder: alfworld(split="valid_sen"),
    "No such task": lambda folder: alfworld().reset(options={"task": "nowhere"}),
    "A step without an episode": lambda folder: alfworld().unwrapped.step("look"),
    "An action that is no text": lambda folder: started().unwrapped.step(3),
    "A snapshot of another environment": snapshot_of_another,
    "A line that is not a fact": lambda folder: State.from_text("in(apple 1"),
    "No such world model": lambda folder: create_world_model("orcale"),
    "A world model that has learnt nothing": unlearned,
    "A world model that answers too little": too_few,
    "An environment that is imagined already": lambda folder: ImaginedEnv(
        ImaginedEnv(alfworld(), "null"), "null"
    ),
    "A gate that never opens": lambda folder: create_agent("comap", p_source="head"),
    "No such agent": lambda folder: create_agent("raect"),
    "An agent has no such option": lambda folder: create_agent("react", rollouts=3),
    "An agent without a language model": lambda folder: run_episode(
        started(), create_agent("react")
    ),
    "A language model that cannot do it": no_scores,
    "No such adapter": no_adapter,
    "No key": lambda folder: create_language_model(
        "gpt-x", base_url="https://example.org/v1", api_key_env="COMAP_NO_SUCH_KEY"
    ),
    "A server that does not answer": nobody_there,
    "A run's folder is another run's": other_folder,
    "No model to train": no_model,
    "Settings that exclude each other": lambda folder: preset("tiny", batch_rows=2),
    "No such preset": lambda folder: preset("tny"),
}
"""What raises each message."""
