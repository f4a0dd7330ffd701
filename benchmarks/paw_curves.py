"""The plots of a PaW training's report: PaW's Figures 10 and 11, evaluations, and time by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .paw_record import PaWRecord
from .plots import Plot, Series
from .training_curves import counted

__all__ = [
    "PHASES",
    "evaluation_plots",
    "further_plots",
    "phase_plots",
    "policy_plots",
    "reward_plots",
    "world_plots",
]

PHASES = {
    "seconds_rollout": "rollouts",
    "seconds_old_logps": "old log-probabilities",
    "seconds_reference": "reference",
    "seconds_advantages": "advantages",
    "seconds_update": "update",
}
"""The measures that time the phases of an update, and what these are called (PaW, Figure 5)."""

_X = "update"
_MOST_FURTHER = 24  # plots of measures that are not known here


class _Curve(NamedTuple):
    title: str
    ylabel: str
    names: Mapping[str, str]
    times: float = 1.0


_REWARDS = (
    _Curve("Success of rollouts", "% of episodes", {"success": "success"}, 100),
    _Curve("Reward", "", {"return": "return of an episode", "reward_mean": "reward of a row"}),
    _Curve("Invalid replies", "% of rows", {"invalid": "invalid"}, 100),
    _Curve("Steps of an episode", "mean", {"steps": "steps"}),
    _Curve("Rows of an update", "rows", {"rows": "rows"}),
)
_POLICY = (
    _Curve("Policy loss", "", {"policy_loss": "policy loss"}),
    _Curve("Clipped ratios", "% of tokens", {"clip_fraction": "clipped"}, 100),
    _Curve("Divergence from the first policy", "nats a token", {"kl": "KL"}),
    _Curve("Entropy of the policy", "nats a token", {"entropy": "entropy"}),
    _Curve("Norm of the gradient", "", {"grad_norm": "norm"}),
    _Curve("Critic", "", {"value_loss": "value loss"}),
)
_WORLD = (
    _Curve("Adaptive weight λ", "mean over groups", {"wm_lambda": "λ"}),
    _Curve("Loss on observations", "", {"wm_loss": "loss"}),
    _Curve("Tokens left out (p > ρ)", "% of tokens", {"wm_clipped_ratio": "left out"}, 100),
    _Curve("Probability of observed tokens", "mean p", {"wm_probability": "p"}),
    _Curve("Rows whose observation is learned", "rows", {"wm_rows": "rows"}),
    _Curve(
        "Entropy of the paper's formula against that of the vocabulary",
        "",
        {
            "entropy_correlation": "rank correlation",
            "entropy_overlap": "share selected by both",
        },
    ),
)
_MEMORY = _Curve("Peak memory", "GiB", {"peak_memory": "peak"}, 2**-30)
_SHOWN = {"update", *PHASES, *_MEMORY.names}.union(
    *(curve.names for curve in (*_REWARDS, *_POLICY, *_WORLD))
)


def reward_plots(record: PaWRecord) -> list[Plot]:
    """Return how well the policy does in its rollouts (PaW, Figure 10).

    Example:
        >>> record = PaWRecord(updates=({"update": 1, "success": 0.5},))
        >>> [(plot.title, plot.series[0].y) for plot in reward_plots(record)]
        [('Success of rollouts', (50.0,))]
    """
    return _drawn(record, _REWARDS)


def policy_plots(record: PaWRecord) -> list[Plot]:
    """Return how the policy changes (PaW, Figure 10).

    Example:
        >>> policy_plots(PaWRecord())
        []
    """
    return _drawn(record, _POLICY)


def world_plots(record: PaWRecord) -> list[Plot]:
    """Return what is learned from observations (PaW, Figure 11); nothing where PaW is off.

    Example:
        >>> world_plots(PaWRecord(updates=({"update": 1, "wm_loss": 0.5},)))[0].title
        'Loss on observations'
    """
    return _drawn(record, _WORLD)


def phase_plots(record: PaWRecord) -> list[Plot]:
    """Return how long each phase of an update takes, and the memory it needs (PaW, Figure 5).

    Example:
        >>> phase_plots(PaWRecord())
        []
    """
    return _drawn(record, (_Curve("Time by phase", "seconds", PHASES), _MEMORY))


def further_plots(record: PaWRecord) -> list[Plot]:
    """Return the measures that the other plots do not show, by their names in the lines.

    Example:
        >>> further_plots(PaWRecord(updates=({"update": 1, "ratio": 1.0},)))[0].title
        'ratio'
    """
    names = [name for name in record.names() if name not in _SHOWN]
    curves = [_Curve(name, "", {name: name}) for name in names if record.curve(name)[0]]
    return _drawn(record, curves[:_MOST_FURTHER])


def evaluation_plots(record: PaWRecord) -> list[Plot]:
    """Return success on the evaluated splits over the updates, with 95 % intervals, and mean scores.

    Example:
        >>> told = {"update": 0, "split": "valid_seen", "n": 4, "success": 0.5}
        >>> evaluation_plots(PaWRecord(evaluations=(told,)))[0].series[0].name
        'valid_seen (n=4)'
    """
    successes, scores = [], []
    for split in record.splits():
        found = record.evaluated(split)
        if not found:
            continue
        name = f"{split} ({counted([rate.n for _, rate, _ in found])})"
        x = tuple(float(update) for update, *_ in found)
        y, low, high = (
            tuple(100 * getattr(rate, end) for _, rate, _ in found)
            for end in ("value", "low", "high")
        )
        successes.append(Series(name, x, y, low, high))
        known = [(float(update), score) for update, _, score in found if score is not None]
        if known:
            scores.append(Series(name, *zip(*known, strict=True)))
    plots = []
    if successes:
        title = "Success of evaluations, with 95 % intervals"
        plots.append(Plot(title, _X, "% of episodes", tuple(successes)))
    if scores:
        plots.append(Plot("Score of evaluations", _X, "mean score", tuple(scores)))
    return plots


def _drawn(record: PaWRecord, curves: Sequence[_Curve]) -> list[Plot]:
    """Return a plot of each group of measures of which there is any."""
    plots = []
    for curve in curves:
        series = []
        for name, told in curve.names.items():
            x, y = record.curve(name, curve.times)
            if x:
                series.append(Series(told, x, y))
        if series:
            plots.append(Plot(curve.title, _X, curve.ylabel, tuple(series)))
    return plots
