"""The trainer that all of comap's trainers are: TRL's `SFTTrainer`, with few overrides.

A role is trained on rows whose order and batches are given. Losses are computed inside the model's
forward, from hidden states, so that logits exist only where a loss needs them, a chunk at a time.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PrinterCallback, Trainer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from ..agents.run import writing
from ..errors import OptionError
from .config import Optimization
from .processes import part_at_exit, world_size
from .roles import Roles
from .run_folder import last_checkpoint, mark_complete, read_weights, write_weights
from .samples import Example, MicroBatch, scored_positions

_OWN_HEAD = "refinement_head"
_CHUNK = 1024
_SCALES = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)


def trainer_arguments(
    folder: Path, optimization: Optimization, rate: float, **further: Any
) -> SFTConfig:
    """Return TRL's settings for one stage; further ones are TRL's own."""
    part_at_exit()
    for name, what in (("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")):
        if os.environ.get(name, "").lower() in ("1", "true", "yes", "on"):
            raise OptionError(
                f"expected processes of DDP, found {what}, which keeps the weights between stages "
                "where agents cannot ask them; start with torchrun or accelerate launch --multi_gpu"
            )
    if optimization.accumulate % world_size():
        raise OptionError(
            f"expected a number of processes that divides the {optimization.accumulate} micro-batches "
            f"of an update, found {world_size()}; change accumulate or the number of processes"
        )
    names = ("activation_checkpointing", "gradient_checkpointing")  # before transformers 5.21
    again = next(name for name in names if name in SFTConfig.__dataclass_fields__)
    wanted = optimization.gradient_checkpointing
    return SFTConfig(
        output_dir=str(folder),
        report_to="none",  # `tracking` has the curves of the whole training
        per_device_train_batch_size=1,  # one micro-batch, whatever its number of rows
        gradient_accumulation_steps=optimization.accumulate // world_size(),
        num_train_epochs=1,  # the plan has all epochs
        learning_rate=rate,
        warmup_steps=0.0 if optimization.schedule == "constant" else optimization.warmup_ratio,
        lr_scheduler_type=optimization.schedule,
        weight_decay=optimization.weight_decay,
        adam_beta2=optimization.beta2,
        max_grad_norm=optimization.clip,
        logging_steps=optimization.logging_steps,
        save_strategy="steps" if optimization.save_steps else "no",
        save_steps=optimization.save_steps or 500,
        save_total_limit=2,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        max_length=None,
        ddp_find_unused_parameters=False,
        **further,
        **{again: wanted, f"{again}_kwargs": {"use_reentrant": False} if wanted else None},
    )


Sums: TypeAlias = "tuple[dict[str, Any], list[float]]"
"""A micro-batch's sums of the ``loss`` and of each metric, and how many numbers each metric is of."""

Losses: TypeAlias = Callable[[Any, Any], Sums]
"""Computes sums from hidden states and the model's head, inside the model's forward."""


