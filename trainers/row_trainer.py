"""The trainer that all of comap's trainers are: TRL's `SFTTrainer`, with few overrides.

What differs: which rows make an update is fixed beforehand (`comap.trainers.plan`); only one role's
weights are trained, by an optimizer that is told them explicitly; a checkpoint holds those weights and
no others, and counts only once it is complete. With FSDP the processes share the weights of a stage
(see `comap.trainers.sharded`). Importing this module imports torch and TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from ..agents.records import writing
from ..errors import OptionError
from .divergence import chunked_nll
from .examples import Example, scored_places
from .plan import MicroBatch
from .roles import Roles
from .sharded import Shards, check_sharding, forget_sharding, whole_head
from .trained_model import add_hidden_forward, padded, restorer
from .trainer_checkpoints import last_checkpoint, mark_complete, read_weights, write_weights

__all__ = ["RowTrainer", "WarmUpTrainer", "last_checkpoint"]

_OWN_HEAD = "refinement_head"
_CHUNK = 1024


class RowTrainer(SFTTrainer):  # type: ignore[misc]
    """Trains one role on rows whose order and batches are given.

    Subclasses compute the loss from `rows_of` and tell metrics to `note`. What is trained besides the
    role's weights (a head) is a submodule of the base model while training lasts, so that it takes
    part in distributed training. `fit` leaves the models as they were, but for what they learned.

    Args:
        roles: The models.
        role: Which of them is trained.
        epochs: The examples of each epoch.
        plan: The micro-batches of all epochs: see `comap.trainers.plan.plan_updates`.
        args: TRL's settings: see `comap.trainers.arguments.trainer_arguments`.
        head: A module that is trained with the role, or None.
        head_rate: Its highest learning rate.
        betas: Of AdamW; None for those of `args`.
        tell: Told each line of metrics as it is logged, on the first process.

    Raises:
        OptionError: There is nothing to train on, the role cannot be trained, one process sees
            several GPUs, or processes cannot share the weights as they were told to.
    """

    metrics: tuple[str, ...] = ()
    """What is told of each micro-batch: see `note`."""

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
        betas: tuple[float, float] | None = None,
        tell: Callable[[Mapping[str, float]], object] | None = None,
    ) -> None:
        roles.check(role)
        check_sharding(roles.kind)
        _check(role, plan, args)
        self.roles, self.role, self.epochs, self.plan = roles, role, epochs, plan
        self.head, self.head_rate = head, head_rate
        self.betas = (args.adam_beta1, args.adam_beta2) if betas is None else betas
        self.base, self.own = roles.base(role), roles.parameters(role)
        read = [sum(len(epochs[b.epoch][row]) for row in b.rows) for b in plan]
        self._tokens_read = [0, *accumulate(read)]
        modules = [roles.module(name) for name in roles.names]
        modules += [self.base, *([] if head is None else [head])]
        self._restore: Callable[[], None] | None = restorer(*modules)
        try:
            self._start(args, tell)
        except BaseException:
            self._restore()
            raise

    def _start(self, args: SFTConfig, tell: Callable[[Mapping[str, float]], object] | None) -> None:
        """Make everything ready."""
        self.roles.train_only(self.role)
        if self.head is not None:
            self.base.add_module(_OWN_HEAD, self.head.to(self.base.device))
        super().__init__(
            model=self.roles.module(self.role),
            args=args,
            train_dataset=Dataset.from_dict({"place": list(range(len(self.plan)))}),
            processing_class=self.roles.tokenizer,
            data_collator=_places,
            callbacks=[_Watch(self, tell)],
        )
        self.remove_callback(PrinterCallback)
        self.processing_class = None  # so that no config is changed to what the tokenizer says
        self.loss_is_scaled_for_ga = True  # a loss is divided by all rows of its update
        self.roles.train_only(self.role)  # whatever the constructor did to flags
        if self.head is not None:
            self.head.requires_grad_(True)
        self.shards = Shards(self.model) if self.accelerator.is_fsdp2 else None
        if self.shards is None:
            add_hidden_forward(self.base)
        else:  # weights keep their precision, and what is computed is cast as without FSDP
            self.accelerator.state.fsdp_plugin.mixed_precision_policy = None
            add_hidden_forward(self.base, whole_head)
        self._noted = torch.zeros(len(self.metrics), 2, dtype=torch.float64, device=args.device)

    def _send_telemetry(self) -> None:
        """Tell nobody that a model is trained here."""

    # -- rows ------------------------------------------------------------------------------------

    def batch_of(self, inputs: Mapping[str, Any]) -> MicroBatch:
        """Return the micro-batch that inputs stand for."""
        return self.plan[int(inputs["place"][0])]

    def rows_of(self, inputs: Mapping[str, Any]) -> list[Example]:
        """Return the examples of a micro-batch."""
        batch = self.batch_of(inputs)
        return [self.epochs[batch.epoch][row] for row in batch.rows]

    def count(self, batch: MicroBatch) -> int:
        """Return what an update's loss is divided by, of one of its micro-batches: its rows."""
        return len(batch.rows)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return torch.utils.data.SequentialSampler(range(len(self.plan)))

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = ["place"]

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """Return what the update's loss is divided by, which the plan tells to all processes."""
        size = self._batches_of_an_update()
        first = int(batch_samples[0]["place"][0]) // size * size
        return max(sum(self.count(batch) for batch in self.plan[first : first + size]), 1)

    def _batches_of_an_update(self) -> int:
        return int(self.args.gradient_accumulation_steps * self.args.world_size)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the rows are not among the inputs."""
        return 0

    def tokens_read(self, batches: int) -> int | None:
        """Return how many tokens so many micro-batches have; None where that is not known.

        Args:
            batches: The first so many of the plan.
        """
        return self._tokens_read[batches]

    # -- metrics ---------------------------------------------------------------------------------

    def note(self, sums: Sequence[Any], counts: Sequence[float]) -> None:
        """Keep a micro-batch's `metrics` for the next line of the log, which has their means.

        Args:
            sums: The sum of each; tensors are not waited for.
            counts: How many numbers each is the sum of.
        """
        self._noted[:, 0] += torch.stack(
            [torch.as_tensor(value, device=self._noted.device).detach().double() for value in sums]
        )
        self._noted[:, 1] += torch.tensor(counts, dtype=torch.float64, device=self._noted.device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log a line, with the metrics of all processes since the last one."""
        if "loss" in logs:
            if self.metrics:
                noted = self.accelerator.reduce(self._noted, "sum").tolist()
                means = {n: s / c for n, (s, c) in zip(self.metrics, noted, strict=True) if c}
                logs.update(means)
                self._noted.zero_()
            read = self.tokens_read(self.state.global_step * self._batches_of_an_update())
            if read is not None:
                logs["num_tokens"] = read
        super().log(logs, start_time)

    # -- optimizer and checkpoints ---------------------------------------------------------------

    def create_optimizer(self, model: Any = None) -> Any:
        """Make the optimizer of exactly the role's weights and, with its own rate, the head's."""
        if self.optimizer is None:
            args = self.args
            own = list(self.own.values())
            heads = [] if self.head is None else list(self.head.parameters())
            trained = {id(weight) for weight in self.model.parameters() if weight.requires_grad}
            if trained != {id(weight) for weight in (*own, *heads)}:
                raise OptionError(
                    f"expected {len(own) + len(heads)} weights to train for {self.role}, found "
                    f"{len(trained)} others or fewer; train a model that nobody else changes"
                )
            groups: list[dict[str, Any]] = [{"params": own, "weight_decay": args.weight_decay}]
            if heads:
                groups.append({"params": heads, "lr": self.head_rate, "weight_decay": 0.0})
            self.optimizer = torch.optim.AdamW(
                groups, lr=args.learning_rate, betas=self.betas, eps=args.adam_epsilon
            )
        return self.optimizer

    def after_update(self) -> None:
        """Do what is to be done after each step of the optimizer: here nothing."""

    def extra_state(self) -> dict[str, Mapping[str, torch.Tensor]]:
        """Return what else a checkpoint must hold, as named tensors by the name of a part."""
        return {} if self.head is None else {"head": self.head.state_dict()}

    def _parts(self) -> dict[str, Mapping[str, torch.Tensor]]:
        return {"own": self.own, **self.extra_state()}

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.args.should_save:
            write_weights(Path(output_dir or self.args.output_dir), self._parts())

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        read_weights(Path(resume_from_checkpoint), self._parts(), self.role)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with writing(Path(self.args.output_dir)):
            Trainer._save_checkpoint(self, model, trial)  # TRL's adds a model card
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            with writing(Path(self.args.output_dir)):
                mark_complete(Path(self.args.output_dir, f"checkpoint-{self.state.global_step}"))

    # -- the whole -------------------------------------------------------------------------------

    def computing(self) -> AbstractContextManager[None]:
        """Return within what the model is asked: FSDP's wrapper does not choose the precision."""
        found: AbstractContextManager[None] = (
            nullcontext() if self.shards is None else self.accelerator.autocast()
        )
        return found

    def before_sharding(self) -> None:
        """Do what needs the whole model, with FSDP, just before it is shared: here nothing."""

    def begin_shards(self, shards: Shards) -> None:
        """Go on with what stands for the weights, now that the processes share them."""
        shards.begin()
        self.own = shards.of(self.own)

    def fit(self) -> list[dict[str, float]]:
        """Train to the end, from the last complete checkpoint on; with FSDP from the beginning.

        If it fails with FSDP, the models are of no use any more.

        Returns:
            What was logged, as JSON data; the same whenever the training is the same, whether it was
            interrupted or not.
        """
        try:
            if self.shards is None:
                self.train(resume_from_checkpoint=last_checkpoint(Path(self.args.output_dir)))
            else:
                self.before_sharding()
                self.train()
                self.shards.gather()
            return [_plain(line) for line in self.state.log_history if "loss" in line]
        finally:
            self.close()

    def close(self) -> None:
        """Leave the models as they were, but for what they learned; a second time it does nothing."""
        if self._restore is None:
            return
        sharded = self.shards is not None
        if sharded:
            forget_sharding(self.model)
        self._restore()
        self._restore = self.shards = None
        if sharded or self.args.device.type != "cpu":
            self.accelerator.free_memory()
        self.optimizer = self.lr_scheduler = None
        self.model_wrapped = self.model


