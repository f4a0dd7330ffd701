"""PaW on TRL's trainers: a mixin over `GRPOTrainer` and `RLOOTrainer` (METHODS.md 2.1).

One step of the trainer is one update: rollouts, log-probabilities of what was sampled, advantages, and
all mini-batches of its rows, each a step of the optimizer. TRL computes the reinforcement-learning loss
of a micro-batch; the mixin lets the model read the next observations behind the actions in that same
forward pass, and adds their loss. With PaW switched off nothing is added, and the loss is TRL's own, to
the last bit; on a CPU to that of a TRL that scores what a GPU would (`scored_alone`). Importing this
module imports torch and TRL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from ...agents.records import writing
from ...errors import OptionError
from ..processes import gathered, part_at_exit
from ..trainer_checkpoints import last_checkpoint, mark_complete
from .batches import MiniBatch, collate, deal, micro_batches, placed
from .critic import Critic, value_loss
from .measures import Measures
from .observation_loss import observation_losses
from .rows import PaWRow
from .scored import scored_alone
from .scoring import Scorer
from .update import Update, choose, places_of, row_advantages

if TYPE_CHECKING:
    from .config import PaWTraining

__all__ = ["PaWGRPOTrainer", "PaWMixin", "PaWRLOOTrainer", "RollOut", "make_trainer"]

RollOut = Callable[[int], Sequence[PaWRow]]
"""Plays the episodes of an update, by its number from 0, and returns this process's rows."""


