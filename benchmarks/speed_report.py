"""The result of `comap bench speed`, for files and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .alfworld_speed import REPEATS, GameTimes
from .record import circumstances, spread

__all__ = ["MEASURES", "PARTS", "result_of", "table"]

MEASURES = ("step", "step_seen", "same_reset", "next_reset")
"""What is measured of each side: see `GameTimes`."""

PARTS = ("engine", "canonicalizer", "diff", "rest", "wrappers")
"""What one of our steps consists of."""

_BESIDE = ("canonicalizer_seen", "engine_facts")
_PACKAGES = ("gymnasium", "numpy", "alfworld", "textworld", "fast_downward_textworld")


def result_of(
    env: str,
    peer: str | None,
    split: str,
    seed: int,
    measured: Sequence[GameTimes],
    memory: Mapping[str, Any],
    once: Mapping[str, float],
) -> dict[str, Any]:
    """Return what the result file holds.

    Args:
        env: The environment's short name.
        peer: The peer's name, or None.
        split: The split that the games are from.
        seed: The seed of the scripts.
        measured: One record a game.
        memory: What was seen of memory.
        once: What a first pass over all games of the split costs: see `first_pass`.

    Example:
        >>> parts = dict.fromkeys((*PARTS, *_BESIDE), 1e-5)
        >>> once = {"engine": 2e-6, "canonicalizer": 1e-6, "steps": 10}
        >>> times = GameTimes("task", 10, dict.fromkeys(MEASURES, 1e-4), parts)
        >>> result_of("alfworld", None, "train", 0, [times], {}, once)["steps"]
        10
    """
    steps = sum(times.steps for times in measured)
    parts = {
        name: sum(times.parts[name] * times.steps for times in measured) / steps
        for name in (*PARTS, *_BESIDE)
    }
    result = {
        "benchmark": "speed",
        "env": env,
        "peer": peer,
        **circumstances(_PACKAGES),
        "units": "CPU seconds of one process (time.process_time), bytes; ratios are peer / ours",
        "split": split,
        "seed": seed,
        "games": len(measured),
        "steps": steps,
        "repeats_of_ours": REPEATS,
        "ours": _side([(times.steps, times.ours) for times in measured]),
    }
    if peer is not None:
        theirs = _side([(times.steps, times.peer) for times in measured])
        result["theirs"] = theirs
        result["ratios"] = _ratios(result["ours"], theirs, measured)
        result["games_that_agree"] = sum(times.agrees is True for times in measured)
    return result | {
        "step_parts": parts,
        "first_pass": dict(once),
        "canonicalizer_costs_less_than_engine": once["canonicalizer"] < once["engine"],
        "memory": dict(memory),
        "per_game": [asdict(times) for times in measured],
    }


def _side(rows: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, Any]:
    """Return the totals and the spread over games of one side."""
    steps = sum(count for count, _ in rows)
    mean = {
        name: sum((count if name.startswith("step") else 1) * times[name] for count, times in rows)
        / (steps if name.startswith("step") else len(rows))
        for name in MEASURES
    }
    return {
        "mean": mean,
        "per_second": {name: 1 / seconds for name, seconds in mean.items()},
        "over_games": {name: spread([times[name] for _, times in rows]) for name in MEASURES},
    }


def _ratios(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], measured: Sequence[GameTimes]
) -> dict[str, Any]:
    """Return how many times as long the peer takes."""
    each = {name: [t.peer[name] / t.ours[name] for t in measured] for name in MEASURES}
    return {
        "of_totals": {name: theirs["mean"][name] / ours["mean"][name] for name in MEASURES},
        "over_games": {name: spread(values) for name, values in each.items()},
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the result for people.

    Example:
        >>> from .speed import run
        >>> print(table(run("alfworld", games=1)))  # doctest: +SKIP
        1 games, 12 steps; CPU time
        ...
    """
    names = ("step, new texts", "step, seen texts", "reset, same game", "reset, next game")
    titles = dict(zip(MEASURES, names, strict=True))
    lines = [f"{result['games']} games, {result['steps']} steps; CPU time", ""]
    lines.append(f"{'':18}{'ours':>12}{'peer':>12}{'ratio':>10}   over games: min, median, max")
    for name, title in titles.items():
        row = f"{title:18}{_time(result['ours']['mean'][name])}"
        if "theirs" in result:
            over = result["ratios"]["over_games"][name]
            row += f"{_time(result['theirs']['mean'][name])}"
            row += f"{result['ratios']['of_totals'][name]:>10,.0f}   "
            row += ", ".join(f"{over[key]:,.0f}" for key in ("min", "median", "max"))
        lines.append(row)
    lines += ["", "where our step goes"]
    whole = result["ours"]["mean"]["step"]
    for name in PARTS:
        part = result["step_parts"][name]
        lines.append(f"{name:18}{_time(part)}{part / whole:>12.0%}")
    once = result["first_pass"]
    lines += [
        "",
        f"each game once, {once['steps']} steps: engine{_time(once['engine'])}, "
        f"canonicalizer{_time(once['canonicalizer'])}",
    ]
    if "games_that_agree" in result:
        lines += ["", f"same answers in {result['games_that_agree']} of {result['games']} games"]
    memory = result["memory"]
    if "growth" in memory:
        grown = f"{memory['growth'] / 2**20:+.1f} MiB in {memory['resets']} resets"
        late = f"{memory['growth_in_second_half'] / 2**20:+.1f} MiB of them in the second half"
        lines.append(f"memory: {grown}, {late}")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:>9,.1f} us"
