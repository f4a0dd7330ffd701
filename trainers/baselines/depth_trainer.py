"""The trainers of ITP's policy and heads: from labels, and from what it played (METHODS.md 3, ITP_R).

Importing this module imports torch and TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..divergence import chunked_nll
from ..examples import Example, scored_places
from ..plan import MicroBatch
from ..row_trainer import RowTrainer
from ..trained_model import padded
from .itp_samples import DepthExample
from .online import OnlineRow, Played

__all__ = ["DepthTrainer", "OnlineTrainer"]


class _HeadTrainer(RowTrainer):
    """Trains a role with a head that reads hidden states at the ends of prompts."""

    def _forward(
        self, model: Any, rows: Sequence[Any], losses: Callable[[Any, Any], dict[str, Any]]
    ) -> dict[str, Any]:
        """Read each row's prompt and answer, and after all of these the control prompts."""
        sequences = [row.prompt + row.answer for row in rows]
        sequences += [row.control for row in rows if row.control]
        ids, mask = padded(sequences, self.args.device)
        with self.computing():
            found: dict[str, Any] = model(input_ids=ids, attention_mask=mask, then=losses)
        return found

    def _none(self, hidden: Any, head: Any) -> Any:
        """Return 0, made of all that is trained: with several processes all of it must take part."""
        assert self.head is not None
        none = head(hidden[:1, :1]).float().sum() * 0.0
        for weight in self.head.parameters():
            none = none + weight.sum() * 0.0
        return none

    def _read(self, layer: torch.nn.Linear, hidden: Any) -> Any:
        """Return what a head makes of hidden states, in its own precision whatever the model's."""
        with torch.autocast(hidden.device.type, enabled=False):
            return layer(hidden.to(layer.weight.dtype))


class DepthTrainer(_HeadTrainer):
    """Minimises ``weight nll + depth_weight CE(K)``, averaged over rows (METHODS.md 3, stage 2).

    A row's likelihood is the mean over its scored tokens; its depth is read at the last token of its
    control prompt.

    Args:
        depth_weight: Weight of the depth's cross-entropy.
        **told: See `RowTrainer`; the head is that of the depth.

    Example:
        >>> trainer = DepthTrainer(  # doctest: +SKIP
        ...     roles=roles, role="agent", epochs=[rows], plan=plan, args=arguments, head=head
        ... )
        >>> log = trainer.fit()  # doctest: +SKIP
    """

    metrics = ("nll", "depth_ce", "depth_accuracy")

    def __init__(self, *, depth_weight: float = 0.5, **told: Any) -> None:
        self.depth_weight = depth_weight
        super().__init__(**told)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return this micro-batch's part of the update's loss."""
        rows: list[Any] = self.rows_of(inputs)
        sums = self._forward(model, rows, partial(self._sums, rows))
        labels = sum(bool(row.control) for row in rows)
        self.note([sums[name] for name in self.metrics], [len(rows), labels, labels])
        loss = sums["loss"] / num_items_in_batch * self.accelerator.num_processes
        return (loss, sums) if return_outputs else loss

    def _sums(self, rows: Sequence[DepthExample], hidden: Any, head: Any) -> dict[str, Any]:
        """Return the sums of the losses of a micro-batch; called inside the model's forward."""
        none = self._none(hidden, head)
        sums: dict[str, Any] = {"nll": none, "depth_ce": none, "depth_accuracy": 0.0}
        nll, _ = _row_nll(rows, hidden, head)
        if nll is not None:
            sums["nll"] = (nll * nll.new_tensor([row.weight for row in rows])).sum()
        labelled = [row for row in rows if row.control]
        if labelled:
            assert isinstance(self.head, torch.nn.Linear)
            logits = self._read(self.head, _ends(hidden, len(rows), labelled))
            depths = torch.tensor([row.depth for row in labelled], device=logits.device)
            sums["depth_ce"] = torch.nn.functional.cross_entropy(logits, depths, reduction="sum")
            sums["depth_accuracy"] = (logits.argmax(-1) == depths).sum()
        sums["loss"] = none + sums["nll"] + self.depth_weight * sums["depth_ce"]
        return sums


