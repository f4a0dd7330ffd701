"""The processes that play gold paths for demonstrations, each with a simulator of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from multiprocessing.connection import Connection, wait
from typing import Any

from ...errors import EngineError

__all__ = ["make", "played"]


def make(options: Mapping[str, Any]) -> Any:
    """Return an environment with these options."""
    from .env import ScienceWorldEnv  # it imports the readers of this package

    return ScienceWorldEnv(**options)


def played(
    tasks: Sequence[str], workers: int, options: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Play tasks in other processes and yield how each went, in the order in which they end.

    Args:
        tasks: Ids of tasks.
        workers: How many processes; they end with this one, however it ends.
        options: Of the environment.

    Yields:
        A task and ``{"steps": [...]}``, or ``{"failed": why}``.

    Raises:
        EngineError: A process has ended.

    Example:
        >>> list(played([], 2, {}))
        []
    """
    context = multiprocessing.get_context("spawn")
    waiting, busy = list(tasks)[::-1], dict[Connection, str]()
    processes = []
    try:
        for _ in range(min(workers, len(tasks))):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, dict(options)), daemon=True)
            process.start()
            there.close()  # so that both ends notice when the other is gone
            processes.append(process)
            busy[here] = waiting.pop()
            here.send(busy[here])
        while busy:
            for line in wait([*busy]):
                assert isinstance(line, Connection)
                task = busy.pop(line)
                yield task, _received(line, task)
                if waiting:
                    busy[line] = waiting.pop()
                    line.send(busy[line])
                else:
                    line.close()
    finally:
        for line in busy:
            line.close()
        for process in processes:
            process.join(5)
            process.kill()


def _received(line: Connection, task: str) -> dict[str, Any]:
    try:
        told = line.recv()
    except (EOFError, OSError) as error:
        raise EngineError(
            f"expected the process that plays {task} to answer, found that it ended; "
            "run the command again to go on"
        ) from error
    if isinstance(told, Exception):
        raise told
    assert isinstance(told, dict)
    return told


def _work(line: Connection, options: Mapping[str, Any]) -> None:
    """Play the tasks that come until the other end is gone."""
    try:
        env = make(options)
        with closing(env):
            while True:
                line.send(_play(env, line.recv()))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:
        line.send(error)


def _play(env: Any, task: str) -> dict[str, Any]:
    """Play a task's gold path; return its steps, or why they cannot be used."""
    from .gold import gold_path

    observation, info = env.reset(options={"task": task})
    path = gold_path(env.engine)
    if not path:
        return {"failed": "its gold path does not reach the full score"}
    steps = [{"command": None, "observation": observation}]
    for command in path:
        observation, _, terminated, truncated, info = env.step(command)
        steps.append({"command": command, "observation": observation})
        if terminated or truncated:
            break
    if info.get("error"):
        return {"failed": info["error"]}
    if not info["success"]:
        return {
            "failed": f"score {info['score']:.2f} after {len(steps) - 1} of {len(path)} actions"
        }
    return {"steps": steps}
