"""Differences between two arms: paired over tasks within seeds, and over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..metrics import success_rate

__all__ = ["over_seeds", "paired", "share_won"]

_RESAMPLES = 4000
_SHARE = 0.95
_STUDENT = (  # the 97.5 % quantiles of Student's t distribution, from 1 degree of freedom on
    (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
    + (2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)
    + (2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
)
_NORMAL = 1.96


def over_seeds(values: Sequence[float | None]) -> dict[str, Any]:
    """Return mean and standard deviation over seeds, and Student's 95 % interval of the mean.

    The interval says how far the mean would move with other seeds: training that goes well or badly
    counts, and with two or three seeds it is wide.

    Args:
        values: One of each seed; None where a seed has none.

    Example:
        >>> over_seeds([0.1, 0.2, 0.3])
        {'n': 3, 'mean': 0.2, 'sd': 0.1, 'low': -0.0484, 'high': 0.4484}
        >>> over_seeds([0.5])
        {'n': 1, 'mean': 0.5, 'sd': None, 'low': None, 'high': None}
    """
    known = [value for value in values if value is not None]
    n = len(known)
    if n < 2:
        mean = round(known[0], 4) if known else None
        return {"n": n, "mean": mean, "sd": None, "low": None, "high": None}
    mean, sd = statistics.mean(known), statistics.stdev(known)
    quantile = _STUDENT[n - 2] if n - 2 < len(_STUDENT) else _NORMAL
    half = quantile * sd / math.sqrt(n)
    told = {"mean": mean, "sd": sd, "low": mean - half, "high": mean + half}
    return {"n": n, **{name: round(value, 4) for name, value in told.items()}}


def share_won(won: str, plays: int = 1) -> dict[str, Any]:
    """Return the share of plays that were won, with a 95 % interval over tasks.

    The interval is Wilson's where each task was played once, and a bootstrap's over tasks otherwise.

    Args:
        won: A digit for each task: how often it was won.
        plays: How often each was played.

    Example:
        >>> share_won("1100")
        {'n': 4, 'rate': 0.5, 'low': 0.15, 'high': 0.85}
        >>> share_won("2211", plays=2)["rate"]
        0.75
    """
    if plays == 1:
        told = success_rate(digit == "1" for digit in won)
        rate, low, high = told.value, told.low, told.high
    else:
        shares = np.array([int(digit) for digit in won], dtype=np.float64) / plays
        rate, (low, high) = float(shares.mean()), _bootstrap(shares)
    told_all = {"rate": rate, "low": low, "high": high}
    return {"n": len(won), **{name: round(value, 4) for name, value in told_all.items()}}


def _bootstrap(each_task: Any) -> tuple[float, float]:
    """Return the interval of a mean over tasks."""
    drawn = np.random.default_rng(0).integers(each_task.size, size=(_RESAMPLES, each_task.size))
    ends = np.quantile(each_task[drawn].mean(axis=1), [(1 - _SHARE) / 2, (1 + _SHARE) / 2])
    return float(ends[0]), float(ends[1])


def paired(won: Sequence[str], others: Sequence[str], plays: int = 1) -> dict[str, Any]:
    """Return how much more often an arm wins than another, task by task.

    Two intervals are told. ``low`` and ``high`` are of a bootstrap over tasks, which are drawn with
    all their seeds: how far the difference would move with other tasks and the same trained policies.
    Those of ``seeds`` are Student's over the seeds' own differences, which holds the luck of training
    as well.

    Args:
        won: For each seed a digit for each task: how often the arm won.
        others: The same of the other arm, for the same seeds and tasks.
        plays: How often each task was played with each seed.

    Returns:
        ``tasks``, ``mean``, ``low`` and ``high`` (shares of tasks), ``gained`` and ``lost`` (tasks won
        more often by one of the two, of all seeds), and ``seeds`` (`over_seeds`, with ``each``).

    Example:
        >>> told = paired(["1110", "1100"], ["1000", "1100"])
        >>> told["mean"], told["gained"], told["lost"], told["seeds"]["each"]
        (0.25, 2, 0, [0.5, 0.0])
    """
    gains = np.array(
        [
            [int(mine) - int(other) for mine, other in zip(one, two, strict=True)]
            for one, two in zip(won, others, strict=True)
        ],
        dtype=np.float64,
    )
    gains /= plays
    each_task, each_seed = gains.mean(axis=0), gains.mean(axis=1)
    ends = _bootstrap(each_task)
    seeds = [float(value) for value in each_seed]
    return {
        "tasks": int(each_task.size),
        "mean": round(float(gains.mean()), 4),
        "low": round(float(ends[0]), 4),
        "high": round(float(ends[1]), 4),
        "gained": int((gains > 0).sum()),
        "lost": int((gains < 0).sum()),
        "seeds": {**over_seeds(seeds), "each": [round(value, 4) for value in seeds]},
    }
