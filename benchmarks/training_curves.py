"""The plots of a training's report: what was measured over rounds, and losses over updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from .plots import Plot, Series
from .training_record import TrainingRecord, get, members, number

__all__ = ["counted", "gate_plots", "loss_plots", "result_plots", "sample_plots"]

Rounds: TypeAlias = Sequence[tuple[int, Mapping[str, Any]]]

_SETS = {"frozen": "frozen transitions", "on_policy": "the agent's own transitions"}
_GROUPS = ("all", "nonempty", "predictable", "unpredictable")
_REVISIONS = {"urr": "drafts_succeed", "hrr": "drafts_succeed", "brp": "revised"}
_WHO = {"agent": "policy", "wm": "world model"}
_LOSSES = {
    "nll": "negative log-likelihood",
    "distillation": "distillation (divergence)",
    "bce": "refinement probability (cross-entropy)",
    "label_accuracy": "refinement probability (share told right)",
}
_Z = 1.959964  # of a 95 % interval


def counted(values: Sequence[float | None]) -> str:
    """Return how many cases stand behind values, for a legend.

    Example:
        >>> counted([16, 16]), counted([3, None, 7]), counted([None])
        ('n=16', 'n=3–7', 'n=0')
    """
    known = sorted(int(value) for value in values if value is not None)
    if not known:
        return "n=0"
    low, high = known[0], known[-1]
    return f"n={low}" if low == high else f"n={low}–{high}"


def result_plots(training: TrainingRecord) -> list[Plot]:
    """Return success, Delta-F1, likelihood and revisions over the rounds (METHODS.md 1.12).

    Example:
        >>> result_plots(TrainingRecord({}, (), ()))
        []
    """
    rounds = training.evaluations()
    plots = [_plot("Success over rounds", "% of episodes", _success(rounds))]
    for name, told in _SETS.items():
        plots.append(_plot(f"Delta-F1 over rounds: {told}", "Delta-F1", _delta_f1(rounds, name)))
    plots.append(_plot("Likelihood of what changed, over rounds", "nats a token", _nll(rounds)))
    plots.append(_plot("Revisions over rounds", "% of cases", _revisions(rounds)))
    return [plot for plot in plots if plot is not None]


def gate_plots(training: TrainingRecord) -> list[Plot]:
    """Return which share of predictions the world-state gate adopts (CoMap, Figure 5).

    Example:
        >>> gate_plots(TrainingRecord({}, (), ()))
        []
    """
    rounds = training.rollouts()
    own = get(training.described, "config", "tau_wm")
    names = {tau: f"τ = {tau}" for tau in ("0.4", "0.6", "0.8")}
    if str(own) not in names:
        names["run"] = f"this training's τ = {own}"
    n = _counted(rounds, "gates", "agreement", "n")
    series = [
        _series(f"{told} ({n})", rounds, "gates", "adoption", tau, times=100)
        for tau, told in names.items()
    ]
    plot = _plot("Predictions adopted by the world-state gate", "% of predictions", series)
    return [] if plot is None else [plot]


def sample_plots(training: TrainingRecord) -> list[Plot]:
    """Return how many samples of which kind each stage learned from (CoMap, Figure 7).

    Example:
        >>> sample_plots(TrainingRecord({}, (), ()))
        []
    """
    plots = []
    for role, told in _WHO.items():
        stages = [
            (name, counts)
            for name, found in training.learned()
            if found["role"] == role and (counts := members(found, "samples"))
        ]
        kinds = sorted({str(kind) for _, counts in stages for kind in counts})
        if not stages:
            continue
        places = tuple(float(place) for place in range(len(stages)))
        series = tuple(
            Series(kind, places, tuple(number(counts, kind) or 0.0 for _, counts in stages))
            for kind in kinds
        )
        title, labels = f"Samples of an epoch: {told}", tuple(name for name, _ in stages)
        plots.append(Plot(title, "", "samples", series, "bar", labels))
    return plots


def loss_plots(training: TrainingRecord) -> list[Plot]:
    """Return the losses of both models over their updates, stage after stage.

    Example:
        >>> loss_plots(TrainingRecord({}, (), ()))
        []
    """
    plots = []
    for role, who in _WHO.items():
        stages = [(name, found) for name, found in training.learned() if found["role"] == role]
        for metric, told in _LOSSES.items():
            series, before = [], 0.0
            for name, found in stages:
                log = found.get("log")
                lines = log if isinstance(log, list) else []
                updates = number(found, "updates") or 0.0
                points = [(number(line, "step"), _loss(line, metric)) for line in lines]
                known = [(before + x, y) for x, y in points if x is not None and y is not None]
                if known:
                    x, y = zip(*known, strict=True)
                    series.append(Series(f"{name} ({updates:,.0f} updates)", x, y))
                before += updates
            if series:
                title = f"{who.capitalize()}: {told}"
                plots.append(Plot(title, f"updates of the {who}", "", tuple(series)))
    return plots


def _loss(line: object, metric: str) -> float | None:
    """Return a loss; plain fine-tuning tells its likelihood as the loss alone."""
    found = number(line, metric)
    if metric == "nll" and found is None:
        return number(line, "loss")
    return found


# -- series over rounds --------------------------------------------------------------------------


def _plot(title: str, ylabel: str, series: Sequence[Series]) -> Plot | None:
    drawn = tuple(one for one in series if any(map(math.isfinite, one.y)))
    if not drawn:
        return None
    labels = tuple(f"{x:.0f}" for x in sorted({x for one in drawn for x in one.x}))
    return Plot(title, "round", ylabel, drawn, labels=labels)


def _series(
    name: str,
    rounds: Rounds,
    *keys: str,
    times: float = 1.0,
    ends: Callable[[object], tuple[float | None, float | None]] | None = None,
) -> Series:
    """Return the numbers at a path of keys, and the ends of their intervals."""

    def drawn(found: float | None) -> float:
        return math.nan if found is None else float(found)

    values = [number(found, *keys) for _, found in rounds]
    x = tuple(float(place) for place, _ in rounds)
    y = tuple(drawn(None if value is None else times * value) for value in values)
    if ends is None:
        return Series(name, x, y)
    pairs = [ends(found) for _, found in rounds]
    low, high = (tuple(drawn(pair[side]) for pair in pairs) for side in (0, 1))
    return Series(name, x, y, low, high)


def _counted(rounds: Rounds, *keys: str) -> str:
    return counted([number(found, *keys) for _, found in rounds])


def _success(rounds: Rounds) -> list[Series]:
    def ends(split: str, found: object) -> tuple[float | None, float | None]:
        shares = (number(found, "splits", split, f"success_{side}") for side in ("low", "high"))
        low, high = (None if share is None else 100 * share for share in shares)
        return low, high

    splits = list(dict.fromkeys(s for _, found in rounds for s in members(found, "splits")))
    series = []
    for split in splits:
        at = ("splits", split)
        name = f"{split} ({_counted(rounds, *at, 'episodes')})"
        interval = partial(ends, split)
        series.append(_series(name, rounds, *at, "success", times=100, ends=interval))
    return series


def _delta_f1(rounds: Rounds, name: str) -> list[Series]:
    def ends(group: str, found: object) -> tuple[float | None, float | None]:
        mean = number(found, "world_model", name, group, "delta_f1")
        error = number(found, "world_model", name, group, "stderr")
        if mean is None or error is None:
            return None, None
        return max(mean - _Z * error, 0.0), min(mean + _Z * error, 100.0)

    series = []
    for group in _GROUPS:
        at = ("world_model", name, group)
        told = f"{group} ({_counted(rounds, *at, 'n')})"
        series.append(_series(told, rounds, *at, "delta_f1", ends=partial(ends, group)))
    return series


def _nll(rounds: Rounds) -> list[Series]:
    series = []
    for name, told in _SETS.items():
        at = ("world_model", name, "change_token_nll")
        n = _counted(rounds, *at, "tokens")
        series.append(_series(f"{told} ({n} tokens)", rounds, *at, "nll"))
    return series


def _revisions(rounds: Rounds) -> list[Series]:
    return [
        _series(
            f"{name.upper()} ({_counted(rounds, 'revisions', cases)})",
            rounds,
            *("revisions", name),
            times=100,
        )
        for name, cases in _REVISIONS.items()
    ]
