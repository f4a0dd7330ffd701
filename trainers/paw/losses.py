"""The whole loss of an update (`objective`) and what it is made of, as functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ...envs.canon import tagged
from ...errors import OptionError
from ..processes import gathered
from .config import EntropyMode, LossKind, PaWTraining, PolicyOptimization, Selection
from .rows import overlapping

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

ObservationLoss: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""The loss of each row's observation, (B,): of (B, T) log-probabilities and their mask."""

Select: TypeAlias = "Callable[[NDArray[np.float64], NDArray[np.bool_]], ArrayLike]"
"""Which of N rows are selected, (N,): of their actions' entropies and of which have an observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """What the loss of B rows is made of, at the T tokens after their prompts, padded.

    Attributes:
        logps: (B, T), log-probabilities of the tokens, with gradients.
        old: (B, T), those before the update; None where the policy is still the same.
        reference: (B, T), those under the first policy; None without that term.
        entropies: (B, T), of the policy's distribution at each token of the response, with gradients;
            None where they have no weight and are not logged.
        advantages: (B,) of rows, or (B, T) of tokens.
        mask: (B, T), 1 at the response's tokens.
        tokens: How many of these the whole mini-batch has, over all processes.
        observed: (B, T), 1 at the observation's tokens.
        weights: (B,), of each row's loss on its observation.
    """

    logps: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None
    entropies: Tensor | None = None
    advantages: Tensor
    mask: Tensor
    tokens: int
    observed: Tensor
    weights: Tensor

    @property
    def token_advantages(self) -> Tensor:
        """(B, T), or (B, 1) where all tokens of a row have the same."""
        return self.advantages if self.advantages.dim() == 2 else self.advantages[:, None]


@dataclass(frozen=True, slots=True)
class Objective:
    """The terms of PaW's loss on some rows of a mini-batch, each with its weight."""

    policy: Tensor
    kl: Tensor
    entropy: Tensor
    world_model: Tensor
    ratio: Tensor  # (B, T), of each token's probabilities now and before, without gradient
    divergence: Tensor  # (B, T), of each token from the reference, without gradient
    observed: ObservationLosses | None = None

    @property
    def loss(self) -> Tensor:
        """The sum of all terms (PaW, eq. 11, with the terms that all algorithms have)."""
        return self.policy + self.kl + self.entropy + self.world_model


def objective(
    config: PaWTraining, inputs: LossInputs, *, wm_loss: ObservationLoss | None = None
) -> Objective:
    """Return PaW's loss on rows, its tokens' mean taken over the whole mini-batch (PaW, eq. 1 and 11).

    ``policy`` is -min(w A, clip(w, 1 - low, 1 + high) A) with w = pi / pi_old of each token, and at
    most -c A where A < 0 (dual clip), for GRPO, RLOO, GiGPO and PPO alike. ``kl`` is
    pi_ref / pi - log(pi_ref / pi) - 1, ``entropy`` that of the policy, and ``world_model`` the sum over
    rows of lambda_g / (G |S_g|) times the row's loss on its observation.

    Args:
        config: The settings: clip ranges, weights, and the loss on observations.
        inputs: The rows' tensors.
        wm_loss: Another loss on observations than `observation_losses`.
    """
    optimization = config.optimization
    logps = inputs.logps
    zero = logps.new_zeros(())

    def mean(values: Tensor) -> Tensor:
        return (values * inputs.mask).sum() / max(inputs.tokens, 1)

    # Where the policy has not moved yet, w is 1, and has the gradient of its logarithm.
    old = logps.detach() if inputs.old is None else inputs.old
    ratio = (logps - old).exp()
    clipped = ratio.clamp(1 - optimization.clip_low, 1 + optimization.clip_high)
    bounded = ratio if optimization.dual_clip is None else ratio.clamp(max=optimization.dual_clip)
    advantages = inputs.token_advantages
    policy = mean(-(bounded * advantages).minimum(clipped * advantages))

    divergence = logps.new_zeros(logps.shape)
    if inputs.reference is not None:
        log_ratio = inputs.reference - logps
        divergence = log_ratio.exp() - log_ratio - 1

    entropy = zero
    if optimization.entropy_bonus:
        assert inputs.entropies is not None
        entropy = -optimization.entropy_bonus * mean(inputs.entropies)

    world_model = zero
    observation = None
    if config.paw:
        loss = config.loss
        observation = observation_losses(logps, inputs.observed, kind=loss.wm_loss, rho=loss.rho)
        rows = observation.rows if wm_loss is None else wm_loss(logps, inputs.observed)
        world_model = (inputs.weights * rows).sum()

    return Objective(
        policy=policy,
        kl=optimization.kl * mean(divergence),
        entropy=entropy,
        world_model=world_model,
        ratio=ratio.detach(),
        divergence=divergence.detach(),
        observed=observation,
    )


