from __future__ import annotations

from typing import Any

import pytest

from comap.errors import OptionError
from comap.trainers.ema import ema_update

torch = pytest.importorskip("torch")

SHAPES = ((3, 4), (5,), ())


def weights(seed: int, dtype: Any = None) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    kind = dtype or torch.float64
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(kind) for shape in SHAPES
    ]


@pytest.mark.parametrize("mu", [0.99, 0.5, 0.1])
def test_a_constant_student_is_approached_by_a_factor_of_mu(mu: float) -> None:
    teacher, student = weights(0), weights(1)
    before = [one - other for one, other in zip(teacher, student, strict=True)]
    for step in range(1, 60):
        ema_update(teacher, student, mu)
        for one, other, gap in zip(teacher, student, before, strict=True):
            assert torch.allclose(one - other, mu**step * gap, rtol=0, atol=1e-12)


def test_it_is_what_a_loop_over_all_numbers_gives() -> None:
    teacher, student = weights(0), weights(1)
    by_hand = [one.flatten().tolist() for one in teacher]
    places = [one.data_ptr() for one in teacher]
    for step in range(20):
        moved = [one + step * 0.1 for one in student]
        ema_update(teacher, moved, 0.9)
        for row, other in zip(by_hand, moved, strict=True):
            row[:] = [0.9 * x + 0.1 * y for x, y in zip(row, other.flatten().tolist(), strict=True)]
    for one, row in zip(teacher, by_hand, strict=True):
        assert one.flatten().tolist() == pytest.approx(row, rel=0, abs=1e-12)
    assert places == [one.data_ptr() for one in teacher], "it is done in place"


def test_the_ends_are_exact() -> None:
    teacher, student = weights(0), weights(1)
    ema_update(teacher, student, 1.0)
    assert all(torch.equal(one, other) for one, other in zip(teacher, weights(0), strict=True))
    ema_update(teacher, student, 0.0)
    assert all(torch.equal(one, other) for one, other in zip(teacher, student, strict=True))


def test_other_precision_of_the_student_is_no_trouble() -> None:
    teacher, student = weights(0, torch.float32), weights(1, torch.bfloat16)
    expected = [0.75 * a + 0.25 * b.float() for a, b in zip(teacher, student, strict=True)]
    ema_update(teacher, student, 0.75)
    for one, other in zip(teacher, expected, strict=True):
        assert one.dtype == torch.float32
        assert torch.allclose(one, other, rtol=0, atol=1e-6)


def test_weights_in_training_are_only_read() -> None:
    teacher = weights(0)
    student = [weight.requires_grad_(True) for weight in weights(1)]
    ema_update(teacher, student, 0.5)
    assert not any(weight.requires_grad for weight in teacher)
    assert all(torch.equal(one, other) for one, other in zip(student, weights(1), strict=True))


def test_what_does_not_fit_is_refused_and_nothing_is_changed() -> None:
    teacher = weights(0)
    for mu in (-0.1, 1.1, float("nan")):
        with pytest.raises(OptionError, match="mu must be"):
            ema_update(teacher, weights(1), mu)
    with pytest.raises(OptionError, match="expected as many"):
        ema_update(teacher, weights(1)[:2], 0.5)
    with pytest.raises(OptionError, match=r"weight 1 .* \(5,\), found \(1,\)"):
        ema_update(teacher, [weights(1)[0], torch.ones(1).double(), weights(1)[2]], 0.5)
    assert all(torch.equal(one, other) for one, other in zip(teacher, weights(0), strict=True))
