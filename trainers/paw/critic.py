"""PPO's critic: a value for each token of a response. Importing it imports torch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import DataCorrupt, OptionError
from ..run_folder import read_weights, write_weights
from .config import PaWTraining
from .rows import PaWRow, collate, micro_batches

_OPTIMIZER = "optimizer.pt"


class Critic(torch.nn.Module):  # type: ignore[misc]
    """A copy of the policy's transformer with one number at each position instead of a word."""

    def __init__(self, model: Any, config: PaWTraining) -> None:
        super().__init__()
        if model.base_model is model:
            raise OptionError(
                f"expected a language model with a transformer beneath its head, found {type(model)}; "
                "another algorithm than ppo needs none"
            )
        self.backbone = copy.deepcopy(model.base_model)
        weight = next(self.backbone.parameters())
        self.head = torch.nn.Linear(int(self.backbone.config.hidden_size), 1).to(weight.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.requires_grad_(True)
        self._limits = config.optimization
        self.optimizer = torch.optim.AdamW(
            self.parameters(),
            lr=config.advantages.critic_rate,
            weight_decay=self._limits.weight_decay,
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return values (B, C) of the tokens of the completions in `collate`'s tensors."""
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["seen_mask"]], dim=1)
        hidden = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        width = batch["completion_ids"].size(1)
        values: Tensor = self.head(hidden[:, -width - 1 : -1].to(self.head.weight.dtype))
        return values.squeeze(-1).float()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def values(self, rows: Sequence[PaWRow], pad: int) -> list[Tensor]:
        """Return the values (T,) of each row's response."""
        self.eval()
        max_rows, max_tokens = self._limits.micro_batch_rows, self._limits.micro_batch_tokens
        sizes = [row.sizes(False) for row in rows]
        found: dict[int, Tensor] = {}
        for micro in micro_batches(range(len(rows)), sizes, max_rows, max_tokens):
            some = [rows[index] for index in micro]
            values = self(collate(some, [False] * len(some), pad, self.head.weight.device))
            for index, line in zip(micro, values, strict=True):
                found[index] = line[: len(rows[index].response_ids)].clone()
        return [found[index] for index in range(len(rows))]

    def step(self, accelerator: Any) -> None:
        """Update the weights by the gradients so far, the mean over all processes, and forget them."""
        weights = [weight for weight in self.parameters() if weight.grad is not None]
        if accelerator.num_processes > 1:
            for weight in weights:
                weight.grad = accelerator.reduce(weight.grad, "mean")
        torch.nn.utils.clip_grad_norm_(weights, self._limits.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, folder: Path) -> None:
        """Write weights and the optimizer's state into a folder."""
        write_weights(folder / "critic", {"critic": self.state_dict()})
        torch.save(self.optimizer.state_dict(), folder / "critic" / _OPTIMIZER)

    def load(self, folder: Path) -> None:
        """Take over what `save` wrote."""
        read_weights(folder / "critic", {"critic": self.state_dict()}, "the critic")
        path = folder / "critic" / _OPTIMIZER
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            self.optimizer.load_state_dict(state)
        except Exception as error:  # torch raises nearly anything for damaged bytes
            raise DataCorrupt(
                f"expected the state of the critic's optimizer in {path}, found other content "
                f"({type(error).__name__}: {error!s:.200}); remove that folder to train this stage anew"
            ) from error