@dataclass(frozen=True, slots=True)
class ObservationLosses:
    """The observation losses of rows, (B,) each, and statistics of their tokens."""

    rows: Tensor  # the losses, through which gradients flow
    clipped: Tensor  # tokens that have p > rho, whatever the loss
    probability: Tensor  # the sum of the tokens' probabilities
    nll: Tensor  # the sum of their negative log-likelihoods, in nats
    moderate: Tensor  # tokens whose p is .01 to rho: where cmae has a gradient, p (1 - p)
    tokens: Tensor  # how many tokens there are, |o|


def observation_losses(
    logps: Tensor, mask: Tensor, *, kind: LossKind = "cmae", rho: float = 0.2
) -> ObservationLosses:
    """Return each row's observation loss, ``sum of m_i (1 - p_i) / |o|`` (PaW, eq. 7-9).

    ``m_i = 1[p_i <= rho]`` leaves out the tokens that the model already predicts. It takes no part in
    the gradient, and the sum is divided by all tokens of the observation, not by those that are left.
    Since the gradient of 1 - p with respect to the token's logit is -p (1 - p), a token that cannot be
    predicted has next to none.

    `logps` and `mask` are (B, T). Kind ``cmae`` is as above, ``mae`` without m_i; ``clipped_ce`` and ``ce``
    have -log p_i. A row without tokens has 0.
    """
    observed = mask.bool()
    logps = _at_least_single(logps).masked_fill(~observed, 0.0)
    p = logps.exp()

    # Rounding brings the exponential of log(rho) to either side of rho; such a token is not above.
    above_rho = observed & (p.detach() > rho * (1 + 1e-6))
    learned = observed & ~above_rho if kind in ("cmae", "clipped_ce") else observed
    losses = 1 - p if kind in ("cmae", "mae") else -logps
    tokens = observed.sum(-1)

    return ObservationLosses(
        rows=losses.masked_fill(~learned, 0.0).sum(-1) / tokens.clamp(min=1),
        clipped=above_rho.sum(-1),
        probability=p.detach().masked_fill(~observed, 0.0).sum(-1),
        nll=-logps.detach().sum(-1),
        moderate=(observed & ~above_rho & (p.detach() >= 0.01)).sum(-1),
        tokens=tokens,
    )


def row_entropies(
    mode: EntropyMode, logps: Tensor, entropies: Tensor | None, mask: Tensor
) -> Tensor:
    """Return the mean entropy of each row's action tokens, in nats; -inf for a row without tokens.

    `logps`, `entropies` (needed for ``full`` alone) and `mask` are (B, T); see PaW, before eq. 4.
    """
    in_action = mask.bool()

    def action_values(values: Tensor) -> Tensor:
        return _at_least_single(values.detach().masked_fill(~in_action, 0.0))

    # All three are 0 outside of the action.
    if mode == "full":
        assert entropies is not None
        token_entropies = action_values(entropies)
    elif mode == "sampled_plogp":
        # A probability of 0 has the entropy 0; 0 times its infinite logarithm would be no number.
        action_logps = action_values(logps)
        token_entropies = -(action_logps.exp() * action_logps.clamp(min=-1e4))
    else:
        token_entropies = -action_values(logps)

    token_counts = in_action.sum(-1)
    mean_entropies = token_entropies.sum(-1) / token_counts.clamp(min=1)
    return mean_entropies.masked_fill(token_counts == 0, -math.inf)


