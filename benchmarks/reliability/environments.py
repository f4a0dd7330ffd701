"""Hostile actions, sixty-four environments for an hour, killed processes, and what all parts share.

Simulators, workers of vector environments and whole runs are killed at random moments: the episode that a
killed process played is recorded as failed, the next one works, and no other one differs.
"""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium

from ...agents import Decision, RandomAgent, Reply, Request, View, run_episodes
from ...agents.run import TRAJECTORIES
from ...envs.conformance.suite import check_info
from ...envs.registry import class_of
from ...errors import CoMapError
from ...facts import diff
from ..tables import one_line

ENVIRONMENTS: Mapping[str, tuple[int, int]] = {
    "comap/ALFWorld-v0": (400_000, 10),
    "comap/WebShop-v0": (250_000, 8),
    "comap/StableToolBench-v0": (200_000, 7),
    "comap/SearchQA-v0": (130_000, 6),
    "comap/ScienceWorld-v0": (20_000, 1),  # its simulator is some hundred times slower
}
"""How many actions the part `actions` takes at scale 1, and how many environments each of the two processes
of the part `load` plays."""

_LOAD_SECONDS = 3600.0  # at scale 1
_MOST_GROWTH_MB = 24.0
_KILLS = 60  # of each kind, at scale 1
_FIXED = ("look", "inventory", "search[red shoes]", "<search>a town</search>", "Finish")
_SAMPLES = 40  # of memory
_RUN = ("run", "--agent", "random", "--env-option", "source=generated", "--episodes", "12")
_GENERATED: dict[str, Any] = {"id": "comap/ALFWorld-v0", "source": "generated"}


