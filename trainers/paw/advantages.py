"""Returns and advantages of an update's rows: GRPO, RLOO and GiGPO.

All are pure functions of all rows of whole task groups (METHODS.md 2.6). Sums are rounded once, at
their end, so that an advantage does not depend on the order of the rows, to the last bit; only the
grouping of similar anchors does. What works on tokens, for PPO, is in `gae`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from ...errors import OptionError, suggest
from .anchors import anchor_groups
from .gae import at_last_token, gae, whiten
from .returns import row_returns, step_returns

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .rows import PaWRow

__all__ = [
    "GiGPOAdvantages",
    "GiGPOMode",
    "Over",
    "anchor_groups",
    "at_last_token",
    "gae",
    "gigpo_advantages",
    "grpo_advantages",
    "rloo_advantages",
    "row_returns",
    "step_returns",
    "whiten",
]

Over = Literal["rows", "trajectories"]
"""What a group's mean and deviation are of: its rows, so that long episodes weigh more, or its
trajectories, each with the mean of its rows' returns."""

GiGPOMode = Literal["mean_std_norm", "mean_norm"]
"""Whether GiGPO divides by the standard deviation."""


@dataclass(frozen=True, slots=True)
class GiGPOAdvantages:
    """The advantages of rows, and what they are made of.

    Attributes:
        total: ``episode + omega * step``, one a row.
        episode: Against the group's episodes, one a row.
        step: Against the rows of the same anchor group, one a row; 0 where a row is alone in it.
        group_sizes: The number of rows of each anchor group.
    """

    total: NDArray[np.float64]
    episode: NDArray[np.float64]
    step: NDArray[np.float64]
    group_sizes: NDArray[np.int64]


def grpo_advantages(
    returns: ArrayLike,
    groups: ArrayLike,
    *,
    trajectories: ArrayLike | None = None,
    over: Over = "rows",
    epsilon: float = 1e-6,
) -> NDArray[np.float64]:
    """Return ``(R - mean) / (std + epsilon)`` within task groups, with the unbiased deviation.

    A group's only member is compared with mean 0 and deviation 1, as upstream does. Over
    trajectories, upstream takes the return of whichever row of a trajectory comes first; here it is
    the mean of its rows', which differs from it only by penalties (METHODS.md 2.6). Where trajectories
    differ less than the rows within them do, by penalties alone, the deviation is that within them:
    upstream divides by 0.000001 where they are equal, and a penalty outweighs all other groups.

    Args:
        returns: Of each row, as `row_returns` makes them.
        groups: The task group of each row, any whole numbers.
        trajectories: The trajectory of each row; needed over trajectories only.
        over: What mean and deviation are of.
        epsilon: Keeps from division by zero; above 0.

    Raises:
        OptionError: The arrays differ in length, a return is no finite number, or an option is
            unknown or out of range.

    Example:
        >>> grpo_advantages([10.0, 0.0], [0, 0]).round(4).tolist()
        [0.7071, -0.7071]
    """
    _above_zero(epsilon)
    values, mean, deviation, _ = _against(returns, groups, trajectories, over)
    return (values - mean) / (deviation + epsilon)


def rloo_advantages(
    returns: ArrayLike,
    groups: ArrayLike,
    *,
    trajectories: ArrayLike | None = None,
    over: Over = "rows",
) -> NDArray[np.float64]:
    """Return ``n/(n-1) (R - mean)`` within task groups: R less the mean of the others (METHODS.md 2.6).

    A group's only member keeps its return. Arguments and errors are those of `grpo_advantages`.

    Example:
        >>> rloo_advantages([6.0, 0.0, 0.0], [0, 0, 0]).tolist()
        [6.0, -3.0, -3.0]
    """
    values, mean, _, size = _against(returns, groups, trajectories, over)
    return (values - mean) * size / np.maximum(size - 1, 1)


