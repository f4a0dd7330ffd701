"""Returns and advantages of an update's rows: GRPO, RLOO, GiGPO, and PPO's of tokens.

Those of rows are pure functions of all rows of whole task groups. Sums are rounded once, at their
end, so that an advantage does not depend on the order of the rows, to the last bit; only the grouping
of similar anchors does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import OptionError
from .config import GiGPOMode, Over

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from .rows import PaWRow


def row_returns(rows: Sequence[PaWRow], penalty: float) -> NDArray[np.float64]:
    """Return each row's whole episode return, less `penalty` if its reply is invalid."""
    returns = np.array([row.episode_return - penalty * (not row.valid) for row in rows], np.float64)
    if not np.isfinite(returns).all():
        raise OptionError(
            "expected a finite return for each row; look at the environment's rewards"
        )
    return returns


def step_returns(rows: Sequence[PaWRow], gamma: float, penalty: float) -> NDArray[np.float64]:
    """Return each row's discounted sum of its own and later rewards, less its own penalty.

    ``R_t = sum over k >= t of gamma^(k-t) r_k``, minus `penalty` if the step's reply is invalid; a
    later step's penalty does not reach back (GiGPO, section 4.3).
    """
    returns = np.zeros(len(rows))
    later_row: PaWRow | None = None
    discounted = 0.0

    # From the last step of each episode to its first; t may have gaps.
    for index in sorted(range(len(rows)), key=lambda i: (rows[i].trajectory, -rows[i].t)):
        row = rows[index]
        if later_row is None or later_row.trajectory != row.trajectory:
            discounted = row.reward
        else:
            discounted = discounted * gamma ** (later_row.t - row.t) + row.reward
        returns[index] = discounted - penalty * (not row.valid)
        later_row = row
    return returns


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
    the mean of its rows', which differs from it only by penalties. Where trajectories differ less
    than the rows within them do, by penalties alone, the deviation is that within them: upstream
    divides by 0.000001 where they are equal, and a penalty outweighs all other groups.
    """
    compared = _compared(returns, groups, trajectories, over)
    return (compared.returns - compared.mean) / (compared.deviation + epsilon)


def rloo_advantages(
    returns: ArrayLike,
    groups: ArrayLike,
    *,
    trajectories: ArrayLike | None = None,
    over: Over = "rows",
) -> NDArray[np.float64]:
    """Return ``n/(n-1) (R - mean)`` within task groups: R less the mean of the others.

    A group's only member keeps its return.
    """
    compared = _compared(returns, groups, trajectories, over)
    size = compared.size
    return (compared.returns - compared.mean) * size / np.maximum(size - 1, 1)


def gigpo_advantages(
    rows: Sequence[PaWRow],
    *,
    omega: float = 1.0,
    gamma: float = 0.95,
    mode: GiGPOMode = "mean_std_norm",
    similarity: float | None = None,
    penalty: float = 0.1,
    over: Over = "rows",
    epsilon: float = 1e-6,
) -> NDArray[np.float64]:
    """Return ``episode + omega * step``: against the group's episodes, and against the same state.

    The episode part is GRPO's advantage. Its mean and deviation are over all rows of a group by default,
    as in the code that PaW builds on (``compute_mean_std_cross_steps``); GiGPO's paper has them over
    trajectories.
    """
    # Two comparisons: whole episodes of a task, and actions that were taken in one and the same state.
    groups = [row.group for row in rows]
    trajectories = [row.trajectory for row in rows]
    compared = _compared(row_returns(rows, penalty), groups, trajectories, over)
    anchors = anchor_groups(rows, similarity)
    steps = step_returns(rows, gamma, penalty)
    mean, deviation, _ = _moments(steps, anchors)

    episode_part = compared.returns - compared.mean
    step_part = steps - mean[anchors]
    if mode == "mean_std_norm":
        episode_part = episode_part / (compared.deviation + epsilon)
        step_part = step_part / (deviation[anchors] + epsilon)
    total: NDArray[np.float64] = episode_part + omega * step_part
    return total


def anchor_groups(rows: Sequence[PaWRow], similarity: float | None = None) -> NDArray[np.int64]:
    """Return the anchor group of each row, numbered as they appear: the same state of the same task.

    Rows of one task group share an anchor group if their raw observations are the same text. With a
    `similarity` a text joins the first anchor group whose first text it is as similar to, in the
    order of the rows, or else opens one; the measure is the ratio of `difflib.SequenceMatcher` with
    its defaults, as upstream has it.
    """
    number_of: dict[tuple[int, str], int] = {}
    matchers_of: dict[int, list[tuple[SequenceMatcher[str], int]]] = {}
    count = 0
    for row in rows:
        if (row.group, row.anchor) in number_of:
            continue

        number = None
        matchers = matchers_of.setdefault(row.group, [])
        if similarity is not None:
            number = _first_similar(row.anchor, matchers, similarity)
        if number is None:
            number = count
            count += 1
            if similarity is not None:
                # A matcher analyzes its second text once, the first anew each time.
                matchers.append((SequenceMatcher(None, "", row.anchor), number))
        number_of[row.group, row.anchor] = number
    return np.array([number_of[row.group, row.anchor] for row in rows], np.int64)


def _first_similar(
    text: str, matchers: Sequence[tuple[SequenceMatcher[str], int]], similarity: float
) -> int | None:
    """Return the number of the first anchor group that a text is similar to, if any is."""
    for matcher, number in matchers:
        matcher.set_seq1(text)
        bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
        if all(bound() >= similarity for bound in bounds):  # upper bounds first: cheaper
            return number
    return None


class _Compared(NamedTuple):
    """Each row's return, and the mean, deviation and size of what it is compared with, (N,) each."""

    returns: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    size: NDArray[np.int64]