class Findings:
    """What a part counted, what it lost, and how faults were reported."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.reported: Counter[str] = Counter()
        self.figures: dict[str, Any] = {}
        self.lost, self.losses = 0, list[str]()

    def check(self, right: bool, what: str) -> bool:
        """Count a loss unless something is right, and return whether it is; some are described."""
        if not right:
            self.lost += 1
            self.losses += [one_line(what, 400)][: 20 - len(self.losses)]
        return right

    def add(self, other: Mapping[str, Any]) -> None:
        """Add what another process found, without its figures."""
        self.counts.update(other["counts"])
        self.reported.update(other["reported"])
        self.lost += other["lost"]
        self.losses += other["losses"][: 20 - len(self.losses)]

    def plain(self) -> dict[str, Any]:
        counted = {"counts": dict(sorted(self.counts.items())), **self.figures}
        counted["reported"] = dict(sorted(self.reported.items()))
        return counted | {"lost": self.lost, "losses": self.losses}

    def check_memory(self, samples: Sequence[float], what: str) -> None:
        """Check by how many MB a process grew over the second half of samples at equal intervals."""
        half, growth = samples[len(samples) // 2 :], None
        if len(half) >= 6:
            slope = statistics.linear_regression(range(len(half)), half).slope
            growth = round(slope * (len(half) - 1), 2)
        self.figures["memory_growth_mb"] = growth
        grown = f"{what}: memory grew by {growth} MB over the second half"
        self.check(growth is None or growth <= _MOST_GROWTH_MB, grown)


def held_mb(process: int | None = None) -> list[float]:
    with suppress(OSError):  # as Linux has it
        pages = Path(f"/proc/{process or 'self'}/statm").read_text("ascii").split()[1]
        return [int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20]
    return []


def in_processes(
    function: Callable[..., dict[str, Any]], *calls: tuple[Any, ...]
) -> list[dict[str, Any]]:
    """Return what a function finds in fresh processes, all at once; a crash is a loss."""
    spawn, results = multiprocessing.get_context("spawn"), []
    with ProcessPoolExecutor(len(calls), mp_context=spawn) as pool:
        for future in [pool.submit(function, *call) for call in calls]:
            try:
                results.append(future.result())
            except Exception as error:
                found = Findings()
                found.check(False, f"{function.__name__}: {type(error).__name__}: {error}")
                results.append(found.plain())
    return results


HOSTILE: Mapping[str, list[str]] = json.loads(
    Path(__file__).with_name("hostile.json").read_text("utf-8")
)
"""Pieces of hostile texts by family; those of ``repeated`` make texts of 60,000 characters."""


def hostile(rng: random.Random) -> str:
    family = rng.choice((*HOSTILE, "any"))
    if family == "any":
        return "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randint(0, 30)))
    if family == "repeated":
        return (rng.choice(HOSTILE[family]) * rng.choice((100, 2_000, 60_000)))[:60_000]
    return "".join(rng.choices(HOSTILE[family] + HOSTILE["words"], k=rng.randint(1, 30)))


class Player:
    """Plays one environment on generated tasks, episode after episode, and checks every answer."""

    def __init__(self, env_id: str, seed: int, found: Findings, is_hostile: bool):
        options = {**getattr(class_of(env_id), "generated_options", {}), "max_episode_steps": 40}
        self.env: Any = gymnasium.make(env_id, disable_env_checker=True, **options)
        self.env_id, self.seed, self.found, self.is_hostile = env_id, seed, found, is_hostile
        self.rng = random.Random(seed)
        self.info: dict[str, Any] | None = None

    def act(self) -> None:
        """Take an action; first begin an episode where none runs."""
        if self.info is None:
            self.seed += 100_003
            self.info = self.env.reset(seed=self.seed)[1]
            self.found.counts["episodes"] += 1
        kind, action = self._draw(self.info["admissible_actions"] or _FIXED)
        self.found.counts.update(("actions", kind))
        try:
            *answer, info = self.env.step(action)
            problem = self._problem(answer, self.info, info)
        except Exception as error:
            problem, answer, info = f"{type(error).__name__}: {error}", [], {}
        what = f"{self.env_id}, {self.info['task']}: {action[:200]!r}: {problem}"
        self.found.reported["invalid_action"] += bool(info.get("invalid_action"))
        going = self.found.check(not problem, what) and not (answer[2] or answer[3])
        self.info = info if going else None

    def _draw(self, admissible: Sequence[str]) -> tuple[str, str]:
        draw = self.rng.random() if self.is_hostile else 0.2
        if draw < 0.15:
            action = self.env.get_wrapper_attr("expert_action")()
            if action is not None:
                return "of the expert", action
        if draw < 0.5:
            return "random", self.rng.choice(admissible)
        text = self.rng.choice(admissible) if draw < 0.75 else ""
        start = self.rng.randint(0, len(text))
        return "hostile", text[:start] + hostile(self.rng) + text[start:]

    def _problem(self, answer: list[Any], before: dict[str, Any], info: dict[str, Any]) -> str:
        observation, reward, *_ = answer
        if "error" in info:
            return f"a fault of the engine: {info['error']}"
        if observation not in self.env.observation_space or not math.isfinite(reward):
            return f"an observation or a reward outside of its space: {reward!r}, {observation!r}"
        if diff(before["facts"], info["facts"]) != info["delta"]:
            return "a delta that is not the change of the facts"
        check_info(info, before["step"] + 1, self.env.get_wrapper_attr("info_extras"))
        return ""


def play(
    counts: Mapping[str, int],
    seed: int,
    is_hostile: bool,
    actions: float = math.inf,
    seconds: float = math.inf,
) -> dict[str, Any]:
    found, samples, begun = Findings(), list[float](), time.monotonic()
    names = [env_id for env_id, count in counts.items() for _ in range(count)]
    players = [Player(one, seed * 64 + n, found, is_hostile) for n, one in enumerate(names)]
    found.counts["environments"] = len(players)
    done = 0.0
    while done < 1:
        for player in players:
            player.act()
        done = max(found.counts["actions"] / actions, (time.monotonic() - begun) / seconds)
        if done >= (len(samples) + 1) / _SAMPLES:
            gc.collect()
            samples += held_mb()
    for player in players:
        player.env.close()
    found.check_memory(samples, ", ".join(counts))
    return found.plain()


def run_actions(scale: float, seed: int, progress: Callable[[str], object]) -> dict[str, Any]:
    """Take actions of all kinds in all environments, each in a process of its own."""
    found, environments = Findings(), {}
    for env_id, (at_scale_1, _) in ENVIRONMENTS.items():
        number = max(1, round(at_scale_1 * scale))
        (part,) = in_processes(play, ({env_id: 1}, seed, True, number))
        found.add(part)
        environments[env_id] = part
        progress(f"{env_id}: {number:,} actions, {part['lost']} lost")
    found.figures["environments"] = environments
    return found.plain()


def run_load(scale: float, seed: int, progress: Callable[[str], object]) -> dict[str, Any]:
    """Play 64 environments in two processes."""
    found, seconds = Findings(), max(3.0, _LOAD_SECONDS * scale)
    counts = {env_id: count for env_id, (_, count) in ENVIRONMENTS.items()}
    parts = in_processes(play, *((counts, seed + n, False, math.inf, seconds) for n in range(2)))
    for part in parts:
        found.add(part)
    found.figures |= {"seconds": seconds, "processes": parts}
    progress(f"load: {dict(found.counts)}, {found.lost} lost")
    return found.plain()


def run_engines(scale: float, seed: int, progress: Callable[[str], object]) -> dict[str, Any]:
    """Kill processes of each kind and return what was found; what is not installed is left out."""
    found, rng = Findings(), random.Random(seed)
    kills = max(1, round(_KILLS * scale))
    kinds = {
        "simulators": kill_simulator,
        "vector workers": kill_vector_worker,
        "runs": kill_run,
    }
    for name, kill in kinds.items():
        part = Findings()
        try:
            for _ in range(kills):
                kill(part, rng)
        except CoMapError as error:  # without Java, say
            found.figures[f"{name} left out"] = str(error)
            progress(f"{name}: left out, {error}")
            continue
        found.add(part.plain())
        progress(f"{name}: {kills} killed, {part.lost} lost")
    return found.plain()


class _Killer(RandomAgent):
    """Kills a process at a step of a task, once."""

    def __init__(self, task: str, step: int, kill: Callable[[], object]):
        super().__init__()
        self._at, self._kill = (task, step), kill

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        decision = yield from super().decide(view)
        if (view.task, view.step) == self._at:
            self._at = ("", 0)
            self._kill()
        return decision


def kill_simulator(found: Findings, rng: random.Random) -> None:
    """Kill one of two simulators that play, and compare all episodes."""
    tasks, victim, step = ["find-plant/3", "find-animal/2"], rng.randrange(2), rng.randint(0, 6)
    tasks.append(tasks[victim])
    envs: list[Any] = []

    def make() -> Any:
        envs.append(gymnasium.make("comap/ScienceWorld-v0", max_episode_steps=8).unwrapped)
        return envs[-1]

    def kill() -> None:
        (engine,) = (env.engine for env in envs if env.frame()["task"] == tasks[victim])
        os.kill(engine.jvm, signal.SIGKILL)

    whole = run_episodes(make, RandomAgent(), tasks, concurrency=2)
    envs.clear()
    shaken = run_episodes(make, _Killer(tasks[victim], step, kill), tasks, concurrency=2)
    found.counts["simulators killed"] += 1
    failed = [after.error for after in shaken if after.error is not None]
    found.reported["EngineError"] += len(failed)
    found.check(0 < len(failed) < len(whole), f"{len(failed)} of {len(whole)} episodes failed")
    for before, after in zip(whole, shaken, strict=True):
        right = before.steps == after.steps if after.error is None else "EngineError" in after.error
        found.check(right, f"the episode of {after.task} changed, with the error {after.error!r}")


def kill_vector_worker(found: Findings, rng: random.Random) -> None:
    """Kill a process of a vector environment between two steps, and compare all members' steps."""
    seed, victim = rng.randrange(10_000), rng.randrange(4)
    still = _play_vector(seed, victim, None)
    shaken = _play_vector(seed, victim, rng.randrange(20))
    found.counts["workers killed"] += 1
    for member, (one, other) in enumerate(zip(still, shaken, strict=True)):
        failed = [step for step, line in enumerate(other) if "EngineError" in line]
        if member == victim:
            found.reported["EngineError"] += len(failed)
            found.check(len(failed) <= 1, "a member failed again after it was killed")
            other = other[: failed[0]] if failed else other  # it may be killed between episodes
        found.check(one[: len(other)] == other, f"member {member} differs, {victim} was killed")


