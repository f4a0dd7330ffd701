"""PaW on TRL's GRPOTrainer: one update, from rollouts to the optimizer's steps (PaW, Algorithm 1).

`PaWTrainer.training_step` is an update: play episodes and score their rows (`_prepare`), deal the rows
into mini-batches, and learn from each micro-batch (`_compute_loss`). The whole loss is `losses.objective`;
GRPO, RLOO, GiGPO and PPO share it and differ in their advantages alone, which are in `advantages`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from threading import Event, Thread
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from transformers import PrinterCallback, Trainer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer import utils

from ...agents.run import writing
from ...errors import DataCorrupt, OptionError
from ...lm.chat import ChatTokenizer
from ..processes import gathered, part_at_exit
from ..row_trainer import add_hidden_forward
from ..run_folder import last_checkpoint, mark_complete, read_weights, write_weights
from ..trees import Forest, MicroBatch, grouped, token_scores
from .advantages import gae, gigpo_advantages, grpo_advantages, rloo_advantages, row_returns, whiten
from .config import PaWTraining, PolicyOptimization
from .losses import (
    Measures,
    ObservationLoss,
    Select,
    action_tokens,
    adaptive_coefficients,
    objective,
    rank_correlation,
    row_entropies,
    row_weights,
    select_rows,
    value_loss,
)
from .rows import MiniBatch, PaWRow, deal, micro_batch, padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """What a researcher gave in place of comap's own parts of an update; None keeps these.

    Attributes:
        wm_loss: The loss of each row's observation, (B,): of (B, T) log-probabilities and their mask.
        advantage: The advantage of each row, (N,), of an update's rows; whole groups are on a process.
        select: Which rows' observations are learned, (N,): of their actions' entropies and of which
            rows have an observation.
    """

    wm_loss: ObservationLoss | None = None
    advantage: Callable[[Sequence[PaWRow]], ArrayLike] | None = None
    select: Select | None = None


RollOut = Callable[[int], Sequence[PaWRow]]
"""Plays the episodes of an update, by its number from 0, and returns this process's rows."""

Entropies = tuple[NDArray[np.float64], NDArray[np.float64] | None]
"""The entropy of each row's action by the settings' definition, and of the full distribution if known."""


