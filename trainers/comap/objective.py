"""CoMap's losses as equations of named tensors (CoMap, eq. 6 and 8), and what they are made of.

`CoMapTrainer` fills `RowTensors` from one forward pass over a micro-batch and calls the role's objective,
which is the only place where terms are added.

With a vocabulary of 150,000 tokens the logits of a few thousand positions do not fit into memory, so
divergences are computed in chunks of positions; the backward pass computes most of them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...errors import OptionError
from ..memory import kept_logits
from ..row_trainer import in_chunks, precise
from .config import Distillation

Divergence: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""How far the student is from the teacher at each of N positions: (N, V) logits of both to (N,)."""


@dataclass(frozen=True, slots=True)
class RowTensors:
    """What the loss of B rows is made of: T tokens of replies and L of rollouts, padded.

    Attributes:
        logps: (B, T), log-probabilities of each reply's tokens, with gradients.
        mask: (B, T), 1 at the tokens that carry loss.
        divergences: (B, L), D(sg[p_T] || p_S) at each token of the student's rollout.
        rollout: (B, L), 1 at the tokens of the rollout.
        p: (B,), the probability of a revision, with gradients.
        y: (B,), its label, 0 or 1.
        labeled: (B,), whether there is a label.
        expert: (B,), whether the row is a demonstration.
        weights: (B,), what makes a sum over the rows the mean of eq. 6 or the two means of eq. 8.
    """

    logps: Tensor
    mask: Tensor
    divergences: Tensor
    rollout: Tensor
    p: Tensor
    y: Tensor
    labeled: Tensor
    expert: Tensor
    weights: Tensor

    @property
    def nll(self) -> Tensor:
        """(B,), the mean negative log-likelihood of each reply's scored tokens; 0 without any."""
        return -_mean(self.logps, self.mask)

    @property
    def kl(self) -> Tensor:
        """(B,), the mean divergence over each rollout's tokens; 0 without a rollout."""
        return _mean(self.divergences, self.rollout)

    @property
    def bce(self) -> Tensor:
        """(B,), the binary cross-entropy of p and y; 0 without a label."""
        # Of p = 0 or 1 the logarithm is infinite, and times a label of 0 no number.
        p = self.p.clamp(_ROUNDING, 1 - _ROUNDING)
        entropy = -(self.y * p.log() + (1 - self.y) * (1 - p).log())
        return entropy.where(self.labeled, 0.0)


Objective: TypeAlias = Callable[[RowTensors], Tensor]
"""The loss of a micro-batch's rows, summed over them."""


def world_model_objective(rows: RowTensors, *, eta: float) -> Tensor:
    """Return the world model's loss, ``CE + eta KL`` (CoMap, eq. 6).

    CE is the negative log-likelihood of the real next state, KL the mean divergence of teacher and
    student on the student's own rollout: world-model self-distillation.

    Args:
        rows: Transitions.
        eta: Weight of the self-distillation.

    Example:
        >>> one, none = torch.ones(1, 1), torch.zeros(1)
        >>> row = RowTensors(-one, one, 2 * one, one, none, none, none > 0, none > 0, none + 1)
        >>> float(world_model_objective(row, eta=0.5))
        2.0
    """
    return (rows.weights * (rows.nll + eta * rows.kl)).sum()


def policy_objective(
    rows: RowTensors, *, alpha: float = 1.0, beta: float = 0.01, anchor: float = 1.0
) -> Tensor:
    """Return the policy's loss, ``NLL + alpha (NLL_ref + beta BCE)`` (CoMap, eq. 8).

    NLL is the mean over demonstrations, NLL_ref and BCE the means over reflections.

    Args:
        rows: Demonstrations and reflections.
        alpha: Weight of the reflections.
        beta: Weight of the refinement probability's loss.
        anchor: Weight of the demonstrations (ours; 1 in the paper).

    Example:
        >>> one, half = torch.ones(2, 1), torch.full((2,), 0.5)
        >>> flags = torch.tensor([True, False])
        >>> rows = RowTensors(-one, one, one, 0 * one, half, 2 * half, ~flags, flags, 2 * half)
        >>> round(float(policy_objective(rows, alpha=2.0, beta=1.0)), 4)
        4.3863
    """
    # The weights make a mean of each of the two kinds over the update (`RowTensors`): kinds that are not
    # equally frequent count alike.
    expert_weights = rows.weights * rows.expert
    reflection_weights = rows.weights * ~rows.expert
    nll = (expert_weights * rows.nll).sum()
    nll_ref = (reflection_weights * rows.nll).sum()
    bce = (reflection_weights * rows.bce).sum()
    return anchor * nll + alpha * (nll_ref + beta * bce)


LEAST = -1e4
"""The smallest log-probability that is distinguished: a token that a model rules out has this one, so
that the divergence from a model which does not rule it out is large, but a number."""

_TABLES = 8  # of the size of the logits are kept for the gradient of a divergence

_ROUNDING = 1e-6  # p is at least so far from 0 and 1, where its logarithms are computed


