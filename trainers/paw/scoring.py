"""Scoring an update's rows: old and reference log-probabilities, entropies, values; one pass each.

Importing this module imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..processes import gathered
from .advantages import gae, row_returns, whiten
from .batches import collate, micro_batches
from .rows import PaWRow
from .selection import EntropyMode, row_entropies
from .spans import action_tokens

if TYPE_CHECKING:
    from .config import PaWTraining
    from .critic import Critic
    from .update import Update

__all__ = ["Scorer"]

_COMPARED: EntropyMode = "full"
Entropies = tuple[NDArray[np.float64], NDArray[np.float64] | None]


class Scorer:
    """Scores rows with a trainer's models, without gradients.

    Args:
        trainer: The trainer.
        config: Its settings.
    """

    def __init__(self, trainer: Any, config: PaWTraining) -> None:
        self._trainer, self._config = trainer, config
        tokenizer = trainer.processing_class
        self._tokenizer = tokenizer
        self.pad = int(tokenizer.pad_token_id)

    def score(self, update: Update) -> Entropies:
        """Fill in old and reference log-probabilities, and return the entropies of the actions.

        What was sampled is scored anew only where something needs it: several mini-batches, RLOO's
        ratio of whole responses, or PaW's entropies (METHODS.md 2.2: "no extra forward").

        Returns:
            The entropy of each row's action by `entropy_mode`, (N,), and by the full distribution, to
            compare; None where that was not computed. Without PaW the first is empty.
        """
        config, rows = self._config, update.rows
        several = config.mini_batch_rows is not None and update.total > config.mini_batch_rows
        found: Entropies = np.zeros(0), None
        if config.paw or several or config.algorithm == "rloo":
            known = _sampled(rows) if self._may_use_sampled() else None
            if known is not None:
                update.old, full = known, None
            else:
                update.old, full = self._read(self._trainer.model, rows, entropy=config.paw)
            if config.paw:
                found = self._entropies(rows, update.old, full)
        if config.kl:
            update.reference = self._reference(rows)
        return found

    def value(self, update: Update, critic: Critic) -> None:
        """Fill in PPO's values, advantages and value targets (METHODS.md 2.6)."""
        config, rows = self._config, update.rows
        values = critic.values(rows, self.pad, config.micro_batch_rows, config.micro_batch_tokens)
        width = max((len(row.response_ids) for row in rows), default=1)
        padded = torch.zeros(len(rows), width)
        mask, rewards = torch.zeros_like(padded), torch.zeros_like(padded)
        returns = row_returns(rows, config.invalid_penalty)
        for number, (row, line) in enumerate(zip(rows, values, strict=True)):
            size = len(row.response_ids)
            padded[number, :size], mask[number, :size] = line.cpu(), 1.0
            if size:
                rewards[number, size - 1] = float(returns[number])
        found, targets = gae(rewards, padded, mask, config.gamma_gae, config.lambda_gae)
        found = whiten(found, mask, _total)
        sizes = [len(row.response_ids) for row in rows]
        update.values = values
        update.advantages = [found[n, :size].float() for n, size in enumerate(sizes)]
        update.targets = [targets[n, :size].float() for n, size in enumerate(sizes)]

    # -- one pass --------------------------------------------------------------------------------

    def _may_use_sampled(self) -> bool:
        config = self._config
        plain = config.temperature == 1  # what is told while sampling is at temperature 1
        return config.old_logprobs == "sampled" and config.entropy_mode != "full" and plain

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _read(
        self, model: Any, rows: Sequence[PaWRow], *, entropy: bool
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """Return log-probabilities and entropies (T,) of each row's response."""
        from trl.models.utils import disable_gradient_checkpointing

        config, trainer = self._config, self._trainer
        sizes = [(len(row.prompt_ids), len(row.response_ids)) for row in rows]
        logps: dict[int, Tensor] = {}
        entropies: dict[int, Tensor] = {}
        told = trainer.args.gradient_checkpointing_kwargs
        with _evaluating(model), disable_gradient_checkpointing(trainer.model, told):
            for micro in micro_batches(
                range(len(rows)), sizes, config.micro_batch_rows, config.micro_batch_tokens
            ):
                some = [rows[number] for number in micro]
                batch = collate(some, [False] * len(some), self.pad, trainer.args.device)
                one, two, _ = trainer._get_per_token_logps_and_entropies(
                    model,
                    torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                    torch.cat([batch["prompt_mask"], batch["seen_mask"]], dim=1),
                    batch["completion_ids"].size(1),
                    compute_entropy=entropy,
                )
                for place, number in enumerate(micro):
                    size = len(rows[number].response_ids)
                    logps[number] = one[place, :size].clone()
                    if entropy:
                        entropies[number] = two[place, :size].clone()
        order = range(len(rows))
        return [logps[n] for n in order], [entropies[n] for n in order] if entropy else None

    def _reference(self, rows: Sequence[PaWRow]) -> list[Tensor]:
        """Return log-probabilities under the policy that training began with."""
        from trl.trainer.utils import use_adapter

        trainer = self._trainer
        found: list[Tensor]
        if trainer.ref_model is not None:
            found, _ = self._read(trainer.ref_model, rows, entropy=False)
            return found
        model = trainer.accelerator.unwrap_model(trainer.model)
        with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
            found, _ = self._read(trainer.model, rows, entropy=False)
        return found

    def _entropies(
        self, rows: Sequence[PaWRow], logps: Sequence[Tensor], full: Sequence[Tensor] | None
    ) -> Entropies:
        config = self._config
        found, others = [], []
        for number, row in enumerate(rows):
            mask = torch.ones(1, len(row.response_ids), device=logps[number].device)
            if config.entropy_span == "action_tag":
                mask[0] = torch.tensor(action_tokens(self._tokenizer, row.response_ids))
            known = None if full is None else full[number][None]
            found.append(
                float(row_entropies(config.entropy_mode, logps[number][None], known, mask))
            )
            if known is not None:
                others.append(float(row_entropies(_COMPARED, logps[number][None], known, mask)))
        compared = np.array(others) if full is not None else None
        return np.array(found, dtype=np.float64), compared


def _sampled(rows: Sequence[PaWRow]) -> list[Tensor] | None:
    """Return what the language model said when it sampled; None where one row lacks it."""
    if any(row.sampled_logprobs is None for row in rows):
        return None
    return [torch.tensor(row.sampled_logprobs, dtype=torch.float32) for row in rows]


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Switch dropout off meanwhile."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)


def _total(value: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes."""
    return torch.stack([part.to(value.device) for part in gathered([value.cpu()])]).sum(0)
