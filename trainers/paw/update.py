"""What an update learns from: advantages, selected observations and their weights (METHODS.md 2.1).

Groups lie within one process; what an update has in common over all processes (which rows have the
highest entropy, how many there are) is worked out from numbers that all of them tell each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..processes import gathered
from .advantages import gigpo_advantages, grpo_advantages, rloo_advantages, row_returns
from .selection import rank_correlation, select_rows, top_overlap
from .weights import adaptive_coefficients, row_weights

if TYPE_CHECKING:
    from torch import Tensor

    from .config import PaWTraining
    from .rows import PaWRow

__all__ = ["Chosen", "Update", "choose", "places_of", "row_advantages"]


@dataclass
class Update:
    """The rows of an update on this process, and what is known of them.

    Attributes:
        number: Number of the update, from 0.
        rows: The rows.
        places: The place of each among all rows of the update, over all processes.
        total: How many rows those are.
        advantages: Advantage of each row, for all its response tokens; with PPO a tensor (T,) each.
        old: Log-probabilities (T,) of each row's response under the policy that sampled it, or None
            where it is the policy that learns.
        reference: The same under the reference policy, or None without it.
        values: The critic's values (T,) of each row, with PPO.
        targets: What the critic shall say, (T,) each, with PPO.
        chosen: Which observations are learned from; None without PaW.
        metrics: What is told of the update.
    """

    number: int
    rows: list[PaWRow]
    places: NDArray[np.int64]
    total: int
    advantages: Any = None
    old: list[Tensor] | None = None
    reference: list[Tensor] | None = None
    values: list[Tensor] | None = None
    targets: list[Tensor] | None = None
    chosen: Chosen | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)

    def appended(self, row: int) -> bool:
        """Return whether a row's observation is read in the same forward pass."""
        return self.chosen is not None and bool(self.chosen.selected[row])


@dataclass(frozen=True)
class Chosen:
    """Which observations of this process's rows are learned from, and how much each counts.

    Attributes:
        selected: Whether each row is selected, (N,).
        weights: Weight of each row's loss in the loss of the whole update, (N,).
        metrics: What is told of the selection.
    """

    selected: NDArray[np.bool_]
    weights: NDArray[np.float64]
    metrics: dict[str, float | None]


def places_of(rows: Sequence[PaWRow]) -> tuple[NDArray[np.int64], int]:
    """Return each row's place among the rows of all processes, and how many those are.

    Rows are in the order of their episodes and steps, whichever process has them.

    Example:
        >>> places_of([])[1]
        0
    """
    own = [(row.trajectory, row.t) for row in rows]
    order = {key: place for place, key in enumerate(sorted(gathered(own)))}
    return np.array([order[key] for key in own], dtype=np.int64), len(order)


def row_advantages(config: PaWTraining, rows: Sequence[PaWRow]) -> NDArray[np.float64]:
    """Return the advantage of each row, (N,), by the algorithm (METHODS.md 2.6).

    Args:
        config: The settings; ``algorithm`` is not ``"ppo"``, whose advantages come from its critic.
        rows: All rows of some groups.
    """
    if config.algorithm == "gigpo":
        return gigpo_advantages(
            rows,
            omega=config.gigpo_omega,
            gamma=config.gigpo_gamma,
            mode=config.gigpo_mode,
            similarity=config.gigpo_similarity,
            penalty=config.invalid_penalty,
        ).total
    returns = row_returns(rows, config.invalid_penalty)
    groups = np.array([row.group for row in rows], dtype=np.int64)
    trajectories = np.array([row.trajectory for row in rows], dtype=np.int64)
    make = rloo_advantages if config.algorithm == "rloo" else grpo_advantages
    return make(returns, groups, trajectories=trajectories, over=config.advantage_over)


def choose(
    config: PaWTraining,
    update: Update,
    entropies: NDArray[np.float64],
    others: NDArray[np.float64] | None = None,
) -> Chosen:
    """Select observations by their actions' entropy, and weight them (METHODS.md 2.2, 2.4 and 2.5).

    Args:
        config: The settings.
        update: The rows.
        entropies: The entropy of each row's action, (N,), that counts.
        others: The same by another definition, to compare; None compares nothing.
    """
    rows = update.rows
    own = [
        (
            int(place),
            row.group,
            float(entropy),
            bool(row.observation_ids),
            None if others is None else float(others[number]),
        )
        for number, (place, row, entropy) in enumerate(
            zip(update.places, rows, entropies, strict=True)
        )
    ]
    everyone = sorted(gathered(own))
    groups = np.array([told[1] for told in everyone], dtype=np.int64)
    known = np.array([told[2] for told in everyone], dtype=np.float64)
    eligible = np.array([told[3] for told in everyone], dtype=np.bool_)
    selected = select_rows(
        known, eligible, config.alpha, how=config.selection, seed=_seed(config, update.number)
    )
    coefficients, present = _coefficients(config, rows)
    weights = row_weights(selected, groups, coefficients, wm_coef=config.wm_coef)
    metrics: dict[str, float | None] = {
        "wm_lambda": float(coefficients[present].mean()),
        "wm_rows": float(selected.sum()),
        "action_entropy": _mean(known[np.isfinite(known)]),
    }
    if others is not None:
        second = np.array([told[4] for told in everyone], dtype=np.float64)
        metrics["entropy_correlation"] = rank_correlation(known, second)
        metrics["entropy_overlap"] = top_overlap(known, second, eligible, config.alpha)
    return Chosen(selected[update.places], weights[update.places], metrics)


def _coefficients(
    config: PaWTraining, rows: Sequence[PaWRow]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return lambda of every group of the update, and the groups that have episodes."""
    own = {(row.trajectory, row.group): row.episode_return for row in rows}
    everyone = sorted(gathered(list(own.items())))
    largest = config.highest_return
    groups = np.array([group for (_, group), _ in everyone], dtype=np.int64)
    returns = np.array([value for _, value in everyone], dtype=np.float64)
    found = adaptive_coefficients(
        returns, groups, largest, enabled=config.adaptive, count=config.groups
    )
    return found, np.unique(groups)


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def _seed(config: PaWTraining, number: int) -> int:
    return config.seed * 1_000_003 + number
