"""The phases that `comap bench training-scale` measures, on one device.

Importing this module imports torch, transformers and TRL.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from ..errors import LanguageModelError, OptionError
from ..lm import Encode, Generate, LanguageModel, Sampling, Score
from ..lm.chat import ChatTokenizer
from ..trainers.arguments import Optimization, trainer_arguments
from ..trainers.comap_trainer import CoMapTrainer, Distillation
from ..trainers.config import CoMapTraining
from ..trainers.examples import Example, encode_samples
from ..trainers.plan import Batching, MicroBatch, plan_updates
from ..trainers.roles import Roles
from ..trainers.row_trainer import RowTrainer, WarmUpTrainer
from ..trainers.student_rollouts import StudentRollouts
from .record import resident_bytes
from .training_scale_parts import Ask, Material

__all__ = ["TRAININGS", "Asked", "Phases", "Trained"]

TRAININGS = ("warm_up", "policy", "world_model_ce", "world_model_wmsd")
"""Fine-tuning with TRL's loss; the policy with its head; the world model without and with WMSD."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training took.

    Attributes:
        seconds: Of each update but the first: see `Phases.now`.
        rows: Rows of these updates.
        tokens: Their tokens, prompt and reply.
        read: Tokens of all sequences that pass through the student or the teacher.
        peak_bytes: The most memory that tensors had on the GPU; None on a CPU.
        resident_bytes: What the process holds afterwards, or None where that cannot be found out.
    """

    seconds: tuple[float, ...]
    rows: int
    tokens: int
    read: int
    peak_bytes: int | None
    resident_bytes: int | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What answers took.

    Attributes:
        seconds: See `Phases.now`.
        written: Tokens that were written.
        peak_bytes: As in `Trained`.
    """

    seconds: float
    written: int
    peak_bytes: int | None


