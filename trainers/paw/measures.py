"""What is measured of an update: sums over its micro-batches and processes (PaW, Figures 10 and 11).

Importing this module imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .config import PaWTraining
    from .observation_loss import ObservationLosses

__all__ = ["Measures"]


class Measures:
    """Sums of what micro-batches tell; `means` gives the means over all processes and begins anew.

    Args:
        accelerator: Accelerate's, to sum over processes.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._sums: dict[str, list[Tensor | float]] = {}

    def add(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        """Add a sum and how many numbers it is the sum of."""
        known = self._sums.setdefault(name, [0.0, 0.0])
        known[0] = known[0] + (total.double() if isinstance(total, Tensor) else total)
        known[1] = known[1] + (count.double() if isinstance(count, Tensor) else count)

    def of_policy(self, inputs: Any, logps: Tensor, entropies: Tensor, config: PaWTraining) -> None:
        """Add what a micro-batch tells of the policy."""
        mask = inputs["completion_mask"]
        tokens = mask.sum()
        old = inputs.get("old_per_token_logps")
        old = logps if old is None else old
        ratio = torch.exp(logps - old)
        gain = inputs["advantages"]
        gain = gain[:, None] if gain.dim() == 1 else gain
        low = (ratio < 1 - config.clip_low) & (gain < 0)
        high = (ratio > 1 + config.clip_high) & (gain > 0)
        self.add("clip_fraction", ((low | high) * mask).sum(), tokens)
        self.add("entropy", (entropies * mask).sum(), tokens)
        self.add("ratio", (ratio * mask).sum(), tokens)
        self.add("policy_loss", 0.0, tokens)
        if "ref_per_token_logps" in inputs:
            apart = inputs["ref_per_token_logps"] - logps
            self.add("kl", ((torch.exp(apart) - apart - 1) * mask).sum(), tokens)

    def of_world_model(self, told: ObservationLosses) -> None:
        """Add what a micro-batch tells of predicted observations."""
        tokens = told.tokens.sum()
        rows = (told.tokens > 0).sum()
        self.add("wm_loss", told.rows.detach().sum(), rows)
        self.add("wm_clipped_ratio", told.clipped.sum(), tokens)
        self.add("wm_probability", told.probability.detach().sum(), tokens)

    def means(self) -> dict[str, float | None]:
        """Return the means, None of nothing; all processes must ask."""
        names = sorted(self._sums)
        sums = [[float(value) for value in self._sums[name]] for name in names]
        self._sums = {}
        device = self._accelerator.device
        precise = torch.float32 if device.type == "mps" else torch.float64
        table = torch.tensor(sums, dtype=precise, device=device).reshape(-1, 2)
        told = self._accelerator.reduce(table, "sum").tolist()
        return {name: one / of if of else None for name, (one, of) in zip(names, told, strict=True)}
