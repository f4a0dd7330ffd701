"""The trainer that all of comap's trainers are: TRL's `SFTTrainer`, with few overrides.

A role is trained on rows whose order and batches are given. Losses are computed inside the model's
forward, from hidden states, so that logits exist only where a loss needs them, a chunk at a time.
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

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
_CHUNK = 1024  # positions whose logits exist at a time

# What some models do to their logits: the losses here read the head alone.
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
    sharding_variables = {
        "ACCELERATE_USE_FSDP": "FSDP",
        "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    }
    for variable, sharding in sharding_variables.items():
        if os.environ.get(variable, "").lower() in ("1", "true", "yes", "on"):
            raise OptionError(
                f"expected processes of DDP, found {sharding}, which keeps the weights between stages "
                "where agents cannot ask them; start with torchrun or accelerate launch --multi_gpu"
            )
    if optimization.accumulate % world_size():
        raise OptionError(
            f"expected a number of processes that divides the {optimization.accumulate} micro-batches "
            f"of an update, found {world_size()}; change accumulate or the number of processes"
        )

    # Transformers before 5.21 has the second name.
    names = ("activation_checkpointing", "gradient_checkpointing")
    checkpointing = next(name for name in names if name in SFTConfig.__dataclass_fields__)
    checkpoints = optimization.gradient_checkpointing
    checkpointing_settings = {
        checkpointing: checkpoints,
        f"{checkpointing}_kwargs": {"use_reentrant": False} if checkpoints else None,
    }

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
        **checkpointing_settings,
    )


class Metric(NamedTuple):
    """The sum of a number that is logged, and of how many terms it is; the mean is logged."""

    sum: Any
    terms: float


class LossSums(NamedTuple):
    """The loss of a micro-batch, summed over what `RowTrainer.count` counts, and its metrics by name."""

    loss: Any
    metrics: Mapping[str, Metric]


Losses: TypeAlias = Callable[[Any, Any], LossSums]
"""Computes a micro-batch's losses from hidden states and the model's head, inside the model's forward."""