class RowTrainer(SFTTrainer):  # type: ignore[misc]
    """Trains one role on rows whose order and batches are given.

    Subclasses say in `prepare` what a micro-batch's losses are. What is trained besides the role's
    weights (a head) is a submodule of the base model while training lasts, so that it takes part in
    distributed training. `fit` leaves the models as they were, but for what they learned.

    Args:
        roles: The models.
        role: Which of them is trained.
        epochs: The rows of each epoch.
        plan: The micro-batches of all epochs: see `comap.trainers.samples.plan_updates`.
        args: TRL's settings: see `trainer_arguments`.
        head: A module that is trained with the role, or None.
        head_rate: Its highest learning rate.
        tell: Called with each line of metrics as it is logged, on the first process.

    Raises:
        OptionError: There is nothing to train on, the role cannot be trained, or one process sees
            several GPUs.
    """

    metrics: tuple[str, ...] = ()
    """The names of what is logged beside the loss."""

    optimizer: Any

    def __init__(
        self,
        *,
        roles: Roles,
        role: str,
        epochs: Sequence[Sequence[Example]],
        plan: Sequence[MicroBatch],
        args: SFTConfig,
        head: torch.nn.Module | None = None,
        head_rate: float = 1e-3,
        tell: Callable[[Mapping[str, float]], object] | None = None,
    ) -> None:
        _check(role, plan, args)
        self.roles, self.role, self.epochs, self.plan = roles, role, epochs, plan
        self.head, self.head_rate = head, head_rate
        self.base, self.own = roles.base(role), roles.parameters(role)
        read = [sum(len(epochs[b.epoch][row]) for row in b.rows) for b in plan]
        self._tokens_read = [0, *accumulate(read)]
        modules = [*map(roles.module, roles.names), self.base, *([] if head is None else [head])]
        self._restore: Callable[[], None] | None = restorer(*modules)
        try:
            self._start(args, tell)
        except BaseException:
            self._restore()
            raise

    def _start(self, args: SFTConfig, tell: Callable[[Mapping[str, float]], object] | None) -> None:
        self.roles.train_only(self.role)
        if self.head is not None:
            self.base.add_module(_OWN_HEAD, self.head.to(self.base.device))
        super().__init__(
            model=self.roles.module(self.role),
            args=args,
            train_dataset=Dataset.from_dict({"index": list(range(len(self.plan)))}),
            processing_class=self.roles.tokenizer,
            data_collator=_indices,
            callbacks=[_Watch(self, tell)],
        )
        self.remove_callback(PrinterCallback)
        self.processing_class = None  # so that no config is changed to what the tokenizer says
        self.loss_is_scaled_for_ga = True  # a loss is divided by all rows of its update
        self.roles.train_only(self.role)  # whatever the constructor did to flags
        if self.head is not None:
            self.head.requires_grad_(True)
        add_hidden_forward(self.base)
        self._noted = torch.zeros(len(self.metrics), 2, dtype=torch.float64, device=args.device)

    def _send_telemetry(self) -> None:
        """Disable TRL's telemetry."""

    def batch_of(self, inputs: Mapping[str, Any]) -> MicroBatch:
        """Return the micro-batch that inputs stand for."""
        return self.plan[int(inputs["index"][0])]

    def rows_of(self, batch: MicroBatch) -> list[Any]:
        """Return the examples of a micro-batch."""
        return [self.epochs[batch.epoch][row] for row in batch.rows]

    def prepare(self, batch: MicroBatch) -> tuple[dict[str, Tensor], Losses]:
        """Return the model's inputs for a micro-batch, and what computes its losses."""
        raise NotImplementedError

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return this micro-batch's part of the update's loss."""
        told, losses = self.prepare(self.batch_of(inputs))
        sums, counts = model(**told, then=losses)
        if self.metrics:
            self.note([sums[name] for name in self.metrics], counts)
        loss = sums["loss"] / num_items_in_batch * self.accelerator.num_processes
        return (loss, sums) if return_outputs else loss

    def zero(self, hidden: Any, head: Any) -> Any:
        """Return 0, made of all that is trained: with several processes all of it must take part."""
        none = head(hidden[:1, :1]).float().sum() * 0.0
        for weight in () if self.head is None else self.head.parameters():
            none = none + weight.sum() * 0.0
        return none

    def count(self, batch: MicroBatch) -> int:
        """Return a micro-batch's share of what an update's loss is divided by: its rows."""
        return len(batch.rows)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(range(len(self.plan)))

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["index"]

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """All processes know from the plan what the update's loss is divided by."""
        size = self._batches_of_an_update()
        first = int(batch_samples[0]["index"][0]) // size * size
        return max(sum(self.count(batch) for batch in self.plan[first : first + size]), 1)

    def _batches_of_an_update(self) -> int:
        return int(self.args.gradient_accumulation_steps * self.args.world_size)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the rows are not among the inputs."""
        return 0

    def note(self, sums: Sequence[Any], counts: Sequence[float]) -> None:
        """Add a micro-batch's sums of `metrics`, and how many numbers each is of, to the next log."""
        self._noted[:, 0] += torch.stack(
            [torch.as_tensor(value, device=self._noted.device).detach().double() for value in sums]
        )
        self._noted[:, 1] += torch.tensor(counts, dtype=torch.float64, device=self._noted.device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log a line, with the metrics of all processes since the last one."""
        if "loss" in logs:
            if self.metrics:
                noted = self.accelerator.reduce(self._noted, "sum").tolist()
                logs |= {n: s / c for n, (s, c) in zip(self.metrics, noted, strict=True) if c}
                self._noted.zero_()
            read = self._tokens_read[self.state.global_step * self._batches_of_an_update()]
            logs |= {"num_tokens": read} if read else {}
        super().log(logs, start_time)

    def create_optimizer(self, model: Any = None) -> Any:
        """Make the optimizer of exactly the role's weights and, with its own rate, the head's."""
        if self.optimizer is None:
            args, own = self.args, list(self.own.values())
            heads = [] if self.head is None else list(self.head.parameters())
            groups: list[dict[str, Any]] = [{"params": own, "weight_decay": args.weight_decay}]
            if heads:
                groups.append({"params": heads, "lr": self.head_rate, "weight_decay": 0.0})
            betas = (args.adam_beta1, args.adam_beta2)
            self.optimizer = torch.optim.AdamW(
                groups, lr=args.learning_rate, betas=betas, eps=args.adam_epsilon
            )
        return self.optimizer

    def after_update(self) -> None:
        """Run after each step of the optimizer."""

    def saved_parts(self) -> dict[str, Mapping[str, Tensor]]:
        """Return what a checkpoint must hold, as named tensors by the name of a part."""
        return {"own": self.own} | ({} if self.head is None else {"head": self.head.state_dict()})

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.args.should_save:
            write_weights(Path(output_dir or self.args.output_dir), self.saved_parts())

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        read_weights(Path(resume_from_checkpoint), self.saved_parts(), self.role)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with writing(Path(self.args.output_dir)):
            Trainer._save_checkpoint(self, model, trial)  # TRL's adds a model card
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            with writing(Path(self.args.output_dir)):
                mark_complete(Path(self.args.output_dir, f"checkpoint-{self.state.global_step}"))

    def fit(self) -> list[dict[str, float]]:
        """Train to the end, from the last complete checkpoint on, and return what was logged.

        It is the same whenever the training is the same, whether it was interrupted or not.
        """
        try:
            self.train(resume_from_checkpoint=last_checkpoint(Path(self.args.output_dir)))
            return [_plain(line) for line in self.state.log_history if "loss" in line]
        finally:
            self.close()

    def close(self) -> None:
        """Leave the models as they were, but for what they learned."""
        if self._restore is None:
            return
        self._restore()
        self._restore = None
        if self.args.device.type != "cpu":
            self.accelerator.free_memory()
        self.optimizer = self.lr_scheduler = None
        self.model_wrapped = self.model


class WarmUpTrainer(RowTrainer):
    """Supervised fine-tuning (CoMap, eq. 4 and 5): the mean loss of an update's scored tokens.

    It is TRL's loss. But only scored tokens pass through the head: on a CPU, TRL computes the logits of
    prompts too, which took half again as long.
    """

    def count(self, batch: MicroBatch) -> int:
        return sum(sum(row.scored) for row in self.rows_of(batch))

    def prepare(self, batch: MicroBatch) -> tuple[dict[str, Tensor], Losses]:
        """Return the model's inputs for a micro-batch, and what computes its losses."""
        rows = self.rows_of(batch)
        ids, mask = padded([row.prompt + row.answer for row in rows], self.args.device)

        def losses(hidden: Any, head: Any) -> Sums:
            each, _ = scored_nll(rows, hidden, head)
            return {"loss": self.zero(hidden, head) + each.sum()}, []

        return {"input_ids": ids, "attention_mask": mask}, losses


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Passes on what is logged, and calls `after_update`."""

    def __init__(self, trainer: RowTrainer, tell: Callable[[Mapping[str, float]], object] | None):
        self._trainer, self._tell = trainer, tell

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self._tell is not None and state.is_world_process_zero and logs and "loss" in logs:
            self._tell({**_plain(logs), "step": state.global_step, "steps": state.max_steps})

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.after_update()


def _check(role: str, plan: Sequence[MicroBatch], args: SFTConfig) -> None:
    if not any(batch.rows for batch in plan):
        raise OptionError(f"expected rows to train {role} on, found none")
    if args.n_gpu > 1:
        raise OptionError(
            f"expected one GPU for each process, found {args.n_gpu} for one; start the training with "
            "torchrun --nproc-per-node, or let CUDA_VISIBLE_DEVICES name one GPU"
        )


def _plain(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of logs that do not depend on how fast the machine was."""
    return {
        name: value
        for name, value in logs.items()
        if isinstance(value, int | float) and not name.startswith("train_")
    }


def _indices(items: Sequence[Mapping[str, int]]) -> dict[str, Tensor]:
    """Return the index in the plan of one micro-batch, for the data loader."""
    return {"index": torch.tensor([item["index"] for item in items])}


def scored_nll(rows: Sequence[Any], hidden: Any, head: Any) -> tuple[Tensor, list[int]]:
    """Return the negative log-likelihood of each scored token of some rows, and each token's row."""
    numbers, positions, tokens = columns(scored_positions(rows), 3)
    targets = torch.tensor(tokens, dtype=torch.long, device=hidden.device)
    return chunked_nll(hidden[numbers, positions], head, targets), numbers


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> Iterator[list[Any]]:
    return (list(column) for column in (zip(*rows, strict=True) if rows else [()] * width))


def chunked_nll(
    hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, *, chunk: int = _CHUNK
) -> Tensor:
    """Return the negative log-likelihood of each target token, with one chunk of logits at a time."""

    def part(states: Tensor, wanted: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(precise(head(states))[0], wanted, reduction="none")

    parts = [
        recomputed(part, hidden[start : start + chunk], targets[start : start + chunk])
        for start in range(0, len(hidden), chunk)
    ]
    return torch.cat(parts) if parts else precise(hidden)[0].sum(-1)


def read_head(layer: Any, hidden: Any) -> Any:
    """Return what a head makes of hidden states, in its own precision whatever the model's."""
    with torch.autocast(hidden.device.type, enabled=False):
        return layer(hidden.to(next(layer.parameters()).dtype))


def layer_of(weight: Any, bias: Any) -> torch.nn.Linear:
    """Return a linear layer with these weights; torch's random numbers are as before."""
    matrix, vector = torch.tensor(weight), torch.tensor(bias)
    with torch.random.fork_rng(devices=[]):
        layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0])
    with torch.no_grad():
        layer.weight.copy_(matrix)
        layer.bias.copy_(vector)
    return layer


