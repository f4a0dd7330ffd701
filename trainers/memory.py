"""How many tokens a training pass may have, from free memory and what it keeps for the backward pass.

What a model keeps for a token is arithmetic of `needs`, which estimates before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .config import Optimization
from .needs import LOGITS_SHARE, TRAINED_BYTES, Activations, Shape, kept_by
from .processes import gathered
from .sharding import own_shard

_CPU_TOKENS = 2048  # more are not faster there
_MOST_TOKENS = 32_768  # nor are more than these on a GPU
_SHARE = 0.5  # of the memory that is free; logits, copies of a layer and fragments are in the rest
_CPU_LOGITS = 2**27  # half a gigabyte in single precision


def kept_per_token(model: Any, *, mixed: bool) -> Activations:
    """Return what a transformer keeps for each token, all of it or with gradient checkpointing.

    Args:
        model: The model beneath the head.
        mixed: Whether it computes in bfloat16 by autocast.
    """
    config = model.config.get_text_config()
    size = next(model.parameters()).element_size()
    return kept_by(Shape.of(config.to_dict()), size, mixed=mixed)


def kept_logits(device: Any) -> int:
    """Return how many logits of a micro-batch are kept for the backward pass; others are computed again."""
    if device.type != "cuda":
        return _CPU_LOGITS
    return int(torch.cuda.get_device_properties(device).total_memory) // LOGITS_SHARE


def fitted(
    optimization: Optimization,
    model: Any,
    trained: Iterable[Tensor],
    *,
    longest: int,
    mixed: bool = False,
) -> Optimization:
    """Return settings in which what is left to the memory is decided.

    Args:
        optimization: The settings.
        model: The model that is trained, in memory.
        trained: Those of its weights that are trained.
        longest: The most tokens that a row may have.
        mixed: Whether it computes in bfloat16 by autocast.
    """
    if model.device.type != "cuda":
        return decided(optimization, None, Activations(0, 0), longest=longest)

    kept = kept_per_token(model, mixed=mixed)
    return decided(optimization, room(model.device, trained), kept, longest=longest)


def room(device: Any, trained: Iterable[Tensor], *, further_bytes: int = 0) -> float:
    """Return how many bytes of a GPU activations may take; of several processes', the fewest.

    Args:
        device: The GPU.
        trained: The weights that are trained, in memory.
        further_bytes: What else will come there.
    """
    weights = sum(own_shard(weight).numel() for weight in trained)
    free = _free_memory(device) - TRAINED_BYTES * weights - further_bytes
    # All processes cut an update alike.
    fewest: float = min(gathered([_SHARE * free]))
    return fewest


def decided(
    optimization: Optimization, budget: float | None, kept: Activations, *, longest: int
) -> Optimization:
    """Return settings that fit into so many bytes for activations; None on a CPU.

    Activations are kept where those of the longest row fit, and computed again where they do not. A
    micro-batch has as many tokens as fit then, rounded down to a power of two, so that a training that is
    resumed nearly always cuts its updates as before.
    """
    checkpoints = optimization.gradient_checkpointing
    if checkpoints is None:
        checkpoints = budget is not None and longest * kept.whole > budget

    tokens = optimization.micro_batch_tokens
    if tokens is None and optimization.batch_tokens is None:
        if budget is None:
            tokens = _CPU_TOKENS
        else:
            room = int(budget / (kept.checkpointed if checkpoints else kept.whole))
            power = max(room, 1).bit_length() - 1
            tokens = min(2**power, _MOST_TOKENS)
    return replace(optimization, gradient_checkpointing=checkpoints, micro_batch_tokens=tokens)


def _free_memory(device: Any) -> int:
    """Return the bytes that tensors can still take, those among them that torch holds already."""
    free, _ = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + held)
