"""Entry conditions: what must be true before a training can show what its method does.

The ranges, in ``entry.json``, are those of our own experiments (docs/evidence.md).
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from ..trajectory import Trajectory
from .results import Condition

_UNLIKELY = 0.001
"""A chance below which what happened is taken for no chance."""


def conditions(training: str, values: Mapping[str, float | None]) -> dict[str, Condition]:
    """Return each condition of a training with its value, whether it is met, and a line of text."""
    ranges = json.loads((files(__package__) / "entry.json").read_text("utf-8"))[training]
    checked: dict[str, Condition] = {}
    for name, value in values.items():
        condition = ranges[name]
        low = condition.get("low", -math.inf)
        high = condition.get("high", math.inf)
        bounds = []
        if math.isfinite(low):
            bounds.append(f"from {low:g}")
        if math.isfinite(high):
            bounds.append(f"to {high:g}")

        is_met = value is not None and low <= value <= high
        text = "unknown" if value is None else f"{value:.3g}"
        line = f"{condition['name']}: {text} (wanted: {' '.join(bounds)})"
        line = f"met: {line}" if is_met else f"not met: {line}; {condition['remedy']}"
        checked[name] = Condition(value=value, met=is_met, line=line)
    return checked


def comap_conditions(
    episodes: Iterable[Trajectory], precision: float | None
) -> dict[str, Condition]:
    """Return CoMap's entry conditions.

    Args:
        episodes: The warmed-up policy's, several of each task.
        precision: How often the world model is right where it predicts that nothing changes, in percent.
    """
    successes: list[bool] = []
    successes_of_tasks: dict[str, list[bool]] = {}
    wasted: list[bool] = []
    for episode in episodes:
        successes.append(episode.success)
        successes_of_tasks.setdefault(episode.task, []).append(episode.success)
        wasted += [step.invalid_action or not step.delta for step in episode.steps]

    # What any of several plays solves beyond the mean success is what reflections can gain.
    success = _percent(successes)
    solved_ever = _percent([any(outcomes) for outcomes in successes_of_tasks.values()])
    values = {
        "success": success,
        "ever": solved_ever - success,
        "wasted": _percent(wasted),
        "precision": precision,
    }
    return conditions("comap", values)


def paw_conditions(metrics: Mapping[str, Any], paw: bool) -> dict[str, Condition]:
    """Return the entry conditions of PaW and of the algorithm beneath it, from the first update."""
    # PaW compares attempts at one task: where all or none of a group succeed, nothing is learned.
    success = metrics["success"]
    values: dict[str, float | None] = {
        "success": 100 * success,
        "solved": metrics["solved"] / success if success else 0.0,
    }
    if paw:
        moderate_share = metrics.get("wm_moderate")
        values["nll"] = metrics.get("wm_nll")
        values["moderate"] = None if moderate_share is None else 100 * moderate_share

    checked = conditions("paw", values)
    moderate = checked.get("moderate")
    if moderate is not None and not moderate.met:
        median = metrics.get("wm_median", math.nan)
        line = f"{moderate.line} (median p is {median:.1e})"
        checked["moderate"] = replace(moderate, line=line)
    return checked


def warn_of_collapse(solved: Sequence[float], groups: int) -> None:
    """Warn, once, where a policy that won has lost how.

    Where wins alone are rewarded, all episodes of a group are alike without one: the update of the
    policy is zero, and so it stays as it is.

    Args:
        solved: Of each update so far, the share of its groups that had a win.
        groups: The groups of an update.
    """
    updates_with_wins = [update for update, share in enumerate(solved) if share > 0]
    if not updates_with_wins:
        return  # the conditions at the start say that
    earlier = solved[: updates_with_wins[-1] + 1]
    chance_of_none = (1 - sum(earlier) / len(earlier)) ** groups  # of an update, if nothing changed
    updates_without = len(solved) - len(earlier)
    is_unlikely = chance_of_none**updates_without < _UNLIKELY
    was_told = updates_without == 0 or chance_of_none ** (updates_without - 1) < _UNLIKELY
    if is_unlikely and not was_told:
        warnings.warn(
            f"no episode of the last {updates_without} updates won anything, though "
            f"{100 * sum(earlier) / len(earlier):.0f} % of the groups before had a win: the policy has "
            "collapsed, and where wins alone are rewarded there is nothing left to reinforce. Begin "
            "anew in another folder, with a lower --learning-rate or with --kl 0.01",
            stacklevel=2,
        )


def _percent(flags: Sequence[bool]) -> float:
    return 100 * sum(flags) / max(len(flags), 1)
