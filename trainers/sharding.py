"""Models larger than one GPU: each process has a shard of every weight (FSDP2).

The settings are those of a config file of accelerate, which `accelerate launch` passes on in environment
variables. comap shards each model by itself, once for a whole training: its stages train the same weights
one after the other, while accelerate would shard a model for one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import DataCorrupt, OptionError
from ..lm import Usage
from ..lm.chat import ChatLanguageModel, ChatTokenizer
from .processes import gathered, is_first, wait, world_size

if TYPE_CHECKING:
    from torch import Tensor

Batch = TypeVar("Batch")

NEEDS_ENGINE = (
    "found the engine hf, but a model whose weights are sharded (FSDP) cannot sample by itself; write "
    "--engine vllm (one in each process, on its GPU), or --engine http://HOST:PORT of a vllm serve"
)
"""What to do where something is asked of a sharded model."""

_USES_FSDP = "ACCELERATE_USE_FSDP"
_USES_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
_LOADS_ONCE = "FSDP_CPU_RAM_EFFICIENT_LOADING"
_OPTIMIZER = "optimizer"  # the folder of its state in a checkpoint
_SCHEDULER = "scheduler.pt"

# What FSDP2 can do and comap cannot, by the variable that a config file sets.
_REFUSED = {
    "FSDP_OFFLOAD_PARAMS": "fsdp_offload_params: false; weights stay on the GPUs",
    "FSDP_ACTIVATION_CHECKPOINTING": "fsdp_activation_checkpointing: false; comap's own setting is "
    "gradient_checkpointing",
    _LOADS_ONCE: "fsdp_cpu_ram_efficient_loading: false; comap does so for models that it shards, and "
    "other models, such as that of a dense search, would be empty",
}


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def is_sharded() -> bool:
    """Return whether each process of this training has a shard of every weight."""
    return _is_on(_USES_FSDP) and world_size() > 1


def check_launch() -> None:
    """Refuse what accelerate was told to do and comap cannot."""
    if _is_on(_USES_DEEPSPEED):
        raise OptionError(
            "expected FSDP2 for models larger than a GPU, found DeepSpeed; write distributed_type: FSDP "
            "and fsdp_version: 2 into the config file of accelerate"
        )
    if not is_sharded():
        return

    version = os.environ.get("FSDP_VERSION", "1")
    if version != "2":
        raise OptionError(
            f"expected FSDP2, found version {version:.20} of FSDP; write fsdp_version: 2 into the config "
            "file of accelerate"
        )
    for variable, remedy in _REFUSED.items():
        if _is_on(variable):
            raise OptionError(f"expected no {variable}, found it on; write {remedy}")


@contextmanager
def loaded_once() -> Iterator[None]:
    """Let transformers read a model that will be sharded on one process of each node alone."""
    if not is_sharded():
        yield
        return
    wait()  # which also begins the group of processes
    os.environ[_LOADS_ONCE] = "true"
    try:
        yield
    finally:
        os.environ[_LOADS_ONCE] = "false"


def shard(model: Any, device: Any, *, computes_in_half: bool = False) -> Any:
    """Leave this process its shards of a model's weights, in place, and return the model.

    The first process must have the weights: all others get theirs from there. One layer of the transformer
    after the other is whole on the device, and at last the embeddings with the head.
    """
    import torch
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    wait()
    mesh = init_device_mesh(torch.device(device).type, (world_size(),))
    policy = MixedPrecisionPolicy()
    if computes_in_half:
        # Inputs stay as they are: masks of trees are tensors of a class of their own.
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )

    layer_classes = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in layer_classes]
    for unit in (*layers, model):
        for tensor in (*unit.parameters(), *unit.buffers()):
            if not _has_shards(tensor):
                tensor.data = tensor.data.to(device)
                distributed.broadcast(tensor.data, src=0)
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=True)

    # Accelerate believes that it has wrapped the model, and wraps it in nothing more.
    model._is_accelerate_prepared = True
    return model


def _has_shards(tensor: Any) -> bool:
    """Return whether this process has a shard of a tensor, and not all of it."""
    return hasattr(tensor, "full_tensor")


def whole(weight: Any) -> Any:
    """Return all of a weight; where it is sharded, all processes must ask."""
    return weight.full_tensor() if _has_shards(weight) else weight


def own_shard(weight: Any) -> Any:
    """Return what this process has of a weight."""
    return weight.to_local() if _has_shards(weight) else weight


def sharded_as(weight: Any, value: Any) -> Any:
    """Return a value in the form of a weight: its shard, where the weight is sharded."""
    if not _has_shards(weight) or _has_shards(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every process has the whole value, and cuts out its own shard.
    return distribute_tensor(
        value.to(weight.dtype), weight.device_mesh, weight.placements, src_data_rank=None
    )


def copies(weights: Mapping[str, Tensor], *, everywhere: bool = False) -> dict[str, Tensor]:
    """Return whole copies of weights in main memory; of sharded ones on the first process alone.

    All processes must ask for sharded weights, and may have the copies too (`everywhere`).
    """
    values = {}
    for name, weight in weights.items():
        value = whole(weight.detach())
        if everywhere or is_first() or not _has_shards(weight):
            values[name] = value.to("cpu", copy=True).contiguous()
    return values


def trained_weights(model: Any) -> dict[str, Any]:
    """Return a model's weights by name; of a model with adapters those of the adapters."""
    weights = dict(model.named_parameters())
    if hasattr(model, "peft_config"):
        return {name: weight for name, weight in weights.items() if ".lora_" in name}
    return weights


