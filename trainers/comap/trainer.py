"""The trainer of both of CoMap's models after warm-up: it computes what `objective.RowTensors` holds.

A micro-batch passes the model once; the role's objective (eq. 6 or 8) computes its loss from the rows'
tensors, which is averaged over the rows of an update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ...errors import OptionError
from ..row_trainer import (
    Losses,
    LossSums,
    Metric,
    RowTrainer,
    chunked_nll,
    padded,
    precise,
    read_head,
)
from ..samples import Example, MicroBatch
from ..trees import Limb, TreeMask
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
        self.objective = objective
        self.teacher = teacher
        self._epoch_continuations: tuple[int, Sequence[tuple[int, ...]]] | None = None
        self.teacher_weights: dict[str, Tensor] = {}
        if teacher is not None:
            self.teacher_weights = named["roles"].parameters(teacher.role)

        all_rows = list(chain.from_iterable(named["epochs"]))
        _check_rows(all_rows, teacher, named.get("head"))
        super().__init__(**named)

    def prepare(self, batch: MicroBatch) -> tuple[dict[str, Tensor], Losses]:
        """Return the model's inputs for a micro-batch, and what computes its losses."""
        positions = TokenPositions(self.head is not None, _takes_masks(self.base))
        continuations = self._continuations(batch.epoch)
        for row_index, row in zip(batch.rows, self.rows_of(batch), strict=True):
            continuation = row.answer if continuations is None else continuations[row_index]
            positions.add(row, continuation)

        teacher_hidden = self._teacher_hidden(positions) if positions.distilled else None
        inputs = branched(positions.sequences, positions.branches, self.args.device)
        return inputs, partial(self._losses, positions, teacher_hidden)

    def _losses(
        self, positions: TokenPositions, teacher_hidden: Any, hidden: Any, head: Any
    ) -> LossSums:
        """Return the objective of a micro-batch's rows, and what is logged beside it."""
        rows = self._row_tensors(positions, teacher_hidden, hidden, head)
        loss = self.zero(hidden, head) + self.objective(rows)

        learned = int(rows.mask.any(-1).sum())
        labeled = int(rows.labeled.sum())
        correct = ((rows.p > 0.5) == (rows.y > 0.5)) & rows.labeled
        metrics = {
            "nll": Metric(rows.nll.sum(), learned),
            "bce": Metric(rows.bce.sum(), labeled),
            "label_accuracy": Metric(correct.sum(), labeled),
            "p": Metric((rows.p * rows.labeled).sum(), labeled),
            "distillation": Metric(rows.kl.sum(), len(positions.teacher_sequences)),
        }
        return LossSums(loss, metrics)

    def _row_tensors(
        self, positions: TokenPositions, teacher_hidden: Any, hidden: Any, head: Any
    ) -> RowTensors:
        """Compute the tensors of the micro-batch's loss, only where a token or label needs them."""
        rows = positions.rows
        device = hidden.device
        logps = self._answer_logps(positions, hidden, head)

        # p is one half where a row has no label; its cross-entropy is masked there.
        p = logps.new_full((len(rows),), 0.5)
        y = logps.new_zeros(len(rows))
        labeled = logps.new_zeros(len(rows))
        if positions.labels:
            labeled_rows = [position.row_index for position in positions.labels]
            labels = [position.label for position in positions.labels]
            p[labeled_rows] = self._label_logits(positions, hidden, head).sigmoid().to(p)
            y[labeled_rows] = p.new_tensor(labels)
            labeled[labeled_rows] = 1.0

        divergences = logps.new_zeros(0)
        if self.teacher is not None and positions.distilled:
            divergences = self._divergences(self.teacher, positions, teacher_hidden, hidden, head)

        logps_of_rows, mask = in_rows(logps, positions.answers, len(rows))
        divergences_of_rows, rollout_mask = in_rows(divergences, positions.distilled, len(rows))
        return RowTensors(
            logps=logps_of_rows,
            mask=mask,
            divergences=divergences_of_rows,
            rollout=rollout_mask,
            p=p,
            y=y,
            labeled=labeled.bool(),
            expert=torch.tensor([row.expert for row in rows], dtype=torch.bool).to(device),
            weights=logps.new_tensor([row.weight for row in rows]),
        )

    def _answer_logps(self, positions: TokenPositions, hidden: Any, head: Any) -> Tensor:
        """Return the log-probability of each scored token of the replies, (N,)."""
        sequence_indices = [position.sequence_index for position in positions.answers]
        token_positions = [position.position for position in positions.answers]
        token_ids = [position.token_id for position in positions.answers]

        targets = torch.tensor(token_ids, dtype=torch.long, device=hidden.device)
        return -chunked_nll(hidden[sequence_indices, token_positions], head, targets)

    def _label_logits(self, positions: TokenPositions, hidden: Any, head: Any) -> Any:
        """Return the logits of p: the head's, or REVISE's logit minus KEEP's."""
        sequence_indices = [position.sequence_index for position in positions.labels]
        token_positions = [position.position for position in positions.labels]
        states = hidden[sequence_indices, token_positions]
        if self.head is not None:
            return read_head(self.head, states).reshape(-1)

        logits = head(states)
        label_indices = torch.arange(len(states), device=states.device)
        revise_ids = [position.revise_id for position in positions.labels]
        keep_ids = [position.keep_id for position in positions.labels]
        difference = logits[label_indices, revise_ids] - logits[label_indices, keep_ids]
        return precise(difference)[0]

    def _divergences(
        self,
        teacher: Teacher,
        positions: TokenPositions,
        teacher_hidden: Any,
        hidden: Any,
        head: Any,
    ) -> Tensor:
        """Return how far the student is from the teacher at each distilled token, (N,)."""
        sequence_indices = [position.sequence_index for position in positions.distilled]
        token_positions = [position.position for position in positions.distilled]
        return chunked_divergences(
            hidden[sequence_indices, token_positions],
            teacher_hidden,
            head,
            self.roles.base(teacher.role).get_output_embeddings(),
            teacher.divergence,
            teacher.config.chunk,
        )

    def _teacher_hidden(self, positions: TokenPositions) -> Any:
        """Return the teacher's hidden states where it is compared: no gradients, no dropout."""
        assert self.teacher is not None
        role = self.teacher.role
        ids, mask = padded(positions.teacher_sequences, self.args.device)
        with torch.no_grad(), self.roles.using(role, training=False), self.accelerator.autocast():
            base = self.roles.base(role).base_model
            hidden = base(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state

        sequence_indices = [position.sequence_index for position in positions.teacher]
        token_positions = [position.position for position in positions.teacher]
        return hidden[sequence_indices, token_positions]

    def _continuations(self, epoch: int) -> Sequence[tuple[int, ...]] | None:
        """Return on which tokens each row of an epoch is distilled; None for its own reply."""
        if self.teacher is None or self.teacher.continuations is None:
            return None
        if self._epoch_continuations is None or self._epoch_continuations[0] != epoch:
            self._epoch_continuations = (epoch, self.teacher.continuations(epoch))
        return self._epoch_continuations[1]

    def after_update(self) -> None:
        """Let the teacher follow: phi_T <- mu phi_T + (1 - mu) phi_S."""
        if self.teacher is not None:
            teacher_weights = list(self.teacher_weights.values())
            student_weights = list(self.role_weights.values())
            ema_update(teacher_weights, student_weights, self.teacher.config.mu)

    def saved_parts(self) -> dict[str, Mapping[str, Tensor]]:
        """Return what a checkpoint must hold: the teacher's weights too."""
        parts = super().saved_parts()
        if self.teacher_weights:
            parts["teacher"] = self.teacher_weights
        return parts


class AnswerPosition(NamedTuple):
    """Where the model predicts a scored token of a row's reply."""

    row_index: int
    token_index: int  # in the reply
    sequence_index: int
    position: int  # of the token before it in the sequence, whose hidden state predicts it
    token_id: int


class LabelPosition(NamedTuple):
    """Where a row's p is read, and its label."""

    row_index: int
    sequence_index: int
    position: int
    label: float
    revise_id: int  # both ids are 0 where a head is read
    keep_id: int


class DistilledPosition(NamedTuple):
    """Where the student predicts a token that it is compared with the teacher on."""

    row_index: int
    token_index: int  # in the rollout
    sequence_index: int
    position: int


class TeacherPosition(NamedTuple):
    """Where the teacher predicts the token of a `DistilledPosition`, in its own sequences."""

    sequence_index: int
    position: int


@dataclass(slots=True)
class TokenPositions:
    """The sequences of a micro-batch, and where in them each loss is; plain numbers."""

    has_head: bool
    shares_prompts: bool = True  # whether a row's reply and rollout are branches of one sequence
    rows: list[Example] = field(default_factory=list)
    sequences: list[tuple[int, ...]] = field(default_factory=list)
    branches: list[tuple[int, int]] = field(default_factory=list)  # tokens of prompt and reply
    answers: list[AnswerPosition] = field(default_factory=list)
    labels: list[LabelPosition] = field(default_factory=list)
    distilled: list[DistilledPosition] = field(default_factory=list)
    teacher_sequences: list[tuple[int, ...]] = field(default_factory=list)
    teacher: list[TeacherPosition] = field(default_factory=list)  # one for each of `distilled`

    def add(self, row: Example, continuation: Sequence[int]) -> None:
        """Add a row: its reply where it has a loss, and the tokens that it is distilled on."""
        row_index = len(self.rows)
        self.rows.append(row)

        has_loss = any(row.scored) or row.label is not None
        if has_loss:
            self._add_sequence(row.prompt, row.answer)
            self._add_answer(row, row_index)
        if row.teacher and continuation:
            self._add_rollout(row, row_index, tuple(continuation), has_loss)

    def _add_sequence(self, prompt: tuple[int, ...], reply: tuple[int, ...]) -> None:
        self.sequences.append(prompt + reply)
        self.branches.append((len(prompt), len(reply)))

    def _add_answer(self, row: Example, row_index: int) -> None:
        """Add the scored tokens and the label of a row whose reply is the last sequence."""
        sequence_index = len(self.sequences) - 1
        prompt_end = len(row.prompt) - 1  # this token's hidden state predicts the reply's first
        for token_index, is_scored in enumerate(row.scored):
            if is_scored:
                position = prompt_end + token_index
                token_id = row.answer[token_index]
                self.answers.append(
                    AnswerPosition(row_index, token_index, sequence_index, position, token_id)
                )

        if row.label is None:
            return
        if self.has_head:
            self.labels.append(
                LabelPosition(row_index, sequence_index, prompt_end, row.label, 0, 0)
            )
        elif row.decision is not None:
            token_index, revise_id, keep_id = row.decision
            position = prompt_end + token_index
            self.labels.append(
                LabelPosition(row_index, sequence_index, position, row.label, revise_id, keep_id)
            )

    def _add_rollout(
        self, row: Example, row_index: int, rollout: tuple[int, ...], has_loss: bool
    ) -> None:
        """Add the tokens that a row is distilled on, in the student's and the teacher's sequences.

        Where the row's reply has a loss, it is the last of the student's sequences.
        """
        rollout_start = len(row.prompt)
        if not has_loss:
            self._add_sequence(row.prompt, rollout)
        elif rollout != row.answer:  # else the reply's sequence has these very tokens
            if self.shares_prompts:
                # A second branch behind the reply, so that the model reads their prompt once.
                self.sequences[-1] += rollout
                rollout_start += len(row.answer)
            else:
                self._add_sequence(row.prompt, rollout)

        # Each token is predicted where the one before it stands: the first at the prompt's end, in a
        # second branch too.
        sequence_index = len(self.sequences) - 1
        rollout_end = rollout_start + len(rollout)
        positions = [len(row.prompt) - 1, *range(rollout_start, rollout_end - 1)]
        for token_index, position in enumerate(positions):
            self.distilled.append(
                DistilledPosition(row_index, token_index, sequence_index, position)
            )

        # The teacher reads the same rollout behind a prompt of its own.
        teacher_index = len(self.teacher_sequences)
        self.teacher_sequences.append(row.teacher + rollout)
        teacher_prompt_end = len(row.teacher) - 1
        for token_index in range(len(rollout)):
            self.teacher.append(TeacherPosition(teacher_index, teacher_prompt_end + token_index))


def in_rows(
    values: Tensor, positions: Sequence[AnswerPosition | DistilledPosition], row_count: int
) -> tuple[Tensor, Tensor]:
    """Return values (N,) at their tokens of their rows, (row_count, T), and a mask of where they are."""
    row_indices = [position.row_index for position in positions]
    token_indices = [position.token_index for position in positions]
    width = max(token_indices, default=-1) + 1

    values_of_rows = values.new_zeros(row_count, width)
    mask = values.new_zeros(row_count, width)
    values_of_rows[row_indices, token_indices] = values
    mask[row_indices, token_indices] = 1.0
    return values_of_rows, mask


def branched(
    sequences: Sequence[Sequence[int]], branches: Sequence[tuple[int, int]], device: Any = None
) -> dict[str, Tensor]:
    """Return a model's inputs for sequences with two branches, of which the second does not see the first.

    The prompt is read once for the real answer and for the student's own prediction.

    Args:
        sequences: Of each row, the tokens of the prompt and of one or two replies.
        branches: Of each row, how many tokens the prompt and the first reply have.
        device: Where the tensors are.
    """
    ids, attention_mask = padded(sequences, device)
    has_second_branch = any(
        len(sequence) > prompt_length + reply_length
        for sequence, (prompt_length, reply_length) in zip(sequences, branches, strict=True)
    )
    if not has_second_branch:
        return {"input_ids": ids, "attention_mask": attention_mask}  # the plain form, the fastest

    # The second reply has the positions that it would have behind the prompt.
    indices = torch.arange(ids.shape[1], device=ids.device)
    prompt_lengths, reply_lengths = torch.tensor([*branches], device=ids.device).T[:, :, None]
    is_second = indices >= prompt_lengths + reply_lengths
    position_ids = torch.where(is_second, indices - reply_lengths, indices.expand_as(is_second))

    limbs = []
    for sequence, (prompt_length, reply_length) in zip(sequences, branches, strict=True):
        first_end = prompt_length + reply_length
        limbs.append(
            [
                Limb(0, first_end, np.arange(0)),
                Limb(first_end, len(sequence), np.arange(prompt_length)),
            ]
        )
    return {
        "input_ids": ids,
        "attention_mask": TreeMask.of(limbs, len(indices), ids.device),
        "position_ids": position_ids,
    }


def _takes_masks(model: Any) -> bool:
    """Return whether a model's attention takes any mask, and not only which tokens are padding."""
    return getattr(model.config, "_attn_implementation", None) == "sdpa"


def _check_rows(rows: Sequence[Example], teacher: Teacher | None, head: Any) -> None:
    """Refuse rows that need a teacher, or a way to state p, where there is none."""
    if teacher is None and any(row.teacher for row in rows):
        raise OptionError("expected a teacher for rows that are distilled, found none")
    labeled = [row for row in rows if row.label is not None]
    if head is None and labeled and not any(row.decision for row in labeled):
        raise OptionError(
            "expected a refinement head, or replies with a decision, for rows with a label, found "
            "neither; give a head (p_source 'head'), or write replies with 'Decision:'"
        )
