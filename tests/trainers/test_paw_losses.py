from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.errors import OptionError
from comap.trainers.paw.observation_loss import observation_losses
from comap.trainers.paw.weights import adaptive_coefficients, row_weights

torch = pytest.importorskip("torch")

KINDS: list[Any] = ["cmae", "mae", "ce", "clipped_ce"]
ROWS = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=30)


def logs_of(*rows: list[float], dtype: Any = torch.float64) -> Any:
    return torch.tensor(rows, dtype=dtype).log()


def drawn(rows: int, tokens: int, seed: int = 0) -> tuple[Any, Any]:
    """Log-probabilities and a mask, of which the last row has no token."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(rows, tokens, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, tokens, generator=generator) < 0.7
    mask[-1] = False
    return p.log(), mask


# --- observation loss ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cmae_worked_by_hand(dtype: Any) -> None:
    found = observation_losses(logs_of([0.1, 0.3, 0.2], dtype=dtype), torch.ones(1, 3))
    assert float(found.rows[0]) == pytest.approx((0.9 + 0 + 0.8) / 3, rel=1e-6)
    assert (found.clipped.tolist(), found.tokens.tolist()) == ([1], [3])
    assert float(found.probability[0]) == pytest.approx(0.6, rel=1e-6)


@pytest.mark.parametrize("rho", [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_probability_of_exactly_rho_is_learned(rho: float, dtype: Any) -> None:
    found = observation_losses(logs_of([rho, rho], dtype=dtype), torch.ones(1, 2), rho=rho)
    assert found.clipped.tolist() == [0]
    assert float(found.rows[0]) == pytest.approx(1 - rho, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", [0.2, 0.6, 1.0])
def test_each_loss_is_what_its_formula_says(kind: Any, rho: float) -> None:
    logps, mask = drawn(6, 8)
    found = observation_losses(logps, mask, kind=kind, rho=rho)
    for row in range(6):
        p = [math.exp(v) for v, m in zip(logps[row].tolist(), mask[row], strict=True) if m]
        terms = [1 - q if "mae" in kind else -math.log(q) for q in p]
        if kind.startswith("c") and kind != "ce":
            terms = [term for term, q in zip(terms, p, strict=True) if q <= rho]
        wanted = math.fsum(terms) / len(p) if p else 0.0
        assert float(found.rows[row]) == pytest.approx(wanted, rel=1e-12, abs=1e-15)
        assert int(found.clipped[row]) == sum(q > rho for q in p)
        assert float(found.probability[row]) == pytest.approx(math.fsum(p), rel=1e-12)
        assert int(found.tokens[row]) == len(p)


def test_the_loss_is_divided_by_all_tokens_not_by_those_that_are_learned() -> None:
    found = observation_losses(logs_of([0.1, 0.9, 0.9, 0.9]), torch.ones(1, 4))
    assert float(found.rows[0]) == pytest.approx(0.9 / 4)


def test_cmae_is_zero_where_every_token_is_known() -> None:
    logits = torch.tensor([[2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    found = observation_losses(torch.nn.functional.logsigmoid(logits), torch.ones(1, 2))
    found.rows.sum().backward()
    assert float(found.rows[0].detach()) == 0.0 and logits.grad.tolist() == [[0.0, 0.0]]
    assert found.clipped.tolist() == [2]


def gradients(kind: Any, rho: float = 0.2) -> tuple[Any, Any, Any, Any]:
    """Return probabilities, targets, and the gradients of one row's loss by its logits."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(1, 6, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(5, (1, 6, 1), generator=generator)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0]])
    logits.requires_grad_()
    logps = logits.log_softmax(-1).gather(-1, targets).squeeze(-1)
    observation_losses(logps, mask, kind=kind, rho=rho).rows.sum().backward()
    return logits.detach().softmax(-1)[0], targets[0, :, 0], logits.grad[0], logps.detach().exp()[0]


@pytest.mark.parametrize("kind", ["cmae", "mae"])
def test_gradient_of_the_targets_logit_is_minus_p_times_one_minus_p(kind: Any) -> None:
    _, targets, gradient, p = gradients(kind)
    told = 0
    for place in range(6):
        left_out = place == 5 or (kind == "cmae" and p[place] > 0.2)
        told += not left_out
        wanted = 0.0 if left_out else -float(p[place] * (1 - p[place])) / 5
        assert float(gradient[place, targets[place]]) == pytest.approx(wanted, abs=1e-15)
        assert left_out == bool((gradient[place] == 0).all())
    assert told > 0 and (kind == "mae" or told < 5)


def test_gradient_of_cross_entropy_is_that_of_softmax() -> None:
    full, targets, gradient, _ = gradients("ce")
    wanted = (full - torch.nn.functional.one_hot(targets, 5)) / 5
    wanted[5] = 0
    assert torch.allclose(gradient, wanted, rtol=0, atol=1e-15)


