"""Vectors of environments that lose a process while they are stepped."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium

from .findings import Findings

__all__ = ["MEMBERS", "STEPS", "check_member", "kill_worker", "play_vector"]

MEMBERS = 4
"""How many environments a vector has."""

STEPS = 40
"""How many steps of a vector are compared."""

_AFTER = 3


def play_vector(
    envs: Any, seed: int, victim: int | None, delay: float, replaced: Callable[[], bool]
) -> list[list[str]]:
    """Play a vector for some steps, and return what each member was told; the vector is closed.

    Args:
        envs: The vector.
        seed: Of tasks and actions.
        victim: The process to kill meanwhile; None for none.
        delay: When it is killed, in seconds.
        replaced: Tells whether the process was replaced: that is waited for, for ten times the steps.
    """
    try:
        _, infos = envs.reset(seed=seed)
        rngs = [random.Random(seed + member) for member in range(MEMBERS)]
        told: list[list[str]] = [[] for _ in range(MEMBERS)]
        if victim is not None:
            threading.Timer(delay, os.kill, (victim, signal.SIGKILL)).start()
        left = _AFTER
        for step in range(STEPS if victim is None else 10 * STEPS):
            actions = tuple(
                rng.choice(infos["admissible_actions"][member] or ("look",))
                for member, rng in enumerate(rngs)
            )
            texts, rewards, ends, cuts, infos = envs.step(actions)
            for member in range(MEMBERS):
                error = infos["error"][member] if "error" in infos else None
                line = (texts[member], float(rewards[member]), bool(ends[member]))
                told[member].append(repr((*line, bool(cuts[member]), infos["task"][member], error)))
            left -= victim is not None and replaced()
            if step >= STEPS - 1 and (victim is None or left < 0):
                break
            time.sleep(0.005)
        return told
    finally:
        envs.close()


def kill_worker(found: Findings, rng: random.Random) -> None:
    """Kill a process of a vector environment while it works, and compare all the others' episodes."""
    seed, victim = rng.randrange(10_000), rng.randrange(MEMBERS)
    still = play_vector(_made(), seed, None, 0.0, lambda: False)
    envs = _made()
    process = envs.processes[victim].pid
    states = [False]

    def replaced() -> bool:
        states.append(envs.processes[victim].pid != process)
        return states[-1]

    shaken = play_vector(envs, seed, process, rng.uniform(0.0, 0.3), replaced)
    found.count("workers killed")
    found.count("steps of vectors", len(shaken[0]))
    for member in range(MEMBERS):
        found.count("members of vectors")
        one, other = still[member], shaken[member]
        if member != victim:
            same = one == other[:STEPS]
            found.check(same, f"member {member} differs after member {victim} was killed")
        elif found.check(states[-1], "a process that was killed was not replaced"):
            check_member(found, one, other, "EngineError")


def _made() -> Any:
    return gymnasium.make_vec(
        "comap/ALFWorld-v0", num_envs=MEMBERS, source="generated", max_episode_steps=25
    )


def check_member(found: Findings, one: list[str], other: list[str], error: str) -> None:
    """Look at the transcript of a member whose process was killed.

    Args:
        found: Where to note what came.
        one: What it was told when nothing was killed.
        other: What it was told now.
        error: How the fault is told.
    """
    cut = next((place for place, line in enumerate(other) if error in line), None)
    if cut is None:  # it died between two episodes: none was lost, and the next ones are others
        found.count("workers killed between two episodes")
        ended = [place for place, line in enumerate(one) if "False, True, '" in line]
        found.check(any(one[: n + 1] == other[: n + 1] for n in ended), "an episode changed untold")
        return
    found.tell(error)
    before = min(cut, STEPS)
    found.check(one[:before] == other[:before], "a killed member's steps before its end differ")
    after = other[cut + 1 :]
    found.check(bool(after), "a killed member did not go on")
    found.check(not any(error in line for line in after), "a new process failed")
