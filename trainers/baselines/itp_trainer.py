"""The losses of ITP_R: policy and depth head learn from labels, then from what they played.

ITP (arXiv 2601.08955), stages 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...agents.heads import KHead
from ..row_trainer import (
    Losses,
    LossSums,
    Metric,
    ModelInputs,
    RowTrainer,
    arrays_of,
    columns,
    layer_of,
    on_device,
    read_head,
    scored_nll,
)
from ..samples import Example, MicroBatch, ScoredToken, Update, scored_positions

_PLAYED = ("k", "return", "success", "errors")


class ControlEnd(NamedTuple):
    """Where a row's control prompt ends, and the depth that is read there."""

    sequence_index: int
    position: int
    depth: int


@dataclass(frozen=True, slots=True)
class RowTargets:
    """What the losses of rows are computed with, as tensors on a device."""

    scored: ScoredToken  # its fields are (tokens,)
    scored_counts: Tensor  # (rows,), of each row's tokens, at least 1
    weights: Tensor  # (rows,)
    controls: ControlEnd  # its fields are (control prompts,)
    advantages: Tensor  # (rows,)
    targets: Tensor  # (rows,)

    @staticmethod
    def of(rows: Sequence[Any], device: Any) -> RowTargets:
        """Return the tensors of rows, whose control prompts are the sequences after all answers."""
        labeled = [row for row in rows if row.control]
        controls = [
            ControlEnd(sequence_index, len(row.control) - 1, row.depth)
            for sequence_index, row in enumerate(labeled, len(rows))
        ]

        def of_rows(numbers: Sequence[float]) -> Tensor:
            return on_device(np.array(numbers, np.float64), device)

        return RowTargets(
            scored=columns(ScoredToken, scored_positions(rows), device),
            scored_counts=of_rows([max(sum(row.scored), 1) for row in rows]),
            weights=of_rows([row.weight for row in rows]),
            controls=columns(ControlEnd, controls, device),
            advantages=of_rows([row.advantage for row in rows]),
            targets=of_rows([row.target for row in rows]),
        )


class _HeadTrainer(RowTrainer):
    """Trains a role with a head that reads hidden states at the ends of control prompts."""

    def prepare(self, batch: MicroBatch) -> tuple[ModelInputs, Losses]:
        """Return each row's prompt and answer, after these the control prompts, and the losses."""
        rows = self.rows_of(batch)
        sequences = [row.prompt + row.answer for row in rows]
        sequences += [row.control for row in rows if row.control]
        inputs = ModelInputs.padded(sequences, self.base)
        targets = RowTargets.of(rows, self.args.device)
        return inputs, partial(self._losses, rows, targets)

    def tokens_of_row(self, epoch: int, row_index: int) -> int:
        """Return how many tokens the model reads for a row, both its sequences as long as the longer."""
        row = self.epochs[epoch][row_index]
        control = getattr(row, "control", ())
        reply_length = len(row) - len(control)
        return 2 * max(reply_length, len(control)) if control else reply_length

    def _losses(self, rows: Sequence[Any], targets: RowTargets, hidden: Any, head: Any) -> LossSums:
        """Return the losses of rows, from the hidden states of what `prepare` lays out."""
        raise NotImplementedError


class DepthTrainer(_HeadTrainer):
    """Minimizes ``weight nll + depth_weight CE(K)``, averaged over rows.

    A row's likelihood is the mean over its scored tokens; its depth is read at the last token of its
    control prompt. The head is that of the depth.
    """

    metrics = ("nll", "depth_ce", "depth_accuracy")

    def __init__(self, *, depth_weight: float = 0.5, **named: Any) -> None:
        self.depth_weight = depth_weight
        super().__init__(**named)

    def _losses(self, rows: Sequence[Any], targets: RowTargets, hidden: Any, head: Any) -> LossSums:
        zero = self.zero(hidden, head)
        label_count = sum(bool(row.control) for row in rows)  # rows of drafts have no depth

        # ITP's second stage: the action's NLL, and half of the depth's cross-entropy.
        row_nll, _ = _row_nll(targets, hidden, head)
        nll = (row_nll * targets.weights.to(row_nll)).sum()

        depth_ce = zero
        correct = zero
        if label_count:
            logits = read_head(self.head, _prompt_ends(targets, hidden))
            depths = targets.controls.depth
            depth_ce = torch.nn.functional.cross_entropy(logits, depths, reduction="sum")
            correct = (logits.argmax(-1) == depths).sum()

        loss = zero + nll + self.depth_weight * depth_ce
        metrics = {
            "nll": Metric(nll, len(rows)),
            "depth_ce": Metric(depth_ce, label_count),
            "depth_accuracy": Metric(correct, label_count),
        }
        return LossSums(loss, metrics)


