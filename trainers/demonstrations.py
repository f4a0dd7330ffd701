"""Expert demonstrations: recorded commands, or an environment's own expert, as trajectories."""

from __future__ import annotations

import lzma
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import gymnasium

from ..agents import Decision, ExpertAgent, Reply, Request, View, run_episode
from ..checksums import unseal
from ..errors import DataCorrupt, DataNotFound
from ..trajectory import Trajectory

__all__ = ["demonstrations", "expert_demonstrations", "read_demonstrations"]


def read_demonstrations(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the task and the commands of each demonstration in a file.

    Args:
        path: A file of JSON lines, plain or ``.xz``, with ``game`` and ``steps`` of ``command``, as
            ``shared/data/alfworld/README.md`` describes.

    Raises:
        DataNotFound: There is no such file.
        DataCorrupt: A line is not a demonstration, or the file is damaged.

    Example:
        >>> path = Path("demonstrations.jsonl")
        >>> step = '{"command": "look"}'
        >>> _ = path.write_text('{"game": "train/kind/trial/game.tw-pddl", "steps": [%s]}' % step)
        >>> list(read_demonstrations(path))
        [('train/kind/trial', ('look',))]
    """
    opened = lzma.open if path.suffix == ".xz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                yield _demonstration(path, number, line)
    except OSError as error:
        raise DataNotFound(
            f"expected demonstrations in {path}, found that it cannot be read "
            f"({error.strerror or error}); give a file of JSON lines, plain or .xz"
        ) from error
    except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise DataCorrupt(
            f"expected demonstrations in {path}, found a damaged file ({error}); get it again"
        ) from error


def _demonstration(path: Path, number: int, line: str) -> tuple[str, tuple[str, ...]]:
    try:
        record = unseal(line)
        task = "/".join(PurePosixPath(record["game"]).parts[-4:-1])
        said = [step["command"] for step in record["steps"] if step["command"] is not None]
        if not all(isinstance(command, str) for command in said):
            raise TypeError("a command that is no text")
        return task, tuple(said)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
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


def demonstrations(
    env: gymnasium.Env[str, str], plans: Iterable[tuple[str, Sequence[str]]]
) -> Iterator[Trajectory]:
    """Play recorded commands and yield the trajectories.

    Args:
        env: Where to play; it must have the tasks.
        plans: The task and the commands of each.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ALFWorld-v0", source="generated")
        >>> task = env.unwrapped.tasks.ids[0]
        >>> [len(shown.steps) for shown in demonstrations(env, [(task, ["look", "inventory"])])]
        [2]
    """
    for task, commands in plans:
        yield run_episode(env, _Player(commands), task=task)


def expert_demonstrations(
    env: gymnasium.Env[str, str], tasks: Iterable[str]
) -> Iterator[Trajectory]:
    """Let the environment's expert play tasks, and yield the trajectories of those that it solves.

    Args:
        env: Where to play.
        tasks: The tasks' ids.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ALFWorld-v0", source="generated")
        >>> [shown.success for shown in expert_demonstrations(env, env.unwrapped.tasks.ids[:2])]
        [True, True]
    """
    for task in tasks:
        shown = run_episode(env, ExpertAgent(), task=task)
        if shown.success and shown.error is None:
            yield shown
