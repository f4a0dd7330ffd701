"""Weights that processes share among them (FSDP2): shards while a stage lasts, whole between stages.

Agents ask the models between stages, and a stage's trainer wraps and unwraps the same ones. So the
weights are gathered, exactly, into the very tensors that they were in before, and what wrapped them is
taken off again. While a stage lasts, those tensors are empty.

``accelerate launch --use_fsdp --fsdp_version 2`` asks for it; see `check_sharding` for the rest. What
was tested: torch's and accelerate's own code of FSDP2 in two processes on CPUs. On GPUs it is untested.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import OptionError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Shards",
    "check_sharding",
    "forget_sharding",
    "local_shards",
    "wants_shards",
    "whole_head",
]

_YES = ("1", "true", "yes", "on")


def wants_shards() -> bool:
    """Return whether this process was started for sharing its weights with others (FSDP).

    Example:
        >>> wants_shards()
        False
    """
    return _says("ACCELERATE_USE_FSDP")


def check_sharding(kind: str) -> None:
    """Refuse to share weights in ways that training cannot; without FSDP there is nothing to refuse.

    Args:
        kind: That of the roles: ``lora`` or ``full``.

    Raises:
        OptionError: It is DeepSpeed or FSDP1, weights would be loaded by one process only or be kept
            in main memory, or the roles are whole models.

    Example:
        >>> check_sharding("full")
    """
    if _says("ACCELERATE_USE_DEEPSPEED"):
        raise OptionError(
            "expected processes of DDP or FSDP2, found DeepSpeed, which keeps the weights between "
            "stages where agents cannot ask them; what ZeRO does, FSDP2 does here: python -m "
            "comap.trainers.recipes lists configs"
        )
    if not wants_shards():
        return
    version = os.environ.get("FSDP_VERSION", "1")
    if version != "2":
        raise OptionError(
            f"expected FSDP2, found FSDP{version:.8}: set fsdp_version: 2 in accelerate's config, or "
            "start with accelerate launch --fsdp_version 2"
        )
    for name, option in (
        ("FSDP_CPU_RAM_EFFICIENT_LOADING", "fsdp_cpu_ram_efficient_loading"),
        ("FSDP_OFFLOAD_PARAMS", "fsdp_offload_params"),
    ):
        if _says(name):
            raise OptionError(
                f"expected FSDP to keep all weights on the GPUs of all processes, found {option}: "
                f"agents ask the whole model between stages; set {option}: false in accelerate's "
                "config"
            )
    if kind != "lora":
        raise OptionError(
            "expected roles that are LoRA adapters of one model, found whole models and FSDP, which "
            "would have to share each of them; use weights 'lora', or start with torchrun or with "
            "accelerate launch --multi_gpu"
        )


class Shards:
    """Follows a model's weights through their sharding and back.

    It is made before a trainer wraps the model; `begin` is called once that is done, and `gather` by
    all processes at once when training has ended.

    Args:
        model: What is going to be wrapped.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(1, 1)
        >>> shards = Shards(model)
        >>> whole, model.weight = model.weight, torch.nn.Parameter(torch.ones(1, 1))
        >>> shards.begin()
        >>> list(whole.shape), shards.of({"w": whole})["w"] is model.weight
        ([0], True)
        >>> shards.gather()
        >>> model.weight is whole, whole.tolist()
        (True, [[1.0]])
    """

    def __init__(self, model: Any) -> None:
        self._modules = list(model.modules())
        self._places = [
            (module, name, weight)
            for module in self._modules
            for name, weight in module._parameters.items()
            if weight is not None
        ]

    def begin(self) -> None:
        """Let go of the memory of whole weights, now that each process has its shards of them."""
        for module, name, whole in self._places:
            if module._parameters[name] is not whole:
                whole.data = whole.data.new_empty(0)

    def of(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what stands for weights while they are shared, by the same names in the same order."""
        now = {id(whole): module._parameters[name] for module, name, whole in self._places}
        return {name: now[id(whole)] for name, whole in weights.items()}

    def gather(self) -> None:
        """Fill the weights that there were at first with what their shards are now, and put them back.

        Nothing is rounded, so weights that were not trained are as they were, to the bit.
        """
        _reshard(self._modules)
        done = set()
        for module, name, whole in self._places:
            now, module._parameters[name] = module._parameters[name], whole
            if now is not whole and id(whole) not in done:
                whole.data = _whole(now)
            done.add(id(whole))


def local_shards(weights: Mapping[str, Tensor]) -> list[Tensor]:
    """Return this process's part of each weight, in place: all of it where it is not shared.

    Example:
        >>> import torch
        >>> local_shards({"w": torch.ones(2)})[0].tolist()
        [1.0, 1.0]
    """
    found: list[Any] = [weight.detach() for weight in weights.values()]
    return [weight.to_local() if _is_shared(weight) else weight for weight in found]


def whole_head(head: Any) -> Callable[[Tensor], Tensor]:
    """Return a function that makes logits as a model's output layer does, from its whole weights.

    FSDP gathers a layer's weights each time that it is called, and waits for all processes. But how
    often a loss calls this layer depends on its rows, which are others in each process. Called within
    the model's forward pass, it is used until that pass's backward pass ends.

    Args:
        head: The output layer; frozen.

    Raises:
        OptionError: It is not a plain matrix.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(1, 1).requires_grad_(False)
        >>> bool(whole_head(layer)(torch.ones(1, 1)) == layer(torch.ones(1, 1)))
        True
    """
    import torch

    if not isinstance(head, torch.nn.Linear) or head.weight.requires_grad:
        raise OptionError(
            f"expected an output layer that is a frozen matrix, found a {type(head).__name__}: with "
            "FSDP it can have no adapter; leave it out of LoRA's targets"
        )
    weight = _whole(head.weight)
    bias = None if head.bias is None else _whole(head.bias)
    return lambda hidden: torch.nn.functional.linear(hidden, weight, bias)


def forget_sharding(model: Any) -> None:
    """Let torch forget that a model's modules were ever wrapped, so that they can be wrapped again.

    Hooks and classes are put back by `comap.trainers.trained_model.restorer`. torch has no function
    that unwraps, and this table of its own is what else it keeps.

    Args:
        model: A model, wrapped or not.
    """
    from torch.distributed import _composable_state

    for module in model.modules():
        _composable_state._module_state_mapping.pop(module, None)


def _reshard(modules: list[Any]) -> None:
    """Let every wrapped module drop what it has gathered, whatever it was doing."""
    from torch.distributed.fsdp import FSDPModule

    for module in modules:
        if isinstance(module, FSDPModule):
            module.reshard()


def _is_shared(weight: Any) -> bool:
    return hasattr(weight, "full_tensor")


def _whole(weight: Any) -> Any:
    """Return all of a weight, without gradients; all processes must ask in the same order."""
    return weight.detach().full_tensor() if _is_shared(weight) else weight.detach()


def _says(name: str) -> bool:
    return os.environ.get(name, "").lower() in _YES
