"""PPO's critic: the value of each token of a response, learned beside the policy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import DataCorrupt, OptionError
from ..run_folder import read_weights, write_weights
from ..trees import Forest
from .config import PaWTraining
from .rows import PaWRow, Reader, in_order

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

        # Values are 0 at first, so that the first advantages are the returns.
        self.backbone = copy.deepcopy(model.base_model)
        weight = next(self.backbone.parameters())
        self.head = torch.nn.Linear(int(self.backbone.config.hidden_size), 1).to(weight.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.requires_grad_(True)

        # Nobody wraps the critic as accelerate wraps the policy.
        self._in_half = config.computes_in_half(weight.device.type == "cuda")
        self._limits = config.optimization
        self._reader = Reader.of(config, self.backbone, weight.device)
        self.optimizer = torch.optim.AdamW(
            self.parameters(),
            lr=config.advantages.critic_rate,
            weight_decay=self._limits.weight_decay,
        )

    def forward(self, forest: Forest) -> Tensor:
        """Return values (B, C) of the scored tokens."""
        weight = self.head.weight
        with torch.autocast(weight.device.type, torch.bfloat16, enabled=self._in_half):
            hidden = forest.read(self.backbone, use_cache=False).last_hidden_state
        states = forest.states(hidden).to(weight.dtype)
        return forest.table(self.head(states).squeeze(-1).float())

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def values(self, rows: Sequence[PaWRow]) -> list[Tensor]:
        """Return the values (T,) of each row's response, on the CPU."""
        self.eval()
        tables = []
        indices: list[int] = []
        for batch_indices, batch in self._reader.responses(rows):
            tables.append(self(batch["forest"]))
            indices += batch_indices
        return in_order(tables, indices, rows)

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
        """Read what `save` wrote."""
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


def value_loss(
    values: Tensor, old: Tensor, targets: Tensor, mask: Tensor, clip: float | None
) -> Tensor:
    """Return PPO's loss of the critic: the sum over tokens of half the squared error, clipped."""
    error = (values - targets) ** 2
    if clip is not None:
        clipped_values = old + (values - old).clamp(-clip, clip)
        error = error.maximum((clipped_values - targets) ** 2)
    return 0.5 * (error * mask).sum()
