"""The trainer of both of CoMap's models after warm-up (METHODS.md 1.6 to 1.8).

A row may carry a negative log-likelihood, a label of the refinement probability, and a distillation
from a teacher that is the moving average of what is trained: all of it in one forward pass of the
trained model. Importing this module imports torch and TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from ..errors import OptionError
from .divergence import chunked_divergence, chunked_nll
from .ema import ema_update
from .examples import Example
from .loss_places import Places
from .row_trainer import RowTrainer
from .sharded import Shards, local_shards
from .trained_model import branched, padded, takes_masks

__all__ = ["CoMapTrainer", "Continuations", "Distillation"]

Continuations: TypeAlias = Callable[[int], Sequence[tuple[int, ...]]]
"""Gives, for an epoch, the tokens on which each of its rows is distilled; all processes ask at once."""

_LEAST = 1e-6


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """How the teacher is asked and kept (METHODS.md 1.7).

    Attributes:
        teacher: The teacher's role.
        continuations: On which tokens student and teacher are compared; None for the rows' own
            replies.
        mu: The teacher moves to ``mu teacher + (1 - mu) student`` after each update; None leaves it.
        kind: ``forward_kl``, ``reverse_kl`` or ``jsd``.
        alpha: Of ``jsd``, the teacher's share of the mixture.
        temperature: What both models' logits are divided by.
        topk: The student's most probable tokens that are compared, with one bucket for the rest; None
            compares the whole vocabulary.
        tail: ``bucket`` or ``renormalise``.
        chunk: Positions whose logits are in memory at one time.

    Example:
        >>> Distillation(teacher="wm_ema", kind="jsd").options()["kind"]
        'jsd'
    """

    teacher: str
    continuations: Continuations | None = None
    mu: float | None = 0.99
    kind: str = "forward_kl"
    alpha: float = 0.5
    temperature: float = 1.0
    topk: int | None = None
    tail: str = "bucket"
    chunk: int = 256

    def options(self) -> dict[str, Any]:
        """Return what `comap.trainers.divergence.divergence` is told."""
        names = ("kind", "alpha", "temperature", "topk", "tail")
        return {name: getattr(self, name) for name in names}


class CoMapTrainer(RowTrainer):
    """Minimises ``weight nll + label_weight bce + distill_weight divergence``, averaged over rows.

    Each row's likelihood is the mean over its scored tokens, its divergence the mean over the tokens
    it is distilled on (METHODS.md 1.7 and 1.8). The label is that of the head, which sees the last
    layer's hidden state at the prompt's last token; where there is no head, that of the decision's
    two words.

    Args:
        distillation: How to distil; None for rows without.
        nll_chunk: Positions whose logits are in memory at one time.
        **told: See `RowTrainer`.

    Raises:
        OptionError: Rows need a teacher or a head that was not given, or what `RowTrainer` raises.

    Example:
        >>> trainer = CoMapTrainer(  # doctest: +SKIP
        ...     distillation=Distillation(teacher="wm_ema"),
        ...     roles=roles, role="wm", epochs=[rows], plan=plan, args=arguments,
        ... )
        >>> log = trainer.fit()  # doctest: +SKIP
    """

    metrics = ("nll", "bce", "label_accuracy", "p", "distillation")

    def __init__(
        self, *, distillation: Distillation | None = None, nll_chunk: int = 1024, **told: Any
    ) -> None:
        self.distillation, self.nll_chunk = distillation, nll_chunk
        self._fresh: tuple[int, Sequence[tuple[int, ...]]] | None = None
        self.teacher_weights: dict[str, torch.Tensor] = {}
        if distillation is not None:
            self.teacher_weights = told["roles"].parameters(distillation.teacher)
        _check([row for rows in told["epochs"] for row in rows], distillation, told.get("head"))
        super().__init__(**told)

    # -- the teacher -----------------------------------------------------------------------------

    def after_update(self) -> None:
        """Let the teacher follow, after each step of the optimizer (METHODS.md 1.7, step 5)."""
        if self.distillation is not None and self.distillation.mu is not None:
            teacher, student = local_shards(self.teacher_weights), local_shards(self.own)
            ema_update(teacher, student, self.distillation.mu)

    def begin_shards(self, shards: Shards) -> None:
        """Go on with what stands for the weights, the teacher's too."""
        super().begin_shards(shards)
        self.teacher_weights = shards.of(self.teacher_weights)

    def before_sharding(self) -> None:
        """Ask for the tokens of all epochs at once: the first epoch's, since nothing is learned yet."""
        self._continuations(0)

    def extra_state(self) -> dict[str, Mapping[str, torch.Tensor]]:
        """Return the head's and the teacher's weights."""
        parts = super().extra_state()
        return parts | ({"teacher": self.teacher_weights} if self.teacher_weights else {})

    def _teacher_hidden(self, places: Places, model: Any = None) -> Any:
        """Return the teacher's hidden states where it is compared: no gradients, no dropout.

        With FSDP the whole wrapped model is asked, since it gathers the weights, and all processes
        ask, whatever their rows. The student's weights are declared trainable meanwhile, as ever:
        the wrapper looks at that when it gathers.
        """
        assert self.distillation is not None
        role = self.distillation.teacher
        ids, mask = padded(places.teacher, self.args.device)
        with (
            torch.no_grad(),
            self.roles.using(role, training=False),
            self.accelerator.autocast(),
        ):
            if self.shards is None:
                hidden = (
                    self.roles.base(role)
                    .base_model(input_ids=ids, attention_mask=mask, use_cache=False)
                    .last_hidden_state
                )
            else:
                for weight in self.own.values():
                    weight.requires_grad_(True)
                hidden = model(input_ids=ids, attention_mask=mask, then=_hidden)
        if not places.compared:
            return None
        rows, positions = _columns(places.teacher_at)
        return hidden[rows, positions]

    def _continuations(self, epoch: int) -> Sequence[tuple[int, ...]] | None:
        """Return on which tokens each row of an epoch is distilled; None for its own reply.

        It is asked for as an epoch begins, by all processes, whatever rows each of them has; with FSDP
        only once.
        """
        if self.distillation is None or self.distillation.continuations is None:
            return None
        if self.shards is not None:
            epoch = 0
        if self._fresh is None or self._fresh[0] != epoch:
            self._fresh = (epoch, self.distillation.continuations(epoch))
        return self._fresh[1]

    # -- the loss --------------------------------------------------------------------------------

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return this micro-batch's part of the update's loss."""
        batch = self.batch_of(inputs)
        places = Places(self.head is not None, takes_masks(self.base))
        continuations = self._continuations(batch.epoch)
        for number, row in zip(batch.rows, self.rows_of(inputs), strict=True):
            places.add(row, row.answer if continuations is None else continuations[number])
        teacher = None
        if places.compared or (self.shards is not None and self.distillation is not None):
            teacher = self._teacher_hidden(places, model)
        told = branched(places.sequences, places.branches, self.args.device)
        with self.computing():
            sums = model(**told, then=partial(self._sums, places, teacher))
        labels = len(places.labels) + len(places.words)
        learned = len({row for row, *_ in places.nll})
        self.note(
            [sums[name] for name in self.metrics],
            [learned, labels, labels, labels, len(places.teacher)],
        )
        loss = sums["loss"] / num_items_in_batch * self.accelerator.num_processes
        return (loss, sums) if return_outputs else loss

    def _sums(self, places: Places, teacher: Any, hidden: Any, head: Any) -> dict[str, Any]:
        """Return the sums of all losses of a micro-batch; called inside the model's forward."""
        none = self._zero(hidden, head)
        sums = {"nll": none, "distillation": none, **self._label_sums(places, hidden, head, none)}
        if places.nll:
            rows, positions, tokens, weights = _columns(places.nll)
            targets = torch.tensor(tokens, device=hidden.device)
            each = chunked_nll(hidden[rows, positions], head, targets, chunk=self.nll_chunk)
            sums["nll"] = (each * each.new_tensor(weights)).sum()
        if places.compared:
            assert self.distillation is not None
            rows, positions, weights = _columns(places.compared)
            output = self.roles.base(self.distillation.teacher).get_output_embeddings()
            sums["distillation"] = chunked_divergence(
                hidden[rows, positions],
                teacher,
                head,
                output if self.shards is None else head,  # of LoRA roles they are the same
                chunk=self.distillation.chunk,
                weights=torch.tensor(weights, device=hidden.device, dtype=torch.float64),
                **self.distillation.options(),
            )
        sums["loss"] = none + sums["nll"] + sums["bce"] + sums["distillation"]
        return sums

    def _zero(self, hidden: Any, head: Any) -> Any:
        """Return 0, made of all that is trained: with several processes all of it must take part."""
        none = head(hidden[:1, :1]).float().sum() * 0.0
        return none if self.head is None else none + self._head_logits(hidden[:1, 0]).sum() * 0.0

    def _head_logits(self, hidden: Any) -> Any:
        """Return what the head makes of hidden states, in its own precision whatever the model's."""
        assert self.head is not None
        dtype = next(self.head.parameters()).dtype
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden.to(dtype)).reshape(-1)

    def _label_sums(self, places: Places, hidden: Any, head: Any, none: Any) -> dict[str, Any]:
        """Return the weighted cross-entropies of labels, how many are right, and the sum of p."""
        if places.labels:
            rows, positions, labels, weights = _columns(places.labels)
            logits = self._head_logits(hidden[rows, positions])
        elif places.words:
            rows, positions, ones, others, labels, weights = _columns(places.words)
            logits = self._word_logits(hidden[rows, positions], head, ones, others)
        else:
            return {"bce": none, "label_accuracy": 0.0, "p": 0.0}
        chance = logits.sigmoid()
        p, y = chance.clamp(_LEAST, 1 - _LEAST), logits.new_tensor(labels)
        each = -(y * p.log() + (1 - y) * (1 - p).log())
        return {
            "bce": (each * each.new_tensor(weights)).sum(),
            "label_accuracy": ((p > 0.5) == (y > 0.5)).sum(),
            "p": chance.sum(),
        }

    def _word_logits(self, hidden: Any, head: Any, ones: list[int], others: list[int]) -> Any:
        """Return by how much one word's logit is above the other's, at each position."""
        found = []
        for start in range(0, len(ones), self.nll_chunk):
            part = slice(start, start + self.nll_chunk)
            said = head(hidden[part])
            each = torch.arange(len(said), device=said.device)
            found.append(said[each, ones[part]] - said[each, others[part]])
        logits = torch.cat(found)
        return logits if logits.dtype == torch.float64 else logits.float()


def _check(rows: Sequence[Example], distillation: Distillation | None, head: Any) -> None:
    """Refuse rows for which there is no teacher, or no way to say p."""
    if distillation is None and any(row.distill_weight for row in rows):
        raise OptionError("expected a teacher for rows that are distilled, found no distillation")
    labelled = [row for row in rows if row.label is not None and row.label_weight]
    if head is None and labelled and not any(row.decision for row in labelled):
        raise OptionError(
            "expected a refinement head, or replies with a decision, for rows with a label, found "
            "neither; give a head (p_source 'head'), or write replies with 'Decision:'"
        )


def _hidden(hidden: Any, head: Any) -> Any:
    """Return the hidden states themselves, out of the model's forward."""
    return hidden


def _columns(places: Sequence[tuple[Any, ...]]) -> Iterator[list[Any]]:
    return (list(column) for column in zip(*places, strict=True))
