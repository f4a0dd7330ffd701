"""Learning rates: the first update learns, also where it is the only one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from transformers import TrainingArguments, get_scheduler  # noqa: E402

from comap.trainers.schedule import RisingFromTheStart  # noqa: E402


class Stock:
    """What transformers' trainer does about its schedule, without a trainer."""

    def __init__(self, name: str, warmup: float) -> None:
        self.args = TrainingArguments(warmup_steps=warmup, lr_scheduler_type=name)
        self.lr_scheduler: Any = None

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self.lr_scheduler = get_scheduler(
            self.args.lr_scheduler_type,
            optimizer,
            num_warmup_steps=self.args.get_warmup_steps(num_training_steps),
            num_training_steps=num_training_steps,
        )
        return self.lr_scheduler


class Ours(RisingFromTheStart, Stock):
    pass


def rates(kind: type, name: str, warmup: float, updates: int) -> list[list[float]]:
    """Return the rates of two groups in each update."""
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [
        {"params": [weight], "lr": rate} for weight, rate in zip(weights, (8.0, 0.8), strict=True)
    ]
    optimizer = torch.optim.SGD(groups)
    scheduler = kind(name, warmup).create_scheduler(updates, optimizer)
    rates_of_updates = []
    for update in range(updates):
        rates_of_updates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        if kind is Ours or update + 1 < updates:
            scheduler.step()
    return rates_of_updates


@pytest.mark.parametrize(
    "name", ["cosine", "linear", "constant_with_warmup", "inverse_sqrt", "polynomial"]
)
@pytest.mark.parametrize(("warmup", "updates", "rising"), [(0.03, 1, 1), (0.03, 50, 2), (4, 20, 4)])
def test_rates_rise_from_the_first_update(
    name: str, warmup: float, updates: int, rising: int
) -> None:
    our_rates = rates(Ours, name, warmup, updates)
    for k in range(rising):
        assert our_rates[k] == pytest.approx([8.0 * (k + 1) / rising, 0.8 * (k + 1) / rising])
    assert our_rates[rising:] == rates(Stock, name, warmup, updates)[rising:]


def test_a_schedule_without_warm_up_is_left_alone() -> None:
    for name in ("constant", "cosine"):
        assert rates(Ours, name, 0, 5) == rates(Stock, name, 0, 5)
    own_scheduler = SimpleNamespace()
    trainer = Ours("cosine", 0.1)
    trainer.lr_scheduler = own_scheduler
    assert trainer.create_scheduler(10) is own_scheduler, "an own one stays"
