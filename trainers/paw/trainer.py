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
from itertools import chain
from pathlib import Path
from statistics import fmean
from threading import Event, Thread
from typing import Any, NamedTuple

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
from ...errors import OptionError
from ...lm.chat import ChatTokenizer
from ...lm.load import device_of
from ..memory import kept_per_token, room
from ..processes import gathered, own_device, part_at_exit
from ..row_trainer import add_hidden_forward, on_device
from ..run_folder import last_checkpoint, mark_complete
from ..schedule import RisingFromTheStart
from ..sharding import (
    ShardedTraining,
    check_launch,
    copies,
    is_sharded,
    read_trained,
    shard,
    trained_weights,
    unknown_to_accelerate,
    whole,
)
from ..trees import Forest, MicroBatch, token_scores
from .advantages import gae, gigpo_advantages, grpo_advantages, rloo_advantages, row_returns, whiten
from .config import EntropyMode, PaWTraining
from .critic import Critic, value_loss
from .losses import (
    LossInputs,
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
)
from .rows import MiniBatch, PaWRow, Reader, deal, in_order, padded


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
    sampled: list[Tensor] | None = None  # log-probabilities (T,) as sampled; None if a row has none
    old: list[Tensor] | None = None  # log-probabilities (T,) before; None if the policy is the same
    values: list[Tensor] | None = None  # the critic's, (T,)
    targets: list[Tensor] | None = None  # the critic's, (T,)
    selected: NDArray[np.bool_] = field(init=False)  # whether the observation is learned from
    weights: NDArray[np.float64] = field(init=False)  # of the observation's loss
    metrics: dict[str, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.selected = np.zeros(len(self.rows), np.bool_)
        self.weights = np.zeros(len(self.rows))


_TOKENS = 32_768  # of a forward pass whose settings have no limit, to judge the memory by


class _Share(NamedTuple):
    """What a process learns from in a mini-batch."""

    micro_batches: int
    rows: int
    tokens: int


class _Candidate(NamedTuple):
    """A row whose observation may be selected; candidates are sorted by their positions."""

    position: int  # among the rows of all processes
    group: int
    entropy: float
    is_eligible: bool  # whether it has an observation
    compared_entropy: float  # by another definition


class PaWTrainer(RisingFromTheStart, ShardedTraining, GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with updates of whole episodes; `make_trainer` sets it up."""

    def set_up(
        self, config: PaWTraining, roll_out: RollOut, tell: Any, critic: Any, functions: Functions
    ) -> None:
        """Store what an update needs; called once, by `make_trainer`."""
        self.config = config
        self.roll_out = roll_out
        self.tell = tell
        self.critic = critic
        self.functions = functions

        self.base = self.accelerator.unwrap_model(self.model)
        if hasattr(self.base, "get_base_model"):  # adapters are around it
            self.base = self.base.get_base_model()
        for model in filter(None, (self.base, self.ref_model)):
            add_hidden_forward(self.accelerator.unwrap_model(model))

        self.chat = ChatTokenizer(self.processing_class)
        self.measures = Measures(self.accelerator, config.optimization)
        self.last_update: dict[str, Any] | None = None
        self.reader = Reader.of(config, self.base, self.args.device)
        self._micro: dict[str, Any] | None = None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Do a whole update, except for the optimizer's last step, which transformers' loop does."""
        update = self._prepare(self.state.global_step)
        start = time.perf_counter()
        batches = self._mini_batches(update)
        total = torch.zeros((), device=self.args.device)

        for number, batch in enumerate(batches):
            for index, micro in enumerate(batch.micro):
                self._micro = self._tensors(update, batch, micro, is_first=number == 0)
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
        rollout_start = time.perf_counter()
        update = self._numbered(number, list(self.roll_out(number)))

        scoring_start = time.perf_counter()
        entropies = self._score(update)

        advantages_start = time.perf_counter()
        if self.critic is not None:
            self._value(update, self.critic)
        elif update.rows:
            advantage = self.functions.advantage or partial(row_advantages, self.config)
            update.advantages = per_row("advantage", advantage(update.rows), len(update.rows))
        if self.config.paw:
            update.metrics |= select(self.config, update, *entropies, choose=self.functions.select)

        end = time.perf_counter()
        update.metrics["seconds_rollout"] = scoring_start - rollout_start
        update.metrics["seconds_old_logps"] = advantages_start - scoring_start
        update.metrics["seconds_advantages"] = end - advantages_start
        return update

    def _numbered(self, number: int, rows: list[PaWRow]) -> Update:
        """Return an update whose rows are numbered over all processes, episode by episode.

        Thus what is drawn of them does not depend on how many processes there are.
        """
        steps = [(row.trajectory, row.t) for row in rows]
        positions = {step: position for position, step in enumerate(sorted(gathered(steps)))}
        if not positions:
            raise OptionError(
                f"expected steps to learn from in update {number}, found none: every episode failed; "
                "faults.jsonl in the training's folder has the errors; mend their cause and go on"
            )
        own_positions = np.array([positions[step] for step in steps], np.int64)
        return Update(number, rows, own_positions, len(positions))

    def _mini_batches(self, update: Update) -> list[MiniBatch]:
        """Deal the rows; every process has as many micro-batches as every other."""
        rows = update.rows
        limits = self.config.optimization
        seed = self.config.seed + update.number
        token_ids = [
            row.tokens(bool(is_observed))
            for row, is_observed in zip(rows, update.selected, strict=True)
        ]

        batches = []
        for indices in deal(update.positions, update.total, limits.mini_batch_rows, seed):
            learned = [index for index in indices if self._counts(update, index)]
            micro = self.reader.micro_batches(learned, rows, token_ids)

            # Means are over the mini-batch's rows on all processes, also over those without a gradient;
            # and since gradients are exchanged, a process that has less to learn reads empty batches.
            tokens = sum(len(rows[index].response_ids) for index in indices)
            shares = gathered([_Share(max(len(micro), 1), len(indices), tokens)])
            micro += [()] * (max(share.micro_batches for share in shares) - len(micro))
            batches.append(
                MiniBatch(
                    tuple(micro),
                    rows=sum(share.rows for share in shares),
                    tokens=sum(share.tokens for share in shares),
                )
            )
        return batches

    def _counts(self, update: Update, index: int) -> bool:
        """Return whether a row has a gradient: where a whole group wins or loses, none of its rows has."""
        optimization = self.config.optimization
        all_rows = self.critic is not None or optimization.kl or optimization.entropy_bonus
        return bool(all_rows or update.selected[index] or update.advantages[index])

    def _step_optimizer(self, model: Any) -> None:
        """Update the weights between two mini-batches as transformers' loop does after the last."""
        if clip := self.config.optimization.clip:
            norm = self.accelerator.clip_grad_norm_(model.parameters(), clip)
            self.measures.add("grad_norm", whole(norm), 1)
        self.optimizer.step()
        model.zero_grad()

    def _tensors(
        self, update: Update, batch: MiniBatch, micro: MicroBatch, *, is_first: bool = False
    ) -> dict[str, Any]:
        """Return a micro-batch in the form of TRL's losses; `is_first` if no weight has moved yet.

        All numbers are put together before they are copied: a GPU is never waited for.
        """
        device = self.args.device
        trees = [[update.rows[index] for index in tree] for tree in micro]
        indices = list(chain.from_iterable(micro))
        is_observed = [bool(update.selected[index]) for index in indices]
        inputs = self.reader.read(trees, is_observed)
        width = inputs["completion_mask"].size(1)

        def of_tokens(values: Sequence[Tensor]) -> Tensor:
            return on_device(padded([values[index] for index in indices], width), device)

        def of_rows(values: Any) -> Tensor:
            numbers = [float(values[index]) for index in indices] or [0.0]
            return on_device(np.array(numbers, np.float32), device)

        if self.critic is None:
            inputs["advantages"] = of_rows(update.advantages)
        else:
            for name in ("advantages", "values", "targets"):
                inputs[name] = of_tokens(getattr(update, name))
        if update.old is not None:
            inputs["old_per_token_logps"] = of_tokens(update.old)
        if is_first and update.sampled is not None:
            inputs["sampled_logps"] = of_tokens(update.sampled)

        # of the mini-batch's mean over rows, so that all mini-batches together have eq. 11's weights
        inputs["wm_weights"] = of_rows(update.weights) * (update.total / batch.rows)
        inputs["tokens"] = batch.tokens
        return inputs

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return generation_batch

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        """Return a micro-batch's part of its mini-batch's loss, from one forward pass."""
        limits = self.config.optimization
        needs_entropy = bool(limits.entropy_bonus) or limits.log_entropies
        reference = self._reference(inputs["forest"]) if limits.kl else None
        logps, entropies = self._read(model, inputs["forest"], entropy=needs_entropy)
        loss_inputs = LossInputs(
            logps=logps,
            old=inputs.get("old_per_token_logps"),
            reference=reference,
            entropies=entropies,
            advantages=inputs["advantages"],
            mask=inputs["completion_mask"],
            tokens=inputs["tokens"],
            observed=inputs["observation_mask"],
            weights=inputs["wm_weights"],
        )
        terms = objective(self.config, loss_inputs, wm_loss=self.functions.wm_loss)

        self.measures.add_micro_batch(terms, loss_inputs)
        if "sampled_logps" in inputs:
            self.measures.add_sampling_error(loss_inputs, inputs["sampled_logps"])
        return terms.loss * self.accelerator.num_processes  # whose gradients are averaged

    def _read(self, model: Any, forest: Forest, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """Return the log-probability of each scored token, and its distribution's entropy."""
        scores = token_scores(forest, self.config.agent.temperature or 1.0, entropy=entropy)
        logps_and_entropies: tuple[Tensor, Tensor | None] = forest.read(model, then=scores)
        return logps_and_entropies

    def _teach(self, critic: Critic, batch: MiniBatch, micro: Mapping[str, Any]) -> None:
        """Add the gradient of the critic's loss on a micro-batch."""
        critic.train()
        mask = micro["completion_mask"]
        values = critic(micro["forest"])
        clip = self.config.advantages.value_clip
        error = value_loss(values, micro["values"], micro["targets"], mask, clip)
        (error * self.accelerator.num_processes / max(batch.tokens, 1)).backward()
        self.measures.add("value_loss", error.detach(), mask.sum())

    def _score(self, update: Update) -> Entropies:
        """Fill in old log-probabilities, and return the entropies of the actions.

        Responses are scored anew only for the ratios of several mini-batches, or for entropies that the
        log-probabilities noted while sampling do not give.
        """
        config = self.config
        rows = update.rows
        mini_batch_rows = config.optimization.mini_batch_rows
        is_split = mini_batch_rows is not None and update.total > mini_batch_rows

        recorded = [row.sampled_logprobs for row in rows]
        sampled_logps = None
        if None not in recorded:
            sampled_logps = [torch.tensor(line, dtype=torch.float32) for line in recorded]
        if config.agent.temperature == 1:  # where they are the policy's own
            update.sampled = sampled_logps
            if config.staleness or config.optimization.old_logprobs == "sampled":
                update.old = sampled_logps
        if config.staleness and update.old is None:
            raise OptionError(
                f"staleness={config.staleness} starts ratios from the log-probabilities as sampled, found "
                "replies without any; use an engine that returns them, or staleness=0"
            )

        needs_full = config.paw and config.loss.entropy_mode == "full"
        has_entropies = sampled_logps is not None and not needs_full
        full_entropies = None
        if (update.old is None and is_split) or (config.paw and not has_entropies):
            entropy = needs_full or (config.paw and config.optimization.log_entropies)
            logps, full_entropies = self._logps(self.model, rows, entropy=entropy)
            update.old = update.old or logps

        if not config.paw:
            return np.zeros(0), None
        return self._entropies(rows, update.old or sampled_logps or [], full_entropies)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _logps(
        self, model: Any, rows: Sequence[PaWRow], *, entropy: bool
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """Return log-probabilities and entropies (T,) of each row's response, on the CPU."""
        tables: list[tuple[Tensor, Tensor | None]] = []
        indices: list[int] = []

        was_training = model.training
        model.eval()
        with disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs):
            for batch_indices, batch in self.reader.responses(rows):
                table = self._read(model, batch["forest"], entropy=entropy)
                if batch_indices:
                    tables.append(table)
                    indices += batch_indices
        model.train(was_training)

        logps = in_order([table for table, _ in tables], indices, rows)
        if not entropy:
            return logps, None
        return logps, in_order([table for _, table in tables if table is not None], indices, rows)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _reference(self, forest: Forest) -> Tensor:
        """Return the log-probability of each scored token under the policy that training began with.

        It reads what the policy reads, in the same precision: in other shapes kernels round otherwise, and
        the KL divergence of a policy from itself would not be 0.
        """
        if self.ref_model is not None:
            # Accelerate has wrapped its forward, but `add_hidden_forward` goes beneath the wrapping.
            precision = nullcontext() if is_sharded() else self.accelerator.autocast()
            with precision:
                return self._read(self.ref_model, forest, entropy=False)[0]

        model = self.accelerator.unwrap_model(self.model)
        first_adapter = "ref" if "ref" in model.peft_config else None
        was_training = model.training
        model.eval()
        with utils.use_adapter(model, adapter_name=first_adapter):
            logps, _ = self._read(self.model, forest, entropy=False)
        model.train(was_training)
        return logps

    def _entropies(
        self,
        rows: Sequence[PaWRow],
        logps: Sequence[Tensor],
        full_entropies: Sequence[Tensor] | None,
    ) -> Entropies:
        """Return each action's entropy by the settings' definition, and by the full one if known."""
        loss = self.config.loss
        width = max((len(row.response_ids) for row in rows), default=1)
        mask = torch.zeros(len(rows), width)
        for line, row in zip(mask, rows, strict=True):
            in_span = torch.ones(len(row.response_ids))
            if loss.entropy_span == "action_tag":
                in_span = torch.tensor(action_tokens(self.chat.texts(row.response_ids)))
            line[: len(in_span)] = in_span

        def entropies_of(mode: EntropyMode, full: Tensor | None) -> NDArray[np.float64]:
            row_logps = padded(logps, width)[: len(rows)]
            entropies = row_entropies(mode, row_logps, full, mask)
            return np.array(entropies.tolist(), np.float64)

        if full_entropies is None:
            return entropies_of(loss.entropy_mode, None), None
        full = padded(full_entropies, width)[: len(rows)]
        return entropies_of(loss.entropy_mode, full), entropies_of("full", full)

    def _value(self, update: Update, critic: Critic) -> None:
        """Fill in PPO's values, advantages and value targets."""
        config = self.config
        rows = update.rows
        sizes = [len(row.response_ids) for row in rows]
        width = max(sizes, default=1)
        update.values = critic.values(rows)
        values = padded(update.values, width)

        # the whole return is the last token's reward
        mask = padded([torch.ones(size) for size in sizes], width)
        rewards = torch.zeros_like(mask)
        for index, episode_return in enumerate(row_returns(rows, config.invalid_penalty)):
            if sizes[index]:
                rewards[index, sizes[index] - 1] = float(episode_return)

        settings = config.advantages
        advantages, targets = gae(rewards, values, mask, settings.gamma_gae, settings.lambda_gae)
        advantages = whiten(advantages, mask, _total)
        update.advantages = [advantages[index, :size].float() for index, size in enumerate(sizes)]
        update.targets = [targets[index, :size].float() for index, size in enumerate(sizes)]

    def _report(self, update: Update) -> None:
        """Store an update's metrics, for `_Watch` to pass on and for TRL's log."""
        line = {"update": update.number + 1, "rows": update.total, **update.metrics}
        line |= self.measures.means()
        if self.config.paw:
            probabilities = torch.cat(gathered([self.measures.probabilities()]))
            line["wm_median"] = float(probabilities.median()) if len(probabilities) else None
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

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if is_sharded():
            state_dict = copies(trained_weights(self.model))
        super()._save(output_dir, state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if is_sharded():
            read_trained(self.model, Path(resume_from_checkpoint))
            return
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
    """Yield a function that returns the mean of a quantity since its last call.

    A thread reads the quantity every half second.
    """
    end = Event()
    values = [read()]

    def sample() -> None:
        while not end.wait(every):
            values.append(read())

    def mean() -> float:
        mean_value = fmean(values)
        del values[:-1]  # there is always one
        return mean_value

    Thread(target=sample, daemon=True).start()
    try:
        yield mean
    finally:
        end.set()


def per_row(name: str, values: ArrayLike, rows: int) -> NDArray[np.float64]:
    """Return what a function returned, one finite number for each row."""
    numbers = np.asarray(values, np.float64)
    is_finite = bool(np.isfinite(numbers).all())
    if numbers.shape != (rows,) or not is_finite:
        raise OptionError(
            f"expected {name} to return one finite number for each of {rows} rows, found an array of "
            f"shape {numbers.shape}{'' if is_finite else ' with infinite or missing values'}"
        )
    return numbers


def row_advantages(config: PaWTraining, rows: Sequence[PaWRow]) -> NDArray[np.float64]:
    """Return the advantage of each row, (N,), by the algorithm."""
    settings = config.advantages
    penalty = config.invalid_penalty
    if config.algorithm == "gigpo":
        return gigpo_advantages(
            rows,
            omega=settings.gigpo_omega,
            gamma=settings.gigpo_gamma,
            mode=settings.gigpo_mode,
            similarity=settings.gigpo_similarity,
            penalty=penalty,
            over=settings.advantage_over,
        )

    advantages_of = rloo_advantages if config.algorithm == "rloo" else grpo_advantages
    return advantages_of(
        row_returns(rows, penalty),
        [row.group for row in rows],
        trajectories=[row.trajectory for row in rows],
        over=settings.advantage_over,
    )


def select(
    config: PaWTraining,
    update: Update,
    entropies: NDArray[np.float64],
    comparison: NDArray[np.float64] | None = None,
    *,
    choose: Select | None = None,
) -> dict[str, float | None]:
    """Select an update's observations by their actions' entropy, weight them, and return metrics.

    PaW, eq. 4, 10 and 11. `comparison` has the entropies by another definition, whose selection is
    compared with this; `choose` selects in place of eq. 4.
    """
    loss = config.loss
    rows = update.rows
    compared_entropies = entropies if comparison is None else comparison

    # Selection is over the rows of all processes, in one order whoever played them.
    own_candidates = [
        _Candidate(
            int(position),
            row.group,
            float(entropy),
            bool(row.observation_ids),
            float(compared_entropy),
        )
        for position, row, entropy, compared_entropy in zip(
            update.positions, rows, entropies, compared_entropies, strict=True
        )
    ]
    candidates = sorted(gathered(own_candidates))
    groups = [candidate.group for candidate in candidates]
    all_entropies = np.array([candidate.entropy for candidate in candidates], np.float64)
    all_compared_entropies = [candidate.compared_entropy for candidate in candidates]
    eligible = np.array([candidate.is_eligible for candidate in candidates], np.bool_)

    if choose is None:
        seed = config.seed * 1_000_003 + update.number
        selected = select_rows(all_entropies, eligible, loss.alpha, how=loss.selection, seed=seed)
    else:
        choice = per_row("select", choose(all_entropies, eligible), len(candidates))
        selected = choice.astype(bool) & eligible

    # A group's weight follows from the returns of its episodes, once each (eq. 10).
    own_returns = {(row.trajectory, row.group): row.episode_return for row in rows}
    episodes = sorted(gathered(list(own_returns.items())))
    group_of_episode = np.array([group for (_, group), _ in episodes], np.int64)
    returns = np.array([episode_return for _, episode_return in episodes], np.float64)
    lambdas = adaptive_coefficients(
        returns,
        group_of_episode,
        config.highest_return,
        enabled=loss.adaptive,
        count=config.groups,
    )
    weights = row_weights(selected, groups, lambdas, wm_coef=loss.wm_coef)
    update.selected = selected[update.positions]
    update.weights = weights[update.positions]

    finite = all_entropies[np.isfinite(all_entropies)]
    metrics: dict[str, float | None] = {
        "wm_lambda": float(lambdas[np.unique(group_of_episode)].mean()),
        "wm_rows": float(selected.sum()),
        "action_entropy": float(finite.mean()) if len(finite) else None,
    }
    if comparison is not None:
        metrics["entropy_correlation"] = rank_correlation(all_entropies, all_compared_entropies)
        by_mode = select_rows(all_entropies, eligible, loss.alpha)
        by_distribution = select_rows(all_compared_entropies, eligible, loss.alpha)
        overlap = (by_mode & by_distribution).sum()
        metrics["entropy_overlap"] = float(overlap / by_mode.sum()) if by_mode.any() else None
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
    check_launch()
    part_at_exit()
    critic = None
    reference = None
    if is_sharded():
        reference = _reference_of(config, model)
    elif config.algorithm == "ppo":  # before adapters are put in
        critic = Critic(model, config)

    with unknown_to_accelerate():
        trainer = PaWTrainer(
            model=model,
            # TRL needs one; rewards are the environment's
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=_arguments(config, model, Path(folder), updates, device),
            train_dataset=Dataset.from_dict({"prompt": ["update"] * max(updates, 2)}),
            processing_class=tokenizer,
            peft_config=peft_config,
        )
    if is_sharded():
        _shard(trainer, config, reference, device)
    trainer.remove_callback(PrinterCallback)
    trainer.set_up(config, roll_out, tell, critic, functions or Functions())
    trainer.add_callback(_Watch(trainer, updates if stop is None else stop))
    return trainer


def _reference_of(config: PaWTraining, model: Any) -> Any:
    """Return a copy of a model that will be sharded, for the KL term; None where none is needed."""
    if config.algorithm == "ppo":
        raise OptionError(
            "expected another algorithm than ppo where weights are sharded (FSDP), which its critic's are "
            "not; take grpo, rloo or gigpo, or start processes that hold whole models (torchrun)"
        )
    if config.weights == "lora" or not config.optimization.kl:
        return None
    return copy.deepcopy(model).eval().requires_grad_(False)


def _shard(trainer: PaWTrainer, config: PaWTraining, reference: Any, device: str) -> None:
    """Shard a trainer's model, adapters included, and the reference."""
    torch_device = device_of(own_device() if device == "auto" else device)
    computes_in_half = config.computes_in_half(torch_device.type == "cuda")
    shard(trainer.model, torch_device, computes_in_half=computes_in_half)
    if reference is not None:
        trainer.ref_model = shard(reference, torch_device, computes_in_half=computes_in_half)


def recomputes_activations(config: PaWTraining, model: Any, *, mixed: bool) -> bool:
    """Return whether activations are computed again, by the settings or by what the memory holds."""
    optimization = config.optimization
    if optimization.gradient_checkpointing is not None:
        return optimization.gradient_checkpointing
    if is_sharded() or model.device.type != "cuda":
        return is_sharded()  # a model that needs several GPUs leaves little room

    # The first policy and the critic are copies that come later; the critic is trained, too.
    weights = list(model.parameters())
    is_full = config.weights == "full"
    has_critic = config.algorithm == "ppo"
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    later = size * ((is_full and optimization.kl > 0) + has_critic)
    bytes_left = room(model.device, weights * (is_full + has_critic), further_bytes=later)
    tokens = optimization.micro_batch_tokens or _TOKENS
    return tokens * kept_per_token(model, mixed=mixed).whole > bytes_left


def _arguments(
    config: PaWTraining, model: Any, folder: Path, updates: int, device: str
) -> GRPOConfig:
    """Return TRL's settings; one of its steps is one update. The loss is `losses.objective`, not TRL's."""
    optimization = config.optimization
    on_cpu = (
        device_of(device).type == "cpu"
    )  # without a word on it processes would train apart there
    is_half = config.computes_in_half(not on_cpu)
    checkpoints = recomputes_activations(config, model, mixed=is_half)
    checkpointing = {"use_reentrant": False} if checkpoints else None

    return GRPOConfig(
        output_dir=str(folder),
        max_steps=updates,
        per_device_train_batch_size=2,  # of rows that stand for nothing: an update makes its own
        num_generations=2,
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        max_completion_length=config.agent.draft_tokens,
        temperature=config.agent.temperature,
        beta=0.0 if is_sharded() else optimization.kl,  # TRL would make a reference that is whole
        learning_rate=optimization.learning_rate,
        lr_scheduler_type=optimization.schedule,
        warmup_steps=round(optimization.warmup_ratio * updates),
        weight_decay=optimization.weight_decay,
        adam_beta2=optimization.beta2,
        max_grad_norm=optimization.clip,
        seed=config.seed,
        bf16=is_half,
        use_cpu=on_cpu,
        gradient_checkpointing=checkpoints,
        gradient_checkpointing_kwargs=checkpointing,
        logging_steps=1,
        save_strategy="steps",
        save_steps=optimization.save_updates or updates,  # with 0 one at the end
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
        self._trainer = trainer
        self._stop = stop

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= self._stop:
            control.should_training_stop = True
            control.should_save = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        line = self._trainer.last_update
        if line is None or logs is None or "loss" not in logs:
            return

        # The log has the norm at the last mini-batch, the line the mean of those before.
        norms = [norm for norm in (logs.get("grad_norm"), line.get("grad_norm")) if norm]
        line["grad_norm"] = max(map(float, norms)) if norms else None
        line["learning_rate"] = logs.get("learning_rate")
        self._trainer.last_update = None
        self._trainer.tell(line)


def _total(value: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes."""
    return torch.stack([addend.to(value.device) for addend in gathered([value.cpu()])]).sum(0)
