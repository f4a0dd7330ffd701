"""Sessions in WebShop, recorded ones or the expert's, and what playing them costs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from ..envs import Canonicalizer
from ..envs.webshop.analyzer import analyze
from ..errors import DataCorrupt, DataNotFound
from ..facts import State

__all__ = ["Played", "measure_sessions", "recorded_sessions"]

_AGAIN = 5
_STEPS = 200


@dataclass(frozen=True)
class Played:
    """A session to be measured.

    Attributes:
        task: The task's id.
        actions: What is done.
        told: The observation after each action, to compare with; empty where none is known.
        options: Of the environment: ``observation_mode``, ``show_attrs``, ``legacy``.
    """

    task: str
    actions: tuple[str, ...]
    told: tuple[str, ...]
    options: tuple[tuple[str, Any], ...]


def measure_sessions(
    data_dir: str | None, recordings: Sequence[str], seed: int, facts: bool = True
) -> dict[str, Any]:
    """Play sessions for the first time, and again, in this process.

    Args:
        data_dir: Folder of the catalogue; None for the generated one.
        recordings: Files of recorded sessions; none for the expert's episodes.
        seed: Of the expert's tasks.
        facts: Whether steps tell state facts, as they do; False measures what the original's steps
            tell, which know no facts: page, reward, end and what can be clicked on.

    Returns:
        ``first``, ``again`` and ``reset`` (CPU seconds of a step or a reset), ``episodes``,
        ``steps``, and ``agreed``: how many answers are as recorded.

    Raises:
        DataNotFound, DataCorrupt: The catalogue or a recording is missing or broken.

    Example:
        >>> measure_sessions(None, [], 0)["first"] < 0.01
        True
    """
    recorded = [played for path in recordings for played in recorded_sessions(path)]
    _expert_sessions(None, seed, 20)  # no session pays for imports and tables of words
    analyze("caf\u00e9")
    sessions = recorded or _expert_sessions(data_dir, seed, _STEPS)
    mean, agreed = _measure(data_dir, sessions, facts)
    steps = sum(len(one.actions) for one in sessions)
    return {**mean, "agreed": agreed, "episodes": len(sessions), "steps": steps}


def recorded_sessions(path: str | Path) -> list[Played]:
    """Return the sessions of a recording.

    Raises:
        DataNotFound: It is not there.
        DataCorrupt: It is something else.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            return [_session(json.loads(line)) for line in lines]
    except FileNotFoundError as error:
        raise DataNotFound(f"expected recorded sessions at {path}, found nothing") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(f"expected recorded sessions in {path}, found: {error!r}") from error


def _session(record: Any) -> Played:
    goal, steps = record["goal"], record["steps"]
    options = {
        "legacy": True,
        "observation_mode": record["observation_mode"],
        "show_attrs": record["show_attrs"],
    }
    return Played(
        f"{goal['goal_kind']}/{goal['enum_index']}",
        tuple(step["action"] for step in steps),
        tuple(step["observation"] for step in steps),
        tuple(options.items()),
    )


def _expert_sessions(data_dir: str | None, seed: int, steps: int) -> list[Played]:
    """Return the expert's episodes on a catalogue, so many that they have that many steps."""
    env: Any = gymnasium.make("comap/WebShop-v0", data_dir=data_dir, split="all").unwrapped
    found: list[Played] = []
    while sum(len(played.actions) for played in found) < steps:
        _, info = env.reset(seed=None if found else seed)
        actions: list[str] = []
        told: list[str] = []
        over = False
        while not over and len(actions) < 30:
            actions.append(env.expert_action())
            observation, _, over, _, _ = env.step(actions[-1])
            told.append(observation)
        found.append(Played(info["task"], tuple(actions), tuple(told), ()))
    return found


class _NoFacts:
    """Stands in for a canonicalizer: the belief stays what it was at the start."""

    version = "none"

    def __init__(self, canonicalizer: Canonicalizer):
        self.initial = canonicalizer.initial

    def update(self, state: State, action: str, observation: str) -> State:
        """Return the state as it was."""
        return state


def _measure(
    data_dir: str | None, sessions: Sequence[Played], facts: bool
) -> tuple[dict[str, float], int]:
    """Return mean CPU seconds of a step and of a reset, and how many answers are as recorded."""
    envs: dict[tuple[tuple[str, Any], ...], Any] = {}
    for played in sessions:
        if played.options not in envs:
            envs[played.options] = gymnasium.make(
                "comap/WebShop-v0",
                data_dir=data_dir,
                max_episode_steps=1000,
                **dict(played.options),
            )
            if not facts:
                env = envs[played.options].unwrapped
                env.canonicalizer = _NoFacts(env.canonicalizer)
    steps = sum(len(played.actions) for played in sessions)
    passes, resets, agreed = [], 0.0, 0
    for number in range(1 + _AGAIN):
        spent = 0.0
        for played in sessions:
            env = envs[played.options]
            started = time.process_time()
            env.reset(options={"task": played.task})
            ready = time.process_time()
            answers = [env.step(action) for action in played.actions]
            spent += time.process_time() - ready
            resets += ready - started
            if number == 0:
                agreed += sum(a[0] == b for a, b in zip(answers, played.told, strict=True))
        passes.append(spent / steps)
    again = sum(passes[1:]) / _AGAIN
    mean = {"first": passes[0], "again": again, "reset": resets / len(passes) / len(sessions)}
    return mean, agreed
