"""The trainer that all of comap's trainers are: TRL's `SFTTrainer`, with few overrides.

A role is trained on rows whose order and updates are given. A step of transformers' loop is a whole
update; the loop over its micro-batches is here, which are cut by tokens. Losses are computed inside the
model's forward, from hidden states, so that logits exist only where a loss needs them.

A GPU waits for nothing within an update: what follows from the rows is computed from lists, and index
tensors are copied from pinned memory. Metrics stay tensors until they are logged.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from datasets import Dataset
from packaging.version import Version
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PrinterCallback, Trainer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from ..agents.run import writing
from ..errors import OptionError
from .config import Optimization
from .memory import kept_logits
from .processes import part_at_exit
from .roles import Roles
from .run_folder import last_checkpoint, mark_complete, read_weights, write_weights
from .samples import Example, MicroBatch, ScoredToken, Update, dealt, scored_positions
from .schedule import RisingFromTheStart
from .sharding import (
    ShardedTraining,
    average_gradients,
    check_launch,
    is_sharded,
    unknown_to_accelerate,
)

_OWN_HEAD = "refinement_head"
_CHUNK = 1024  # positions whose logits are computed at a time
_PADDING = "padding"  # the metric of all trainers

# What some models do to their logits: the losses here read the head alone.
_SCALES = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)


@dataclass
class RowConfig(SFTConfig):  # type: ignore[misc]
    """TRL's settings, and how an update is cut."""

    micro_batch_tokens: int | None = None
    """Most tokens of a micro-batch, padding included; None where the plan has the micro-batches."""


def trainer_arguments(
    folder: Path, optimization: Optimization, rate: float, **further: Any
) -> RowConfig:
    """Return TRL's settings for one stage; further ones are TRL's own.

    What the settings of `optimization` leave to the memory is decided before: see `memory.fitted`.
    """
    part_at_exit()
    check_launch()

    # Transformers before 5.21 has the second name.
    names = ("activation_checkpointing", "gradient_checkpointing")
    checkpointing = next(name for name in names if name in SFTConfig.__dataclass_fields__)
    checkpoints = bool(optimization.gradient_checkpointing)
    checkpointing_settings = {
        checkpointing: checkpoints,
        f"{checkpointing}_kwargs": {"use_reentrant": False} if checkpoints else None,
    }

    return RowConfig(
        output_dir=str(folder),
        report_to="none",  # `tracking` has the curves of the whole training
        per_device_train_batch_size=1,  # one update, whatever its number of rows
        gradient_accumulation_steps=1,
        micro_batch_tokens=optimization.micro_batch_tokens,
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
        **checkpointing_settings,
    )


class Metric(NamedTuple):
    """The sum of a number that is logged, and of how many terms it is; the mean is logged.

    A sum on a GPU stays there until then.
    """

    sum: Any
    terms: float


class LossSums(NamedTuple):
    """The loss of a micro-batch, summed over its rows or tokens, and its metrics by name."""

    loss: Any
    metrics: Mapping[str, Metric]


Losses: TypeAlias = Callable[[Any, Any], LossSums]
"""Computes a micro-batch's losses from hidden states and the model's head, inside the model's forward."""


