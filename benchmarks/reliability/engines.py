"""Processes killed at random: simulators, workers of vector environments and on Ray, whole runs.

The episode that a killed process played is recorded as failed, the next one works, and no other episode
differs from what it is when nothing is killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium

from ...agents import Decision, RandomAgent, Reply, Request, View, run_episodes
from ...envs.ray_cluster import connected
from ...errors import CoMapError
from ...trajectory import Trajectory, read_trajectories
from .findings import Findings
from .ray_kills import WORKERS, kill_ray_members, kill_ray_worker
from .vectors import kill_worker

__all__ = ["KILLS", "run_engines"]

KILLS = 60
"""How many processes of each kind are killed at scale 1."""

_SCIENCE: dict[str, Any] = {"id": "comap/ScienceWorld-v0", "max_episode_steps": 8}
_TASKS = ("find-plant/3", "find-animal/2")
RUN = ("run", "--agent", "random", "--env-option", "source=generated", "--episodes", "12")
"""The run that is killed."""

Tell = Callable[[str], object]
Kill = Callable[[Findings, random.Random], None]


def run_engines(
    scale: float = 1.0, seed: int = 0, tell: Tell = lambda line: None
) -> dict[str, Any]:
    """Kill processes of each kind and return what was found.

    Args:
        scale: Which share of `KILLS`; one of each kind at least.
        seed: Of the moments.
        tell: Told a line for each kind.
    """
    found, rng = Findings(), random.Random(seed)
    kills = max(1, round(KILLS * scale))
    for name, kill in _KINDS.items():
        _kill_some(found, name, [kill] * kills, rng, tell)
    with ExitStack() as stack:  # one Ray of this machine for all that is killed on it
        try:
            stack.enter_context(connected(cpus=WORKERS))
        except CoMapError as error:
            _leave_out(found, "Ray", error, tell)
            return found.plain()
        for name, kill in _RAY_KINDS.items():
            _kill_some(found, name, [kill] * kills, rng, tell)
    return found.plain()


def _kill_some(
    found: Findings, name: str, kills: list[Kill], rng: random.Random, tell: Tell
) -> None:
    """Kill processes of a kind."""
    part = Findings()
    try:
        for kill in kills:
            kill(part, rng)
    except CoMapError as error:  # Java, say, is not there: what cannot run is no loss, but told
        _leave_out(found, name, error, tell)
        return
    told = part.plain()
    found.take(told)
    tell(f"{name}: {len(kills)} killed, {told['lost']} lost")


def _leave_out(found: Findings, name: str, error: CoMapError, tell: Tell) -> None:
    found.note(f"{name} left out", str(error))
    tell(f"{name}: left out, {error}")


def kill_simulator(found: Findings, rng: random.Random) -> None:
    """Kill a simulator among several that play, and look at all the episodes."""
    victim, moment = rng.choice(_TASKS), rng.randint(0, 6)
    envs: list[Any] = []

    def make() -> Any:
        envs.append(gymnasium.make(**_SCIENCE))
        return envs[-1]

    whole = run_episodes(make, RandomAgent(), _TASKS, live=2)
    agent = _Killing(victim, moment, envs)
    played = run_episodes(make, agent, (*_TASKS, victim), live=2)
    found.count("simulators killed", agent.killed)
    found.check(agent.killed == 1, f"no simulator of {victim} was there to be killed")
    for before, after in zip((*whole, whole[_TASKS.index(victim)]), played, strict=True):
        found.count("episodes beside or after a killed simulator")
        if after is played[_TASKS.index(victim)]:
            _check_failed(found, before, after, moment)
        else:
            same = before.steps == after.steps and after.error is None
            found.check(same, f"the episode of {after.task} changed, or failed: {after.error}")


def _check_failed(found: Findings, before: Trajectory, after: Trajectory, moment: int) -> None:
    """Look at the episode of the simulator that was killed."""
    error = after.error or ""
    found.tell(error.partition(":")[0] or "nothing")
    found.check("EngineError" in error, f"expected an EngineError recorded, found {error!r}")
    kept = before.steps[:moment] == after.steps[:moment]
    found.check(kept, "what was played before the simulator was killed is not what was recorded")
    found.check(bool(after.steps and after.steps[-1].truncated), "the episode was not truncated")


class _Killing:
    """Acts at random, and kills the simulator of a task at a moment, once."""

    name = "random"

    def __init__(self, task: str, moment: int, envs: list[Any]):
        self.task, self.moment, self.envs, self.killed = task, moment, envs, 0
        self._agent = RandomAgent()

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        decision = yield from self._agent.decide(view)
        if not self.killed and (view.task, view.step) == (self.task, self.moment):
            for env in self.envs:
                told = env.unwrapped
                if told.frame()["task"] == self.task and told.engine._line is not None:
                    os.kill(told.engine._line.simulator.pid, signal.SIGKILL)
                    self.killed += 1
                    break
        return decision


def kill_run(found: Findings, rng: random.Random) -> None:
    """Kill a run at a random moment, go on with it, and compare its record with a whole one's."""
    with tempfile.TemporaryDirectory() as folder:
        whole, shaken = Path(folder, "whole"), Path(folder, "shaken")
        begun = time.monotonic()
        _command(*RUN, "--out", str(whole)).communicate()
        kept, took = 0, time.monotonic() - begun
        for _ in range(20):
            process = _command(*RUN, "--live", str(rng.choice((1, 4))), "--out", str(shaken))
            try:
                process.communicate(timeout=took * rng.uniform(0.05, 1.0))
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                found.count("runs killed")
                kept = _check_kept(found, shaken / "trajectories.jsonl", kept)
        else:
            found.check(_command(*RUN, "--out", str(shaken)).wait() == 0, "a run did not go on")
        one, other = (place / "trajectories.jsonl" for place in (whole, shaken))
        same = one.read_bytes() == other.read_bytes()
        found.check(same, "a run that was killed and went on recorded something else")
        found.count("runs completed")


def _check_kept(found: Findings, path: Path, before: int) -> int:
    """Count the whole episodes of a killed run; none may have vanished."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = b"".join(line for line in lines if line.endswith(b"\n"))
    copy = path.with_name("copy.jsonl")
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(whole)
    kept = len(list(read_trajectories(copy)))
    copy.unlink()
    found.check(kept >= before, f"of {before} recorded episodes {kept} were left after a kill")
    return kept


def _command(*words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "comap", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


_KINDS: dict[str, Kill] = {
    "simulators": kill_simulator,
    "vector workers": kill_worker,
    "runs": kill_run,
}
_RAY_KINDS: dict[str, Kill] = {
    "Ray workers": kill_ray_worker,
    "vector workers on Ray": kill_ray_members,
}