def gigpo_advantages(
    rows: Sequence[PaWRow],
    *,
    omega: float = 1.0,
    gamma: float = 0.95,
    mode: GiGPOMode = "mean_std_norm",
    similarity: float | None = None,
    penalty: float = 0.1,
    epsilon: float = 1e-6,
) -> GiGPOAdvantages:
    """Return GiGPO's advantages: against other episodes, and against the same state (METHODS.md 2.6).

    Where the episodes of a group differ less than the rows within them do, by penalties alone, the
    episode part divides by the deviation within them, as in `grpo_advantages`.

    Args:
        rows: All rows of the update.
        omega: Weight of the step's part.
        gamma: Discount of a step's return.
        mode: Whether differences from the mean are divided by the standard deviation.
        similarity: As in `anchor_groups`.
        penalty: For an invalid reply, off the row's return and off its step return.
        epsilon: As in `grpo_advantages`.

    Raises:
        OptionError: An option is unknown or out of range, or a return is no finite number.

    Example:
        >>> from comap.trainers.paw.rows import PaWRow
        >>> rows = [PaWRow(group=0, trajectory=k, t=0, prompt_ids=(1,), response_ids=(2,),
        ...                reward=r, episode_return=r) for k, r in enumerate((10.0, 0.0))]
        >>> gigpo_advantages(rows).total.round(4).tolist()
        [1.4142, -1.4142]
    """
    _one_of("mode", mode, get_args(GiGPOMode))
    _above_zero(epsilon)
    groups = [row.group for row in rows]
    members = [row.trajectory for row in rows]
    values, mean, deviation, _ = _against(
        row_returns(rows, penalty), groups, members, "trajectories"
    )
    scaled = mode == "mean_std_norm"
    episode = (values - mean) / (deviation + epsilon if scaled else 1.0)
    steps = step_returns(rows, gamma, penalty)
    anchors = anchor_groups(rows, similarity)
    mean, deviation, size = _moments(steps, anchors)
    step = (steps - mean[anchors]) / (deviation[anchors] + epsilon if scaled else 1.0)
    return GiGPOAdvantages(episode + omega * step, episode, step, size)


def _against(
    returns: ArrayLike, groups: ArrayLike, trajectories: ArrayLike | None, over: Over
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return each row's return, and the mean, deviation and size of what it is compared with."""
    _one_of("over", over, get_args(Over))
    values = np.asarray(returns, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise OptionError("expected a finite return for each row; look at the rows' rewards")
    rows = _labels("groups", groups, len(values))
    units, unit_values, within = rows, values, np.zeros(0)
    if over == "trajectories":
        if trajectories is None:
            raise OptionError("expected the trajectory of each row, found None; give trajectories")
        members = _labels("trajectories", trajectories, len(values))
        pairs = rows * (members.max(initial=0) + 1) + members
        _, first, unit = np.unique(pairs, return_index=True, return_inverse=True)
        units, unit_values = rows[first], _moments(values, unit)[0]
        within = _within(values - unit_values[unit], rows, units)
    mean, deviation, size = _moments(unit_values, units)
    deviation[: len(within)] = np.maximum(deviation[: len(within)], within)
    mean = np.where(size == 1, 0.0, mean)
    return values, mean[rows], deviation[rows], size[rows]


def _within(
    residuals: NDArray[np.float64], rows: NDArray[np.int64], units: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return each group's deviation of rows from their trajectories' means, pooled and unbiased."""
    size = np.bincount(rows)
    free = np.maximum(size - np.bincount(units, minlength=len(size)), 1)
    parts = np.split(residuals[np.argsort(rows, kind="stable")], np.cumsum(size)[:-1])
    squares = [math.fsum(part**2) for part in parts[: len(size)]]  # in any order the same
    found: NDArray[np.float64] = np.sqrt(np.array(squares) / free)
    return found


def _moments(
    values: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return mean, unbiased deviation (1 of a single value) and size of each label's values."""
    size = np.bincount(labels).astype(np.int64)
    mean, deviation = np.zeros(len(size)), np.ones(len(size))
    parts = np.split(values[np.argsort(labels, kind="stable")], np.cumsum(size)[:-1])
    for label, part in enumerate(parts if len(size) else ()):
        mean[label] = math.fsum(part) / len(part)
        if len(part) > 1:
            square = math.fsum((part - mean[label]) ** 2)
            deviation[label] = math.sqrt(square / (len(part) - 1))
    return mean, deviation, size


def _labels(what: str, numbers: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return the numbers of groups or trajectories, numbered anew from 0 without gaps."""
    found = np.asarray(numbers)
    if found.shape != (count,):
        raise OptionError(f"expected {what} of {count} rows, found the shape {found.shape}")
    return np.unique(found, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise OptionError(f"there is no {what} {value!r}; {suggest(str(value), known)}")


def _above_zero(epsilon: float) -> None:
    if not epsilon > 0:
        raise OptionError(f"epsilon must be above 0, not {epsilon!r}")
