"""`comap data build scienceworld-demos`: demonstrations along gold paths, played in other processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import DataCorrupt, EngineError, TaskNotFound, check_number, suggest
from ...jsonl import RecordedCalls, write
from ..panel import evenly
from ..storage import Listener, Progress, locked, on_disk, silent


def make(options: Mapping[str, Any]) -> Any:
    from .env import ScienceWorldEnv

    return ScienceWorldEnv(**options)


def played(
    tasks: Sequence[str], workers: int, options: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Play tasks in other processes and yield how each went, in the order in which they end."""
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
        answer = line.recv()
    except (EOFError, OSError) as error:
        raise EngineError(
            f"expected the process that plays {task} to answer, found that it ended; "
            "run the command again to go on"
        ) from error
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, dict)
    return answer


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
    from .engine import gold_path

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


_SUFFIX = ".unfinished"


class Built(NamedTuple):
    """What a build has made."""

    path: Path
    kept: tuple[str, ...]
    failed: Mapping[str, str]


def build_demonstrations(
    out: str | os.PathLike[str],
    *,
    tasks: Sequence[str] = (),
    variations: int | None = None,
    workers: int = 1,
    options: Mapping[str, Any] | None = None,
    progress: Listener = silent,
) -> Built:
    """Play gold paths and write those that reach the full score, one line of JSON each."""
    for name, number in (("variations", variations), ("workers", workers)):
        if number is not None:
            check_number(name, number)
    path, chosen = Path(out), dict(options or {})
    with closing(make(chosen)) as env:
        wanted = _wanted(env.tasks.ids, tasks, variations)
        settings = {**env.fingerprint(), **env.settings()}
    with on_disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + _SUFFIX)
    lock = path.with_name(path.name + ".lock")
    with locked(lock, wait=0.0):
        with on_disk(part):
            done = _opened(part, settings)
        missing = [task for task in wanted if task not in done]
        for task, went in played(missing, workers, chosen):
            with on_disk(part):
                done.add([{"key": task, "value": dict(went)}])
            note = "" if "steps" in went else f"{task} is not kept: {went['failed']}"
            progress(Progress("playing", sum(one in done for one in wanted), len(wanted), note))
        kept = [task for task in wanted if "steps" in done.get(task)]
        lines = (
            {"game": f"{task}/gold", "settings": dict(settings), "steps": done.get(task)["steps"]}
            for task in kept
        )
        with on_disk(path):
            write(path, lines)
            part.unlink()
            lock.unlink()
    failed = {task: done.get(task)["failed"] for task in wanted if task not in set(kept)}
    return Built(path, tuple(kept), failed)


def _wanted(ids: Sequence[str], names: Sequence[str], variations: int | None) -> list[str]:
    groups: dict[str, list[tuple[int, str]]] = {}
    for task in ids:
        name, _, variation = task.rpartition("/")
        groups.setdefault(name, []).append((int(variation), task))
    for name in names:
        if name not in groups:
            raise TaskNotFound(
                f"expected the name of a task, found {name!r}; {suggest(name, groups)}"
            )
    chosen = sorted(groups) if not names else [name for name in groups if name in names]
    return [task for name in chosen for _, task in evenly(sorted(groups[name]), variations)]


def _opened(part: Path, settings: Mapping[str, str]) -> RecordedCalls:
    done = RecordedCalls(
        part, {"settings": dict(settings)}, expected="a task of an unfinished build"
    )
    if (found := done.header.get("settings")) != settings:
        old = found if isinstance(found, dict) else {}
        keys = sorted(key for key in {*old, *settings} if old.get(key) != settings.get(key))
        changes = (f"{key} was {old.get(key)!r}, is {settings.get(key)!r}" for key in keys)
        raise DataCorrupt(
            f"expected the unfinished build {part} to have these settings, found others: "
            f"{'; '.join(changes)}; go on with those, or remove that file"
        )
    return done
