"""The trainer of both of CoMap's models after warm-up: what it fills `objective.RowTensors` from.

A micro-batch passes the model once; the role's objective (eq. 6 or 8) makes its loss of the rows'
tensors, which is averaged over the rows of an update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...errors import OptionError
from ..row_trainer import Losses, RowTrainer, Sums, chunked_nll, columns, padded, precise, read_head
from ..samples import Example, MicroBatch
from ..trees import TreeMask
from .config import Distillation
from .objective import (
    Divergence,
    Objective,
    RowTensors,
    chunked_divergences,
    divergence,
    ema_update,
)

Continuations: TypeAlias = Callable[[int], Sequence[tuple[int, ...]]]
"""Returns, for an epoch, the tokens on which each of its rows is distilled; all processes ask at once."""


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """The role that is compared with and follows, how, and on which tokens."""

    role: str
    config: Distillation
    continuations: Continuations | None = None
    compare: Divergence | None = None

    @property
    def divergence(self) -> Divergence:
        """The divergence of the settings, or the one that was given."""
        return self.compare or partial(divergence, config=self.config)


class CoMapTrainer(RowTrainer):
    """Minimizes an objective of rows (`world_model_objective`, `policy_objective`), averaged over rows.

    Each row's likelihood is the mean over its scored tokens, its divergence the mean over the tokens
    it is distilled on. The label is that of the head, which sees the last layer's hidden state at the
    prompt's last token; without a head, that of the decision's two words.

    Args:
        objective: The loss of a micro-batch's rows.
        teacher: The teacher, which follows after each update; None for none.
        **named: See `RowTrainer`.

    Raises:
        OptionError: Rows need a teacher or a head that was not given, or what `RowTrainer` raises.
    """

    metrics = ("nll", "bce", "label_accuracy", "p", "distillation")

    def __init__(
        self, *, objective: Objective, teacher: Teacher | None = None, **named: Any
    ) -> None:
        self.objective, self.teacher = objective, teacher
        self._fresh: tuple[int, Sequence[tuple[int, ...]]] | None = None
        self.teacher_weights: dict[str, Tensor] = {}
        if teacher is not None:
            self.teacher_weights = named["roles"].parameters(teacher.role)
        _check_rows([row for rows in named["epochs"] for row in rows], teacher, named.get("head"))
        super().__init__(**named)

    def prepare(self, batch: MicroBatch) -> tuple[dict[str, Tensor], Losses]:
        """Return the model's inputs for a micro-batch, and what computes its losses."""
        places = TokenPositions(self.head is not None, _takes_masks(self.base))
        continuations = self._continuations(batch.epoch)
        for index, row in zip(batch.rows, self.rows_of(batch), strict=True):
            places.add(row, row.answer if continuations is None else continuations[index])
        teacher = self._teacher_hidden(places) if places.compared else None
        told = branched(places.sequences, places.branches, self.args.device)
        return told, partial(self._losses, places, teacher)

    def _losses(self, places: TokenPositions, teacher: Any, hidden: Any, head: Any) -> Sums:
        rows = self._row_tensors(places, teacher, hidden, head)
        loss = self.zero(hidden, head) + self.objective(rows)
        labeled = int(rows.labeled.sum())
        right = ((rows.p > 0.5) == (rows.y > 0.5)) & rows.labeled
        sums = {
            "loss": loss,
            "nll": rows.nll.sum(),
            "bce": rows.bce.sum(),
            "label_accuracy": right.sum(),
            "p": (rows.p * rows.labeled).sum(),
            "distillation": rows.kl.sum(),
        }
        learned = int(rows.mask.any(-1).sum())
        return sums, [learned, labeled, labeled, labeled, len(places.teacher)]

    def _row_tensors(
        self, places: TokenPositions, teacher: Any, hidden: Any, head: Any
    ) -> RowTensors:
        """Return what the micro-batch's loss is made of, computed where a token or label needs it."""
        size, device = len(places.rows), hidden.device
        lines, indices, sequences, positions, tokens = columns(places.nll, 5)
        targets = torch.tensor(tokens, dtype=torch.long, device=device)
        logps = -chunked_nll(hidden[sequences, positions], head, targets)
        p, y, labeled = logps.new_full((size,), 0.5), logps.new_zeros(size), logps.new_zeros(size)
        if places.labels:
            of, at, where, labels, ones, others = columns(places.labels, 6)
            logits = self._label_logits(hidden[at, where], head, ones, others)
            p[of], y[of], labeled[of] = logits.sigmoid().to(p), p.new_tensor(labels), 1.0
        compared, order, at, where = columns(places.compared, 4)
        apart = logps.new_zeros(0)
        if self.teacher is not None and places.compared:
            apart = chunked_divergences(
                hidden[at, where],
                teacher,
                head,
                self.roles.base(self.teacher.role).get_output_embeddings(),
                self.teacher.divergence,
                self.teacher.config.chunk,
            )
        dense, mask = on_lines(logps, lines, indices, size)
        divergences, rollout = on_lines(apart, compared, order, size)
        return RowTensors(
            logps=dense,
            mask=mask,
            divergences=divergences,
            rollout=rollout,
            p=p,
            y=y,
            labeled=labeled.bool(),
            expert=torch.tensor([row.expert for row in places.rows], dtype=torch.bool).to(device),
            weights=logps.new_tensor([row.weight for row in places.rows]),
        )

    def _label_logits(self, hidden: Any, head: Any, ones: list[int], others: list[int]) -> Any:
        """Return the logits of p: the head's, or by how much one word's is above the other's."""
        if self.head is not None:
            return read_head(self.head, hidden).reshape(-1)
        logits, each = head(hidden), torch.arange(len(hidden), device=hidden.device)
        return precise(logits[each, ones] - logits[each, others])[0]

    def _teacher_hidden(self, places: TokenPositions) -> Any:
        """Return the teacher's hidden states where it is compared: no gradients, no dropout."""
        assert self.teacher is not None
        role = self.teacher.role
        ids, mask = padded(places.teacher, self.args.device)
        with torch.no_grad(), self.roles.using(role, training=False), self.accelerator.autocast():
            base = self.roles.base(role).base_model
            hidden = base(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        rows, positions = columns(places.teacher_at, 2)
        return hidden[rows, positions]

    def _continuations(self, epoch: int) -> Sequence[tuple[int, ...]] | None:
        """Return on which tokens each row of an epoch is distilled; None for its own reply."""
        if self.teacher is None or self.teacher.continuations is None:
            return None
        if self._fresh is None or self._fresh[0] != epoch:
            self._fresh = (epoch, self.teacher.continuations(epoch))
        return self._fresh[1]

    def after_update(self) -> None:
        """Let the teacher follow: phi_T <- mu phi_T + (1 - mu) phi_S."""
        if self.teacher is not None:
            teacher, student = self.teacher_weights.values(), self.own.values()
            ema_update(list(teacher), list(student), self.teacher.config.mu)

    def saved_parts(self) -> dict[str, Mapping[str, Tensor]]:
        """Return what a checkpoint must hold: the teacher's weights too."""
        parts = super().saved_parts()
        return parts | ({"teacher": self.teacher_weights} if self.teacher_weights else {})


@dataclass(slots=True)
class TokenPositions:
    """The sequences of a micro-batch, and where in them each loss is; plain numbers."""

    head: bool
    shared: bool = True  # whether what a row is distilled on may share its sequence
    rows: list[Example] = field(default_factory=list)
    sequences: list[tuple[int, ...]] = field(default_factory=list)
    branches: list[tuple[int, int]] = field(default_factory=list)
    # row, token of its reply, sequence, position, token's id
    nll: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    # row, sequence, position, label, REVISE's id, KEEP's id
    labels: list[tuple[int, int, int, float, int, int]] = field(default_factory=list)
    # row, token of its rollout, sequence, position
    compared: list[tuple[int, int, int, int]] = field(default_factory=list)
    teacher: list[tuple[int, ...]] = field(default_factory=list)
    teacher_at: list[tuple[int, int]] = field(default_factory=list)

    def add(self, row: Example, continuation: Sequence[int]) -> None:
        number, at, start = len(self.rows), len(self.sequences), len(row.prompt) - 1
        self.rows.append(row)
        own = any(row.scored) or row.label is not None
        if own:
            self._read(row.prompt, row.answer)
            self._add_own(row, number, at, start)
        if not row.teacher or not continuation:
            return
        tokens, first = tuple(continuation), start + 1
        if own and tokens != row.answer and self.shared:
            self.sequences[at] += tokens
            first = len(row.prompt) + len(row.answer)
        elif not (own and tokens == row.answer):
            at = len(self.sequences)
            self._read(row.prompt, tokens)
        positions = [start, *range(first, first + len(tokens) - 1)]
        self.compared += [(number, order, at, place) for order, place in enumerate(positions)]
        begin, line = len(row.teacher) - 1, len(self.teacher)
        self.teacher_at += [(line, begin + index) for index in range(len(tokens))]
        self.teacher.append(row.teacher + tokens)

    def _read(self, prompt: tuple[int, ...], reply: tuple[int, ...]) -> None:
        self.sequences.append(prompt + reply)
        self.branches.append((len(prompt), len(reply)))

    def _add_own(self, row: Example, number: int, at: int, start: int) -> None:
        scored = [index for index, flag in enumerate(row.scored) if flag]
        self.nll += [(number, index, at, start + index, row.answer[index]) for index in scored]
        if row.label is None:
            return
        if self.head:
            self.labels.append((number, at, start, row.label, 0, 0))
        elif row.decision is not None:
            index, one, other = row.decision
            self.labels.append((number, at, start + index, row.label, one, other))


def on_lines(
    values: Tensor, lines: Sequence[int], indices: Sequence[int], size: int
) -> tuple[Tensor, Tensor]:
    """Return values (N,) at their indices in their lines, (size, T), and where there are some."""
    width = max(indices, default=-1) + 1
    dense, mask = values.new_zeros(size, width), values.new_zeros(size, width)
    dense[lines, indices], mask[lines, indices] = values, 1.0
    return dense, mask


def branched(
    rows: Sequence[Sequence[int]], branches: Sequence[tuple[int, int]], device: Any = None
) -> dict[str, Tensor]:
    """Return a model's inputs for rows with two branches, of which the second does not see the first.

    The prompt is read once for the real answer and for the student's own prediction.
    """
    ids, valid = padded(rows, device)
    if not any(len(row) > sum(parts) for row, parts in zip(rows, branches, strict=True)):
        return {"input_ids": ids, "attention_mask": valid}  # the plain form, the fastest
    index = torch.arange(ids.shape[1], device=ids.device)
    prompt, first = torch.tensor([*branches], device=ids.device).T[:, :, None]
    second = index >= prompt + first
    limbs = [
        [(0, begun + one, np.arange(0)), (begun + one, len(row), np.arange(begun))]
        for row, (begun, one) in zip(rows, branches, strict=True)
    ]
    return {
        "input_ids": ids,
        "attention_mask": TreeMask.of(limbs, len(index), ids.device),
        "position_ids": torch.where(second, index - first, index.expand_as(second)),
    }


def _takes_masks(model: Any) -> bool:
    """Return whether a model's attention takes any mask, and not only which tokens are padding."""
    return getattr(model.config, "_attn_implementation", None) == "sdpa"


def _check_rows(rows: Sequence[Example], teacher: Teacher | None, head: Any) -> None:
    """Refuse rows for which there is no teacher, or no way to say p."""
    if teacher is None and any(row.teacher for row in rows):
        raise OptionError("expected a teacher for rows that are distilled, found none")
    labeled = [row for row in rows if row.label is not None]
    if head is None and labeled and not any(row.decision for row in labeled):
        raise OptionError(
            "expected a refinement head, or replies with a decision, for rows with a label, found "
            "neither; give a head (p_source 'head'), or write replies with 'Decision:'"
        )
