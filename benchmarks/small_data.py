"""What small models learn from: demonstrations and side steps in ALFWorld, as rows of text."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

import gymnasium

from ..agents import Decision, RandomAgent, Reply, Request, View, run_episode
from ..agents.config import AgentConfig
from ..agents.prompting import converse
from ..errors import DataCorrupt, DataNotFound
from ..lm.sft import Row
from ..trajectory import Trajectory, Turn
from ..worldmodel import transitions_of
from ..worldmodel.language import LanguageWorldModel

__all__ = [
    "demonstrations",
    "policy_rows",
    "read_demonstrations",
    "side_steps",
    "world_model_rows",
]


def read_demonstrations(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the task and the commands of each demonstration in a file.

    Args:
        path: A file of JSON lines, plain or ``.xz``, with ``game`` and ``steps`` of ``command``, as
            ``shared/data/alfworld/README.md`` describes.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: A line is not a demonstration.
    """
    opened = lzma.open if path.suffix == ".xz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield _demonstration(path, number, line)
    except OSError as error:
        raise DataNotFound(f"cannot read demonstrations at {path}: {error}") from error


def _demonstration(path: Path, number: int, line: str) -> tuple[str, tuple[str, ...]]:
    try:
        record = json.loads(line)
        parts = Path(record["game"]).parts
        commands = tuple(step["command"] for step in record["steps"] if step["command"] is not None)
        return "/".join(parts[-4:-1]), commands
    except (KeyError, TypeError, ValueError) as error:
        raise DataCorrupt(
            f"{path}, line {number}: expected a demonstration with game and steps, found {error!r}"
        ) from error


class _Player:
    """Takes given commands, one after the other."""

    name = "demonstration"

    def __init__(self, commands: Sequence[str]):
        self._commands = commands

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        yield from ()
        return Decision(self._commands[view.step] if view.step < len(self._commands) else None)


class _Wanderer:
    """An expert that now and then does something else, as random agents do."""

    name = "side steps"

    def __init__(self, seed: int, share: float):
        self._seed, self._share = seed, share
        self._random = RandomAgent(seed, mixed=0.6)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        rng = random.Random(f"{self._seed}\n{view.task}\n{view.step}\nside".encode())
        planned = view.expert_action()
        if planned is None or rng.random() < self._share:
            return (yield from self._random.decide(view))
        return Decision(planned)


def demonstrations(
    env: gymnasium.Env[str, str], plans: Iterable[tuple[str, Sequence[str]]]
) -> Iterator[Trajectory]:
    """Play recorded commands and yield the trajectories."""
    for task, commands in plans:
        yield run_episode(env, _Player(commands), task=task)


def side_steps(
    env: gymnasium.Env[str, str], tasks: Iterable[str], seed: int, share: float = 0.5
) -> Iterator[Trajectory]:
    """Play tasks with an expert that takes random actions for a share of the time."""
    agent = _Wanderer(seed, share)
    for task in tasks:
        yield run_episode(env, agent, task=task)


def policy_rows(trajectories: Iterable[Trajectory], config: AgentConfig) -> Iterator[Row]:
    """Yield a row for each step: the prompt that an agent with `config` makes, and the action."""
    for trajectory in trajectories:
        turns = [Turn(None, trajectory.observation)]
        for facts, step in trajectory.transitions():
            view = View(
                trajectory.env_id,
                trajectory.task,
                trajectory.goal,
                tuple(turns),
                facts,
                None,
                step.t - 1,
                lambda: None,
            )
            yield Row(converse(view, config), f"Action: {step.action}")
            turns.append(Turn(step.action, step.observation))


def world_model_rows(
    trajectories: Iterable[Trajectory], model: LanguageWorldModel
) -> Iterator[Row]:
    """Yield a row for each real transition: the model's own prompt, and what was observed."""
    for trajectory in trajectories:
        for query, observation in transitions_of(trajectory):
            yield Row(model.prompt(query), observation)