class OnlineTrainer(_HeadTrainer):
    """Advantage actor-critic on episodes that the policy plays as it learns.

    Of each step: ``-A log pi(a) - A log p(K) + c_v (target - V)^2 / 2 - c_h H(K)``, averaged over the
    steps of an update, where the TD(0) target and the advantage ``A = target - V`` are numbers from
    when it was played. All tokens of the action's reply count, each once. `play` plays the episodes of
    an update; its steps pass through the model in so many `parts`. The head has the layers ``depth``
    (c_h is `entropy_weight`) and ``value`` (c_v is `value_weight`).
    """

    metrics = ("action_loss", "depth_loss", "td_error", "entropy", *_PLAYED)

    def __init__(
        self,
        *,
        play: Callable[[int], Any],
        updates: int,
        parts: int,
        value_weight: float = 1.0,
        entropy_weight: float = 0.01,
        **named: Any,
    ) -> None:
        self.play = play
        self.parts = parts
        self.value_weight = value_weight
        self.entropy_weight = entropy_weight
        self._played: tuple[int, Any] | None = None

        # Rows are known once they are played; until then the plan has an empty one for each part.
        empty_row = Example((), (), ())
        parts_of_update = tuple((part,) for part in range(parts))
        plan = [Update(update, parts_of_update) for update in range(updates)]
        super().__init__(epochs=[[empty_row] * parts] * updates, plan=plan, **named)

    def played(self, update: int) -> Any:
        """Return what was played for an update; it is played, without gradients, where it was not."""
        # Asked for by each part of an update: played by the first.
        if self._played is None or self._played[0] != update:
            with self.roles.using(self.role, training=False), torch.no_grad():
                played = self.play(update)
            self._played = (update, played)

            depths = float(sum(row.depth for row in played.rows))
            self.note(
                {
                    "k": Metric(depths, len(played.rows)),
                    "return": Metric(played.returned, played.episodes),
                    "success": Metric(played.won, played.episodes),
                    "errors": Metric(played.errors, played.episodes),
                }
            )
        return self._played[1]

    def micro_batches(self, update: Update) -> list[MicroBatch]:
        """Return the parts of an update's steps, none of them empty; this is where they are played."""
        row_count = len(self.played(update.epoch).rows)
        part_count = max(min(self.parts, row_count), 1)
        return [MicroBatch(update.epoch, (part,)) for part in range(part_count)]

    def divisor(self, update: Update) -> int:
        """Return how many steps the update has."""
        return max(len(self.played(update.epoch).rows), 1)

    def rows_of(self, batch: MicroBatch) -> list[Any]:
        """Return this part of the steps that were played."""
        return list(self.played(batch.epoch).rows[batch.rows[0] :: self.parts])

    def _losses(self, rows: Sequence[Any], targets: RowTargets, hidden: Any, head: Any) -> LossSums:
        zero = self.zero(hidden, head)
        if not rows:
            return LossSums(zero, {})

        assert self.head is not None
        _, nll = _row_nll(targets, hidden, head)
        states = _prompt_ends(targets, hidden)
        depth_logps = read_head(self.head.get_submodule("depth"), states).log_softmax(-1)
        values = read_head(self.head.get_submodule("value"), states).reshape(-1)

        # Numbers from when the steps were played, so that no gradient flows through them.
        advantage = targets.advantages.to(values)
        target = targets.targets.to(values)
        depths: Any = targets.controls.depth
        action_loss = (advantage * nll).sum()  # - A log pi(a)
        depth_loss = -(advantage * depth_logps.gather(-1, depths[:, None]).reshape(-1)).sum()
        td_error = (0.5 * (target - values) ** 2).sum()
        entropy = -(depth_logps.exp() * depth_logps).sum()

        loss = action_loss + depth_loss + self.value_weight * td_error
        metrics = {
            "action_loss": Metric(action_loss, len(rows)),
            "depth_loss": Metric(depth_loss, len(rows)),
            "td_error": Metric(td_error, len(rows)),
            "entropy": Metric(entropy, len(rows)),
        }
        return LossSums(zero + loss - self.entropy_weight * entropy, metrics)


def _prompt_ends(targets: RowTargets, hidden: Any) -> Any:
    """Return the hidden state at the last token of each control prompt."""
    return hidden[targets.controls.sequence_index, targets.controls.position]


def _row_nll(targets: RowTargets, hidden: Any, head: Any) -> tuple[Any, Any]:
    """Return each row's negative log-likelihood: the mean, and the sum, over its scored tokens."""
    token_nll = scored_nll(targets.scored, hidden, head)
    totals = token_nll.new_zeros(len(targets.weights))
    totals = totals.index_add(0, targets.scored.row_index, token_nll)
    return totals / targets.scored_counts.to(token_nll), totals


def layer_of_head(head: KHead) -> torch.nn.Linear:
    return layer_of(head.weight, head.bias)


def head_of(layer: Any) -> KHead:
    """Return a layer's present weights as a head."""
    return KHead(*arrays_of(layer))