def _at_least_single(values: Tensor) -> Tensor:
    """Return values in single precision, or in double where they are."""
    return values if values.dtype.itemsize > 4 else values.float()


def select_rows(
    entropies: ArrayLike,
    eligible: ArrayLike,
    share: float,
    *,
    how: Selection = "top",
    seed: int = 0,
) -> NDArray[np.bool_]:
    """Return which rows are selected: ``ceil(share * |P|)`` of the eligible ones (PaW, eq. 4)."""
    values = np.asarray(entropies, np.float64)
    candidates = np.flatnonzero(np.asarray(eligible, np.bool_))
    candidate_values = values[candidates]
    if np.isnan(candidate_values).any():
        raise OptionError("expected entropies that are numbers, found NaN; look at the model")

    if how == "random":
        order = np.random.default_rng(seed).permutation(len(candidates))
    else:
        # The sort is stable; rows without a token of an action, whose entropy is -inf, come last.
        sort_key = -candidate_values if how == "top" else candidate_values
        order = np.lexsort((sort_key, np.isneginf(candidate_values)))

    # As a fraction of what was written: 0.1 * 30 is above 3 in floating point.
    count = math.ceil(Fraction(repr(float(share))) * len(candidates))
    selected = np.zeros(len(values), np.bool_)
    selected[candidates[order[:count]]] = True
    return selected


def rank_correlation(a: ArrayLike, b: ArrayLike) -> float | None:
    """Return Spearman's rank correlation, equal values having their mean rank; None if undefined."""
    ranks = []
    for values in (np.asarray(a, np.float64), np.asarray(b, np.float64)):
        _, index, sizes = np.unique(values, return_inverse=True, return_counts=True)
        mean_rank = np.cumsum(sizes) - (sizes - 1) / 2
        ranks.append(mean_rank[index.reshape(-1)] - (len(values) + 1) / 2)

    x, y = ranks
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return max(-1.0, min(1.0, float(x @ y) / scale)) if scale else None


def adaptive_coefficients(
    returns_by_trajectory: ArrayLike,
    groups_by_trajectory: ArrayLike,
    r_max: float,
    *,
    enabled: bool = True,
    count: int | None = None,
) -> NDArray[np.float64]:
    """Return each group's lambda, ``1 - mean return / r_max``, from 0 to 1 (PaW, eq. 10).

    There are `count` groups, or as many as the highest number says. A group without trajectories has
    lambda 0. Where lambda is not `enabled`, all others have 1.
    """
    returns = np.asarray(returns_by_trajectory, np.float64)
    groups = np.asarray(groups_by_trajectory).astype(np.int64)
    sizes = np.bincount(groups, minlength=count or 0)
    has_trajectory = sizes > 0
    if not enabled:
        return np.where(has_trajectory, 1.0, 0.0)

    return_sums = np.bincount(groups, weights=returns, minlength=len(sizes))
    mean_returns = return_sums / np.maximum(sizes, 1)
    lambdas = np.clip(1 - mean_returns / r_max, 0.0, 1.0)
    return np.where(has_trajectory, lambdas, 0.0)


def row_weights(
    selected: ArrayLike, groups: ArrayLike, coefficients: ArrayLike, *, wm_coef: float = 1.0
) -> NDArray[np.float64]:
    """Return ``wm_coef * lambda_g / (G |S_g|)`` for selected rows, and 0 for others (PaW, eq. 11)."""
    is_selected = np.asarray(selected, np.bool_)
    lambdas = np.asarray(coefficients, np.float64)
    group = np.asarray(groups).astype(np.int64)
    sizes = np.bincount(group[is_selected], minlength=len(lambdas))
    group_weights = wm_coef * lambdas / (max(len(lambdas), 1) * np.maximum(sizes, 1))
    return np.where(is_selected, group_weights[group], 0.0)