class Phases:
    """Trains and asks one set of models, and tells what each took.

    Args:
        roles: The models.
        config: The settings of CoMap's training.
        rows: What there is to learn.
        folder: A folder for what trainers write.
    """

    def __init__(self, roles: Roles, config: CoMapTraining, rows: Material, folder: Path):
        self.roles, self.config, self.rows, self.folder = roles, config, rows, folder
        self.device = roles.base("wm").device
        self.end = ChatTokenizer(roles.tokenizer).end
        self.continuations: list[tuple[int, ...]] = []
        plain = self._encoded(rows.plain)
        self.examples = {
            "warm_up": plain,
            "policy": [replace(row, decision=None) for row in self._encoded(rows.policy)],
            "world_model_ce": plain,
            "world_model_wmsd": self._encoded(rows.world),
        }

    # -- answers ---------------------------------------------------------------------------------

    def roll_out(self, number: int, lm: LanguageModel) -> Asked:
        """Let the student predict once for each transition, and keep that for WMSD.

        Args:
            number: Which time this is: each has texts of its own.
            lm: Answers.
        """
        config, folder = self.config, self.folder / f"rollouts-{number}"
        folder.mkdir()
        sampling = Sampling(config.predict_tokens, config.rollout_temperature, 1.0, (), number)
        rollouts = StudentRollouts(folder, self.rows.world, lambda: lm, self.end, sampling)
        self.continuations, asked = self._timed(lambda: rollouts(0))
        return replace(asked, written=sum(map(len, self.continuations)))

    def ask(self, lm: LanguageModel, requests: Sequence[Ask]) -> Asked:
        """Answer requests of one kind, all of one call.

        Raises:
            LanguageModelError: A request was not answered.
        """
        before = lm.usage.completion_tokens
        replies, asked = self._timed(lambda: _answers(lm, requests))
        for reply in replies:
            if isinstance(reply, LanguageModelError):
                raise reply
        return replace(asked, written=lm.usage.completion_tokens - before)

    # -- trainings -------------------------------------------------------------------------------

    def train(self, name: str, batching: Batching, updates: int, checkpointing: bool) -> Trained:
        """Train on the first rows, and return what each update took but the first.

        Args:
            name: One of `TRAININGS`.
            batching: Rows of a micro-batch, and micro-batches of an update.
            updates: How many updates are timed.
            checkpointing: Whether activations are computed again on the way back.

        Raises:
            OptionError: It does not fit into the GPU's memory.
        """
        assert batching.rows is not None
        count = batching.rows * batching.accumulate * (updates + 1)
        rows = self.examples[name][:count]
        try:
            return self._train(name, rows, self.continuations[:count], batching, checkpointing)
        except torch.OutOfMemoryError as error:
            raise OptionError(
                f"expected {name} with micro-batches of {batching.rows} rows to fit into the GPU's "
                "memory, found that it does not; use fewer rows, or checkpointing"
            ) from error

    def fits(self, name: str, rows: int, checkpointing: bool) -> Trained | None:
        """Train on micro-batches of so many rows, all as long as can be; None if memory is short.

        Each prompt and each reply have all the tokens that they may have, and so has each text that
        WMSD compares models on: such a batch has those texts after its replies, and the teacher's.
        """
        long = [self._longest(self.examples[name][1])] * (2 * rows)  # of the policy a reflection
        texts = [row.answer[1:] + row.answer[:1] for row in long]
        batching = Batching(rows=rows)
        try:
            return self._train(name, long, texts, batching, checkpointing)
        except torch.OutOfMemoryError:
            pass  # what the error's frames hold is free only now
        self._collect()
        return None

    def _train(
        self,
        name: str,
        rows: Sequence[Example],
        continuations: Sequence[tuple[int, ...]],
        batching: Batching,
        checkpointing: bool,
    ) -> Trained:
        self._collect()
        plan = plan_updates([[len(row) for row in rows]], batching)
        trainer = self._trainer(name, rows, continuations, plan, batching, checkpointing)
        watch = _Stopwatch(self.now)
        trainer.add_callback(watch)
        self._reset_peak()
        trainer.fit()
        peak = self._peak()
        seen = [row for batch in plan[batching.accumulate :] for row in batch.rows]
        tokens = sum(len(rows[row]) for row in seen)
        more = 0
        if name == "world_model_wmsd":
            for row in seen:
                prompts = len(rows[row].prompt) + len(rows[row].teacher)
                more += prompts + 2 * len(continuations[row])
        return Trained(
            tuple(watch.seconds[1:]), len(seen), tokens, tokens + more, peak, resident_bytes()
        )

    def _trainer(
        self,
        name: str,
        rows: Sequence[Example],
        continuations: Sequence[tuple[int, ...]],
        plan: Sequence[MicroBatch],
        batching: Batching,
        checkpointing: bool,
    ) -> RowTrainer:
        """Return the trainer of a phase, with the settings that `comap.trainers.learning` gives it."""
        config = self.config
        policy = name == "policy"
        head = None
        if policy:
            size = self.roles.base("agent").config.get_text_config().hidden_size
            head = torch.nn.Linear(size, 1)
        told: dict[str, Any] = {
            "roles": self.roles,
            "role": "agent" if policy else "wm",
            "epochs": [rows],
            "plan": plan,
            "args": self._arguments(batching.accumulate, checkpointing, policy),
            "head": head,
            "head_rate": config.head_rate,
            "betas": (0.9, config.beta2),
        }
        if name == "warm_up":
            return WarmUpTrainer(**told)
        distillation = None
        if name == "world_model_wmsd":
            distillation = Distillation(
                teacher="wm_ema",
                continuations=lambda epoch: continuations,
                mu=config.mu,
                kind=config.divergence,
                alpha=config.jsd_alpha,
                temperature=config.distill_temperature,
                topk=config.topk,
                tail=config.tail,
                chunk=config.chunk,
            )
        return CoMapTrainer(distillation=distillation, **told)

    def _arguments(self, accumulate: int, checkpointing: bool, policy: bool) -> Any:
        config, device = self.config, self.device.type
        mixed = device == "cuda" and config.precision in ("auto", "bfloat16")
        return trainer_arguments(
            self.folder / "checkpoints",
            Optimization(
                learning_rate=config.policy_rate if policy else config.world_model_rate,
                warmup=config.warmup_ratio,
                schedule=config.schedule,
                weight_decay=config.weight_decay,
                clip=config.clip,
            ),
            accumulate=accumulate,
            seed=config.seed,
            logging_steps=config.logging_steps,
            save_steps=0,
            precision="bfloat16" if mixed else "float32",
            gradient_checkpointing=checkpointing,
            device=device,
        )

    # -- rows ------------------------------------------------------------------------------------

    def _encoded(self, samples: Sequence[Any]) -> list[Example]:
        return encode_samples(self.roles.tokenizer, samples, self.config.max_length)

    def _longest(self, row: Example) -> Example:
        """Return a row with all the tokens that it may have."""
        reply = self.config.predict_tokens
        prompt = self.config.max_length - reply
        return replace(
            row,
            prompt=_filled(row.prompt, prompt),
            answer=_filled(row.answer, reply),
            scored=(True,) * reply,
            teacher=_filled(row.teacher, prompt),
        )

    # -- the device ------------------------------------------------------------------------------

    def _timed(self, work: Callable[[], Any]) -> tuple[Any, Asked]:
        self._collect()
        self._reset_peak()
        start = self.now()
        found = work()
        return found, Asked(self.now() - start, 0, self._peak())

    def now(self) -> float:
        """Return seconds: by the clock once a GPU has done its work; else this process's own.

        On a CPU those are processor seconds, so that what else runs on the machine does not count.
        """
        if self.device.type != "cuda":
            return time.process_time()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _reset_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def _peak(self) -> int | None:
        if self.device.type != "cuda":
            return None
        return int(torch.cuda.max_memory_allocated(self.device))

    def _collect(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


class _Stopwatch(TrainerCallback):  # type: ignore[misc]
    """Times each update, from its first micro-batch to the end of the optimizer's step."""

    def __init__(self, now: Callable[[], float]):
        self._now, self._start = now, 0.0
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._start = self._now()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(self._now() - self._start)


def _answers(lm: LanguageModel, requests: Sequence[Ask]) -> Sequence[Any]:
    if isinstance(requests[0], Generate):
        return lm.generate([item for item in requests if isinstance(item, Generate)])
    if isinstance(requests[0], Encode):
        return lm.encode([item for item in requests if isinstance(item, Encode)])
    return lm.score([item for item in requests if isinstance(item, Score)])


def _filled(tokens: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Return so many tokens, the given ones again and again; none stay none."""
    return (tokens * (length // len(tokens) + 1))[:length] if tokens else ()
