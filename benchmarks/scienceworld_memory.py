"""Memory of ScienceWorld's backends, measured in a process of its own."""

from __future__ import annotations

import gc
from typing import Any

import gymnasium

from ..envs.scienceworld.tasks import task_table
from .record import resident_bytes

__all__ = ["ENVIRONMENTS", "memory_of"]

ENVIRONMENTS = 16
"""How many environments live in one JVM at the same time."""

_LOADS = 3
_STEPS = ("look around", "go to kitchen", "wait", "look around")


def memory_of(backend: str) -> dict[str, Any]:
    """Return memory in bytes: of many environments in one JVM, or of one JVM over all tasks.

    Args:
        backend: ``"jpype"``: this process with one environment, with `ENVIRONMENTS` of them that have
            each played some tasks, and after they were closed. ``"py4j"``: the JVM of one
            environment after its first task and after all 30; the greatest.

    Example:
        >>> sorted(memory_of("py4j"))  # doctest: +SKIP
        ['first_bytes', 'greatest_bytes', 'last_bytes', 'tasks']
    """
    return _of_environments() if backend == "jpype" else _of_tasks()


def _of_environments() -> dict[str, Any]:
    names = sorted(name for name in task_table() if "mendelian" not in name)
    envs = [_make("jpype") for _ in range(ENVIRONMENTS)]
    held = []
    for number, env in enumerate(envs):
        for load in range(_LOADS):
            _play(env, names[(number * _LOADS + load) % len(names)])
        gc.collect()
        held.append(resident_bytes() or 0)
    for env in envs:  # all have a past, and each an episode in progress
        _play(env, "boil")
    grown = resident_bytes() or 0
    for env in envs:
        env.close()
    return {
        "environments": ENVIRONMENTS,
        "first_bytes": held[0],
        "all_bytes": grown,
        "further_bytes": (grown - held[0]) / (ENVIRONMENTS - 1),
        "closed_bytes": resident_bytes() or 0,
        "after_each": held,
    }


def _of_tasks() -> dict[str, Any]:
    import psutil

    env = _make("py4j")
    held = []
    for name in sorted(task_table()):
        _play(env, name)
        held.append(psutil.Process(env.get_wrapper_attr("engine").jvm).memory_info().rss)
    env.close()
    return {
        "tasks": len(held),
        "first_bytes": held[0],
        "last_bytes": held[-1],
        "greatest_bytes": max(held),
    }


def _make(backend: str) -> gymnasium.Env[str, str]:
    env: gymnasium.Env[str, str] = gymnasium.make("comap/ScienceWorld-v0", backend=backend)
    return env


def _play(env: gymnasium.Env[str, str], name: str) -> None:
    """Begin an episode, and list the actions once, which takes the most memory."""
    env.reset(options={"task": f"{name}/0"})
    for action in _STEPS:
        env.step(action)
    env.get_wrapper_attr("valid_actions")()