class RowTrainer(RisingFromTheStart, ShardedTraining, SFTTrainer):  # type: ignore[misc]
    """Trains one role on rows whose order and updates are given.

    Subclasses compute a micro-batch's losses in `prepare`. What is trained besides the role's weights
    (a head) is a submodule of the base model while training lasts, so that it takes part in distributed
    training. `fit` leaves the models as they were, but for what they learned.

    Args:
        roles: The models.
        role: Which of them is trained.
        epochs: The rows of each epoch.
        plan: The updates of all epochs: see `comap.trainers.samples.plan_updates`.
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
        plan: Sequence[Update],
        args: RowConfig,
        head: torch.nn.Module | None = None,
        head_rate: float = 1e-3,
        tell: Callable[[Mapping[str, float]], object] | None = None,
    ) -> None:
        _check(role, plan, args)
        self.roles = roles
        self.role = role
        self.epochs = epochs
        self.plan = plan
        self.head = head
        self.head_rate = head_rate
        self.base = roles.base(role)
        self.role_weights = roles.parameters(role)

        tokens_of_updates = [
            sum(len(epochs[update.epoch][row_index]) for row_index in update.rows)
            for update in plan
        ]
        self._tokens_read = [0, *accumulate(tokens_of_updates)]

        modules = [*map(roles.module, roles.names), self.base]
        if head is not None:
            modules.append(head)
        self._restore: Callable[[], None] | None = restorer(*modules)
        try:
            self._start(args, tell)
        except BaseException:
            self._restore()
            raise

    def _start(self, args: RowConfig, tell: Callable[[Mapping[str, float]], object] | None) -> None:
        """Construct TRL's trainer on the role, and change what rows need otherwise."""
        self.roles.train_only(self.role)
        if self.head is not None:
            self.base.add_module(_OWN_HEAD, self.head.to(self.base.device))

        with unknown_to_accelerate():
            super().__init__(
                model=self.roles.module(self.role),
                args=args,
                # An item for each process and update stands for the update; its number is the loop's.
                train_dataset=Dataset.from_dict(
                    {"update": [0] * (len(self.plan) * args.world_size)}
                ),
                processing_class=self.roles.tokenizer,
                data_collator=lambda items: {"update": items},
                callbacks=[_Watch(self, tell)],
            )

        self.remove_callback(PrinterCallback)
        self.processing_class = None  # so that no config is changed to what the tokenizer says
        self.loss_is_scaled_for_ga = True  # a loss is divided by all rows of its update
        self.roles.train_only(self.role)  # whatever the constructor did to flags
        if self.head is not None:
            self.head.requires_grad_(True)

        add_hidden_forward(self.base)
        self._noted: dict[str, Metric] = {}  # since the last log

    def _send_telemetry(self) -> None:
        """Disable TRL's telemetry."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Do a whole update, except for the optimizer's step, which transformers' loop does."""
        update = self.plan[self.state.global_step]
        micro_batches = self.micro_batches(update)
        divisor = self.divisor(update)  # of all processes, which know it from the plan

        total = torch.zeros((), dtype=torch.float64, device=self.args.device)
        for number, batch in enumerate(micro_batches, 1):
            is_last = number == len(micro_batches)  # processes share the last one's gradients
            with nullcontext() if is_last else self.accelerator.no_sync(model):
                total += super().training_step(model, {"batch": batch}, divisor)

        # Processes exchange the gradients of a sharded model, but the head is whole on each.
        if is_sharded() and self.head is not None:
            average_gradients(self.head)
        return total

    def micro_batches(self, update: Update) -> list[MicroBatch]:
        """Return this process's micro-batches of an update, as many as those of every other process."""
        max_tokens = self.args.micro_batch_tokens
        tokens: dict[int, int] = {}
        if max_tokens is not None:
            for row_index in update.rows:
                tokens[row_index] = self.tokens_of_row(update.epoch, row_index)
        shares = dealt(update, tokens, max_tokens, self.args.world_size)
        return shares[self.args.process_index]

    def tokens_of_row(self, epoch: int, row_index: int) -> int:
        """Return how many tokens the model reads for a row."""
        return len(self.epochs[epoch][row_index])

    def divisor(self, update: Update) -> int:
        """Return what the sum of an update's losses is divided by: its rows."""
        return len(update.rows)

    def rows_of(self, batch: MicroBatch) -> list[Any]:
        """Return the examples of a micro-batch."""
        return [self.epochs[batch.epoch][row_index] for row_index in batch.rows]

    def prepare(self, batch: MicroBatch) -> tuple[ModelInputs, Losses]:
        """Return the model's inputs for a micro-batch, and what computes its losses."""
        raise NotImplementedError

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return this micro-batch's part of the update's loss."""
        model_inputs, losses = self.prepare(inputs["batch"])
        self._note_padding(model_inputs)
        sums: LossSums = model(**model_inputs.tensors, then=losses)
        self.note(sums.metrics)

        # DDP averages gradients over processes; the loss is divided by all rows of the update.
        loss = sums.loss / num_items_in_batch * self.accelerator.num_processes
        return (loss, sums) if return_outputs else loss

    def zero(self, hidden: Any, head: Any) -> Any:
        """Return 0, made of all that is trained: with several processes all of it must take part."""
        zero = head(hidden[:1, :1]).float().sum() * 0.0
        if self.head is not None:
            for weight in self.head.parameters():
                zero = zero + weight.sum() * 0.0
        return zero

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(train_dataset or self.train_dataset)

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["update"]

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> None:
        """Return nothing: `divisor` has what an update's loss is divided by."""

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the rows are not among the inputs."""
        return 0

    def note(self, metrics: Mapping[str, Metric]) -> None:
        """Add a micro-batch's metrics to the next log; those that are missing have no terms."""
        for name, metric in metrics.items():
            total = metric.sum
            if isinstance(total, Tensor):
                total = total.detach().double()
            former = self._noted.get(name, Metric(0.0, 0))
            self._noted[name] = Metric(former.sum + total, former.terms + metric.terms)

    def _note_padding(self, inputs: ModelInputs) -> None:
        """Add to the next log how many of the tokens that are read are padding."""
        size = inputs.tensors["input_ids"].numel()
        self.note({_PADDING: Metric(size - inputs.tokens, size)})

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log a line, with the metrics of all processes since the last one."""
        if "loss" in logs:
            logs |= self._means()
            if tokens_read := self._tokens_read[self.state.global_step]:
                logs["num_tokens"] = tokens_read
        super().log(logs, start_time)

    def _means(self) -> dict[str, float]:
        """Return the means of what all processes noted, and forget it."""
        names = (*self.metrics, _PADDING)
        of_process = [self._noted.get(name, Metric(0.0, 0)) for name in names]
        self._noted.clear()

        double = {"dtype": torch.float64, "device": self.args.device}
        sums = torch.stack([torch.as_tensor(metric.sum, **double) for metric in of_process])
        terms = torch.tensor([metric.terms for metric in of_process], **double)
        totals, counts = self.accelerator.reduce(torch.stack([sums, terms]), "sum").tolist()
        return {
            name: total / count
            for name, total, count in zip(names, totals, counts, strict=True)
            if count
        }

    def create_optimizer(self, model: Any = None) -> Any:
        """Return the optimizer of exactly the role's weights and, with its own rate, the head's."""
        if self.optimizer is None:
            args = self.args
            groups: list[dict[str, Any]] = [
                {"params": list(self.role_weights.values()), "weight_decay": args.weight_decay}
            ]
            head_weights = [] if self.head is None else list(self.head.parameters())
            if head_weights:
                groups.append({"params": head_weights, "lr": self.head_rate, "weight_decay": 0.0})

            self.optimizer = torch.optim.AdamW(
                groups,
                lr=args.learning_rate,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
                # of all weights at once, which torch does not choose by itself for shards
                foreach=True if is_sharded() else None,
            )
        return self.optimizer

    def after_update(self) -> None:
        """Run after each step of the optimizer."""

    def saved_parts(self) -> dict[str, Mapping[str, Tensor]]:
        """Return what a checkpoint must hold, as named tensors by the name of a part."""
        parts: dict[str, Mapping[str, Tensor]] = {"own": self.role_weights}
        if self.head is not None:
            parts["head"] = self.head.state_dict()
        return parts

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
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
        self.optimizer = None
        self.lr_scheduler = None
        self.model_wrapped = self.model


class WarmUpTrainer(RowTrainer):
    """Supervised fine-tuning (CoMap, eq. 4 and 5): the mean loss of an update's scored tokens.

    It is TRL's loss. But only scored tokens pass through the head: on a CPU, TRL computes the logits of
    prompts too, which took half again as long.
    """

    def divisor(self, update: Update) -> int:
        """Return what the sum of an update's losses is divided by: its scored tokens."""
        rows = [self.epochs[update.epoch][row_index] for row_index in update.rows]
        return max(sum(sum(row.scored) for row in rows), 1)

    def prepare(self, batch: MicroBatch) -> tuple[ModelInputs, Losses]:
        """Return the model's inputs for a micro-batch, and what computes its losses."""
        rows = self.rows_of(batch)
        sequences = [row.prompt + row.answer for row in rows]
        inputs = ModelInputs.padded(sequences, self.base)
        scored = columns(ScoredToken, scored_positions(rows), self.args.device)

        def losses(hidden: Any, head: Any) -> LossSums:
            token_losses = scored_nll(scored, hidden, head)
            return LossSums(self.zero(hidden, head) + token_losses.sum(), {})

        return inputs, losses


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Passes on what is logged, and calls `after_update`."""

    def __init__(self, trainer: RowTrainer, tell: Callable[[Mapping[str, float]], object] | None):
        self._trainer = trainer
        self._tell = tell

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self._tell is None or not state.is_world_process_zero:
            return
        if logs and "loss" in logs:
            self._tell({**_plain(logs), "step": state.global_step, "steps": state.max_steps})

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.after_update()


def _check(role: str, plan: Sequence[Update], args: RowConfig) -> None:
    """Refuse a plan without rows, and several GPUs in one process."""
    if not any(update.rows for update in plan):
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


Positions = TypeVar("Positions", bound=NamedTuple)


def columns(kind: type[Positions], positions: Sequence[Positions], device: Any) -> Positions:
    """Return positions as one whose fields are tensors (N,) on a device: one copy for all."""
    table = np.array(positions, np.int64).reshape(-1, len(kind._fields))
    return kind._make(on_device(np.ascontiguousarray(table.T), device))


def on_device(values: Any, device: Any) -> Tensor:
    """Return numbers as a tensor on a device; nothing waits for the copy to a GPU."""
    tensor = torch.as_tensor(values)
    if torch.device(device).type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def scored_nll(scored: ScoredToken, hidden: Any, head: Any) -> Tensor:
    """Return the negative log-likelihood of scored tokens, whose fields are tensors: see `columns`."""
    return chunked_nll(hidden[scored.row_index, scored.position], head, scored.token_id)


def chunked_nll(
    hidden: Tensor,
    head: Any,
    targets: Tensor,
    *,
    chunk: int = _CHUNK,
    kept: int | None = None,
) -> Tensor:
    """Return the negative log-likelihood of each target token, (N,); see `in_chunks`.

    Where logits are not kept, `fused_nll` computes head and loss in one, if it can.
    """

    def nll_of_chunk(states: Tensor, chunk_targets: Tensor) -> Tensor:
        logits = precise(head(states))[0]
        return torch.nn.functional.cross_entropy(logits, chunk_targets, reduction="none")

    if kept is None:
        kept = kept_logits(hidden.device) // len(head.weight)

    # The kernel computes logits again too, but never in single precision, and none of them stay.
    end = len(hidden)
    fused = None
    if end > kept:
        fused = fused_nll(head, hidden)
    if fused is not None:
        end = kept - kept % chunk
    losses = in_chunks(nll_of_chunk, hidden[:end], targets[:end], chunk=chunk, kept=kept)
    if fused is not None:
        losses = torch.cat([losses, fused(hidden[end:], targets[end:])])
    return losses


def fused_nll(head: Any, hidden: Tensor) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return liger-kernel's head and cross-entropy in one: of states and tokens, the losses (N,).

    It is None without that package (extra ``gpu``) or a CUDA GPU, in double precision, and for heads that
    do more than multiply, such as adapters.
    """
    computes_here = hidden.device.type == "cuda" and hidden.dtype != torch.float64
    if not computes_here or type(head) is not torch.nn.Linear:
        return None
    return liger_nll(head)