class PaWMixin:
    """What PaW adds to a trainer of TRL: see `make_trainer`, which sets everything up.

    Overridden are `training_step` (a whole update), `_prepare_inputs` (micro-batches are ready),
    `_get_per_token_logps_and_entropies` (the model reads observations as well) and `_compute_loss`
    (their loss is added), beside what writes checkpoints.
    """

    scaled_by_rows = False
    """Whether TRL's loss of a micro-batch is a mean over its rows, not over the update's tokens."""

    args: Any
    accelerator: Any
    model: Any
    optimizer: Any
    state: Any
    ref_model: Any

    # -- setting up ------------------------------------------------------------------------------

    def set_up(
        self,
        config: PaWTraining,
        roll_out: RollOut,
        tell: Callable[[Mapping[str, Any]], object],
        critic: Critic | None,
    ) -> None:
        """Take over what an update needs; called once, by `make_trainer`."""
        self.config, self.roll_out, self.tell, self.critic = config, roll_out, tell, critic
        self.scorer = Scorer(self, config)
        self.measures = Measures(self.accelerator)
        self._micro: dict[str, Any] | None = None
        self._read: tuple[Any, Any] = (None, None)

    # -- an update -------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Do a whole update, but for the optimizer's last step, which transformers' loop does."""
        update = self._prepared(self.state.global_step)
        start = time.perf_counter()
        batches = self._mini_batches(update)
        total = torch.zeros((), device=self.args.device)
        for number, batch in enumerate(batches):
            for place, rows in enumerate(batch.micro):
                self._micro = self._tensors(update, batch, rows)
                with self._syncs(model, place == len(batch.micro) - 1):
                    loss = super().training_step(model, self._micro, None)  # type: ignore[misc]
                total += loss.detach() / len(batches)
                self._teach_critic(batch)
            self._micro = None
            if self.critic is not None:
                self.critic.step(self.accelerator)
            if number < len(batches) - 1:
                self._step_optimizer(model)
        update.metrics["seconds_update"] = time.perf_counter() - start
        self._report(update)
        return total

    def _prepared(self, number: int) -> Update:
        """Play the episodes of an update and score its rows."""
        times = [time.perf_counter()]
        rows = list(self.roll_out(number))
        places, total = places_of(rows)
        if not total:
            raise OptionError(
                f"expected steps to learn from in update {number}, found none: every episode failed; "
                "faults.jsonl in the training's folder has the errors; mend their cause and go on"
            )
        update = Update(number, rows, places, total)
        times.append(time.perf_counter())
        entropies = self.scorer.score(update)
        times.append(time.perf_counter())
        if self.critic is None:
            update.advantages = row_advantages(self.config, rows) if rows else []
        else:
            self.scorer.value(update, self.critic)
        if self.config.paw:
            update.chosen = choose(self.config, update, *entropies)
            update.metrics |= update.chosen.metrics
        times.append(time.perf_counter())
        phases = ("seconds_rollout", "seconds_old_logps", "seconds_advantages")
        for name, begin, end in zip(phases, times, times[1:], strict=False):
            update.metrics[name] = end - begin
        return update

    def _mini_batches(self, update: Update) -> list[MiniBatch]:
        """Deal the rows; every process has as many micro-batches as every other."""
        config, rows = self.config, update.rows
        dealt = deal(
            update.places, update.total, config.mini_batch_rows, config.seed + update.number
        )
        sizes = [_sizes(row, update.appended(number)) for number, row in enumerate(rows)]
        found = []
        for numbers in dealt:
            micro = micro_batches(
                numbers, sizes, config.micro_batch_rows, config.micro_batch_tokens
            )
            tokens = sum(len(rows[number].response_ids) for number in numbers)
            everyone = gathered([(len(micro), len(numbers), tokens)])
            micro += [()] * (max(told[0] for told in everyone) - len(micro))
            counts = [sum(told[column] for told in everyone) for column in (1, 2)]
            found.append(MiniBatch(tuple(micro), *counts))
        return found

    def _syncs(self, model: Any, last: bool) -> AbstractContextManager[Any]:
        """Return within what gradients are computed: processes share those of the last alone."""
        return nullcontext() if last else self.accelerator.no_sync(model)

    def _step_optimizer(self, model: Any) -> None:
        """Update the weights between two mini-batches as transformers' loop does after the last."""
        if self.config.clip:
            norm = self.accelerator.clip_grad_norm_(model.parameters(), self.config.clip)
            self.measures.add("grad_norm", norm, 1)
        self.optimizer.step()
        model.zero_grad()

    # -- a micro-batch ---------------------------------------------------------------------------

    def _tensors(self, update: Update, batch: MiniBatch, numbers: Sequence[int]) -> dict[str, Any]:
        """Return a micro-batch as TRL's losses want it."""
        rows = [update.rows[number] for number in numbers]
        shown = [update.appended(number) for number in numbers]
        found: dict[str, Any] = collate(rows, shown, self.scorer.pad, self.args.device)
        mask = found["completion_mask"]
        width, like = mask.size(1), found["completion_ids"]

        def spread(values: list[Any]) -> Any:
            return placed([values[number] for number in numbers], width, torch.zeros, like)

        if self.critic is None:
            advantages = [float(update.advantages[number]) for number in numbers] or [0.0]
            found["advantages"] = torch.tensor(advantages, device=self.args.device)
        else:
            found["advantages"] = spread(update.advantages)
            found["values"], found["targets"] = (
                spread(update.values or []),
                spread(update.targets or []),
            )
        if update.old is not None:
            found["old_per_token_logps"] = spread(update.old)
            found["old_logps"] = (found["old_per_token_logps"] * mask).sum(1)
        if update.reference is not None:
            found["ref_per_token_logps"] = spread(update.reference)
        weights = [0.0] * max(len(rows), 1)
        if update.chosen is not None and rows:
            weights = [float(update.chosen.weights[number]) for number in numbers]
        found["wm_weights"] = torch.tensor(weights, device=self.args.device)
        tokens = torch.tensor(float(batch.tokens), device=self.args.device)
        return found | {
            "num_items_in_batch": tokens,
            "rows": len(rows),
            "batch_rows": batch.rows,
            "update_rows": update.total,
        }

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Return a micro-batch as it is."""
        return generation_batch

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, *args: Any, **options: Any
    ) -> Any:
        """Let the model read the observations too, and keep what it says of them."""
        if self._micro is not None:
            both = (self._micro["prompt_mask"], self._micro["seen_mask"])
            attention_mask = torch.cat(both, dim=1)
        with scored_alone():
            told = super()._get_per_token_logps_and_entropies(  # type: ignore[misc]
                model, input_ids, attention_mask, *args, **options
            )
        self._read = told[:2]
        return told

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        """Return TRL's loss of a micro-batch, and what PaW adds, each as a part of its mini-batch's."""
        together = self.accelerator
        self.accelerator = _Alone(together)
        try:
            loss = super()._compute_loss(model, inputs)  # type: ignore[misc]
        finally:
            self.accelerator = together
        processes = together.num_processes
        if self.scaled_by_rows:
            share = inputs["prompt_ids"].size(0) * processes / inputs["batch_rows"]
            loss = loss * share
        logps, entropies = self._read
        self._read = (None, None)
        mask, tokens = inputs["completion_mask"], inputs["num_items_in_batch"]
        self.measures.of_policy(inputs, logps.detach(), entropies.detach(), self.config)
        self.measures.add("policy_loss", loss.detach() * tokens / processes, 0)
        if self.scaled_by_rows and self.config.kl:
            apart = inputs["ref_per_token_logps"] - logps
            kl = ((torch.exp(apart) - apart - 1) * mask).sum()
            loss = loss + self.config.kl * kl * processes / tokens
        if self.config.entropy_bonus:
            bonus = (entropies * mask).sum() * processes / tokens
            loss = loss - self.config.entropy_bonus * bonus
        if self.config.paw:
            loss = loss + self._observation_loss(inputs, logps) * processes
        return loss

    def _observation_loss(self, inputs: Any, logps: Any) -> Any:
        """Return the part of the observations' loss that a micro-batch has (METHODS.md 2.5)."""
        config = self.config
        told = observation_losses(
            logps, inputs["observation_mask"], kind=config.wm_loss, rho=config.rho
        )
        self.measures.of_world_model(told)
        scale = inputs["update_rows"] / inputs["batch_rows"]
        return scale * (inputs["wm_weights"] * told.rows).sum()

    def _teach_critic(self, batch: MiniBatch) -> None:
        """Add the critic's gradients of the present micro-batch."""
        if self.critic is None or self._micro is None:
            return
        micro = self._micro
        self.critic.train()
        values = self.critic(micro)
        processes = self.accelerator.num_processes
        error = value_loss(
            values,
            micro["values"],
            micro["targets"],
            micro["completion_mask"],
            self.config.value_clip,
        )
        (error * processes / max(batch.tokens, 1)).backward()
        self.measures.add("value_loss", error.detach(), micro["completion_mask"].sum())

    # -- telling and keeping ---------------------------------------------------------------------

    def _report(self, update: Update) -> None:
        """Tell what an update was like."""
        told = {"update": update.number + 1, "rows": update.total, **update.metrics}
        told |= self.measures.means()
        if self.args.device.type == "cuda":
            told["peak_memory"] = torch.cuda.max_memory_allocated(self.args.device)
            torch.cuda.reset_peak_memory_stats(self.args.device)
        self._last_update = told
        self._metrics["train"].clear()  # type: ignore[attr-defined]  # what TRL noted by itself
        for name, value in told.items():
            if value is not None and name != "update":
                self._metrics["train"][name].append(float(value))  # type: ignore[attr-defined]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        with writing(folder.parent):
            Trainer._save_checkpoint(self, model, trial)  # TRL's adds a model card
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            with writing(folder.parent):
                if self.critic is not None:
                    self.critic.save(folder)
                mark_complete(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        if self.critic is not None:
            self.critic.load(Path(resume_from_checkpoint))

    def _send_telemetry(self) -> None:
        """Tell nobody that a model is trained here."""

    def fit(self) -> None:
        """Train, from the last complete checkpoint on where there is one."""
        self.train(  # type: ignore[attr-defined]
            resume_from_checkpoint=last_checkpoint(Path(self.args.output_dir))
        )


class _Alone:
    """An accelerator by which a process asks no other one.

    TRL gathers what it logs of each row, which fails where processes have unequal numbers of rows;
    `Measures` has those numbers over all processes, once an update.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, value: Any) -> Any:
        return value

    def gather_for_metrics(self, value: Any) -> Any:
        return value

    def reduce(self, value: Any, reduction: str = "sum") -> Any:
        return value


class PaWGRPOTrainer(PaWMixin, GRPOTrainer):  # type: ignore[misc]
    """GRPO, GiGPO and PPO: TRL's GRPO loss, a mean over all response tokens of a mini-batch."""


class PaWRLOOTrainer(PaWMixin, RLOOTrainer):  # type: ignore[misc]
    """RLOO: TRL's loss, a mean over rows with one ratio for each whole response."""

    scaled_by_rows = True


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Tells each update once the optimizer has done its last step, and stops where it should."""

    def __init__(self, trainer: Any, stop: int) -> None:
        self._trainer, self._stop = trainer, stop

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= self._stop:
            control.should_training_stop = True
            control.should_save = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        told = getattr(self._trainer, "_last_update", None)
        if told is None or logs is None or "loss" not in logs:
            return
        norms = [value for value in (logs.get("grad_norm"), told.get("grad_norm")) if value]
        told["grad_norm"] = max(map(float, norms)) if norms else None
        told["learning_rate"] = logs.get("learning_rate")
        self._trainer._last_update = None
        self._trainer.tell(told)


def make_trainer(
    config: PaWTraining,
    model: Any,
    tokenizer: Any,
    roll_out: RollOut,
    folder: str | Path,
    *,
    updates: int,
    stop: int | None = None,
    tell: Callable[[Mapping[str, Any]], object] = lambda told: None,
    critic: Critic | None = None,
    peft_config: Any = None,
    report_to: str = "none",
    device: str = "auto",
) -> Any:
    """Return a trainer; its `fit` does all updates.

    Args:
        config: The settings.
        model: A causal language model of transformers, which is trained.
        tokenizer: Its tokenizer.
        roll_out: Plays the episodes of an update.
        folder: Where checkpoints go.
        updates: How many there are in all; schedules of the learning rate end there.
        stop: After how many to stop, to be gone on with later; None for all.
        tell: Told what each update was like, on every process.
        critic: PPO's critic; None with other algorithms.
        peft_config: How adapters are made; None trains all weights.
        report_to: The tracker, as transformers calls it.
        device: ``auto`` or ``cpu``.

    Raises:
        OptionError: PPO has no critic, or another algorithm has one.
    """
    if (critic is not None) != (config.algorithm == "ppo"):
        raise OptionError("ppo needs a critic, and no other algorithm has one")
    rloo = config.algorithm == "rloo"
    kind = RLOOConfig if rloo else GRPOConfig
    args = _arguments(config, Path(folder), updates, report_to, device, kind)
    trainer = (PaWRLOOTrainer if rloo else PaWGRPOTrainer)(
        model=model,
        reward_funcs=_no_reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["update"] * max(updates, 2)}),
        processing_class=tokenizer,
        peft_config=peft_config,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.set_up(config, roll_out, tell, critic)
    trainer.add_callback(_Watch(trainer, updates if stop is None else stop))
    return trainer


def _no_reward(completions: Sequence[Any], **_: Any) -> list[float]:
    """Stand where TRL wants a reward function; rewards are the environment's."""
    return [0.0] * len(completions)


def _arguments(
    config: PaWTraining, folder: Path, updates: int, report_to: str, device: str, kind: Any
) -> Any:
    """Return TRL's settings; one of its steps is one update."""
    own = {} if kind is RLOOConfig else {"loss_type": "dapo", "delta": config.dual_clip}
    checkpointing = {"use_reentrant": False} if config.gradient_checkpointing else None
    part_at_exit()
    return kind(
        output_dir=str(folder),
        max_steps=updates,
        per_device_train_batch_size=2,  # of rows that stand for nothing: an update makes its own
        num_generations=2,
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        max_completion_length=config.response_tokens,
        temperature=config.temperature,
        beta=config.kl,
        epsilon=config.clip_low,
        epsilon_high=config.clip_high,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.schedule,
        warmup_steps=round(config.warmup_ratio * updates),
        weight_decay=config.weight_decay,
        adam_beta2=config.beta2,
        max_grad_norm=config.clip,
        seed=config.seed,
        bf16=_half(config, device),
        use_cpu=device == "cpu",
        gradient_checkpointing=config.gradient_checkpointing,
        gradient_checkpointing_kwargs=checkpointing,
        logging_steps=1,
        save_strategy="steps",
        save_steps=config.save_updates or updates,  # with 0 one at the end
        save_total_limit=2,
        report_to=report_to,
        ignore_data_skip=True,  # what an update plays follows from its number
        dataloader_pin_memory=False,
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        ddp_find_unused_parameters=False,
        shuffle_dataset=False,
        **own,
    )


def _half(config: PaWTraining, device: str) -> bool:
    """Return whether it is computed in bfloat16: where asked for, and by default on a GPU."""
    on_gpu = device != "cpu" and torch.cuda.is_available()
    return config.precision == "bfloat16" or (config.precision == "auto" and on_gpu)


def _sizes(row: PaWRow, shown: bool) -> tuple[int, int]:
    """Return the tokens that a row has in a forward pass: of its prompt, and of what follows."""
    tail = len(row.header_ids) + len(row.observation_ids) + len(row.footer_ids) if shown else 0
    return len(row.prompt_ids), len(row.response_ids) + tail
