"""``comap bench reliability``: hostile actions, load and killed runs, and what is lost by them."""

from __future__ import annotations

import faulthandler
import gc
import json
import math
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ..agents.run import TRAJECTORIES
from ..envs.conformance.suite import check_info
from ..envs.registry import class_of
from ..errors import DataCorrupt, OptionError, suggest
from ..facts import State, diff
from ..jsonl import read_json
from .record import circumstances, write_result
from .tables import one_line

ENVIRONMENTS: Mapping[str, tuple[int, int]] = {
    "comap/ALFWorld-v0": (400_000, 10),
    "comap/WebShop-v0": (250_000, 8),
    "comap/StableToolBench-v0": (200_000, 7),
    "comap/SearchQA-v0": (130_000, 6),
    "comap/ScienceWorld-v0": (20_000, 1),  # its simulator is some hundred times slower
}
"""Actions of the part `actions` at scale 1; environments in each of the two processes of `load`."""

_LOAD_SECONDS, _KILLS = 3600.0, 60  # at scale 1
_MOST_GROWTH_MB = 24.0  # of a process over the second half of its work
_FIXED = ("look", "inventory", "search[red shoes]", "<search>a town</search>", "Finish")
_SAMPLES = 40
_RUN = ("run", "--agent", "random", "--env-option", "source=generated", "--episodes", "12")


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


