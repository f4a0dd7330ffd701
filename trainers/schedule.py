"""Learning rates that rise from the first update on, where those of transformers begin with 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


class RisingFromTheStart:
    """What trainers of transformers do otherwise while learning rates rise: a base before them.

    Of W updates of warm-up the k-th has k/W of the rate, and the last all of it. In transformers it has
    (k - 1)/W: the first update learns nothing, and neither does a stage of one update.
    """

    args: Any
    lr_scheduler: Any

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return the schedule of the settings, with such a rise."""
        from torch.optim.lr_scheduler import LambdaLR

        if self.lr_scheduler is not None:
            return self.lr_scheduler
        scheduler = super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]
        warmup_updates = self.args.get_warmup_steps(num_training_steps)
        if warmup_updates == 0 or not isinstance(scheduler, LambdaLR):
            return scheduler

        of_all = partial(_rate, warmup_updates, num_training_steps)
        rates = [partial(of_all, rate) for rate in scheduler.lr_lambdas]
        self.lr_scheduler = LambdaLR(scheduler.optimizer, rates)
        return self.lr_scheduler


def _rate(
    warmup_updates: int, updates: int, rate_after: Callable[[int], float], updates_before: int
) -> float:
    """Return the share of the learning rate that an update has.

    Args:
        warmup_updates: For how many updates rates rise.
        updates: How many there are.
        rate_after: The share after the rise.
        updates_before: How many were before this one.
    """
    if updates_before < warmup_updates:
        return (updates_before + 1) / warmup_updates
    # Torch asks once more after the last update, where transformers' polynomial may divide by 0.
    return rate_after(updates_before) if updates_before < updates else 0.0