class WarmUpTrainer(RowTrainer):
    """Supervised fine-tuning (METHODS.md 1.5): the mean loss of all scored tokens of an update.

    It is TRL's loss, and its metrics have TRL's names. But only scored tokens pass through the head:
    on a CPU, TRL computes the logits of prompts too, which took half again as long.

    Example:
        >>> trainer = WarmUpTrainer(  # doctest: +SKIP
        ...     roles=roles, role="wm", epochs=[rows], plan=plan, args=arguments
        ... )
        >>> log = trainer.fit()  # doctest: +SKIP
    """

    metrics = ("entropy", "mean_token_accuracy")

    def count(self, batch: MicroBatch) -> int:
        """Return the number of scored tokens."""
        rows = self.epochs[batch.epoch]
        return sum(sum(rows[row].scored) for row in batch.rows)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return this micro-batch's part of the update's loss."""
        rows = self.rows_of(inputs)
        ids, mask = padded([row.prompt + row.answer for row in rows], self.args.device)
        with self.computing():
            told = model(input_ids=ids, attention_mask=mask, then=partial(_scored_losses, rows))
        self.note((told["entropy"], told["right"]), [told["count"]] * 2)
        loss = told["nll"] / num_items_in_batch * self.accelerator.num_processes
        return (loss, told) if return_outputs else loss


def _scored_losses(rows: Sequence[Example], hidden: Any, head: Any) -> dict[str, Any]:
    """Return the sums over scored tokens of a micro-batch; called inside the model's forward."""
    places = scored_places(rows)
    none = head(hidden[:1, :1]).float().sum() * 0.0  # so that all weights take part
    if not places:
        return {"nll": none, "entropy": 0.0, "right": 0.0, "count": 0}
    numbers, positions, tokens = (list(column) for column in zip(*places, strict=True))
    chosen, targets = hidden[numbers, positions], torch.tensor(tokens, device=hidden.device)
    entropy, right = none.detach().clone(), none.detach().clone()
    with torch.no_grad():
        for start in range(0, len(places), _CHUNK):
            logs = head(chosen[start : start + _CHUNK]).float().log_softmax(-1)
            entropy -= (logs.exp() * logs).sum()
            right += (logs.argmax(-1) == targets[start : start + _CHUNK]).sum()
    nll = chunked_nll(chosen, head, targets, chunk=_CHUNK).sum() + none
    return {"nll": nll, "entropy": entropy, "right": right, "count": len(places)}


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Passes on what is logged, and tells the trainer of its beginning and of each update."""

    def __init__(self, trainer: RowTrainer, tell: Callable[[Mapping[str, float]], object] | None):
        self._trainer, self._tell = trainer, tell

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._trainer.shards is not None:
            self._trainer.begin_shards(self._trainer.shards)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self._tell is not None and state.is_world_process_zero and logs and "loss" in logs:
            self._tell({**_plain(logs), "step": state.global_step, "steps": state.max_steps})

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.after_update()


def _check(role: str, plan: Sequence[MicroBatch], args: SFTConfig) -> None:
    if not any(batch.rows for batch in plan):
        raise OptionError(f"expected rows to train {role} on, found none")
    size = args.gradient_accumulation_steps * args.world_size
    if len(plan) % size:
        raise OptionError(
            f"expected a plan of whole updates of {size} micro-batches, found {len(plan)}; plan and "
            "arguments must be given the same accumulate"
        )
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


def _places(items: Sequence[Mapping[str, int]]) -> dict[str, torch.Tensor]:
    """Return the place in the plan of one micro-batch, for the data loader."""
    return {"place": torch.tensor([item["place"] for item in items])}