def growth_mb(samples: Sequence[float]) -> float | None:
    """Return by how much memory grew over the second half of the samples, by linear regression."""
    half = samples[len(samples) // 2 :]
    if len(half) < 6:
        return None
    slope = statistics.linear_regression(range(len(half)), half).slope
    return round(slope * (len(half) - 1), 2)


def held_mb() -> list[float]:
    """Return how much memory this process has; nothing where the system does not say."""
    with suppress(OSError):  # as Linux has it
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
        return [int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20]
    return []


def in_processes(
    function: Callable[..., dict[str, Any]], *calls: tuple[Any, ...], seconds: float = 4 * 3600.0
) -> list[dict[str, Any]]:
    """Return what a function finds in fresh processes, all at once; a crash or a hang is a loss."""
    stop = partial(faulthandler.dump_traceback_later, seconds, exit=True)
    spawn, results = multiprocessing.get_context("spawn"), []
    with ProcessPoolExecutor(len(calls), mp_context=spawn, initializer=stop) as pool:
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


def mutated(text: str, rng: random.Random) -> str:
    """Return a text with one to three changes: characters, case, order, repetition, foreign parts."""
    for _ in range(rng.randint(1, 3)):
        start = rng.randint(0, len(text))
        words = text.split(" ")
        text = rng.choice(
            (
                text[:start] + text[start + rng.randint(1, 3) :],
                text[:start] + rng.choice(HOSTILE[rng.choice(list(HOSTILE))]) + text[start:],
                rng.choice((text.upper(), text.title(), text.swapcase(), f"  {text}\n")),
                " ".join(rng.sample(words, len(words))),
                (text + rng.choice((" ", "\n", ""))) * 2,
                text.replace(rng.choice("0123456789 aeiou[]"), rng.choice("0123456789 []<>")),
            )
        )
    return text


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
        if draw < 0.35:
            return "random", self.rng.choice(admissible)
        if draw < 0.7:
            return "mutated", mutated(self.rng.choice(admissible), self.rng)
        return "hostile", hostile(self.rng)

    def _problem(self, answer: list[Any], before: dict[str, Any], info: dict[str, Any]) -> str:
        observation, reward, *ends = answer
        if "error" in info:
            return f"a fault of the engine: {info['error']}"
        if observation not in self.env.observation_space or not math.isfinite(reward):
            return f"an observation or a reward outside of its space: {reward!r}, {observation!r}"
        if [type(end) for end in ends] != [bool, bool]:
            return f"ends that are not true or false: {ends!r}"
        facts = info["facts"]
        if diff(before["facts"], facts) != info["delta"]:
            return "a delta that is not the change of the facts"
        check_info(info, before["step"] + 1, self.env.get_wrapper_attr("info_extras"))
        if info["step"] % 16 == 1 and State.from_text(facts.to_text()) != facts:
            return "facts that do not come back from their text"
        return ""


def play(
    counts: Mapping[str, int],
    seed: int,
    is_hostile: bool,
    actions: float = math.inf,
    seconds: float = math.inf,
    cores: Sequence[int] = (),
) -> dict[str, Any]:
    if cores:
        os.sched_setaffinity(0, cores)
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
    growth = growth_mb(samples)
    grown = f"{', '.join(counts)}: memory grew by {growth} MB over the second half"
    found.check(growth is None or growth <= _MOST_GROWTH_MB, grown)
    found.figures["memory_growth_mb"] = growth
    found.figures["seconds"] = round(time.monotonic() - begun, 2)
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
    """Play 64 environments in two processes, each on a core."""
    found, seconds = Findings(), max(3.0, _LOAD_SECONDS * scale)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    counts = {env_id: count for env_id, (_, count) in ENVIRONMENTS.items()}
    calls = [(counts, seed + n, False, math.inf, seconds, cores[n : n + 1]) for n in range(2)]
    parts = in_processes(play, *calls, seconds=seconds + 1800)
    for part in parts:
        found.add(part)
    found.figures |= {"seconds": seconds, "processes": parts}
    progress(f"load: {dict(found.counts)}, {found.lost} lost")
    return found.plain()


def run_engines(scale: float, seed: int, progress: Callable[[str], object]) -> dict[str, Any]:
    """Kill runs at random moments, go on with each, and compare its record with a whole one's."""
    found, rng = Findings(), random.Random(seed)
    for _ in range(max(1, round(_KILLS * scale))):
        with tempfile.TemporaryDirectory() as folder:
            whole, shaken = Path(folder, "whole"), Path(folder, "shaken")
            begun = time.monotonic()
            _start(*_RUN, "--out", str(whole)).wait()
            took, kept = time.monotonic() - begun, 0
            for kills_left in range(20, -1, -1):
                process = _start(*_RUN, "--live", str(rng.choice((1, 4))), "--out", str(shaken))
                try:
                    process.wait(took * rng.uniform(0.05, 1.0) if kills_left else None)
                    break
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                found.counts["runs killed"] += 1
                record = shaken / TRAJECTORIES
                before, kept = kept, record.read_bytes().count(b"\n") if record.exists() else 0
                found.check(kept >= before, f"of {before} recorded episodes {kept} were left")
            same = (whole / TRAJECTORIES).read_bytes() == (shaken / TRAJECTORIES).read_bytes()
            found.check(same, "a run that was killed and went on recorded something else")
            found.counts["runs completed"] += 1
    progress(f"runs: {found.counts['runs killed']} killed, {found.lost} lost")
    return found.plain()


def _start(*words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "comap", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


PARTS: Mapping[str, Callable[..., dict[str, Any]]]
PARTS = {"actions": run_actions, "engines": run_engines, "load": run_load}


def run_reliability(
    scale: float = 1.0,
    parts: Sequence[str] | None = None,
    seed: int = 0,
    out: Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Run parts and return what they found; write it after each part, beside parts that `out` has."""
    if not 0 < scale <= 100:
        raise OptionError(f"--scale must be above 0 and at most 100, not {scale!r}")
    for name in parts or ():
        if name not in PARTS:
            raise OptionError(f"there is no part {name!r:.80}; {suggest(name, PARTS)}")
    before: dict[str, Any] = {"benchmark": "reliability", "parts": {}}
    if out is not None and out.exists():
        before = read_json(out)
    if before.get("benchmark") != "reliability":
        raise DataCorrupt(
            f"expected figures of comap bench reliability in {out}, found those of "
            f"{before.get('benchmark')!r:.40}; name another folder"
        )
    found: dict[str, Any] = {}
    for name in PARTS if parts is None else parts:
        begun = time.monotonic()
        found[name] = PARTS[name](scale, seed, progress) | {"scale": scale, "seed": seed}
        found[name]["seconds_taken"] = round(time.monotonic() - begun, 1)
        found[name]["load_average"] = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        if out is not None:
            write_result(out, _record(before["parts"] | found))
    return _record(found)


def _record(parts: Mapping[str, Any]) -> dict[str, Any]:
    record = {"benchmark": "reliability", "parts": dict(parts)}
    lost = {"lost": sum(part["lost"] for part in parts.values())}
    return record | lost | circumstances(("gymnasium", "numpy"))