def _play_vector(seed: int, victim: int, kill_at: int | None) -> list[list[str]]:
    """Return what each member of a vector answers to random actions."""
    envs: Any = gymnasium.make_vec(**_GENERATED, num_envs=4, max_episode_steps=25)
    try:
        infos = envs.reset(seed=seed)[1]
        rngs = [random.Random(seed + member) for member in range(4)]
        answers: list[list[str]] = [[] for _ in rngs]
        for step in range(40):
            if step == kill_at:
                os.kill(envs.processes[victim].pid, signal.SIGKILL)
            admissible = infos["admissible_actions"]
            actions = tuple(rng.choice(admissible[n] or ("look",)) for n, rng in enumerate(rngs))
            *answer, infos = envs.step(actions)
            for member, lines in enumerate(answers):
                error = infos["error"][member] if "error" in infos else None
                lines.append(f"{[part[member] for part in answer]} {infos['task'][member]} {error}")
        return answers
    finally:
        envs.close()


def kill_run(found: Findings, rng: random.Random) -> None:
    """Kill a run at random moments, go on with it, and compare its record with a whole one's."""
    with tempfile.TemporaryDirectory() as folder:
        whole, shaken = Path(folder, "whole"), Path(folder, "shaken")
        begun = time.monotonic()
        _start(*_RUN, "--out", str(whole)).wait()
        took = time.monotonic() - begun
        for kills_left in range(20, -1, -1):
            process = _start(*_RUN, "--live", str(rng.choice((1, 4))), "--out", str(shaken))
            try:
                process.wait(took * rng.uniform(0.05, 1.0) if kills_left else None)
                break
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            found.counts["runs killed"] += 1
        same = (whole / TRAJECTORIES).read_bytes() == (shaken / TRAJECTORIES).read_bytes()
        found.check(same, "a run that was killed and went on recorded something else")


def _start(*words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "comap", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