def test_clipped_cross_entropy_has_no_gradient_at_known_tokens() -> None:
    full, targets, gradient, p = gradients("clipped_ce")
    wanted = (full - torch.nn.functional.one_hot(targets, 5)) / 5
    wanted[p > 0.2] = 0
    wanted[5] = 0
    assert torch.allclose(gradient, wanted, rtol=0, atol=1e-15)
    assert (gradient == 0).all(-1).any()


def test_an_unpredictable_token_has_next_to_no_gradient() -> None:
    logps = torch.tensor([[-30.0, -1.7, -math.inf]], dtype=torch.float64, requires_grad=True)
    observation_losses(logps, torch.ones(1, 3)).rows.sum().backward()
    noise, known, impossible = (abs(value) for value in logps.grad[0].tolist())
    assert noise < 1e-12 < known and impossible == 0.0


def test_what_is_told_of_the_losses_keeps_no_gradient() -> None:
    logps, mask = drawn(3, 4)
    found = observation_losses(logps.requires_grad_(), mask)
    assert found.rows.requires_grad
    assert not any(part.requires_grad for part in (found.clipped, found.probability, found.tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_outside_of_the_mask_is_looked_at(kind: Any) -> None:
    logps, mask = drawn(4, 5)
    clean = observation_losses(logps, mask, kind=kind)
    spoilt = logps.masked_fill(~mask, math.nan).requires_grad_()
    found = observation_losses(spoilt, mask, kind=kind)
    assert torch.equal(found.rows, clean.rows)
    found.rows.sum().backward()
    assert (spoilt.grad[~mask] == 0).all() and spoilt.grad.isfinite().all()
    assert float(found.rows[-1].detach()) == 0.0 and int(found.tokens[-1]) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_no_rows_and_no_tokens_have_no_loss(kind: Any, shape: tuple[int, int]) -> None:
    logps = torch.zeros(shape, requires_grad=True)
    found = observation_losses(logps, torch.zeros(shape), kind=kind)
    assert found.rows.tolist() == [0.0] * shape[0]
    found.rows.sum().backward()


def test_half_precision_is_made_single() -> None:
    logps = torch.full((1, 2), -3.0, dtype=torch.bfloat16, requires_grad=True)
    found = observation_losses(logps, torch.ones(1, 2))
    assert found.rows.dtype == torch.float32
    assert float(found.rows[0].detach()) == pytest.approx(1 - math.exp(-3), rel=1e-6)
    found.rows.sum().backward()
    assert logps.grad.dtype == torch.bfloat16


def test_rho_one_is_the_plain_mean_absolute_error() -> None:
    logps, mask = drawn(5, 7)
    one = observation_losses(logps, mask, rho=1.0)
    assert torch.equal(one.rows, observation_losses(logps, mask, kind="mae").rows)
    assert not one.clipped.any()


@given(st.integers(0, 99), st.sampled_from([0.05, 0.2, 0.8]))
def test_losses_of_rows_stand_alone_and_stay_within_bounds(seed: int, rho: float) -> None:
    logps, mask = drawn(5, 6, seed)
    found = observation_losses(logps, mask, rho=rho)
    order = random.Random(seed).sample(range(5), 5)
    assert torch.equal(
        observation_losses(logps[order], mask[order], rho=rho).rows, found.rows[order]
    )
    assert ((found.rows >= 0) & (found.rows <= 1)).all()
    assert (found.rows <= observation_losses(logps, mask, kind="mae").rows).all()
    for row in range(5):
        kept = logps[row : row + 1, mask[row]]
        alone = observation_losses(kept, torch.ones_like(kept), rho=rho)
        assert torch.allclose(alone.rows, found.rows[row : row + 1], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("options", "shape", "said"),
    [
        ({"kind": "cmea"}, (1, 2), "did you mean 'cmae'"),
        ({"rho": 0.0}, (1, 2), "rho must be"),
        ({"rho": 1.5}, (1, 2), "rho must be"),
        ({"rho": math.nan}, (1, 2), "rho must be"),
        ({}, (2, 1), "found"),
        ({}, (2,), "found"),
    ],
)
def test_an_observation_loss_that_means_nothing_is_refused(
    options: dict[str, Any], shape: tuple[int, ...], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        observation_losses(torch.zeros(1, 2), torch.ones(shape), **options)


# --- adaptive coefficients and weights -------------------------------------------------------------


def test_lambda_worked_by_hand() -> None:
    assert adaptive_coefficients([10.0, 0.0, 0.0, 10.0], [0] * 4, 10.0).tolist() == [0.5]
    found = adaptive_coefficients([1.0, 0.0, 1.0, 1.0, 0.0], [0, 2, 0, 1, 2], 1.0)
    assert found.tolist() == [0.0, 0.0, 1.0]
    assert adaptive_coefficients([1.0, 0.0], [0, 1], 1.0).tolist() == [0.0, 1.0]  # PPO: n = 1


def test_lambda_stays_within_zero_and_one() -> None:
    assert adaptive_coefficients([12.0, -3.0], [0, 1], 10.0).tolist() == [0.0, 1.0]


def test_without_adaptation_every_lambda_is_one() -> None:
    assert adaptive_coefficients([10.0, 0.0], [0, 1], 10.0, enabled=False).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("enabled", [True, False])
def test_a_group_without_trajectories_has_lambda_zero(enabled: bool) -> None:
    found = adaptive_coefficients([0.0, 0.0], [0, 2], 10.0, enabled=enabled, count=5)
    assert found.tolist() == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert adaptive_coefficients([], [], 10.0, enabled=enabled).tolist() == []


@given(
    st.lists(st.tuples(st.floats(-20, 20), st.integers(0, 4)), max_size=20),
    st.floats(0.5, 20),
    st.booleans(),
)
def test_lambda_is_one_less_the_share_of_the_greatest_return(
    played: list[tuple[float, int]], r_max: float, enabled: bool
) -> None:
    returns, groups = [r for r, _ in played], [g for _, g in played]
    found = adaptive_coefficients(returns, groups, r_max, enabled=enabled, count=5)
    assert found.shape == (5,) and ((found >= 0) & (found <= 1)).all()
    for group in range(5):
        own = [r for r, g in played if g == group]
        wanted = min(max(1 - math.fsum(own) / len(own) / r_max, 0.0), 1.0) if own else 0.0
        assert found[group] == pytest.approx(wanted if enabled else float(bool(own)), abs=1e-12)


@pytest.mark.parametrize(
    ("returns", "groups", "options", "said"),
    [
        ([1.0], [0], {"r_max": 0.0}, "r_max must be"),
        ([1.0], [0], {"r_max": math.nan}, "r_max must be"),
        ([math.inf], [0], {}, "finite"),
        ([1.0, 2.0], [0], {}, "expected a group for each"),
        ([1.0], [-1], {}, "found -1"),
        ([1.0], [3], {"count": 3}, "from 0 to 2, found 3"),
    ],
)
def test_coefficients_of_nothing_sensible_are_refused(
    returns: Any, groups: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        adaptive_coefficients(returns, groups, **({"r_max": 10.0} | options))


def test_weights_worked_by_hand() -> None:
    selected = np.array([True, True, False, True, False])
    found = row_weights(selected, [0, 0, 0, 1, 2], [0.5, 1.0, 0.25])
    assert found.tolist() == pytest.approx([0.5 / 6, 0.5 / 6, 0.0, 1 / 3, 0.0])
    twice = row_weights(selected, [0, 0, 0, 1, 2], [0.5, 1.0, 0.25], wm_coef=2.0)
    assert np.array_equal(twice, 2 * found)
    assert not row_weights(selected & False, [0, 0, 0, 1, 2], [0.5, 1.0, 0.25]).any()
    assert row_weights([], [], []).shape == (0,)


@given(ROWS, st.integers(0, 9))
def test_weighted_losses_are_the_mean_over_groups_of_lambda_times_mean_loss(
    rows: list[tuple[bool, int]], seed: int
) -> None:
    draw = np.random.default_rng(seed)
    selected, groups = (np.array([row[place] for row in rows]) for place in range(2))
    coefficients, losses = draw.random(4), draw.random(len(rows))
    found = row_weights(selected, groups, coefficients)
    terms = []
    for group in range(4):
        own = [loss for loss, (s, g) in zip(losses, rows, strict=True) if s and g == group]
        terms.append(coefficients[group] * sum(own) / len(own) if own else 0.0)
    assert float(found @ losses) == pytest.approx(sum(terms) / 4, abs=1e-12)
    order = draw.permutation(len(rows))
    assert np.array_equal(row_weights(selected[order], groups[order], coefficients), found[order])


def test_gradient_does_not_depend_on_how_the_update_is_split() -> None:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(12, 5, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(12, 5, generator=generator) < 0.8
    weights = torch.tensor(
        row_weights([place % 3 > 0 for place in range(12)], [0, 1, 2] * 4, [0.5, 0.9, 0.2])
    )

    def gradient(size: int) -> Any:
        head = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()
        parts = 12 // size
        for start in range(0, 12, size):
            part = slice(start, start + size)
            logps = torch.nn.functional.logsigmoid(inputs[part] @ head - 1)
            losses = observation_losses(logps, mask[part], rho=0.4).rows
            # N / |B| of METHODS.md 2.5, and the mean over the parts
            (12 / size * (weights[part] * losses).sum() / parts).backward()
        return head.grad

    whole = gradient(12)
    assert whole.abs().min() > 0
    for size in (1, 3, 4, 6):
        assert torch.allclose(gradient(size), whole, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("groups", "coefficients", "said"),
    [([0], [1.0], "expected a group for each"), ([0, 2], [1.0, 1.0], "from 0 to 1, found 0 to 2")],
)
def test_a_row_without_a_coefficient_is_refused(groups: Any, coefficients: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        row_weights([True, True], groups, coefficients)
