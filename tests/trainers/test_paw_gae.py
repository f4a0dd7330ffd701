from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from comap.errors import OptionError
from comap.trainers.paw.advantages import at_last_token, gae, whiten

torch = pytest.importorskip("torch")


def test_rewards_are_put_at_the_last_token() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0]])
    found = at_last_token(torch.tensor([2.0, 3.0, 4.0]), mask)
    assert found.tolist() == [[0, 2, 0], [0, 0, 3], [0, 0, 0]]


def test_gae_with_gamma_and_lambda_one_is_the_return_less_the_value() -> None:
    mask, values = torch.tensor([[1, 1, 1, 0]]), torch.tensor([[1.0, 2.0, 3.0, 99.0]])
    advantages, returns = gae(at_last_token(torch.tensor([10.0]), mask), values, mask, 1.0, 1.0)
    assert advantages.tolist() == [[9.0, 8.0, 7.0, 0.0]]
    assert returns.tolist() == [[10.0, 10.0, 10.0, 0.0]]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (0.5, 0.0)])
def test_gae_is_the_sum_of_discounted_differences(gamma: float, lam: float) -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = (
        torch.randn(5, 7, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    mask = torch.rand(5, 7, generator=generator) < 0.7
    mask[4] = False
    hidden = values.masked_fill(~mask, math.nan).requires_grad_()
    advantages, returns = gae(rewards.masked_fill(~mask, math.inf), hidden, mask, gamma, lam)
    assert not advantages.requires_grad and not returns.requires_grad
    for row in range(5):
        places = [place for place in range(7) if mask[row, place]]
        r = [float(rewards[row, place]) for place in places]
        v = [float(values[row, place]) for place in places] + [0.0]
        delta = [r[i] + gamma * v[i + 1] - v[i] for i in range(len(places))]
        for i, place in enumerate(places):
            wanted = sum((gamma * lam) ** (k - i) * delta[k] for k in range(i, len(places)))
            assert float(advantages[row, place]) == pytest.approx(wanted, abs=1e-12)
            assert float(returns[row, place]) == pytest.approx(wanted + v[i], abs=1e-12)
    for found in (advantages, returns):
        assert (found[~mask] == 0).all()


def test_gae_refuses_rewards_of_another_shape() -> None:
    with pytest.raises(OptionError, match=r"found \(2,\), \(2, 3\), \(2, 3\)"):
        gae(torch.zeros(2), torch.zeros(2, 3), torch.ones(2, 3), 1.0, 1.0)


def test_whitened_advantages_have_mean_zero_and_variance_one() -> None:
    generator = torch.Generator().manual_seed(0)
    advantages = 3 + 5 * torch.randn(6, 9, generator=generator, dtype=torch.float64)
    mask = torch.rand(6, 9, generator=generator) < 0.6
    found = whiten(advantages.masked_fill(~mask, math.nan), mask)
    kept = advantages[mask]
    wanted = (kept - kept.mean()) / (kept.var(unbiased=True) + 1e-8).sqrt()
    assert torch.allclose(found[mask], wanted, rtol=1e-12, atol=1e-12)
    assert (found[~mask] == 0).all()


@pytest.mark.parametrize("tokens", [0, 4])
def test_whitening_over_ranks_is_that_of_all_tokens(tokens: int) -> None:
    advantages = torch.arange(24, dtype=torch.float64).reshape(4, 6).square()
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2:, tokens:] = False  # with 0, one rank has no token at all
    mask[0, 3:] = False
    slots: list[Any] = [None, None]
    found: list[Any] = [None, None]
    barrier = threading.Barrier(2, timeout=20)

    def total(rank: int) -> Callable[[Any], Any]:
        def summed(tensor: Any) -> Any:
            slots[rank] = tensor
            barrier.wait()
            both = slots[0] + slots[1]
            barrier.wait()
            return both

        return summed

    def work(rank: int) -> None:
        part = slice(2 * rank, 2 * rank + 2)
        found[rank] = whiten(advantages[part], mask[part], total(rank))

    ranks = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert torch.allclose(torch.cat(found), whiten(advantages, mask), rtol=1e-12, atol=0)


@pytest.mark.parametrize("tokens", [0, 1])
def test_whitening_next_to_nothing_is_zero(tokens: int) -> None:
    mask = torch.zeros(1, 3)
    mask[0, :tokens] = 1
    assert whiten(torch.tensor([[5.0, 6.0, 7.0]]), mask).tolist() == [[0.0, 0.0, 0.0]]