def liger_nll(head: torch.nn.Linear) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return `fused_nll` of a linear head wherever Triton runs; None where the package is missing.

    The host waits for the GPU twice, since the kernel counts its tokens.
    """
    try:
        installed = Version(metadata.version("liger-kernel"))
        from liger_kernel.ops.fused_linear_cross_entropy import (
            LigerFusedLinearCrossEntropyFunction,
        )
    except ImportError:
        return None
    # Before, the head's gradient was summed over tokens before each had its weight in the loss.
    if installed < Version("0.8.2"):
        raise OptionError(
            f"expected liger-kernel 0.8.2 or newer, found {installed}, which computes wrong gradients; "
            'install "comap-agents[gpu]", or uninstall liger-kernel'
        )

    def fused(states: Tensor, targets: Tensor) -> Tensor:
        outputs = LigerFusedLinearCrossEntropyFunction.apply(
            states,
            head.weight,
            targets,
            head.bias,
            None,  # no weights of classes
            -100,  # the token that is ignored: there is none
            0.0,
            0.0,
            "none",
            None,
            False,
            torch.float32,  # in which the head's gradient is summed over chunks
        )
        losses: Tensor = outputs[0]
        return losses

    return fused


def in_chunks(
    function: Callable[..., Tensor], hidden: Tensor, other: Tensor, *, chunk: int, kept: int
) -> Tensor:
    """Return a function's number for each of N hidden states, with something else of each.

    It is called with a chunk of positions at a time. The first `kept` positions keep what it computes for
    the backward pass; those behind them compute it again, so that memory is bounded.
    """
    numbers = []
    for start in range(0, len(hidden), chunk):
        end = min(start + chunk, len(hidden))
        inputs = (hidden[start:end], other[start:end])
        numbers.append(function(*inputs) if end <= kept else recomputed(function, *inputs))
    return torch.cat(numbers) if numbers else precise(hidden)[0].sum(-1)


def read_head(layer: Any, hidden: Any) -> Any:
    """Return a head's output for hidden states, computed in the head's precision, not the model's."""
    with torch.autocast(hidden.device.type, enabled=False):
        return layer(hidden.to(next(layer.parameters()).dtype))