def read_trained(model: Any, folder: Path) -> None:
    """Fill a sharded model, or its adapters, with what `save_pretrained` wrote into a folder."""
    import torch
    from safetensors import SafetensorError, safe_open

    # The names of files lack that of the adapter.
    weights = {
        name.replace(".default", ""): weight for name, weight in trained_weights(model).items()
    }
    missing = set(weights)
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, "pt") as file, torch.no_grad():
                for name in file.keys():  # noqa: SIM118 it is no mapping
                    weight = weights[name]
                    weight.copy_(sharded_as(weight, file.get_tensor(name)))
                    missing.remove(name)
        if missing:
            raise ValueError(f"{len(missing)} are missing ({min(missing):.200})")
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError) as error:
        raise DataCorrupt(
            f"expected the weights of this training in {folder}, found others ({str(error)!r:.200}); "
            "remove that folder to go on from an earlier checkpoint"
        ) from error


def level(batches: Sequence[Batch], empty: Batch) -> list[Batch]:
    """Return batches, and empty ones until all processes have as many.

    A pass through a sharded model needs all processes.
    """
    missing = 0
    if is_sharded():
        missing = max(gathered([len(batches)])) - len(batches)
    return [*batches, *[empty] * missing]


def whole_head(head: Any, like: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a sharded model's head as a function that has all its weights, in a tensor's dtype."""
    from torch.nn.functional import linear

    weight = whole(head.weight.detach()).to(like.dtype)
    bias = getattr(head, "bias", None)
    if bias is not None:
        bias = whole(bias.detach()).to(like.dtype)
    return lambda states: linear(states, weight, bias)


def average_gradients(module: Any) -> None:
    """Give each gradient of a module that is not sharded its mean over all processes."""
    from torch import distributed

    for weight in module.parameters():
        if weight.grad is not None:
            distributed.all_reduce(weight.grad)
            weight.grad /= world_size()


@contextmanager
def unknown_to_accelerate() -> Iterator[None]:
    """Hide from accelerate that models are sharded while a trainer is made: it would shard them again."""
    value = os.environ.pop(_USES_FSDP, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[_USES_FSDP] = value


class ShardedLanguageModel(ChatLanguageModel):
    """Stands for a sharded model where tokens are counted; it answers nothing."""

    capabilities = frozenset()

    def __init__(self, chat: ChatTokenizer, name: str) -> None:
        self._chat = chat
        self.name = name
        self.context = None
        self.usage = Usage()

    def config(self) -> dict[str, Any]:
        """Return JSON data that says what answers may depend on."""
        return {"id": "sharded", "name": self.name, **self._chat.describe()}

    def _answer(self, requests: Any) -> list[Any]:
        raise OptionError(f"expected an engine that answers {requests!r:.80}, {NEEDS_ENGINE}")


class WholeModel:
    """A sharded model as an engine reads it; all processes must do the same with it.

    Args:
        model: The model.
        for_first: Whether the first process alone reads it, which then has all weights at once.
    """

    def __init__(self, model: Any, *, for_first: bool) -> None:
        self._model = model
        self._copies = copies(dict(model.named_parameters())) if for_first else {}

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and all of each weight, one after the other."""
        for name, weight in self._model.named_parameters():
            yield name, whole(weight.detach())

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model as transformers does."""
        self._model.save_pretrained(folder, state_dict=self._copies)


class ShardedTraining:
    """What a trainer of transformers does otherwise where its model is sharded: a base before it."""

    args: Any
    model: Any
    optimizer: Any
    lr_scheduler: Any

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """Leave a model where it is that is, or will be, sharded."""
        if not is_sharded():
            super()._move_model_to_device(model, device)  # type: ignore[misc]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Write the optimizer's state; of a sharded model each process writes its shards."""
        if not is_sharded():
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
            return

        import torch
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        state = get_optimizer_state_dict(self.model, self.optimizer.optimizer)
        checkpoint.save(state, checkpoint_id=Path(output_dir, _OPTIMIZER))
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir, _SCHEDULER))

    def _load_optimizer_and_scheduler(self, folder: str | None) -> None:
        """Read what `_save_optimizer_and_scheduler` wrote, also with another number of processes."""
        if folder is not None and is_sharded() != Path(folder, _OPTIMIZER).is_dir():
            written = "whole" if is_sharded() else "sharded"
            raise OptionError(
                f"expected a checkpoint of the same way of training, found one of {written} models in "
                f"{folder}; go on with the launch it began with, or remove the checkpoints"
            )
        if not is_sharded() or folder is None:
            super()._load_optimizer_and_scheduler(folder)  # type: ignore[misc]
            return

        import torch
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import (
            get_optimizer_state_dict,
            set_optimizer_state_dict,
        )

        optimizer = self.optimizer.optimizer
        state = get_optimizer_state_dict(self.model, optimizer)
        checkpoint.load(state, checkpoint_id=Path(folder, _OPTIMIZER))
        set_optimizer_state_dict(self.model, optimizer, state)
        scheduler = torch.load(Path(folder, _SCHEDULER), weights_only=True)
        self.lr_scheduler.load_state_dict(scheduler)
