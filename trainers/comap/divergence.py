"""World-model self-distillation: the divergence of student and teacher, and the moving average.

CoMap, eq. 6: E[1/L sum_j D(sg[p_T(. | s, a, s_env, s'_<j)] || p_S(. | s, a, s'_<j))]. With a vocabulary
of 150,000 tokens the logits of a few thousand positions do not fit into memory, so the divergence is
summed over chunks of positions, whose logits the backward pass computes again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...errors import OptionError
from ..row_trainer import precise, recomputed
from .config import Distillation

LEAST = -1e4
"""The smallest log-probability that is told apart: a token that a model rules out has this one, so
that the divergence from a model which does not rule it out is large, but a number."""


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
    student, teacher = student / config.distill_temperature, teacher / config.distill_temperature
    if config.topk is not None and config.topk < student.shape[-1]:
        top = student.detach().topk(config.topk, dim=-1).indices
        student, teacher = _with_bucket(student, top), _with_bucket(teacher, top)
    log_s, log_t = (logits.log_softmax(-1).clamp(min=LEAST) for logits in (student, teacher))
    if config.divergence == "forward_kl":
        return _kl(log_t, log_s)
    if config.divergence == "reverse_kl":
        return _kl(log_s, log_t)
    a = config.jsd_alpha
    mixture = (log_s + math.log1p(-a)).logaddexp(log_t + math.log(a))
    return (1 - a) * _kl(log_s, mixture) + a * _kl(log_t, mixture)


def chunked_divergence(
    student_hidden: Tensor,
    teacher_hidden: Tensor,
    student_head: Callable[[Tensor], Tensor],
    teacher_head: Callable[[Tensor], Tensor],
    config: Distillation,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the weighted sum of `divergence` over positions, with the logits of one chunk at a time.

    Value and gradients are those of the whole computed at once. Heads make logits of the hidden
    states of each position by itself; no gradient reaches the teacher's.
    """

    def part(student: Tensor, teacher: Tensor, weight: Tensor | None) -> Tensor:
        with torch.no_grad():
            target = teacher_head(teacher)
        found = divergence(student_head(student), target, config)
        return (found if weight is None else weight.to(found.dtype) * found).sum()

    parts = [
        recomputed(
            part,
            student_hidden[start : start + config.chunk],
            teacher_hidden[start : start + config.chunk].detach(),
            None if weights is None else weights[start : start + config.chunk],
        )
        for start in range(0, len(student_hidden), config.chunk)
    ]
    return torch.stack(parts).sum() if parts else precise(student_hidden)[0].sum()


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
    teacher, student = list(teacher), list(student)
    with torch.no_grad():
        pairs = list(zip(teacher, student, strict=True))
        if teacher and all(t.dtype == s.dtype and t.device == s.device for t, s in pairs):
            torch._foreach_lerp_(teacher, student, 1 - mu)
            return
        for one, other in pairs:
            one.lerp_(other.to(one.device, one.dtype), 1 - mu)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the sum of p (log p - log q) over the last dimension."""
    p, q = log_p.exp(), log_q.exp()
    return (p * (log_p - log_q) - (p - q)).sum(-1)


def _with_bucket(logits: Tensor, top: Tensor) -> Tensor:
    """Return the log-probabilities of some tokens, then that of all others together."""
    # Summed over the others themselves: 1 minus the sum of the kept is all rounding where that is near 1.
    lowest = torch.finfo(logits.dtype).min
    others = logits.scatter(-1, top, lowest).logsumexp(-1, keepdim=True)
    return torch.cat([logits.gather(-1, top), others], dim=-1).log_softmax(-1)