def layer_of(weight: Any, bias: Any) -> torch.nn.Linear:
    """Return a linear layer with these weights; torch's random numbers are as before."""
    matrix = torch.tensor(weight)
    vector = torch.tensor(bias)
    with torch.random.fork_rng(devices=[]):
        layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0])
    with torch.no_grad():
        layer.weight.copy_(matrix)
        layer.bias.copy_(vector)
    return layer


def arrays_of(layer: Any) -> tuple[Any, Any]:
    """Return a linear layer's present weight and bias, as arrays of single precision."""
    weight, bias = (
        parameter.detach().cpu().float().numpy().copy() for parameter in layer.parameters()
    )
    return weight, bias


def recomputed(function: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """Return a function's output, which keeps only the inputs and is computed again for gradients."""
    if not torch.is_grad_enabled():
        return function(*inputs)
    output: Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return output


def precise(*tensors: Tensor) -> list[Tensor]:
    """Return tensors in one precision: single, or double where one of them is."""
    is_double = any(tensor.dtype == torch.float64 for tensor in tensors)
    dtype = torch.float64 if is_double else torch.float32
    return [tensor.to(dtype) for tensor in tensors]


class ModelInputs(NamedTuple):
    """What a model reads of a micro-batch.

    Attributes:
        tensors: The arguments of its forward.
        tokens: How many of the tokens are no padding.
    """

    tensors: dict[str, Tensor]
    tokens: int

    @staticmethod
    def padded(sequences: Sequence[Sequence[int]], model: Any) -> ModelInputs:
        """Return the inputs of sequences that are padded on the right, where the model is.

        No token sees what is behind it, padding included, so that no mask of padding is needed.
        """
        lengths = [len(sequence) for sequence in sequences] or [1]
        ids = np.zeros((len(lengths), max(lengths)), np.int64)
        for row, sequence in zip(ids, sequences, strict=False):
            row[: len(sequence)] = sequence
        tensors = {"input_ids": on_device(ids, model.device)}

        if _is_causal_by_itself(model):
            tensors["attention_mask"] = CausalMask.of(*ids.shape, model.device)
            tensors["position_ids"] = torch.arange(ids.shape[1], device=model.device)[None]
        return ModelInputs(tensors, sum(map(len, sequences)))


class CausalMask(torch.Tensor):  # type: ignore[misc]
    """A causal mask ``(rows, 1, width, width)`` without memory: torch's kernels are causal by themselves.

    Without any mask transformers looks for packed sequences among the positions: a GPU waits for that in
    each pass. So it does for models with windows, whose masks transformers makes.
    """

    @classmethod
    def of(cls, rows: int, width: int, device: Any) -> CausalMask:
        """Return the mask of so many rows."""
        mask: CausalMask = (
            torch.zeros(1, device=device).expand(rows, 1, width, width).as_subclass(cls)
        )
        return mask

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            options = {**(kwargs or {}), "attn_mask": None, "is_causal": True}
            return func(*args[:3], **options)
        return super().__torch_function__(func, types, args, kwargs or {})


def _is_causal_by_itself(model: Any) -> bool:
    """Return whether a model's layers all attend to everything before, by torch's own attention."""
    config = model.config.get_text_config()
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    has_window = getattr(config, "sliding_window", None) is not None
    is_full = set(layer_types) == {"full_attention"} and not has_window
    return is_full and model.config._attn_implementation == "sdpa"


def add_hidden_forward(base: Any) -> None:
    """Give a model's forward a keyword ``then``: a function of its hidden states and its head.

    It is called inside all wrappers, so that DDP and mixed precision see the losses as the output.
    """
    config = base.config.get_text_config()
    for name in _SCALES:
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise OptionError(
                f"expected a model whose logits are its head's, found one that scales them ({name}); "
                "such models cannot be trained here: use another one"
            )
    original_forward = base.forward

    @functools.wraps(type(base).forward)  # transformers looks at its signature
    def forward(self: Any, *args: Any, then: Any = None, **kwargs: Any) -> Any:
        if then is None:
            return original_forward(*args, **kwargs)
        input_names = ("input_ids", "attention_mask", "position_ids")
        inputs = {name: kwargs[name] for name in input_names if name in kwargs}
        hidden = self.base_model(**inputs, use_cache=False).last_hidden_state
        return then(hidden, self.get_output_embeddings())

    base.forward = types.MethodType(forward, base)


def restorer(*models: Any) -> Callable[[], None]:
    """Return a function that restores models as they are now, but for the values of their weights."""
    modules: dict[int, Any] = {}
    weights: dict[int, Any] = {}
    for model in models:  # models share modules and weights: each once
        modules |= {id(module): module for module in model.modules()}
        weights |= {id(weight): weight for weight in model.parameters()}
    gradient_flags = [(weight, weight.requires_grad) for weight in weights.values()]
    classes = [(module, type(module)) for module in modules.values()]

    attributes = [vars(owner) for owner in (*modules.values(), *_configs(models))]
    # hooks, submodules and the like; buffers stay where the model's device is
    tables = list(attributes)
    for attributes_of_owner in attributes:
        for name, table in attributes_of_owner.items():
            if isinstance(table, dict) and name != "_buffers":
                tables.append(table)
    entries = [(table, dict(table)) for table in tables]

    def restore() -> None:
        for module, module_class in classes:
            module.__class__ = module_class
        for table, former_entries in entries:
            table.clear()
            table.update(former_entries)
        for weight, requires_grad in gradient_flags:
            weight.grad = None
            weight.requires_grad_(requires_grad)

    return restore


def _configs(models: Sequence[Any]) -> list[Any]:
    """Return all configs of models, each once."""
    configs = [model.config for model in models if getattr(model, "config", None) is not None]
    configs += [config.get_text_config() for config in list(configs)]
    configs += [getattr(model, "generation_config", None) for model in models]
    return list({id(config): config for config in configs if config is not None}.values())
