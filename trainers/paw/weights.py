"""How much each row's observation loss counts in the loss of the update (METHODS.md 2.4 and 2.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["adaptive_coefficients", "row_weights"]


def adaptive_coefficients(
    returns_by_trajectory: ArrayLike,
    groups_by_trajectory: ArrayLike,
    r_max: float,
    *,
    enabled: bool = True,
    count: int | None = None,
) -> NDArray[np.float64]:
    """Return each group's lambda, ``1 - mean return / r_max``, within 0 and 1 (METHODS.md 2.4; eq. 10).

    The better the policy does at a task, the less it learns of what its actions lead to.

    Args:
        returns_by_trajectory: Raw episode returns, without penalties, one a trajectory.
        groups_by_trajectory: The group of each trajectory, from 0.
        r_max: The greatest return there is, above 0.
        enabled: Else every lambda is 1: the ablation "w/o Ada. Coef.".
        count: The number of groups; None is the greatest number that occurs, plus 1.

    Returns:
        (G,). A group without trajectories has 0.

    Raises:
        OptionError: `r_max` is not above 0, lengths differ, a return is no finite number, or a group
            is below 0 or not below `count`.

    Example:
        >>> adaptive_coefficients([10.0, 0.0, 0.0, 10.0], [0, 0, 0, 0], 10.0).tolist()
        [0.5]
    """
    if not r_max > 0:
        raise OptionError(f"r_max must be above 0, not {r_max!r}")
    returns = np.asarray(returns_by_trajectory, np.float64)
    if not np.isfinite(returns).all():
        raise OptionError("expected a finite return for each trajectory; look at the rewards")
    groups = _numbers(groups_by_trajectory, returns.shape, count)
    sizes = np.bincount(groups, minlength=count or 0)
    if not enabled:
        return np.where(sizes > 0, 1.0, 0.0)
    sums = np.bincount(groups, weights=returns, minlength=len(sizes))
    found = np.clip(1 - sums / np.maximum(sizes, 1) / r_max, 0.0, 1.0)
    return np.where(sizes > 0, found, 0.0)


def row_weights(
    selected: ArrayLike, groups: ArrayLike, coefficients: ArrayLike, *, wm_coef: float = 1.0
) -> NDArray[np.float64]:
    """Return ``wm_coef * lambda_g / (G |S_g|)`` for selected rows, and 0 for others (METHODS.md 2.5).

    The sum of row losses times these weights is the mean over all groups of lambda_g times the mean
    loss of the group's selected rows; a group without any counts in that mean with 0.

    Args:
        selected: Whether each row of the whole update is selected.
        groups: The group of each row, from 0.
        coefficients: (G,), lambda of each group.
        wm_coef: What all weights are multiplied by; not in the paper.

    Raises:
        OptionError: Lengths differ, or a row's group has no coefficient.

    Example:
        >>> row_weights([True, True, False, True], [0, 0, 0, 1], [0.5, 1.0]).tolist()
        [0.125, 0.125, 0.0, 0.5]
    """
    chosen = np.asarray(selected, np.bool_)
    factors = np.asarray(coefficients, np.float64)
    numbers = _numbers(groups, chosen.shape, len(factors))
    sizes = np.bincount(numbers[chosen], minlength=len(factors))
    each = wm_coef * factors / (max(len(factors), 1) * np.maximum(sizes, 1))
    return np.where(chosen, each[numbers], 0.0)


def _numbers(groups: ArrayLike, shape: tuple[int, ...], count: int | None) -> NDArray[np.int64]:
    """Return the groups as whole numbers from 0, one for each of as many things."""
    found = np.asarray(groups).astype(np.int64)
    if len(shape) != 1 or found.shape != shape:
        raise OptionError(f"expected a group for each of {shape}, found the shape {found.shape}")
    if len(found) and (found.min() < 0 or (count is not None and found.max() >= count)):
        raise OptionError(
            f"expected groups from 0 to {'any' if count is None else count - 1}, found "
            f"{found.min()} to {found.max()}"
        )
    return found
