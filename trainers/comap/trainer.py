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
    ModelInputs,
    RowTrainer,
    add_hidden_forward,
    chunked_nll,
    columns,
    on_device,
    precise,
    read_head,
)
from ..samples import Example, MicroBatch
from ..sharding import is_sharded, whole_head
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
        self._distills = any(row.teacher for row in all_rows)
        _check_rows(all_rows, teacher, named.get("head"))
        super().__init__(**named)

        # Adapters' teacher is in the student's model.
        if teacher is not None and self.roles.base(teacher.role) is not self.base:
            add_hidden_forward(self.roles.base(teacher.role))

    def prepare(self, batch: MicroBatch) -> tuple[ModelInputs, Losses]:
        """Return the model's inputs for a micro-batch, and what computes its losses."""
        positions = self._positions(batch)
        targets = Targets.of(positions, self.args.device)

        # A sharded teacher computes on all processes, or on none.
        asks_teacher = self._distills if is_sharded() else bool(positions.distilled)
        teacher_output = self._teacher_output(positions, targets) if asks_teacher else None
        inputs = branched(positions.sequences, positions.branches, self.base)
        return inputs, partial(self._losses, positions, targets, teacher_output)

    def tokens_of_row(self, epoch: int, row_index: int) -> int:
        """Return how many tokens the student reads for a row, both its sequences as long as the longer."""
        sequences = self._positions(MicroBatch(epoch, (row_index,))).sequences
        return len(sequences) * max(map(len, sequences), default=0)

    def _positions(self, batch: MicroBatch) -> TokenPositions:
        """Return the sequences of rows, and where their losses are."""
        positions = TokenPositions(self.head is not None, _takes_masks(self.base))
        continuations = self._continuations(batch.epoch)
        for row_index, row in zip(batch.rows, self.rows_of(batch), strict=True):
            continuation = row.answer if continuations is None else continuations[row_index]
            positions.add(row, continuation)
        return positions

    def _losses(
        self,
        positions: TokenPositions,
        targets: Targets,
        teacher_output: TeacherOutput | None,
        hidden: Any,
        head: Any,
    ) -> LossSums:
        """Return the objective of a micro-batch's rows, and what is logged beside it."""
        rows = self._row_tensors(positions, targets, teacher_output, hidden, head)
        loss = self.zero(hidden, head) + self.objective(rows)

        learned = len({position.row_index for position in positions.answers})
        labeled = len(positions.labels)
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
        self,
        positions: TokenPositions,
        targets: Targets,
        teacher_output: TeacherOutput | None,
        hidden: Any,
        head: Any,
    ) -> RowTensors:
        """Compute the tensors of the micro-batch's loss, only where a token or label needs them."""
        answers = targets.answers
        states = hidden[answers.sequence_index, answers.position]
        logps = -chunked_nll(states, head, answers.token_id)

        # p is one half where a row has no label; its cross-entropy is masked there.
        row_count = len(positions.rows)
        p = logps.new_full((row_count,), 0.5)
        y = logps.new_zeros(row_count)
        labeled = logps.new_zeros(row_count)
        if positions.labels:
            labeled_rows = targets.labels.row_index
            p[labeled_rows] = self._label_logits(targets.labels, hidden, head).sigmoid().to(p)
            y[labeled_rows] = targets.label_values.to(y)
            labeled[labeled_rows] = 1.0

        divergences = logps.new_zeros(0)
        if self.teacher is not None and teacher_output is not None and positions.distilled:
            divergences = self._divergences(
                self.teacher, targets.distilled, teacher_output, hidden, head
            )

        logps_of_rows, mask = in_rows(logps, answers, row_count, _width(positions.answers))
        divergences_of_rows, rollout_mask = in_rows(
            divergences, targets.distilled, row_count, _width(positions.distilled)
        )
        return RowTensors(
            logps=logps_of_rows,
            mask=mask,
            divergences=divergences_of_rows,
            rollout=rollout_mask,
            p=p,
            y=y,
            labeled=labeled.bool(),
            expert=targets.experts,
            weights=targets.weights.to(logps),
        )

    def _label_logits(self, labels: LabelPosition, hidden: Any, head: Any) -> Any:
        """Return the logits of p: the head's, or REVISE's logit minus KEEP's."""
        states = hidden[labels.sequence_index, labels.position]
        if self.head is not None:
            return read_head(self.head, states).reshape(-1)

        logits = head(states)
        label_indices = torch.arange(len(states), device=states.device)
        revise_logits = logits[label_indices, labels.revise_id]
        return precise(revise_logits - logits[label_indices, labels.keep_id])[0]

    def _divergences(
        self,
        teacher: Teacher,
        distilled: DistilledPosition,
        teacher_output: TeacherOutput,
        hidden: Any,
        head: Any,
    ) -> Tensor:
        """Return how far the student is from the teacher at each distilled token, (N,)."""
        return chunked_divergences(
            hidden[distilled.sequence_index, distilled.position],
            teacher_output.hidden,
            head,
            teacher_output.head or head,
            teacher.divergence,
            teacher.config.chunk,
        )

    def _teacher_output(self, positions: TokenPositions, targets: Targets) -> TeacherOutput:
        """Return the hidden states of the teacher, and its head: no gradients, no dropout."""
        assert self.teacher is not None
        role = self.teacher.role
        base = self.roles.base(role)

        def compared(hidden: Any, head: Any) -> Any:
            return hidden[targets.teacher.sequence_index, targets.teacher.position]

        inputs = ModelInputs.padded(positions.teacher_sequences, base)
        with torch.no_grad(), self.roles.using(role, training=False), self.accelerator.autocast():
            hidden = self.roles.module(role)(**inputs.tensors, then=compared)

        # Adapters share their model's head. A sharded model has its head whole within its own passes alone.
        if base is self.base:
            return TeacherOutput(hidden, None)
        head = base.get_output_embeddings()
        return TeacherOutput(hidden, whole_head(head, hidden) if is_sharded() else head)

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


