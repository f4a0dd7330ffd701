"""LoRA adapters by few operations, while a model answers on a GPU or in half precision.

peft computes an adapted layer by nine operations instead of one. A pass of a few tokens on a GPU waits for
the start of each, and in half precision some of them copy inputs to single precision and back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def lean_adapter(model: Any, name: str) -> Iterator[None]:
    """Have an adapter computed by few operations, and put everything back afterwards.

    In single and double precision it is added to the weights, so that passes cost no more than the bare
    model's; that takes memory for a second copy of these weights. In half precision the sum would be
    rounded, and much of what a young adapter has learned is smaller than that: there a layer takes two
    operations more, and loses no more than in training. Layers of other kinds (DoRA, quantized weights)
    stay as they are.

    Args:
        model: The base model, with layers of adapters in it.
        name: The adapter that is switched on.
    """
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    plain_layers = [layer for layer in layers if _is_plain(layer, name)]
    in_half_precision = torch.finfo(model.dtype).bits == 16
    way = _added_to_outputs if in_half_precision else _added_to_weights
    with way(model, plain_layers, name):
        yield


@contextmanager
def _added_to_outputs(model: Any, layers: Sequence[Any], name: str) -> Iterator[None]:
    """Have layers add an adapter's product to what they put out, by two operations."""
    import torch

    changed = []
    try:
        for layer in layers:
            weight = layer.base_layer.weight
            with torch.no_grad():
                first = layer.lora_A[name].weight.to(weight.dtype)
                second = (layer.lora_B[name].weight * layer.scaling[name]).to(weight.dtype)
            layer.forward = partial(_output, layer.base_layer, first, second.T)
            changed.append(layer)
        yield
    finally:
        for layer in changed:
            del layer.forward


def _output(base_layer: Any, first: Any, second: Any, inputs: Any) -> Any:
    """Return inputs·W + inputs·A·B, whose sum is rounded once."""
    import torch

    outputs = base_layer(inputs)
    inner = torch.nn.functional.linear(inputs, first)
    rows = outputs.flatten(0, -2)
    return torch.addmm(rows, inner.flatten(0, -2), second).view_as(outputs)


@contextmanager
def _added_to_weights(model: Any, layers: Sequence[Any], name: str) -> Iterator[None]:
    """Give layers weights with an adapter in them, where there is memory for that; switch it off there.

    The former weights are kept and not computed back: what subtracts an adapter leaves rounding behind.
    """
    import torch

    uses = Counter(map(id, _weights_of_modules(model)))
    mergeable = [layer for layer in layers if uses[id(layer.base_layer.weight)] == 1]
    size = sum(layer.base_layer.weight.nbytes for layer in mergeable)
    if not _has_room(model.device, size):
        mergeable = []

    replaced = []
    try:
        for layer in mergeable:
            weight = layer.base_layer.weight
            first = layer.lora_A[name].weight.to(weight.dtype)
            second = layer.lora_B[name].weight.to(weight.dtype)
            with torch.no_grad():
                values = torch.addmm(weight, second, first, alpha=layer.scaling[name])
            replaced.append((layer, weight.data, layer._disable_adapters))
            weight.data = values
            layer._disable_adapters = True  # peft's own method also changes what is trained
        yield
    finally:
        for layer, values, was_disabled in replaced:
            layer.base_layer.weight.data = values
            layer._disable_adapters = was_disabled


def _weights_of_modules(model: Any) -> Iterator[Any]:
    """Yield the weights of each module, those that several share once for each."""
    for module in model.modules():
        yield from module.parameters(recurse=False)


def _is_plain(layer: Any, name: str) -> bool:
    """Return whether a layer adds a product of two matrices and no more: no DoRA, no quantized weights."""
    import torch
    from peft.tuners.lora import Linear

    if not isinstance(layer, Linear) or name not in layer.lora_A:
        return False
    is_product = name not in layer.lora_variant and not layer.lora_bias.get(name)
    return is_product and type(layer.base_layer) is torch.nn.Linear and not layer.fan_in_fan_out


def _has_room(device: Any, size: int) -> bool:
    """Return whether so many bytes are less than half of the memory that a GPU has left."""
    import torch

    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return bool(2 * size < free + unused)