class RowTrainer(SFTTrainer):  # type: ignore[misc]
    """Trains one role on rows whose order and batches are given.

    Subclasses compute a micro-batch's losses in `prepare`. What is trained besides the role's weights
    (a head) is a submodule of the base model while training lasts, so that it takes part in distributed
    training. `fit` leaves the models as they were, but for what they learned.

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
        self.roles = roles
        self.role = role
        self.epochs = epochs
        self.plan = plan
        self.head = head
        self.head_rate = head_rate
        self.base = roles.base(role)
        self.role_weights = roles.parameters(role)

        tokens_of_batches = [
            sum(len(epochs[batch.epoch][row_index]) for row_index in batch.rows) for batch in plan
        ]
        self._tokens_read = [0, *accumulate(tokens_of_batches)]

        modules = [*map(roles.module, roles.names), self.base]
        if head is not None:
            modules.append(head)
        self._restore: Callable[[], None] | None = restorer(*modules)
        try:
            self._start(args, tell)
        except BaseException:
            self._restore()
            raise

    def _start(self, args: SFTConfig, tell: Callable[[Mapping[str, float]], object] | None) -> None:
        """Construct TRL's trainer on the role, and change what rows need otherwise."""
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
        # one line for each of `metrics`: its sum and its terms since the last log
        self._noted = torch.zeros(len(self.metrics), 2, dtype=torch.float64, device=args.device)

    def _send_telemetry(self) -> None:
        """Disable TRL's telemetry."""

    def batch_of(self, inputs: Mapping[str, Any]) -> MicroBatch:
        """Return the micro-batch that inputs stand for."""
        return self.plan[int(inputs["index"][0])]

    def rows_of(self, batch: MicroBatch) -> list[Any]:
        """Return the examples of a micro-batch."""
        return [self.epochs[batch.epoch][row_index] for row_index in batch.rows]

    def prepare(self, batch: MicroBatch) -> tuple[dict[str, Tensor], Losses]:
        """Return the model's inputs for a micro-batch, and what computes its losses."""
        raise NotImplementedError

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return this micro-batch's part of the update's loss."""
        model_inputs, losses = self.prepare(self.batch_of(inputs))
        sums: LossSums = model(**model_inputs, then=losses)
        if self.metrics:
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

    def count(self, batch: MicroBatch) -> int:
        """Return a micro-batch's share of what an update's loss is divided by: its rows."""
        return len(batch.rows)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(range(len(self.plan)))

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["index"]

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """Return what the update's loss is divided by; all processes know it from the plan."""
        size = self._batches_of_an_update()
        start = int(batch_samples[0]["index"][0]) // size * size  # where the update begins
        batches = self.plan[start : start + size]
        return max(sum(self.count(batch) for batch in batches), 1)

    def _batches_of_an_update(self) -> int:
        return int(self.args.gradient_accumulation_steps * self.args.world_size)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the rows are not among the inputs."""
        return 0

    def note(self, metrics: Mapping[str, Metric]) -> None:
        """Add a micro-batch's metrics to the next log; those that are missing have no terms."""
        device = self._noted.device
        of_micro_batch = [metrics.get(name, Metric(0.0, 0)) for name in self.metrics]
        sums = [
            torch.as_tensor(metric.sum, device=device).detach().double()
            for metric in of_micro_batch
        ]
        terms = [metric.terms for metric in of_micro_batch]
        self._noted[:, 0] += torch.stack(sums)
        self._noted[:, 1] += torch.tensor(terms, dtype=torch.float64, device=device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log a line, with the metrics of all processes since the last one."""
        if "loss" in logs:
            if self.metrics:
                noted = self.accelerator.reduce(self._noted, "sum").tolist()
                for name, (total, terms) in zip(self.metrics, noted, strict=True):
                    if terms:
                        logs[name] = total / terms
                self._noted.zero_()

            batches_read = self.state.global_step * self._batches_of_an_update()
            tokens_read = self._tokens_read[batches_read]
            if tokens_read:
                logs["num_tokens"] = tokens_read
        super().log(logs, start_time)

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
        self.optimizer = None
        self.lr_scheduler = None
        self.model_wrapped = self.model


class WarmUpTrainer(RowTrainer):
    """Supervised fine-tuning (CoMap, eq. 4 and 5): the mean loss of an update's scored tokens.

    It is TRL's loss. But only scored tokens pass through the head: on a CPU, TRL computes the logits of
    prompts too, which took half again as long.
    """

    def count(self, batch: MicroBatch) -> int:
        """Return a micro-batch's share of what an update's loss is divided by: its scored tokens."""
        return sum(sum(row.scored) for row in self.rows_of(batch))

    def prepare(self, batch: MicroBatch) -> tuple[dict[str, Tensor], Losses]:
        """Return the model's inputs for a micro-batch, and what computes its losses."""
        rows = self.rows_of(batch)
        ids, mask = padded([row.prompt + row.answer for row in rows], self.args.device)

        def losses(hidden: Any, head: Any) -> LossSums:
            token_losses, _ = scored_nll(rows, hidden, head)
            return LossSums(self.zero(hidden, head) + token_losses.sum(), {})

        return {"input_ids": ids, "attention_mask": mask}, losses


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


def _check(role: str, plan: Sequence[MicroBatch], args: SFTConfig) -> None:
    """Refuse a plan without rows, and several GPUs in one process."""
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
    """Return the negative log-likelihood of each scored token of some rows, and the index of its row."""
    scored_tokens = scored_positions(rows)
    row_indices = [token.row_index for token in scored_tokens]
    positions = [token.position for token in scored_tokens]
    token_ids = [token.token_id for token in scored_tokens]

    targets = torch.tensor(token_ids, dtype=torch.long, device=hidden.device)
    return chunked_nll(hidden[row_indices, positions], head, targets), row_indices


def chunked_nll(
    hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, *, chunk: int = _CHUNK
) -> Tensor:
    """Return the negative log-likelihood of each target token, with one chunk of logits at a time."""

    def nll_of_chunk(states: Tensor, chunk_targets: Tensor) -> Tensor:
        logits = precise(head(states))[0]
        return torch.nn.functional.cross_entropy(logits, chunk_targets, reduction="none")

    nll_of_chunks = [
        recomputed(nll_of_chunk, hidden[start : start + chunk], targets[start : start + chunk])
        for start in range(0, len(hidden), chunk)
    ]
    return torch.cat(nll_of_chunks) if nll_of_chunks else precise(hidden)[0].sum(-1)


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


def padded(rows: Sequence[Sequence[int]], device: Any = None) -> tuple[Tensor, Tensor]:
    """Return the tokens of rows as one tensor, padded on the right, and its attention mask."""
    rows = rows or [(0,)]
    width = max(len(row) for row in rows)
    ids = [[*row, *[0] * (width - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


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
