"""Returns and advantages of an update's rows: GRPO, RLOO, GiGPO, and PPO's of tokens.

Those of rows are pure functions of all rows of whole task groups. Sums are rounded once, at their
end, so that an advantage does not depend on the order of the rows, to the last bit; only the grouping
of similar anchors does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import numpy as np

from ...errors import OptionError
from .config import GiGPOMode, Over

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from .rows import PaWRow


def row_returns(rows: Sequence[PaWRow], penalty: float) -> NDArray[np.float64]:
    """Return each row's whole episode return, less `penalty` if its reply is invalid."""
    found = np.array([row.episode_return - penalty * (not row.valid) for row in rows], np.float64)
    if not np.isfinite(found).all():
        raise OptionError(
            "expected a finite return for each row; look at the environment's rewards"
        )
    return found


def step_returns(rows: Sequence[PaWRow], gamma: float, penalty: float) -> NDArray[np.float64]:
    """Return each row's discounted sum of its own and later rewards, less its own penalty.

    ``R_t = sum over k >= t of gamma^(k-t) r_k``, minus `penalty` if the step's reply is invalid; a
    later step's penalty does not reach back (GiGPO, section 4.3).
    """
    returns = np.zeros(len(rows))
    after: PaWRow | None = None
    running = 0.0
    for index in sorted(range(len(rows)), key=lambda i: (rows[i].trajectory, -rows[i].t)):
        row = rows[index]
        if after is None or after.trajectory != row.trajectory:
            running = row.reward
        else:
            running = running * gamma ** (after.t - row.t) + row.reward
        returns[index] = running - penalty * (not row.valid)
        after = row
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
    values, mean, deviation, _ = _against(returns, groups, trajectories, over)
    return (values - mean) / (deviation + epsilon)


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
    over: Over = "rows",
    epsilon: float = 1e-6,
) -> NDArray[np.float64]:
    """Return ``episode + omega * step``: against the group's episodes, and against the same state.

    The episode part is GRPO's advantage. Its mean and deviation are over all rows of a group by default,
    as in the code that PaW builds on (``compute_mean_std_cross_steps``); GiGPO's paper has them over
    trajectories.
    """
    groups = [row.group for row in rows]
    members = [row.trajectory for row in rows]
    values, mean, deviation, _ = _against(row_returns(rows, penalty), groups, members, over)
    scaled = mode == "mean_std_norm"
    episode = (values - mean) / (deviation + epsilon if scaled else 1.0)
    steps = step_returns(rows, gamma, penalty)
    anchors = anchor_groups(rows, similarity)
    mean, deviation, _ = _moments(steps, anchors)
    step = (steps - mean[anchors]) / (deviation[anchors] + epsilon if scaled else 1.0)
    total: NDArray[np.float64] = episode + omega * step
    return total


def anchor_groups(rows: Sequence[PaWRow], similarity: float | None = None) -> NDArray[np.int64]:
    """Return the anchor group of each row, numbered as they appear: the same state of the same task.

    Rows of one task group share an anchor group if their raw observations are the same text. With a
    `similarity` a text joins the first anchor group whose first text it is as similar to, in the
    order of the rows, or else opens one; the measure is the ratio of `difflib.SequenceMatcher` with
    its defaults, as upstream has it.
    """
    known: dict[tuple[int, str], int] = {}
    opened: dict[int, list[tuple[SequenceMatcher[str], int]]] = {}
    count = 0
    for row in rows:
        if (row.group, row.anchor) in known:
            continue
        anchor, matchers = None, opened.setdefault(row.group, [])
        if similarity is not None:
            for matcher, number in matchers:
                matcher.set_seq1(row.anchor)
                bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
                if all(bound() >= similarity for bound in bounds):  # upper bounds first: cheaper
                    anchor = number
                    break
            else:  # a matcher analyzes its second text once, the first anew each time
                matchers.append((SequenceMatcher(None, "", row.anchor), count))
        if anchor is None:
            anchor, count = count, count + 1
        known[row.group, row.anchor] = anchor
    return np.array([known[row.group, row.anchor] for row in rows], np.int64)


def _against(
    returns: ArrayLike, groups: ArrayLike, trajectories: ArrayLike | None, over: Over
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return each row's return, and the mean, deviation and size of what it is compared with."""
    values = np.asarray(returns, np.float64)
    rows = _numbered(groups)
    units, unit_values, within = rows, values, np.zeros(0)
    if over == "trajectories":
        assert trajectories is not None
        members = _numbered(trajectories)
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
    squares = [math.fsum(part**2) for part in _parts(residuals, rows, size)]
    deviations: NDArray[np.float64] = np.sqrt(np.array(squares) / free)
    return deviations


def _moments(
    values: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return mean, unbiased deviation (1 of a single value) and size of each label's values."""
    size = np.bincount(labels).astype(np.int64)
    mean, deviation = np.zeros(len(size)), np.ones(len(size))
    for label, part in enumerate(_parts(values, labels, size)):
        mean[label] = math.fsum(part) / len(part)
        if len(part) > 1:
            square = math.fsum((part - mean[label]) ** 2)
            deviation[label] = math.sqrt(square / (len(part) - 1))
    return mean, deviation, size


def _parts(
    values: NDArray[np.float64], labels: NDArray[np.int64], size: NDArray[np.int64]
) -> list[NDArray[np.float64]]:
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
    kept = mask.bool()
    rewards, values = (each.detach().masked_fill(~kept, 0.0) for each in (rewards, values))
    advantages = values.new_zeros(values.shape)
    following = running = values.new_zeros(len(values))
    for token in reversed(range(values.shape[1])):
        here, value = kept[:, token], values[:, token]
        advantage = rewards[:, token] + gamma * following - value + gamma * lam * running
        running, following = advantage.where(here, running), value.where(here, following)
        advantages[:, token] = advantage.masked_fill(~here, 0.0)
    return advantages, advantages + values


def whiten(
    advantages: Tensor, mask: Tensor, total: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return advantages with mean 0 and variance 1 over the tokens of the mask, and 0 outside of it.

    The variance is unbiased, and 1e-8 is added to it, as in the code that PaW builds on.
    """
    kept = mask.bool()
    sums = advantages.new_zeros(2)
    sums[0], sums[1] = advantages.masked_fill(~kept, 0.0).sum(), kept.sum()
    sums = sums if total is None else total(sums)
    centered = (advantages - sums[0] / sums[1].clamp(min=1)).masked_fill(~kept, 0.0)
    square = centered.square().sum()
    square = square if total is None else total(square)
    return centered * (square / (sums[1] - 1).clamp(min=1) + 1e-8).rsqrt()
