"""ALFWorld's speed: our environment and TextWorld, on the same games and the same commands.

Ours is measured as a user has it, through ``gym.make`` with every info key on. Times are CPU
seconds of this process (`time.process_time`); the two take turns, game by game.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from ..envs.alfworld.canonicalizer import ALFWorldCanonicalizer
from ..envs.alfworld.engine import NativeEngine
from ..envs.alfworld.game import Game
from ..envs.alfworld.sentences import forget_texts
from ..facts import State, diff
from .alfworld_script import script_of
from .record import resident_bytes
from .textworld_peer import TextWorldPeer

__all__ = ["REPEATS", "GameTimes", "make_env", "memory_of_resets", "time_game"]

REPEATS = 30
"""How often a game is played through, and started again, for one mean."""

_STEPS_BEFORE = 20


@dataclass
class GameTimes:
    """What was measured on one game; times in CPU seconds.

    Attributes:
        task: The game.
        steps: Number of commands in its script.
        ours: Through ``gym.make``'s environment: ``step`` (mean over the script, by a canonicalizer
            that has read none of its texts before), ``step_seen`` (by one that has), ``same_reset``
            (starting the game again), ``next_reset`` (going to it for the first time, from another
            game: read, check and start it).
        parts: Where a ``step`` goes: ``engine``, ``canonicalizer``, ``diff``, ``rest`` and
            ``wrappers`` add up to it. ``canonicalizer_seen`` is the canonicalizer's share of
            ``step_seen``; ``engine_facts``, all that the engine knows, is part of neither.
        peer: The same of TextWorld, or nothing.
        agrees: Whether both told the same at every step, or None without a peer.
    """

    task: str
    steps: int
    ours: dict[str, float]
    parts: dict[str, float]
    peer: dict[str, float] = field(default_factory=dict)
    agrees: bool | None = None


class _Moment(NamedTuple):
    """What our environment told after one command (or after `reset`, as the empty command)."""

    action: str
    observation: str
    admissible: tuple[str, ...]
    won: bool
    facts: State


def make_env(data_dir: str | Path | None, split: str, source: str) -> gymnasium.Env[str, str]:
    """Return the environment that is measured.

    Example:
        >>> env = make_env(None, "valid_unseen", "generated")
        >>> env.get_wrapper_attr("env_id")
        'comap/ALFWorld-v0'
    """
    env: gymnasium.Env[str, str] = gymnasium.make(
        "comap/ALFWorld-v0", data_dir=data_dir, split=split, source=source
    )
    return env


def time_game(
    env: gymnasium.Env[str, str], task: str, other: str, peer: TextWorldPeer | None, seed: int
) -> GameTimes:
    """Measure one game that this process has not played yet.

    Args:
        env: The environment, from `make_env`.
        task: The game's id.
        other: A game to play just before, as in a run of many games: after TextWorld's turn the
            processor has forgotten our code, which costs the first reset half as much again.
        peer: TextWorld, or None.
        seed: Seeds the script's side steps.
    """

    def reset() -> object:
        return env.reset(options={"task": task})

    def reset_and_forget() -> object:
        forget_texts()
        return reset()

    gc.collect()
    env.reset(options={"task": other})
    for _ in range(_STEPS_BEFORE):
        env.step("look")
    following = _timed(reset)
    game: Game = env.get_wrapper_attr("game")
    script = script_of(game, seed)
    moments = _play(env, task, script)
    ours = {
        "step": _mean(env.step, script, reset_and_forget),
        "step_seen": _mean(env.step, script, reset),
        "same_reset": _timed(reset, repeats=REPEATS),
        "next_reset": following,
    }
    times = GameTimes(task, len(script), ours, _parts(env, task, moments, ours["step"]))
    if peer is not None:
        gc.collect()
        times.peer, told = peer.time_game(task, script)
        times.agrees = told == [(m.observation, m.admissible, m.won) for m in moments]
    return times


def first_pass(env: gymnasium.Env[str, str], tasks: Sequence[str], seed: int) -> dict[str, float]:
    """Return what a step costs our engine and our canonicalizer, each game being played once.

    Nothing is repeated and no cache is emptied on the way: a sentence that an earlier game had is
    remembered, as in any run of many games, a new one is read.

    Args:
        env: The environment, from `make_env`.
        tasks: The games, in the order in which they are played.
        seed: Seeds the scripts' side steps.

    Returns:
        Mean CPU seconds a step, the start of the episode spread over its steps: ``engine`` (the
        command, the admissible ones and the goal check) and ``canonicalizer``; and ``steps``.

    Example:
        >>> env = make_env(None, "train", "generated")
        >>> sorted(first_pass(env, env.unwrapped.tasks.ids[:2], 0))
        ['canonicalizer', 'engine', 'steps']
    """
    inner: Any = env.unwrapped
    games = []
    for task in tasks:
        intro, info = env.reset(options={"task": task})
        games.append((inner.game, script_of(inner.game, seed), info["goal"], intro))
    told: list[list[str]] = []

    def play() -> None:
        for game, script, _, _ in games:
            engine = NativeEngine(game)
            told.append([])
            for action in script:
                told[-1].append(engine.act(action)[0])
                engine.conditions()
                engine.admissible()

    def fold() -> None:
        for (_, script, goal, intro), texts in zip(games, told, strict=True):
            canon = ALFWorldCanonicalizer()
            state = canon.initial(goal, intro)
            for action, observation in zip(script, texts, strict=True):
                state = canon.update(state, action, observation)

    steps = sum(len(script) for _, script, _, _ in games)
    gc.collect()
    spent = {"engine": _timed(play) / steps}
    forget_texts()
    spent["canonicalizer"] = _timed(fold) / steps
    return spent | {"steps": steps}


def memory_of_resets(
    data_dir: str | None, split: str, source: str, resets: int = 500, every: int = 50
) -> dict[str, Any]:
    """Return this process's memory during many resets, each followed by one step.

    Args:
        data_dir: As for `make_env`.
        split: As for `make_env`; the games of the split are played in turn.
        source: As for `make_env`.
        resets: How many.
        every: After how many of them memory is read.

    Returns:
        ``resets``, ``every``, ``games`` and ``resident_bytes`` (a list, the first before any).

    Example:
        >>> len(memory_of_resets(None, "train", "generated", 4, 2)["resident_bytes"])
        3
    """
    env = make_env(data_dir, split, source)
    ids = env.get_wrapper_attr("tasks").ids
    gc.collect()
    held = [resident_bytes()]
    for number in range(resets):
        env.reset(options={"task": ids[number % len(ids)]})
        env.step("look")
        if (number + 1) % every == 0:
            held.append(resident_bytes())
    games = min(resets, len(ids))
    return {"resets": resets, "every": every, "games": games, "resident_bytes": held}


def _play(env: gymnasium.Env[str, str], task: str, script: Sequence[str]) -> list[_Moment]:
    """Play a script once, to warm up and to note what is told."""
    observation, info = env.reset(options={"task": task})
    moments = []
    for action in ("", *script):
        if action:
            observation, _, _, _, info = env.step(action)
        told = (observation, info["admissible_actions"], info["success"], info["facts"])
        moments.append(_Moment(action, *told))
    return moments


def _timed(
    function: Callable[[], object], before: Callable[[], object] | None = None, repeats: int = 1
) -> float:
    """Return the mean CPU time of a call, in seconds; `before` is called before each, uncounted."""
    total = 0.0
    for _ in range(repeats):
        if before is not None:
            before()
        begin = time.process_time()
        function()
        total += time.process_time() - begin
    return total / repeats


def _mean(
    step: Callable[[str], object], script: Sequence[str], start: Callable[[], object]
) -> float:
    """Return the mean time of one call of `step`."""

    def play() -> None:
        for action in script:
            step(action)

    return _timed(play, start, REPEATS) / len(script)


def _parts(
    env: gymnasium.Env[str, str], task: str, moments: Sequence[_Moment], whole: float
) -> dict[str, float]:
    """Return where a step's time goes, from loops over each part alone on the same commands."""
    script = [moment.action for moment in moments[1:]]
    bare: Any = env.unwrapped
    engine, canon = NativeEngine(bare.game), ALFWorldCanonicalizer()
    pairs = list(itertools.pairwise([moment.facts for moment in moments]))

    def act(action: str) -> None:
        engine.act(action)
        engine.conditions()
        engine.admissible()

    def act_and_tell(action: str) -> None:
        act(action)
        engine.facts()

    def fold() -> None:
        state = moments[0].facts
        for moment in moments[1:]:
            state = canon.update(state, moment.action, moment.observation)

    def compare() -> None:
        for before, after in pairs:
            if before is not after:
                diff(before, after)

    def start() -> None:
        forget_texts()
        bare.reset(options={"task": task})

    parts = {
        "engine": _mean(act, script, engine.start),
        "canonicalizer": _timed(fold, start, REPEATS) / len(script),
        "diff": _timed(compare, repeats=REPEATS) / len(script),
    }
    inner = _mean(bare.step, script, start)
    parts["rest"] = inner - sum(parts.values())
    parts["wrappers"] = whole - inner
    parts["canonicalizer_seen"] = _timed(fold, repeats=REPEATS) / len(script)
    parts["engine_facts"] = _mean(act_and_tell, script, engine.start) - parts["engine"]
    return parts
