"""Divergences of next-token distributions, and losses that never hold the logits of a whole sequence.

With a vocabulary of 150,000 tokens the logits of a few thousand positions do not fit into memory, and
a loss needs several tensors of that size. So a loss is summed over chunks of positions, and the
backward pass computes the logits of each chunk again (METHODS.md 1.7, items 2 and 3). torch is imported
when a function is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtra, OptionError, suggest

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["KINDS", "TAILS", "chunked_divergence", "chunked_nll", "divergence"]

KINDS = ("forward_kl", "reverse_kl", "jsd")
"""KL(teacher || student), KL(student || teacher), and the generalised Jensen-Shannon divergence."""

TAILS = ("bucket", "renormalise")
"""What is done with the tokens outside of the top K: they count as one token, or are left out."""

LEAST = -1e4
"""The smallest log-probability that is told apart: a token that a model rules out has this one, so
that the divergence from a model which does not rule it out is large, but a number."""


def divergence(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    kind: str = "forward_kl",
    alpha: float = 0.5,
    temperature: float = 1.0,
    topk: int | None = None,
    tail: str = "bucket",
) -> Tensor:
    """Return how far the student is from the teacher at each position, in nats.

    Computed in single precision at least, in double where a model is. No gradient reaches the
    teacher.

    Args:
        student_logits: Positions by tokens.
        teacher_logits: Positions by tokens.
        kind: One of `KINDS` (METHODS.md 1.7, item 3).
        alpha: The teacher's share in the mixture of ``jsd``: m = (1-alpha) p_S + alpha p_T, and the
            divergence is (1-alpha) KL(p_S || m) + alpha KL(p_T || m).
        temperature: Both models' logits are divided by it; the result is not scaled back.
        topk: If not None, only so many tokens are told apart: those that the student finds most
            probable.
        tail: One of `TAILS`: what becomes of all others.

    Returns:
        One number for each position.

    Raises:
        OptionError: An option is out of its range, or the shapes differ.
        MissingExtra: torch is not installed.

    Example:
        >>> import torch
        >>> student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
        >>> [round(float(divergence(student, teacher, kind=kind)), 4) for kind in KINDS]
        [0.3681, 0.5108, 0.1017]
    """
    _check_options(kind, alpha, temperature, topk, tail)
    if student_logits.shape != teacher_logits.shape:
        raise OptionError(
            f"expected logits of one shape, found {tuple(student_logits.shape)} of the student and "
            f"{tuple(teacher_logits.shape)} of the teacher; use models with the same vocabulary"
        )
    student, teacher = _precise(student_logits, teacher_logits.detach())
    student, teacher = student / temperature, teacher / temperature
    if topk is not None and topk < student.shape[-1]:
        student, teacher = _cut(student, teacher, topk, tail)
    log_s, log_t = (logits.log_softmax(-1).clamp(min=LEAST) for logits in (student, teacher))
    if kind == "forward_kl":
        return _kl(log_t, log_s)
    if kind == "reverse_kl":
        return _kl(log_s, log_t)
    mixture = (log_s + math.log1p(-alpha)).logaddexp(log_t + math.log(alpha))
    return (1 - alpha) * _kl(log_s, mixture) + alpha * _kl(log_t, mixture)


def chunked_divergence(
    student_hidden: Tensor,
    teacher_hidden: Tensor,
    student_head: Callable[[Tensor], Tensor],
    teacher_head: Callable[[Tensor], Tensor],
    *,
    chunk: int = 256,
    weights: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Return the weighted sum of `divergence` over positions, with the logits of one chunk at a time.

    Value and gradients are those of the whole computed at once.

    Args:
        student_hidden: Positions by the student's width: what its head makes logits of.
        teacher_hidden: Positions by the teacher's width; no gradient reaches it or its head.
        student_head: Makes logits of hidden states, of each position by itself, and always the same.
        teacher_head: The teacher's.
        chunk: Positions whose logits are in memory together.
        weights: The weight of each position; else all are 1.
        **options: Those of `divergence`.

    Returns:
        A scalar.

    Raises:
        OptionError: An option is out of its range, or the number of positions differs.
        MissingExtra: torch is not installed.

    Example:
        >>> import torch
        >>> hidden = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
        >>> head = torch.nn.Identity()
        >>> float(chunked_divergence(hidden, hidden, head, head, chunk=2))
        0.0
    """
    torch = _torch()
    count = len(student_hidden)
    for what, other in (("teacher's hidden states", teacher_hidden), ("weights", weights)):
        if other is not None and len(other) != count:
            raise OptionError(f"expected {what} of {count} positions, found {len(other)}")
    _check_options(**({"kind": "forward_kl"} | options))

    def part(student: Tensor, teacher: Tensor, weight: Tensor | None) -> Tensor:
        with torch.no_grad():
            told = teacher_head(teacher)
        found = divergence(student_head(student), told, **options)
        return (found if weight is None else weight.to(found.dtype) * found).sum()

    parts = [
        _again_backward(
            part,
            student_hidden[start : start + chunk],
            teacher_hidden[start : start + chunk].detach(),
            None if weights is None else weights[start : start + chunk],
        )
        for start in _starts(count, chunk)
    ]
    return torch.stack(parts).sum() if parts else _precise(student_hidden)[0].sum()


