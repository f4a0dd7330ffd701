"""ITP's heads as layers that are trained and as files that agents read."""

from __future__ import annotations

from typing import Any

from ...agents.k_head import KHead
from ...errors import MissingExtra

__all__ = ["fill_head", "head_of", "make_head", "zero_head"]


def zero_head(size: int, outputs: int) -> KHead:
    """Return a head that says 0 of everything.

    Args:
        size: Of a hidden state.
        outputs: How many numbers it says.

    Example:
        >>> zero_head(2, 3).logits([1.0, 2.0])
        (0.0, 0.0, 0.0)
    """
    return KHead([[0.0] * size] * outputs, [0.0] * outputs)


def make_head(size: int, outputs: int) -> Any:
    """Return a linear layer that begins as `zero_head`; torch's random numbers are as before.

    Args:
        size: Of a hidden state.
        outputs: How many numbers it says.

    Raises:
        MissingExtra: torch is not installed.

    Example:
        >>> head_of(make_head(2, 3)).k_max
        2
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtra.of("train", "a head to train") from error
    with torch.random.fork_rng(devices=[]):
        layer = torch.nn.Linear(size, outputs)
    fill_head(layer, zero_head(size, outputs))
    return layer


def head_of(layer: Any) -> KHead:
    """Return a layer's present weights as a head.

    Args:
        layer: A linear layer.
    """
    weight, bias = (part.detach().cpu().float().numpy().copy() for part in layer.parameters())
    return KHead(weight, bias)


def fill_head(layer: Any, head: KHead) -> None:
    """Let a layer begin as a head.

    Args:
        layer: A linear layer of the same size.
        head: The head.
    """
    import torch

    with torch.no_grad():
        layer.weight.copy_(torch.tensor(head.weight))
        layer.bias.copy_(torch.tensor(head.bias))
