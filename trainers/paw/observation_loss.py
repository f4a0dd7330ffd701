"""The loss of the next observation's tokens: clipped mean absolute error (METHODS.md 2.3).

It takes and makes torch tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from ...errors import OptionError, suggest

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LossKind", "ObservationLosses", "observation_losses"]

LossKind = Literal["cmae", "mae", "ce", "clipped_ce"]
"""The loss of a token of probability p: 1 - p or -log p (``ce``), of all tokens or, ``cmae`` and
``clipped_ce``, only of those with p <= rho."""


@dataclass(frozen=True, slots=True)
class ObservationLosses:
    """The losses of rows, and what is told of them.

    Attributes:
        rows: (B,), the loss of each row, through which gradients go.
        clipped: (B,), how many of its tokens have p > rho, whatever the loss; whole numbers.
        probability: (B,), the sum of its tokens' probabilities.
        tokens: (B,), how many tokens it has, |o|; whole numbers.
    """

    rows: Tensor
    clipped: Tensor
    probability: Tensor
    tokens: Tensor


def observation_losses(
    logps: Tensor, mask: Tensor, *, kind: LossKind = "cmae", rho: float = 0.2
) -> ObservationLosses:
    """Return each row's observation loss, ``sum of m_i (1 - p_i) / |o|`` (METHODS.md 2.3; eq. 7-9).

    ``m_i = 1[p_i <= rho]`` leaves out the tokens that the model is confident of already. It takes no
    part in the gradient, and the sum is divided by all tokens of the observation, not by those that
    are left. Since the gradient of 1 - p with respect to the token's logit is -p (1 - p), a token
    that cannot be predicted has next to none.

    Args:
        logps: (B, T), log-probabilities of the observation's tokens.
        mask: (B, T), true at those tokens; whatever is elsewhere is not looked at.
        kind: The loss of a token.
        rho: The greatest probability that is still learned, above 0 and at most 1.

    Returns:
        The losses, in single precision, or double where `logps` are. A row without tokens has 0.

    Raises:
        OptionError: The kind is unknown, rho is out of range, or the shapes differ.

    Example:
        >>> import torch
        >>> logps = torch.tensor([[0.1, 0.3, 0.2]], dtype=torch.float64).log()
        >>> found = observation_losses(logps, torch.ones(1, 3))
        >>> found.rows.round(decimals=4).tolist(), found.clipped.tolist()
        ([0.5667], [1])
    """
    _check(logps, mask, kind, rho)
    kept = mask.bool()
    logps = (logps if logps.dtype.itemsize > 4 else logps.float()).masked_fill(~kept, 0.0)
    p = logps.exp()
    # Rounding brings the exponential of log(rho) to either side of rho; such a token is not above.
    above = kept & (p.detach() > rho * (1 + 1e-6))
    losses = 1 - p if kind in ("cmae", "mae") else -logps
    learned = kept & ~above if kind in ("cmae", "clipped_ce") else kept
    tokens = kept.sum(-1)
    return ObservationLosses(
        rows=losses.masked_fill(~learned, 0.0).sum(-1) / tokens.clamp(min=1),
        clipped=above.sum(-1),
        probability=p.detach().masked_fill(~kept, 0.0).sum(-1),
        tokens=tokens,
    )


def _check(logps: Tensor, mask: Tensor, kind: str, rho: float) -> None:
    kinds = get_args(LossKind)
    if kind not in kinds:
        raise OptionError(f"there is no loss {kind!r}; {suggest(str(kind), kinds)}")
    if not 0 < rho <= 1:
        raise OptionError(f"rho must be above 0 and at most 1, not {rho!r}")
    if logps.dim() != 2 or logps.shape != mask.shape:
        raise OptionError(
            f"expected log-probabilities and mask of one shape (B, T), found {tuple(logps.shape)} "
            f"and {tuple(mask.shape)}"
        )
