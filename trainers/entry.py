"""Entry conditions: what must be true before a training can show what its method does.

The ranges, in ``entry.json``, are those of our own experiments (docs/evidence.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, TypeAlias

from ..trajectory import Trajectory

Conditions: TypeAlias = "dict[str, dict[str, Any]]"


def conditions(training: str, found: Mapping[str, float | None]) -> Conditions:
    """Return each condition of a training with its value, whether it is met, and a line that says so."""
    known = json.loads((files(__package__) / "entry.json").read_text("utf-8"))[training]
    result: Conditions = {}
    for name, value in found.items():
        about = {"low": -math.inf, "high": math.inf, **known[name]}
        low, high = about["low"], about["high"]
        bounds = [
            f"{word} {end:g}" for word, end in (("from", low), ("to", high)) if math.isfinite(end)
        ]
        met = value is not None and low <= value <= high
        text = "unknown" if value is None else f"{value:.3g}"
        line = f"{about['name']}: {text} (wanted: {' '.join(bounds)})"
        line = f"met: {line}" if met else f"not met: {line}; {about['remedy']}"
        result[name] = {"value": value, "met": met, "line": line}
    return result


def comap_conditions(episodes: Iterable[Trajectory], precision: float | None) -> Conditions:
    """Return CoMap's: of the warmed-up policy's episodes, several of each task, and its world model."""
    won: dict[str, list[bool]] = {}
    wasted: list[bool] = []
    for episode in episodes:
        won.setdefault(episode.task, []).append(episode.success)
        wasted += [step.invalid_action or not step.delta for step in episode.steps]
    success = _percent([share for times in won.values() for share in times])
    found: dict[str, float | None] = {
        "success": success,
        "ever": _percent([*map(any, won.values())]) - success,
    }
    return conditions("comap", {**found, "wasted": _percent(wasted), "precision": precision})


def paw_conditions(metrics: Mapping[str, Any], paw: bool) -> Conditions:
    """Return those of PaW and of the algorithm beneath it, of the first update's episodes."""
    won, share = metrics["success"], metrics.get("wm_moderate")
    found: dict[str, float | None] = {
        "success": 100 * won,
        "solved": metrics["solved"] / won if won else 0.0,
    }
    if paw:
        moderate = None if share is None else 100 * share
        found |= {"nll": metrics.get("wm_nll"), "moderate": moderate}
    result = conditions("paw", found)
    if paw and not result["moderate"]["met"]:
        result["moderate"]["line"] += f" (median p is {metrics.get('wm_median', math.nan):.1e})"
    return result


def _percent(flags: Sequence[bool]) -> float:
    return 100 * sum(flags) / max(len(flags), 1)