def chunked_nll(
    hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, *, chunk: int = 1024
) -> Tensor:
    """Return the negative log-likelihood of each target token, with one chunk of logits at a time.

    Args:
        hidden: Positions by width: what the head makes logits of.
        head: Makes logits of hidden states, of each position by itself, and always the same.
        targets: The token that follows at each position.
        chunk: Positions whose logits are in memory together.

    Returns:
        One number for each position, in nats.

    Raises:
        OptionError: `chunk` is no number of positions, or there are not as many targets as positions.
        MissingExtra: torch is not installed.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[0.5, 0.5], [0.8, 0.2]]).log()
        >>> nll = chunked_nll(logits, torch.nn.Identity(), torch.tensor([0, 1]), chunk=1)
        >>> [round(float(value), 4) for value in nll]
        [0.6931, 1.6094]
    """
    torch = _torch()
    if len(targets) != len(hidden):
        raise OptionError(
            f"expected a target for each of {len(hidden)} positions, not {len(targets)}"
        )

    def part(states: Tensor, wanted: Tensor) -> Tensor:
        logits = _precise(head(states))[0]
        return torch.nn.functional.cross_entropy(logits, wanted, reduction="none")

    parts = [
        _again_backward(part, hidden[start : start + chunk], targets[start : start + chunk])
        for start in _starts(len(hidden), chunk)
    ]
    return torch.cat(parts) if parts else _precise(hidden)[0].sum(-1)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the sum of p (log p - log q) over the last dimension.

    That of q - p, which is zero, is added: so no term is below zero, and the rounding of what both
    distributions are divided by cancels, which for like distributions is most of the error.
    """
    p, q = log_p.exp(), log_q.exp()
    return (p * (log_p - log_q) - (p - q)).sum(-1)


def _cut(student: Tensor, teacher: Tensor, topk: int, tail: str) -> tuple[Tensor, Tensor]:
    """Return both models' logits of the student's top K, and of all other tokens together."""
    places = student.detach().topk(topk, dim=-1).indices
    if tail == "renormalise":
        return student.gather(-1, places), teacher.gather(-1, places)
    return _with_bucket(student, places), _with_bucket(teacher, places)


def _with_bucket(logits: Tensor, places: Tensor) -> Tensor:
    """Return the log-probabilities of the tokens at `places`, then that of all others together."""
    torch = _torch()
    kept = logits.log_softmax(-1).gather(-1, places)
    # Rounding may bring the sum of the kept to 1 or above, where the logarithm of the rest is none.
    total = kept.logsumexp(-1, keepdim=True).clamp(max=-torch.finfo(kept.dtype).eps)
    return torch.cat([kept, (-total.expm1()).log()], dim=-1)


def _precise(*tensors: Tensor) -> list[Tensor]:
    """Return the tensors in one precision: single, or double where one of them is."""
    torch = _torch()
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return [tensor.to(dtype) for tensor in tensors]


def _again_backward(part: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """Compute a part now, keep only its inputs, and compute it again in the backward pass."""
    torch = _torch()
    if not torch.is_grad_enabled():
        return part(*inputs)
    from torch.utils.checkpoint import checkpoint

    found: Tensor = checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False)
    return found


def _starts(count: int, chunk: int) -> range:
    if type(chunk) is not int or chunk < 1:
        raise OptionError(f"chunk must be a whole number of at least 1, not {chunk!r}")
    return range(0, count, chunk)


def _check_options(
    kind: str,
    alpha: float = 0.5,
    temperature: float = 1.0,
    topk: int | None = None,
    tail: str = "bucket",
) -> None:
    for what, value, known in (("divergence", kind, KINDS), ("tail", tail, TAILS)):
        if value not in known:
            raise OptionError(f"there is no {what} {value!r}; {suggest(str(value), known)}")
    if kind == "jsd" and not 0 < alpha < 1:
        raise OptionError(f"alpha must be above 0 and below 1, not {alpha!r}; for one end use a KL")
    if not (math.isfinite(temperature) and temperature > 0):
        raise OptionError(f"temperature must be above 0, not {temperature!r}")
    if topk is not None and (type(topk) is not int or topk < 1):
        raise OptionError(f"topk must be None or a whole number of at least 1, not {topk!r}")


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra.of("train", "a loss") from error
    return torch