def arrays_of(layer: Any) -> tuple[Any, Any]:
    """Return a linear layer's present weight and bias, as arrays of single precision."""
    weight, bias = (part.detach().cpu().float().numpy().copy() for part in layer.parameters())
    return weight, bias


def recomputed(part: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """Compute a part, keep only its inputs, and compute it again in the backward pass."""
    if not torch.is_grad_enabled():
        return part(*inputs)
    found: Tensor = checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False)
    return found


def precise(*tensors: Tensor) -> list[Tensor]:
    """Return tensors in one precision: single, or double where one of them is."""
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return [tensor.to(dtype) for tensor in tensors]


def padded(rows: Sequence[Sequence[int]], device: Any = None) -> tuple[Tensor, Tensor]:
    """Return the tokens of rows as one tensor, padded on the right, and its attention mask."""
    rows = rows or [(0,)]
    width = max(len(row) for row in rows)
    ids = [[*row, *[0] * (width - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def add_hidden_forward(base: Any) -> None:
    """Let a model's forward pass its hidden states and its head to a function, inside all wrappers."""
    config = base.config.get_text_config()
    for name in _SCALES:
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise OptionError(
                f"expected a model whose logits are its head's, found one that scales them ({name}); "
                "such models cannot be trained here: use another one"
            )
    before = base.forward

    @functools.wraps(type(base).forward)  # transformers looks at its signature
    def forward(self: Any, *args: Any, then: Any = None, **kwargs: Any) -> Any:
        if then is None:
            return before(*args, **kwargs)
        known = ("input_ids", "attention_mask", "position_ids")
        inputs = {name: kwargs[name] for name in known if name in kwargs}
        hidden = self.base_model(**inputs, use_cache=False).last_hidden_state
        return then(hidden, self.get_output_embeddings())

    base.forward = types.MethodType(forward, base)


def restorer(*models: Any) -> Callable[[], None]:
    """Return a function that restores models as they are now, but for the values of their weights."""
    modules = list({id(one): one for model in models for one in model.modules()}.values())
    weights = list({id(one): one for model in models for one in model.parameters()}.values())
    grads = [(weight, weight.requires_grad) for weight in weights]
    kept = [vars(owner) for owner in (*modules, *_configs(models))]
    # hooks, submodules and the like; buffers stay where the model's device is
    kept += [
        table
        for owner in kept
        for name, table in owner.items()
        if isinstance(table, dict) and name != "_buffers"
    ]
    entries = [(table, dict(table)) for table in kept]
    classes = [(module, type(module)) for module in modules]

    def restore() -> None:
        for module, kind in classes:
            module.__class__ = kind
        for table, before in entries:
            table.clear()
            table.update(before)
        for weight, flag in grads:
            weight.grad = None
            weight.requires_grad_(flag)

    return restore


def _configs(models: Sequence[Any]) -> list[Any]:
    """Return all configs of models, each once."""
    configs = [model.config for model in models if getattr(model, "config", None) is not None]
    found = configs + [config.get_text_config() for config in configs]
    found += [getattr(model, "generation_config", None) for model in models]
    return list({id(one): one for one in found if one is not None}.values())