class TeacherOutput(NamedTuple):
    """The teacher's hidden states at the tokens that are distilled, and the head that reads them."""

    hidden: Any
    head: Any  # None where it is the student's own


class AnswerPosition(NamedTuple):
    """Where the model predicts a scored token of a row's reply."""

    row_index: int
    token_index: int  # in the reply
    sequence_index: int
    position: int  # of the token before it in the sequence, whose hidden state predicts it
    token_id: int


class LabelPosition(NamedTuple):
    """Where a row's p is read; its label is the row's."""

    row_index: int
    sequence_index: int
    position: int
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
            self.labels.append(LabelPosition(row_index, sequence_index, prompt_end, 0, 0))
        elif row.decision is not None:
            token_index, revise_id, keep_id = row.decision
            position = prompt_end + token_index
            self.labels.append(
                LabelPosition(row_index, sequence_index, position, revise_id, keep_id)
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


@dataclass(frozen=True, slots=True)
class Targets:
    """The numbers of `TokenPositions` as tensors on a device: of each kind one with tensors (N,) as fields.

    They are copied before the pass, so that nothing in it waits for them.
    """

    answers: AnswerPosition
    labels: LabelPosition
    distilled: DistilledPosition
    teacher: TeacherPosition
    label_values: Tensor  # (N,), of the labels
    experts: Tensor  # (rows,)
    weights: Tensor  # (rows,)

    @staticmethod
    def of(positions: TokenPositions, device: Any) -> Targets:
        """Return the tensors of a micro-batch."""
        rows = positions.rows
        label_values = [rows[position.row_index].label for position in positions.labels]
        return Targets(
            answers=columns(AnswerPosition, positions.answers, device),
            labels=columns(LabelPosition, positions.labels, device),
            distilled=columns(DistilledPosition, positions.distilled, device),
            teacher=columns(TeacherPosition, positions.teacher, device),
            label_values=on_device(np.array(label_values, np.float64), device),
            experts=on_device(np.array([row.expert for row in rows], np.bool_), device),
            weights=on_device(np.array([row.weight for row in rows], np.float64), device),
        )


def _width(positions: Sequence[AnswerPosition] | Sequence[DistilledPosition]) -> int:
    """Return how many tokens of a row there are at most."""
    return max((position.token_index for position in positions), default=-1) + 1


def in_rows(
    values: Tensor, positions: AnswerPosition | DistilledPosition, row_count: int, width: int
) -> tuple[Tensor, Tensor]:
    """Return values (N,) at their tokens of their rows, (row_count, width), and a mask of these places."""
    values_of_rows = values.new_zeros(row_count, width)
    mask = values.new_zeros(row_count, width)
    values_of_rows[positions.row_index, positions.token_index] = values
    mask[positions.row_index, positions.token_index] = 1.0
    return values_of_rows, mask


def branched(
    sequences: Sequence[Sequence[int]],
    branches: Sequence[tuple[int, int]],
    model: Any,
) -> ModelInputs:
    """Return a model's inputs for sequences with two branches, of which the second does not see the first.

    The prompt is read once for the real answer and for the student's own prediction.

    Args:
        sequences: Of each row, the tokens of the prompt and of one or two replies.
        branches: Of each row, how many tokens the prompt and the first reply have.
        model: The model that reads them, where it is.
    """
    inputs = ModelInputs.padded(sequences, model)
    has_second_branch = any(
        len(sequence) > prompt_length + reply_length
        for sequence, (prompt_length, reply_length) in zip(sequences, branches, strict=True)
    )
    if not has_second_branch:
        return inputs  # the plain form, the fastest

    # The second reply has the positions that it would have behind the prompt.
    ids = inputs.tensors["input_ids"]
    width = ids.shape[1]
    prompt_lengths, reply_lengths = np.array(branches, np.int64).T[:, :, None]
    indices = np.arange(width)[None]
    is_second = indices >= prompt_lengths + reply_lengths
    position_ids = np.where(is_second, indices - reply_lengths, indices)

    # A GPU computes all pairs of tokens in one operation; a CPU only those that see each other.
    if ids.is_cuda:
        mask = branch_mask(branches, width, ids.device)
    else:
        mask = _limb_mask(sequences, branches, width)
    tensors = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": on_device(position_ids, ids.device),
    }
    return inputs._replace(tensors=tensors)


def branch_mask(branches: Sequence[tuple[int, int]], width: int, device: Any) -> Tensor:
    """Return which tokens each one sees, (rows, 1, width, width): see `branched`."""
    prompt_lengths, reply_lengths = on_device(np.array(branches, np.int64).T, device)[:, :, None]
    indices = torch.arange(width, device=device)
    is_second = indices >= prompt_lengths + reply_lengths
    is_first = (indices >= prompt_lengths) & ~is_second

    is_before = indices[:, None] >= indices
    is_hidden = is_second[:, :, None] & is_first[:, None, :]
    return (is_before & ~is_hidden)[:, None]


def _limb_mask(
    sequences: Sequence[Sequence[int]], branches: Sequence[tuple[int, int]], width: int
) -> TreeMask:
    """Return the same as limbs, each of which attends to its path and itself."""
    limbs = []
    for sequence, (prompt_length, reply_length) in zip(sequences, branches, strict=True):
        first_end = prompt_length + reply_length
        limbs.append(
            [
                Limb(0, first_end, np.arange(0)),
                Limb(first_end, len(sequence), np.arange(prompt_length)),
            ]
        )
    return TreeMask.of(limbs, width, "cpu")


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
