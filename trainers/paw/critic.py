"""PPO's critic: a value for each token of a response (METHODS.md 2.6). Importing it imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..trainer_checkpoints import read_weights, write_weights
from .batches import collate, micro_batches
from .rows import PaWRow

__all__ = ["Critic", "value_loss"]

_OPTIMIZER = "optimizer.pt"


class Critic(torch.nn.Module):  # type: ignore[misc]
    """A copy of the policy's transformer with one number at each position instead of a word.

    The value of a response's token is read from the position before it, where it was yet to be chosen.

    Args:
        backbone: The transformer, without a head over words; it is trained.
        rate: Learning rate of its own AdamW.
        weight_decay: Of AdamW.
        clip: Largest norm of its gradient.
    """

    def __init__(
        self, backbone: torch.nn.Module, *, rate: float, weight_decay: float, clip: float
    ) -> None:
        super().__init__()
        self.backbone = backbone
        weight = next(backbone.parameters())
        self.head = torch.nn.Linear(int(backbone.config.hidden_size), 1).to(weight.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.requires_grad_(True)
        self.clip = clip
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=rate, weight_decay=weight_decay)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return values (B, C) of the tokens of the completions in `collate`'s tensors."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["seen_mask"]], dim=1)
        hidden = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        width = batch["completion_ids"].size(1)
        values: Tensor = self.head(hidden[:, -width - 1 : -1].to(self.head.weight.dtype))
        return values.squeeze(-1).float()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def values(
        self, rows: Sequence[PaWRow], pad: int, most_rows: int | None, most_tokens: int | None
    ) -> list[Tensor]:
        """Return the values (T,) of each row's response."""
        self.eval()
        sizes = [(len(row.prompt_ids), len(row.response_ids)) for row in rows]
        found: dict[int, Tensor] = {}
        device = self.head.weight.device
        for micro in micro_batches(range(len(rows)), sizes, most_rows, most_tokens):
            some = [rows[number] for number in micro]
            told = self(collate(some, [False] * len(some), pad, device))
            for number, line in zip(micro, told, strict=True):
                found[number] = line[: len(rows[number].response_ids)].clone()
        return [found[number] for number in range(len(rows))]

    def step(self, accelerator: Any) -> None:
        """Update the weights by the gradients so far, the mean over all processes, and forget them."""
        weights = [weight for weight in self.parameters() if weight.grad is not None]
        if accelerator.num_processes > 1:
            for weight in weights:
                weight.grad = accelerator.reduce(weight.grad, "mean")
        torch.nn.utils.clip_grad_norm_(weights, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.state_dict().items())

    def save(self, folder: Path) -> None:
        """Write weights and the optimizer's state into a folder."""
        write_weights(folder / "critic", {"critic": dict(self._named())})
        torch.save(self.optimizer.state_dict(), folder / "critic" / _OPTIMIZER)

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote.

        Raises:
            DataCorrupt: It is damaged, or another critic's.
        """
        read_weights(folder / "critic", {"critic": dict(self._named())}, "the critic")
        state = torch.load(folder / "critic" / _OPTIMIZER, map_location="cpu", weights_only=True)
        self.optimizer.load_state_dict(state)


def value_loss(
    values: Tensor, old: Tensor, targets: Tensor, mask: Tensor, clip: float | None
) -> Tensor:
    """Return the sum over tokens of half the squared error, clipped as PPO's is (METHODS.md 2.6).

    Args:
        values: The critic's values now, (B, C).
        old: Its values before the update, (B, C).
        targets: The returns, (B, C).
        mask: 1 for tokens that count, (B, C).
        clip: How far values may go from the old ones; None for any distance.

    Example:
        >>> one = torch.ones(1, 1)
        >>> float(value_loss(2 * one, one, 3 * one, one, None))
        0.5
    """
    error = (values - targets) ** 2
    if clip is not None:
        near = old + (values - old).clamp(-clip, clip)
        error = torch.maximum(error, (near - targets) ** 2)
    return 0.5 * (error * mask).sum()
