"""Advantages of tokens, for PPO: generalised advantage estimates, and whitening over all ranks.

These take and make torch tensors, without gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import OptionError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["at_last_token", "gae", "whiten"]


def at_last_token(rewards: Tensor, mask: Tensor) -> Tensor:
    """Return rewards (B,) put at the last token of each row of `mask` (B, T), zeros elsewhere.

    Example:
        >>> import torch
        >>> at_last_token(torch.tensor([5.0]), torch.tensor([[1, 1, 0]])).tolist()
        [[0.0, 5.0, 0.0]]
    """
    kept = mask.bool()
    last = kept & (kept.flip(-1).cumsum(-1).flip(-1) == 1)
    return rewards.unsqueeze(-1) * last.to(rewards.dtype)


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Return generalised advantage estimates and the critic's targets of each token (METHODS.md 2.6).

    ``delta_i = r_i + gamma V_(i+1) - V_i`` and ``A_i = delta_i + gamma lam A_(i+1)`` run along the
    tokens of a row's response; after its last token there is nothing. Tokens outside of the mask
    are stepped over, whatever is there. No gradient is kept.

    Args:
        rewards: (B, T), for a whole episode's return: `at_last_token`.
        values: (B, T), what the critic says at each token.
        mask: (B, T), true at the response's tokens.
        gamma: Discount from token to token.
        lam: GAE's lambda.

    Returns:
        The advantages, not whitened, and the targets ``A + V``; both are 0 outside of the mask.

    Raises:
        OptionError: The shapes differ.

    Example:
        >>> import torch
        >>> reward, value, mask = (torch.tensor([row]) for row in ([0.0, 1.0], [0.5, 0.25], [1, 1]))
        >>> [found.tolist() for found in gae(reward, value, mask, 1.0, 1.0)]
        [[[0.5, 0.75]], [[1.0, 1.0]]]
    """
    if not rewards.shape == values.shape == mask.shape or rewards.dim() != 2:
        shapes = ", ".join(str(tuple(each.shape)) for each in (rewards, values, mask))
        raise OptionError(f"expected rewards, values and mask of one shape (B, T), found {shapes}")
    kept = mask.bool()
    rewards, values = (each.detach().masked_fill(~kept, 0.0) for each in (rewards, values))
    advantages = values.new_zeros(values.shape)
    following = running = values.new_zeros(len(values))
    for place in reversed(range(values.shape[1])):
        here, value = kept[:, place], values[:, place]
        advantage = rewards[:, place] + gamma * following - value + gamma * lam * running
        running, following = advantage.where(here, running), value.where(here, following)
        advantages[:, place] = advantage.masked_fill(~here, 0.0)
    return advantages, advantages + values


def whiten(
    advantages: Tensor, mask: Tensor, total: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return advantages with mean 0 and variance 1 over the tokens of the mask, and 0 outside of it.

    The variance is unbiased, and 1e-8 is added to it, as in the code that PaW builds on.

    Args:
        advantages: (B, T).
        mask: (B, T), true where a token counts.
        total: Sums a tensor over all ranks; it is called twice, with tokens here or without.

    Example:
        >>> import torch
        >>> whiten(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[1, 1, 0]])).round(decimals=4)
        tensor([[-0.7071,  0.7071,  0.0000]])
    """
    kept = mask.bool()
    sums = advantages.new_zeros(2)
    sums[0], sums[1] = advantages.masked_fill(~kept, 0.0).sum(), kept.sum()
    sums = sums if total is None else total(sums)
    centred = (advantages - sums[0] / sums[1].clamp(min=1)).masked_fill(~kept, 0.0)
    square = centred.square().sum()
    square = square if total is None else total(square)
    return centred * (square / (sums[1] - 1).clamp(min=1) + 1e-8).rsqrt()
