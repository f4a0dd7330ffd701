"""Workers on Ray that are killed: those of a run, and those of a vector of environments."""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Generator
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium

from ...agents import Decision, RandomAgent, Reply, Request, View, run_to
from ...agents.ray_pool import WORKER_LOST, RayPool
from ...agents.run import TRAJECTORIES, Run
from ...envs.ray_cluster import LOST
from ...envs.ray_vector import RayVectorEnv
from ...trajectory import read_trajectories
from .findings import Findings
from .vectors import MEMBERS, STEPS, check_member, play_vector

__all__ = ["WORKERS", "kill_ray_members", "kill_ray_worker"]

WORKERS = 2
"""How many workers there are on Ray at a time."""

_TASKS, _LIMIT = 12, 8
_PAUSE = 0.02
_PATIENCE = 120.0
_OPTIONS: dict[str, Any] = {"source": "generated", "max_episode_steps": _LIMIT}


class _Telling(RandomAgent):
    """A random agent that takes its time, and writes into a folder in which processes it plays."""

    name = "random"

    def __init__(self, folder: str | None = None):
        super().__init__()
        self._folder = folder

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        if self._folder is not None:
            Path(self._folder, str(os.getpid())).touch()
            time.sleep(_PAUSE)
        return (yield from super().decide(view))


def _plan(folder: Path | None) -> Run:
    agent = _Telling(None if folder is None else str(folder))
    make_env = partial(gymnasium.make, "comap/ALFWorld-v0", **_OPTIONS)
    tasks = make_env().unwrapped.tasks.ids[:_TASKS]  # type: ignore[attr-defined]
    return Run(make_env=make_env, agent=agent, tasks=tasks, seed=5)


@cache
def _undisturbed() -> bytes:
    """Return what one process records."""
    with tempfile.TemporaryDirectory() as folder:
        run_to(folder, _plan(None))
        return Path(folder, TRAJECTORIES).read_bytes()


def kill_ray_worker(found: Findings, rng: random.Random) -> None:
    """Kill a worker of a run on Ray while it plays, and compare what is recorded with a whole run's."""
    lost = rng.choice(LOST)
    with tempfile.TemporaryDirectory() as place:
        signs, folder = Path(place, "signs"), Path(place, "run")
        signs.mkdir()
        pool, over = RayPool(WORKERS, lost=lost, retries=5), threading.Event()
        killed: list[int] = []
        killer = threading.Thread(target=_kill_one, args=(signs, rng.random(), over, killed))
        killer.start()
        try:
            run_to(folder, _plan(signs), live=2, play=pool)
        finally:
            over.set()
            killer.join()
        found.count("Ray workers killed", len(killed))
        found.check(len(killed) == 1, "no worker on Ray was there to be killed")
        found.check(pool.restarts >= 1, "a worker on Ray that was killed was not replaced")
        record = folder / TRAJECTORIES
        if lost == "record":
            _check_failed(found, record)
            run_to(folder, _plan(None), retry_failed=True, live=2)
        same = record.read_bytes() == _undisturbed()
        found.check(same, "a run on Ray whose worker was killed recorded something else")
        found.count("runs on Ray completed")


def _kill_one(signs: Path, moment: float, over: threading.Event, killed: list[int]) -> None:
    """Kill a process that plays, some time after it has begun."""
    while not over.wait(0.01):
        playing = sorted(signs.iterdir())
        if not playing:
            continue
        if over.wait(moment * _PAUSE * _TASKS * _LIMIT / WORKERS / 2):
            return
        playing = sorted(signs.iterdir())
        process = int(playing[int(moment * len(playing))].name)
        os.kill(process, signal.SIGKILL)
        killed.append(process)
        return


def _check_failed(found: Findings, record: Path) -> None:
    """Look at a record whose lost episodes are recorded as failed."""
    whole = {json.loads(line)["task"]: line for line in _undisturbed().splitlines()}
    episodes = list(read_trajectories(record))
    lines = record.read_bytes().splitlines()
    found.check(len(lines) == len(whole), f"{len(lines)} of {len(whole)} episodes were recorded")
    for episode, line in zip(episodes, lines, strict=True):
        if episode.error is None:
            found.check(line == whole[episode.task], f"the episode of {episode.task} changed")
            continue
        found.tell(WORKER_LOST)
        right = episode.error.startswith(WORKER_LOST)
        found.check(right, f"expected {WORKER_LOST}, found {episode.error}")


class _WithProcess(gymnasium.Wrapper[str, str, str, str]):
    """An environment that tells in which process it is."""

    @property
    def process(self) -> int:
        """The process's number."""
        return os.getpid()


def _member() -> Any:
    made = gymnasium.make("comap/ALFWorld-v0", source="generated", max_episode_steps=25)
    return _WithProcess(made)


def kill_ray_members(found: Findings, rng: random.Random) -> None:
    """Kill an actor of a vector on Ray while it works, and compare all the episodes."""
    seed, victim, lost = rng.randrange(10_000), rng.randrange(MEMBERS), rng.choice(LOST)
    still = play_vector(_vector("retry"), seed, None, 0.0, lambda: False)
    envs = _vector(lost)
    processes = envs.get_attr("process")
    shaken = play_vector(
        envs, seed, processes[victim], rng.uniform(0.0, 0.3), lambda: envs.restarts > 0
    )
    found.count("vector workers on Ray killed")
    found.count("steps of vectors", len(shaken[0]))
    if not found.check(envs.restarts == 1, f"{envs.restarts} actors were replaced, expected one"):
        return
    for member in range(MEMBERS):
        found.count("members of vectors")
        one, other = still[member], shaken[member]
        if lost == "record" and processes[member] == processes[victim]:
            check_member(found, one, other, WORKER_LOST)
        else:
            same = one == other[:STEPS]
            found.check(same, f"member {member} on Ray differs after an actor was killed ({lost})")


def _vector(lost: str) -> RayVectorEnv:
    return RayVectorEnv([_member] * MEMBERS, workers=WORKERS, lost=lost, patience=_PATIENCE)