class OnlineTrainer(_HeadTrainer):
    """Advantage actor-critic on episodes that the policy plays as it learns (METHODS.md 3, stage 3).

    Of each step: ``-A log pi(a) - A log p(K) + c_v (target - V)^2 / 2 - c_h H(K)``, averaged over the
    steps of an update, where the TD(0) target and the advantage ``A = target - V`` are numbers from
    when it was played. All tokens of the action's reply count, each once.

    Args:
        play: Plays the episodes of an update, with the present weights.
        updates: How many updates.
        parts: In how many micro-batches the steps of one pass through the model.
        value_weight: c_v.
        entropy_weight: c_h.
        **told: See `RowTrainer`, but for ``epochs`` and ``plan``; the head has the layers ``depth`` and
            ``value``.

    Example:
        >>> trainer = OnlineTrainer(  # doctest: +SKIP
        ...     play=play, updates=50, parts=16, roles=roles, role="agent", args=arguments, head=heads
        ... )
        >>> log = trainer.fit()  # doctest: +SKIP
    """

    metrics = (
        "action_loss",
        "depth_loss",
        "td_error",
        "entropy",
        "k",
        "return",
        "success",
        "errors",
    )

    def __init__(
        self,
        *,
        play: Callable[[int], Played],
        updates: int,
        parts: int,
        value_weight: float = 1.0,
        entropy_weight: float = 0.01,
        **told: Any,
    ) -> None:
        self.play, self.parts = play, parts
        self.value_weight, self.entropy_weight = value_weight, entropy_weight
        self._played: tuple[int, Played] | None = None
        empty = Example((), (), ())  # rows are known once they are played
        super().__init__(
            epochs=[[empty] * parts] * updates,
            plan=[
                MicroBatch(update, (part,)) for update in range(updates) for part in range(parts)
            ],
            **told,
        )

    def tokens_read(self, batches: int) -> int | None:
        """Return None: what is played is not known beforehand."""
        return None

    def played(self, update: int) -> Played:
        """Return what was played for an update; it is played where it was not.

        The weights' flags are as before afterwards.

        Args:
            update: The update's number, from 0.
        """
        if self._played is None or self._played[0] != update:
            with self.roles.using(self.role, training=False), torch.no_grad():
                self._played = (update, self.play(update))
            found = self._played[1]
            counts = (
                [0.0] * (len(self.metrics) - 4) + [float(len(found.rows))] + [found.episodes] * 3
            )
            sums = [0.0] * (len(self.metrics) - 4)
            sums += [float(sum(row.depth for row in found.rows))]
            self.note([*sums, found.returned, found.won, found.errors], counts)
        return self._played[1]

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """Return how many steps the update has; this is where they are played."""
        return max(len(self.played(self.batch_of(batch_samples[0]).epoch).rows), 1)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return this micro-batch's part of the update's loss."""
        batch = self.batch_of(inputs)
        rows = self.played(batch.epoch).rows[batch.rows[0] :: self.parts]
        sums = self._forward(model, rows, partial(self._sums, rows))
        told = [sums[name] for name in self.metrics[:4]]
        self.note([*told, *[0.0] * 4], [len(rows)] * 4 + [0] * 4)
        loss = sums["loss"] / num_items_in_batch
        return (loss, sums) if return_outputs else loss

    def _sums(self, rows: Sequence[OnlineRow], hidden: Any, head: Any) -> dict[str, Any]:
        """Return the sums of the losses of a micro-batch; called inside the model's forward."""
        none = self._none(hidden, head)
        names = self.metrics[:4]
        if not rows:
            return {**dict.fromkeys(names, none), "loss": none}
        assert self.head is not None
        _, nll = _row_nll(rows, hidden, head)
        states = _ends(hidden, len(rows), rows)
        logs = self._read(self.head.get_submodule("depth"), states).log_softmax(-1)
        values = self._read(self.head.get_submodule("value"), states).reshape(-1)
        advantage = values.new_tensor([row.advantage for row in rows])
        target = values.new_tensor([row.target for row in rows])
        depths = torch.tensor([row.depth for row in rows], device=values.device)
        chosen = logs.gather(-1, depths[:, None]).reshape(-1)
        each = {
            "action_loss": advantage * nll,
            "depth_loss": -advantage * chosen,
            "td_error": 0.5 * (target - values) ** 2,
            "entropy": -(logs.exp() * logs).sum(-1),
        }
        sums = {name: each[name].sum() for name in names}
        loss = sums["action_loss"] + sums["depth_loss"] + self.value_weight * sums["td_error"]
        return {**sums, "loss": none + loss - self.entropy_weight * sums["entropy"]}


def _ends(hidden: Any, first: int, rows: Sequence[Any]) -> Any:
    """Return the hidden state at the last token of each control prompt."""
    places = [len(row.control) - 1 for row in rows]
    return hidden[list(range(first, first + len(rows))), places]


def _row_nll(rows: Sequence[Any], hidden: Any, head: Any) -> tuple[Any, Any]:
    """Return each row's negative log-likelihood: the mean, and the sum, over its scored tokens."""
    places = scored_places(rows)
    if not places:
        return None, hidden.new_zeros(len(rows))
    numbers, positions, tokens = (list(column) for column in zip(*places, strict=True))
    targets = torch.tensor(tokens, device=hidden.device)
    each = chunked_nll(hidden[numbers, positions], head, targets)
    at = torch.tensor(numbers, device=hidden.device)
    totals = each.new_zeros(len(rows)).index_add(0, at, each)
    counts = each.new_tensor([max(sum(row.scored), 1) for row in rows])
    return totals / counts, totals