def action_tokens(texts: Sequence[str]) -> list[bool]:
    """Return for each token of a reply, by its text, whether it is inside the first action tag."""
    spans = [(start, end) for _, start, end in tagged("".join(texts), "action", "search", "answer")]
    in_action = overlapping(texts, spans[:1])
    return in_action if any(in_action) else [True] * len(texts)


class Measures:
    """Means over an update's micro-batches and all processes (PaW, Figures 10 and 11)."""

    def __init__(self, accelerator: Any, config: PolicyOptimization) -> None:
        self._accelerator = accelerator
        self._config = config
        self._sums: dict[str, tuple[Tensor | float, Tensor | float]] = {}
        self._observed: list[tuple[Tensor, Tensor]] = []  # log-probabilities, and their masks

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        """Add a sum over so many things to a measure."""
        earlier_total, earlier_count = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (earlier_total + _double(total), earlier_count + _double(count))

    def add_micro_batch(self, terms: Objective, inputs: LossInputs) -> None:
        """Add the measures of a micro-batch."""
        mask = inputs.mask
        tokens = mask.sum()

        # The loss has no gradient where the ratio is beyond the bound that the advantage pulls it to.
        advantages = inputs.token_advantages
        too_low = (terms.ratio < 1 - self._config.clip_low) & (advantages < 0)
        too_high = (terms.ratio > 1 + self._config.clip_high) & (advantages > 0)
        self.add("clip_fraction", ((too_low | too_high) * mask).sum(), tokens)

        if inputs.entropies is not None:
            self.add("entropy", (inputs.entropies.detach() * mask).sum(), tokens)
        self.add("ratio", (terms.ratio * mask).sum(), tokens)
        self.add("policy_loss", terms.policy.detach() * inputs.tokens, tokens)
        if inputs.reference is not None:
            self.add("kl", (terms.divergence * mask).sum(), tokens)

        if terms.observed is not None:
            self._observed.append((inputs.logps.detach(), inputs.observed))
            observation = terms.observed
            count = observation.tokens.sum()
            self.add("wm_loss", observation.rows.detach().sum(), (observation.tokens > 0).sum())
            self.add("wm_clipped_ratio", observation.clipped.sum(), count)
            self.add("wm_probability", observation.probability.detach().sum(), count)
            self.add("wm_nll", observation.nll.sum(), count)
            self.add("wm_moderate", observation.moderate.sum(), count)

    def add_sampling_error(self, inputs: LossInputs, sampled: Tensor) -> None:
        """Add how far the policy's log-probabilities of responses, (B, T), are from those sampled."""
        errors = (inputs.logps.detach() - sampled).abs() * inputs.mask
        self.add("sampling_error", errors.sum(), inputs.mask.sum())

    def probabilities(self) -> Tensor:
        """Return the probability of each token of this process's observations, and start anew."""
        import torch

        if not self._observed:
            return torch.zeros(0)
        logps = torch.cat([values.flatten() for values, _ in self._observed]).cpu()
        masks = torch.cat([mask.flatten() for _, mask in self._observed]).cpu()
        self._observed.clear()
        return logps[masks.bool()].exp()

    def means(self) -> dict[str, float | None]:
        """Return the means, None of nothing, and start anew; all processes must call this."""
        import torch

        names = sorted(set(gathered(list(self._sums))))
        device = self._accelerator.device
        precise = torch.float32 if device.type == "mps" else torch.float64
        table = torch.zeros(len(names), 2, dtype=precise, device=device)
        for line, name in zip(table, names, strict=True):
            for column, number in enumerate(self._sums.get(name, ())):
                line[column] = number
        self._sums = {}
        totals = self._accelerator.reduce(table, "sum").tolist()

        means: dict[str, float | None] = {}
        for name, (total, count) in zip(names, totals, strict=True):
            means[name] = total / count if count else None
        return means


def _double(number: Tensor | float) -> Tensor | float:
    return number if isinstance(number, int | float) else number.double()