def divergence(
    student_logits: Tensor, teacher_logits: Tensor, config: Distillation | None = None
) -> Tensor:
    """Return how far the student is from the teacher at each position, in nats.

    ``forward_kl`` is KL(p_T || p_S), ``reverse_kl`` is KL(p_S || p_T), and ``jsd`` is
    (1-a) KL(p_S || m) + a KL(p_T || m) with m = (1-a) p_S + a p_T. Computed in single precision at
    least, in double where a model is. No gradient reaches the teacher.

    Args:
        student_logits: Positions by tokens.
        teacher_logits: Positions by tokens.
        config: Which divergence, at which temperature, of which tokens; None for the defaults.

    Returns:
        One number for each position.

    Raises:
        OptionError: The shapes differ.

    Example:
        >>> student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
        >>> kinds = "forward_kl", "reverse_kl", "jsd"
        >>> of = [divergence(student, teacher, Distillation(divergence=kind)) for kind in kinds]
        >>> [round(float(value), 4) for value in of]
        [0.3681, 0.5108, 0.1017]
    """
    config = config or Distillation()
    if student_logits.shape != teacher_logits.shape:
        raise OptionError(
            f"expected logits of one shape, found {tuple(student_logits.shape)} of the student and "
            f"{tuple(teacher_logits.shape)} of the teacher; use models with the same vocabulary"
        )
    student, teacher = precise(student_logits, teacher_logits.detach())
    student = student / config.distill_temperature
    teacher = teacher / config.distill_temperature
    if config.topk is not None and config.topk < student.shape[-1]:
        top_tokens = student.detach().topk(config.topk, dim=-1).indices
        student = _with_bucket(student, top_tokens)
        teacher = _with_bucket(teacher, top_tokens)

    # A token that one model rules out has minus infinity, of which a divergence is no number.
    log_s = student.log_softmax(-1).clamp(min=LEAST)
    log_t = teacher.log_softmax(-1).clamp(min=LEAST)

    if config.divergence == "forward_kl":
        return _kl(log_t, log_s)
    if config.divergence == "reverse_kl":
        return _kl(log_s, log_t)

    # The generalized Jensen-Shannon divergence; the mixture in logarithms, which do not underflow.
    a = config.jsd_alpha
    mixture = (log_s + math.log1p(-a)).logaddexp(log_t + math.log(a))
    return (1 - a) * _kl(log_s, mixture) + a * _kl(log_t, mixture)


def chunked_divergences(
    student_hidden: Tensor,
    teacher_hidden: Tensor,
    student_head: Any,
    teacher_head: Any,
    compare: Divergence,
    chunk: int,
    kept: int | None = None,
) -> Tensor:
    """Return the divergence at each position, (N,), with the logits of one chunk in memory at a time.

    Only the first `kept` positions, as many as `kept_logits` has room for, keep what the backward pass
    needs; it computes the others' logits again. Value and gradients are those of the whole computed at
    once. Heads make logits of the hidden states of each position by itself; no gradient reaches the
    teacher's.
    """

    def divergences_of_chunk(student: Tensor, teacher: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_logits = teacher_head(teacher)
        return compare(student_head(student), teacher_logits)

    if kept is None:
        kept = kept_logits(student_hidden.device) // (_TABLES * len(student_head.weight))
    return in_chunks(
        divergences_of_chunk, student_hidden, teacher_hidden.detach(), chunk=chunk, kept=kept
    )


def ema_update(teacher: Sequence[Tensor], student: Sequence[Tensor], mu: float) -> None:
    """Move the teacher's weights towards the student's: teacher <- mu teacher + (1-mu) student.

    It is done in place and without gradients. Matrices of adapters are averaged each by itself (the
    average of products is not the product of averages). The teacher's weights should have single
    precision at least; in half precision a step of one per cent is often rounded away.

    Args:
        teacher: The teacher's weights.
        student: The student's, in the same order and shapes.
        mu: How much of the teacher stays, 0 to 1.

    Example:
        >>> teacher, student = [torch.tensor([1.0, 0.0])], [torch.tensor([0.0, 1.0])]
        >>> ema_update(teacher, student, 0.75)
        >>> teacher[0].tolist()
        [0.75, 0.25]
    """
    teacher = list(teacher)
    student = list(student)
    pairs = list(zip(teacher, student, strict=True))
    with torch.no_grad():
        # All weights in one call, where they are alike; one by one is slow on a GPU.
        if teacher and all(t.dtype == s.dtype and t.device == s.device for t, s in pairs):
            torch._foreach_lerp_(teacher, student, 1 - mu)
            return
        for teacher_weight, student_weight in pairs:
            student_weight = student_weight.to(teacher_weight.device, teacher_weight.dtype)
            teacher_weight.lerp_(student_weight, 1 - mu)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return each line's mean over its masked values; 0 without any."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the sum of p (log p - log q) over the last dimension."""
    p = log_p.exp()
    q = log_q.exp()
    # The sum of p - q is 0, but for rounding: taking it away makes each term positive.
    return (p * (log_p - log_q) - (p - q)).sum(-1)


def _with_bucket(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities of some tokens, then that of all others together."""
    # Summed over the others themselves: 1 minus the sum of the kept is all rounding where that is near 1.
    lowest = torch.finfo(logits.dtype).min
    others = logits.scatter(-1, tokens, lowest).logsumexp(-1, keepdim=True)
    return torch.cat([logits.gather(-1, tokens), others], dim=-1).log_softmax(-1)