def _compared(
    returns: ArrayLike, groups: ArrayLike, trajectories: ArrayLike | None, over: Over
) -> _Compared:
    """Compare each row's return with those of its group: of all rows, or of each trajectory once."""
    values = np.asarray(returns, np.float64)
    group_of_row = _numbered(groups)

    if over == "rows":
        mean, deviation, size = _moments(values, group_of_row)
    else:
        # A number of a trajectory in another group is another trajectory.
        assert trajectories is not None
        trajectory_of_row = _numbered(trajectories)
        pairs = group_of_row * (trajectory_of_row.max(initial=0) + 1) + trajectory_of_row
        _, first_row, unit_of_row = np.unique(pairs, return_index=True, return_inverse=True)
        group_of_unit = group_of_row[first_row]
        unit_mean, _, _ = _moments(values, unit_of_row)

        mean, deviation, size = _moments(unit_mean, group_of_unit)
        residuals = values - unit_mean[unit_of_row]
        deviation = np.maximum(deviation, _within(residuals, group_of_row, group_of_unit))

    # As upstream: who is alone keeps its return, where comparing it with itself would make it 0.
    mean = np.where(size == 1, 0.0, mean)
    return _Compared(values, mean[group_of_row], deviation[group_of_row], size[group_of_row])


def _within(
    residuals: NDArray[np.float64], rows: NDArray[np.int64], units: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return each group's deviation of rows from their trajectories' means, pooled and unbiased."""
    size = np.bincount(rows)
    degrees_of_freedom = np.maximum(size - np.bincount(units, minlength=len(size)), 1)
    residuals_by_group = _by_label(residuals, rows, size)
    squares = [math.fsum(group_residuals**2) for group_residuals in residuals_by_group]
    deviations: NDArray[np.float64] = np.sqrt(np.array(squares) / degrees_of_freedom)
    return deviations


def _moments(
    values: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return mean, unbiased deviation (1 of a single value) and size of each label's values."""
    size = np.bincount(labels).astype(np.int64)
    mean = np.zeros(len(size))
    deviation = np.ones(len(size))
    for label, label_values in enumerate(_by_label(values, labels, size)):
        mean[label] = math.fsum(label_values) / len(label_values)
        if len(label_values) > 1:
            square = math.fsum((label_values - mean[label]) ** 2)
            deviation[label] = math.sqrt(square / (len(label_values) - 1))
    return mean, deviation, size


def _by_label(
    values: NDArray[np.float64], labels: NDArray[np.int64], size: NDArray[np.int64]
) -> list[NDArray[np.float64]]:
    """Return the values of each label, in their order."""
    # Stable: sums of rows in their order are the same to the bit, however the groups are numbered.
    ordered = values[np.argsort(labels, kind="stable")]
    return np.split(ordered, np.cumsum(size)[:-1])[: len(size)]


def _numbered(labels: ArrayLike) -> NDArray[np.int64]:
    """Return the numbers of groups or trajectories, numbered anew from 0 without gaps."""
    return np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1).astype(np.int64)


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Return PPO's generalized advantage estimates and the critic's targets of each token.

    ``delta_i = r_i + gamma V_(i+1) - V_i`` and ``A_i = delta_i + gamma lam A_(i+1)`` run along the
    tokens of a row's response; after its last token there is nothing. Tokens outside of the mask
    are skipped. No gradient flows through the result. All tensors are (B, T).
    """
    in_mask = mask.bool()
    rewards = rewards.detach().masked_fill(~in_mask, 0.0)
    values = values.detach().masked_fill(~in_mask, 0.0)
    advantages = values.new_zeros(values.shape)
    next_advantage = values.new_zeros(len(values))
    next_value = values.new_zeros(len(values))

    for token in reversed(range(values.shape[1])):
        is_response = in_mask[:, token]
        value = values[:, token]
        delta = rewards[:, token] + gamma * next_value - value
        advantage = delta + gamma * lam * next_advantage
        advantages[:, token] = advantage.masked_fill(~is_response, 0.0)

        # What is not of the response is passed over.
        next_advantage = advantage.where(is_response, next_advantage)
        next_value = value.where(is_response, next_value)
    return advantages, advantages + values


def whiten(
    advantages: Tensor, mask: Tensor, total: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return advantages with mean 0 and variance 1 over the tokens of the mask, and 0 outside of it.

    The variance is unbiased, and 1e-8 is added to it, as in the code that PaW builds on. `total` adds a
    tensor up over all processes; None for one.
    """
    in_mask = mask.bool()
    sums = advantages.new_zeros(2)
    sums[0] = advantages.masked_fill(~in_mask, 0.0).sum()
    sums[1] = in_mask.sum()
    if total is not None:
        sums = total(sums)
    sum_of_advantages, count = sums

    centered = (advantages - sum_of_advantages / count.clamp(min=1)).masked_fill(~in_mask, 0.0)
    squares = centered.square().sum()
    if total is not None:
        squares = total(squares)
    return centered * (squares / (count - 1).clamp(min=1) + 1e-8).rsqrt()