@dataclass
class Update:
    """The rows of an update on this process, and what is computed from each."""

    number: int  # from 0
    rows: list[PaWRow]
    positions: NDArray[np.int64]  # of the rows among those of all processes
    total: int  # rows over all processes
    advantages: Any = None  # for all response tokens of a row; with PPO a tensor (T,) each
    old: list[Tensor] | None = None  # log-probabilities (T,) before; None if the policy is the same
    reference: list[Tensor] | None = None  # log-probabilities (T,) under the first policy
    values: list[Tensor] | None = None  # the critic's, (T,)
    targets: list[Tensor] | None = None  # the critic's, (T,)
    selected: NDArray[np.bool_] = field(init=False)  # whether the observation is learned from
    weights: NDArray[np.float64] = field(init=False)  # of the observation's loss
    metrics: dict[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.selected = np.zeros(len(self.rows), np.bool_)
        self.weights = np.zeros(len(self.rows))


class PaWTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with updates of whole episodes; `make_trainer` sets it up."""

    def set_up(
        self, config: PaWTraining, roll_out: RollOut, tell: Any, critic: Any, functions: Functions
    ) -> None:
        """Store what an update needs; called once, by `make_trainer`."""
        self.config, self.roll_out, self.tell, self.critic = config, roll_out, tell, critic
        self.functions = functions
        self.base = self.accelerator.unwrap_model(self.model)
        if hasattr(self.base, "get_base_model"):  # adapters are around it
            self.base = self.base.get_base_model()
        for model in filter(None, (self.base, self.ref_model)):
            add_hidden_forward(self.accelerator.unwrap_model(model))
        self.chat = ChatTokenizer(self.processing_class)
        self.measures = Measures(self.accelerator, config.optimization)
        self.last_update: dict[str, Any] | None = None
        self._micro: dict[str, Any] | None = None
        self._probabilities: list[Tensor] = []  # of this process's observed tokens in an update

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Do a whole update, except for the optimizer's last step, which transformers' loop does."""
        update = self._prepare(self.state.global_step)
        start = time.perf_counter()
        batches = self._mini_batches(update)
        total = torch.zeros((), device=self.args.device)
        for number, batch in enumerate(batches):
            for index, micro in enumerate(batch.micro):
                self._micro = self._tensors(update, batch, micro)
                is_last = index == len(batch.micro) - 1  # processes share the last one's gradients
                with nullcontext() if is_last else self.accelerator.no_sync(model):
                    loss = super().training_step(model, self._micro, None)
                total += loss.detach() / len(batches)
                if self.critic is not None:
                    self._teach(self.critic, batch, self._micro)
            self._micro = None
            if self.critic is not None:
                self.critic.step(self.accelerator)
            if number < len(batches) - 1:
                self._step_optimizer(model)
        update.metrics["seconds_update"] = time.perf_counter() - start
        self._report(update)
        return total

    def _prepare(self, number: int) -> Update:
        """Play the episodes of an update, score its rows, and choose what to learn from."""
        times = [time.perf_counter()]
        rows = list(self.roll_out(number))
        own = [(row.trajectory, row.t) for row in rows]
        order = {key: position for position, key in enumerate(sorted(gathered(own)))}
        if not order:
            raise OptionError(
                f"expected steps to learn from in update {number}, found none: every episode failed; "
                "faults.jsonl in the training's folder has the errors; mend their cause and go on"
            )
        update = Update(number, rows, np.array([order[key] for key in own], np.int64), len(order))
        times.append(time.perf_counter())
        entropies = self._score(update)
        times.append(time.perf_counter())
        if self.critic is not None:
            self._value(update, self.critic)
        elif rows:
            of = self.functions.advantage or partial(row_advantages, self.config)
            update.advantages = per_row("advantage", of(rows), len(rows))
        if self.config.paw:
            update.metrics |= select(self.config, update, *entropies, choose=self.functions.select)
        times.append(time.perf_counter())
        phases = ("seconds_rollout", "seconds_old_logps", "seconds_advantages")
        for name, begin, end in zip(phases, times, times[1:], strict=False):
            update.metrics[name] = end - begin
        return update

    def _mini_batches(self, update: Update) -> list[MiniBatch]:
        """Deal the rows; every process has as many micro-batches as every other."""
        rows, limits = update.rows, self.config.optimization
        seed = self.config.seed + update.number
        read = [row.tokens(bool(shown)) for row, shown in zip(rows, update.selected, strict=True)]
        batches = []
        for part in deal(update.positions, update.total, limits.mini_batch_rows, seed):
            some = [index for index in part if self._counts(update, index)]
            micro = grouped(
                some,
                [rows[index].group for index in some],
                [read[index] for index in some],
                max_rows=limits.micro_batch_rows,
                max_tokens=limits.micro_batch_tokens,
            )
            tokens = sum(len(rows[index].response_ids) for index in part)
            everyone = gathered([(max(len(micro), 1), len(part), tokens)])
            micro += [()] * (max(counts[0] for counts in everyone) - len(micro))
            totals = [sum(counts[column] for counts in everyone) for column in (1, 2)]
            batches.append(MiniBatch(tuple(micro), *totals))
        return batches

    def _counts(self, update: Update, index: int) -> bool:
        """Return whether a row has a gradient: where a whole group wins or loses, none of its rows has."""
        chosen = self.config.optimization
        always = self.critic is not None or chosen.kl or chosen.entropy_bonus
        return bool(always or update.selected[index] or update.advantages[index])

    def _step_optimizer(self, model: Any) -> None:
        """Update the weights between two mini-batches as transformers' loop does after the last."""
        if clip := self.config.optimization.clip:
            norm = self.accelerator.clip_grad_norm_(model.parameters(), clip)
            self.measures.add("grad_norm", norm, 1)
        self.optimizer.step()
        model.zero_grad()

    def _tensors(self, update: Update, batch: MiniBatch, micro: MicroBatch) -> dict[str, Any]:
        """Return a micro-batch in the form of TRL's losses."""
        trees, device = [[update.rows[index] for index in tree] for tree in micro], self.args.device
        indices = [index for tree in micro for index in tree]
        shown = [bool(update.selected[index]) for index in indices]
        inputs: dict[str, Any] = micro_batch(trees, shown, self.base, device)
        mask = inputs["completion_mask"]

        def of_tokens(values: Sequence[Tensor]) -> Tensor:
            return padded([values[index] for index in indices], mask.size(1), device)

        def of_rows(values: Any) -> Tensor:
            return torch.tensor([float(values[index]) for index in indices] or [0.0], device=device)

        if self.critic is None:
            inputs["advantages"] = of_rows(update.advantages)
        else:
            names = ("advantages", "values", "targets")
            inputs |= {name: of_tokens(getattr(update, name)) for name in names}
        if update.old is not None:
            inputs["old_per_token_logps"] = of_tokens(update.old)
        if update.reference is not None:
            inputs["ref_per_token_logps"] = of_tokens(update.reference)
        return inputs | {
            # of the mini-batch's mean over rows, so that all mini-batches together have eq. 11's weights
            "wm_weights": of_rows(update.weights) * (update.total / batch.rows),
            "tokens": batch.tokens,
        }

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return generation_batch

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        """Return a micro-batch's part of its mini-batch's loss, from one forward pass."""
        config = self.config
        logps, entropies = self._read(model, inputs["forest"], entropy=True)
        found = objective(
            config,
            logps=logps,
            old=inputs.get("old_per_token_logps"),
            reference=inputs.get("ref_per_token_logps"),
            entropies=entropies,
            advantages=inputs["advantages"],
            mask=inputs["completion_mask"],
            tokens=inputs["tokens"],
            observed=inputs["observation_mask"],
            weights=inputs["wm_weights"],
            wm_loss=self.functions.wm_loss,
        )
        self.measures.of_update(found, inputs, entropies.detach())
        if found.observed is not None:
            seen = inputs["observation_mask"].bool()
            self._probabilities.append(logps.detach()[seen].exp().cpu())
        return found.loss * self.accelerator.num_processes  # whose gradients are averaged

    def _read(self, model: Any, forest: Forest, *, entropy: bool) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each scored token, and its distribution's entropy."""
        scores = token_scores(forest, self.config.agent.temperature or 1.0, entropy=entropy)
        found: tuple[Tensor, Tensor] = model(**forest.inputs, then=scores)
        return found

    def _teach(self, critic: Critic, batch: MiniBatch, micro: Mapping[str, Any]) -> None:
        critic.train()
        mask, clip = micro["completion_mask"], self.config.advantages.value_clip
        error = value_loss(critic(micro["forest"]), micro["values"], micro["targets"], mask, clip)
        (error * self.accelerator.num_processes / max(batch.tokens, 1)).backward()
        self.measures.add("value_loss", error.detach(), mask.sum())

    def _score(self, update: Update) -> Entropies:
        """Fill in old and reference log-probabilities, and return the entropies of the actions.

        Responses are scored anew only for the ratios of several mini-batches, or for entropies that the
        log-probabilities noted while sampling do not give.
        """
        config, rows = self.config, update.rows
        mini, noted, full = config.optimization.mini_batch_rows, None, None
        several = mini is not None and update.total > mini
        lines = [row.sampled_logprobs for row in rows]
        if config.loss.entropy_mode != "full" and None not in lines:
            noted = [torch.tensor(line, dtype=torch.float32) for line in lines]
        if config.optimization.old_logprobs == "sampled" and config.agent.temperature == 1:
            update.old = noted  # at temperature 1 they are the policy's own
        if update.old is None and (several or (config.paw and noted is None)):
            update.old, full = self._logps(self.model, rows, entropy=config.paw)
        if config.optimization.kl:
            update.reference = self._reference(rows)
        if not config.paw:
            return np.zeros(0), None
        return self._entropies(rows, update.old or noted or [], full)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _logps(
        self, model: Any, rows: Sequence[PaWRow], *, entropy: bool
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """Return log-probabilities and entropies (T,) of each row's response."""
        limits = self.config.optimization
        logps: dict[int, Tensor] = {}
        entropies: dict[int, Tensor] = {}
        was_training = model.training
        model.eval()
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            for micro, batch in responses(rows, limits, self.base, self.args.device):
                output = self._read(model, batch["forest"], entropy=entropy)
                for line, index in enumerate(micro):
                    size = len(rows[index].response_ids)
                    logps[index] = output[0][line, :size].clone()
                    if entropy:
                        entropies[index] = output[1][line, :size].clone()
        model.train(was_training)
        order = range(len(rows))
        return [logps[n] for n in order], [entropies[n] for n in order] if entropy else None

    def _reference(self, rows: Sequence[PaWRow]) -> list[Tensor]:
        """Return log-probabilities under the policy that training began with."""
        if self.ref_model is not None:
            return self._logps(self.ref_model, rows, entropy=False)[0]  # type: ignore[no-any-return]
        model = self.accelerator.unwrap_model(self.model)
        with utils.use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            return self._logps(self.model, rows, entropy=False)[0]  # type: ignore[no-any-return]

    def _entropies(
        self, rows: Sequence[PaWRow], logps: Sequence[Tensor], full: Sequence[Tensor] | None
    ) -> Entropies:
        loss, chosen, compared = self.config.loss, [], []
        for index, row in enumerate(rows):
            mask = torch.ones(1, len(row.response_ids), device=logps[index].device)
            if loss.entropy_span == "action_tag":
                mask[0] = torch.tensor(action_tokens(self.chat.texts(row.response_ids)))
            known = None if full is None else full[index][None]
            own = row_entropies(loss.entropy_mode, logps[index][None], known, mask)
            chosen.append(float(own))
            if known is not None:
                compared.append(float(row_entropies("full", logps[index][None], known, mask)))
        return np.array(chosen, np.float64), np.array(compared) if full is not None else None

    def _value(self, update: Update, critic: Critic) -> None:
        """Fill in PPO's values, advantages and value targets."""
        config, rows = self.config, update.rows
        values = critic.values(rows)
        sizes = [len(row.response_ids) for row in rows]
        width = max(sizes, default=1)
        mask = padded([torch.ones(size) for size in sizes], width, "cpu")
        rewards = torch.zeros_like(mask)
        for row, value in enumerate(row_returns(rows, config.invalid_penalty)):
            if sizes[row]:  # the whole return is the last token's reward
                rewards[row, sizes[row] - 1] = float(value)
        how = config.advantages
        before = padded([line.cpu() for line in values], width, "cpu")
        advantages, targets = gae(rewards, before, mask, how.gamma_gae, how.lambda_gae)
        advantages = whiten(advantages, mask, _total)
        update.values = values
        update.advantages = [advantages[row, :size].float() for row, size in enumerate(sizes)]
        update.targets = [targets[row, :size].float() for row, size in enumerate(sizes)]

    def _report(self, update: Update) -> None:
        line = {"update": update.number + 1, "rows": update.total, **update.metrics}
        line |= self.measures.means()
        if self.config.paw:
            of_tokens = torch.cat(gathered([torch.cat([torch.zeros(0), *self._probabilities])]))
            line["wm_median"] = float(of_tokens.median()) if len(of_tokens) else None
            self._probabilities.clear()
        if self.args.device.type == "cuda":
            line["peak_memory"] = torch.cuda.max_memory_allocated(self.args.device)
            torch.cuda.reset_peak_memory_stats(self.args.device)
            line["mean_memory"] = self.mean_memory()
        self.last_update = line
        logged = self._metrics["train"]
        logged.clear()  # of what TRL noted by itself
        for name, value in line.items():
            if value is not None and name != "update":
                logged[name].append(float(value))

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
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.critic is not None:
            self.critic.load(Path(resume_from_checkpoint))

    def _send_telemetry(self) -> None:
        """Disable TRL's telemetry."""

    def fit(self) -> None:
        """Train, from the last complete checkpoint on where there is one."""
        read: Callable[[], float] = float  # nothing is measured on a CPU
        if self.args.device.type == "cuda":
            read = partial(torch.cuda.memory_allocated, self.args.device)
        with sampled(read) as self.mean_memory:
            self.train(resume_from_checkpoint=last_checkpoint(Path(self.args.output_dir)))


@contextmanager
def sampled(read: Callable[[], float], every: float = 0.5) -> Iterator[Callable[[], float]]:
    """Yield what returns the mean of a quantity since it last did, read every half second."""
    ended, values = Event(), [read()]

    def sample() -> None:
        while not ended.wait(every):
            values.append(read())

    def mean() -> float:
        found = fmean(values)
        del values[:-1]  # there is always one
        return found

    Thread(target=sample, daemon=True).start()
    try:
        yield mean
    finally:
        ended.set()


def per_row(name: str, values: ArrayLike, rows: int) -> NDArray[np.float64]:
    """Return what a function returned, one finite number for each row."""
    found = np.asarray(values, np.float64)
    if found.shape != (rows,) or not np.isfinite(found).all():
        raise OptionError(
            f"expected {name} to return one finite number for each of {rows} rows, found an array of "
            f"shape {found.shape}{'' if np.isfinite(found).all() else ' with infinite or missing values'}"
        )
    return found


def row_advantages(config: PaWTraining, rows: Sequence[PaWRow]) -> NDArray[np.float64]:
    """Return the advantage of each row, (N,), by the algorithm."""
    how, penalty = config.advantages, config.invalid_penalty
    if config.algorithm == "gigpo":
        return gigpo_advantages(
            rows,
            omega=how.gigpo_omega,
            gamma=how.gigpo_gamma,
            mode=how.gigpo_mode,
            similarity=how.gigpo_similarity,
            penalty=penalty,
            over=how.advantage_over,
        )
    groups, trajectories = [row.group for row in rows], [row.trajectory for row in rows]
    make = rloo_advantages if config.algorithm == "rloo" else grpo_advantages
    returns = row_returns(rows, penalty)
    return make(returns, groups, trajectories=trajectories, over=how.advantage_over)


def select(
    config: PaWTraining,
    update: Update,
    entropies: NDArray[np.float64],
    others: NDArray[np.float64] | None = None,
    *,
    choose: Select | None = None,
) -> dict[str, float | None]:
    """Select an update's observations by their actions' entropy, weight them, and return metrics.

    PaW, eq. 4, 10 and 11. `others` are the entropies by another definition, to compare; `choose` selects
    in place of eq. 4.
    """
    loss, rows = config.loss, update.rows
    compared = entropies if others is None else others
    own = [
        (int(position), row.group, float(entropy), bool(row.observation_ids), float(other))
        for position, row, entropy, other in zip(
            update.positions, rows, entropies, compared, strict=True
        )
    ]
    _, group, entropy, has, other = zip(*sorted(gathered(own)), strict=True)
    known, eligible = np.array(entropy, np.float64), np.array(has, np.bool_)
    seed = config.seed * 1_000_003 + update.number
    if choose is None:
        selected = select_rows(known, eligible, loss.alpha, how=loss.selection, seed=seed)
    else:
        selected = per_row("select", choose(known, eligible), len(known)).astype(bool) & eligible
    played = {(row.trajectory, row.group): row.episode_return for row in rows}
    episodes = sorted(gathered(list(played.items())))
    of_group = np.array([group for (_, group), _ in episodes], np.int64)
    returns = np.array([value for _, value in episodes], np.float64)
    lambdas = adaptive_coefficients(
        returns, of_group, config.highest_return, enabled=loss.adaptive, count=config.groups
    )
    weights = row_weights(selected, group, lambdas, wm_coef=loss.wm_coef)
    update.selected, update.weights = selected[update.positions], weights[update.positions]
    finite = known[np.isfinite(known)]
    metrics: dict[str, float | None] = {
        "wm_lambda": float(lambdas[np.unique(of_group)].mean()),
        "wm_rows": float(selected.sum()),
        "action_entropy": float(finite.mean()) if len(finite) else None,
    }
    if others is not None:
        metrics["entropy_correlation"] = rank_correlation(known, other)
        one, two = (select_rows(values, eligible, loss.alpha) for values in (known, other))
        metrics["entropy_overlap"] = float((one & two).sum() / one.sum()) if one.any() else None
    return metrics


def make_trainer(  # noqa: PLR0913 what a trainer is made of
    config: PaWTraining,
    model: Any,
    tokenizer: Any,
    roll_out: RollOut,
    folder: str | Path,
    *,
    updates: int,
    functions: Functions | None = None,
    stop: int | None = None,
    tell: Callable[[Mapping[str, Any]], object] = lambda line: None,
    peft_config: Any = None,
    device: str = "auto",
) -> Any:
    """Return a trainer; its `fit` does all updates."""
    part_at_exit()
    critic = (
        Critic(model, config) if config.algorithm == "ppo" else None
    )  # before adapters are put in
    trainer = PaWTrainer(
        model=model,
        reward_funcs=lambda completions, **_: (
            [0.0] * len(completions)
        ),  # they are the environment's
        args=_arguments(config, Path(folder), updates, device),
        train_dataset=Dataset.from_dict({"prompt": ["update"] * max(updates, 2)}),
        processing_class=tokenizer,
        peft_config=peft_config,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.set_up(config, roll_out, tell, critic, functions or Functions())
    trainer.add_callback(_Watch(trainer, updates if stop is None else stop))
    return trainer


def _arguments(config: PaWTraining, folder: Path, updates: int, device: str) -> GRPOConfig:
    """Return TRL's settings; one of its steps is one update. The loss is `losses.objective`, not TRL's."""
    chosen = config.optimization
    on_gpu = device != "cpu" and torch.cuda.is_available()
    half = config.precision == "bfloat16" or (config.precision == "auto" and on_gpu)
    checkpointing = {"use_reentrant": False} if chosen.gradient_checkpointing else None
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=updates,
        per_device_train_batch_size=2,  # of rows that stand for nothing: an update makes its own
        num_generations=2,
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        max_completion_length=config.agent.draft_tokens,
        temperature=config.agent.temperature,
        beta=chosen.kl,
        learning_rate=chosen.learning_rate,
        lr_scheduler_type=chosen.schedule,
        warmup_steps=round(chosen.warmup_ratio * updates),
        weight_decay=chosen.weight_decay,
        adam_beta2=chosen.beta2,
        max_grad_norm=chosen.clip,
        seed=config.seed,
        bf16=half,
        use_cpu=device == "cpu",
        gradient_checkpointing=chosen.gradient_checkpointing,
        gradient_checkpointing_kwargs=checkpointing,
        logging_steps=1,
        save_strategy="steps",
        save_steps=chosen.save_updates or updates,  # with 0 one at the end
        save_total_limit=2,
        report_to="none",  # `tracking` has the curves of the whole training
        ignore_data_skip=True,  # what an update plays follows from its number
        dataloader_pin_memory=False,
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        ddp_find_unused_parameters=False,
        shuffle_dataset=False,
    )


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Reports each update after the optimizer's last step, and stops where training should."""

    def __init__(self, trainer: Any, stop: int) -> None:
        self._trainer, self._stop = trainer, stop

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= self._stop:
            control.should_training_stop = True
            control.should_save = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        line = self._trainer.last_update
        if line is None or logs is None or "loss" not in logs:
            return
        norms = [value for value in (logs.get("grad_norm"), line.get("grad_norm")) if value]
        line["grad_norm"] = max(map(float, norms)) if norms else None
        line["learning_rate"] = logs.get("learning_rate")
        self._trainer.last_update = None
        self._trainer.tell(line)


def responses(
    rows: Sequence[PaWRow], limits: PolicyOptimization, model: Any, device: Any
) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Yield micro-batches that score responses alone: the rows' numbers, and what is read."""
    for micro in grouped(
        range(len(rows)),
        [row.group for row in rows],
        [row.tokens(False) for row in rows],
        max_rows=limits.micro_batch_rows,
        max_tokens=limits.micro_batch_tokens,
    ):
        numbers = tuple(index for tree in micro for index in tree)
        trees = [[rows[index] for index in tree] for tree in micro]
        yield numbers, micro_batch(trees, [False] * len(numbers), model, device)


def _total(value: Tensor) -> Tensor:
    return torch.stack([part.to(value.device) for part in gathered([value.cpu()])]).sum(0)


_OPTIMIZER = "optimizer.pt"


class Critic(torch.nn.Module):  # type: ignore[misc]
    """A copy of the policy's transformer with one number at each position instead of a word."""

    def __init__(self, model: Any, config: PaWTraining) -> None:
        super().__init__()
        if model.base_model is model:
            raise OptionError(
                f"expected a language model with a transformer beneath its head, found {type(model)}; "
                "another algorithm than ppo needs none"
            )
        self.backbone = copy.deepcopy(model.base_model)
        weight = next(self.backbone.parameters())
        self.head = torch.nn.Linear(int(self.backbone.config.hidden_size), 1).to(weight.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.requires_grad_(True)
        self._limits = config.optimization
        self.optimizer = torch.optim.AdamW(
            self.parameters(),
            lr=config.advantages.critic_rate,
            weight_decay=self._limits.weight_decay,
        )

    def forward(self, forest: Forest) -> Tensor:
        """Return values (B, C) of the scored tokens."""
        hidden = self.backbone(**forest.inputs, use_cache=False).last_hidden_state
        tree, before, _, row, column = forest.wanted
        values = self.head(hidden[tree, before].to(self.head.weight.dtype)).squeeze(-1).float()
        return values.new_zeros(forest.shape).index_put((row, column), values)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def values(self, rows: Sequence[PaWRow]) -> list[Tensor]:
        """Return the values (T,) of each row's response."""
        self.eval()
        found: dict[int, Tensor] = {}
        device = self.head.weight.device
        for micro, batch in responses(rows, self._limits, self.backbone, device):
            for index, line in zip(micro, self(batch["forest"]), strict=False):
                found[index] = line[: len(rows[index].response_ids)].clone()
        return [found[index] for index in range(len(rows))]

    def step(self, accelerator: Any) -> None:
        """Update the weights by the gradients so far, the mean over all processes, and forget them."""
        weights = [weight for weight in self.parameters() if weight.grad is not None]
        if accelerator.num_processes > 1:
            for weight in weights:
                weight.grad = accelerator.reduce(weight.grad, "mean")
        torch.nn.utils.clip_grad_norm_(weights, self._limits.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, folder: Path) -> None:
        """Write weights and the optimizer's state into a folder."""
        write_weights(folder / "critic", {"critic": self.state_dict()})
        torch.save(self.optimizer.state_dict(), folder / "critic" / _OPTIMIZER)

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote."""
        read_weights(folder / "critic", {"critic": self.state_dict()}, "the critic")
        path = folder / "critic" / _OPTIMIZER
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            self.optimizer.load_state_dict(state)
        except Exception as error:  # torch raises nearly anything for damaged bytes
            raise DataCorrupt(
                f"expected the state of the critic's optimizer in {path}, found other content "
                f"({type(error).__name__}: {error!s:.200}); remove that folder to train this stage anew"
            ) from error
