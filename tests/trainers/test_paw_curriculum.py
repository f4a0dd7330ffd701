"""ZeroSearch's curriculum: noise by update, and draws that do not depend on who asks first."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.errors import OptionError
from comap.trainers.paw.curriculum import NoiseCurriculum, noise_probability
from comap.trainers.paw.presets import paw_preset

SHARES = st.floats(0, 1)
BASES = st.floats(1, 1e6)


def test_noise_by_hand() -> None:
    """p_s + (b ** (i / m) - 1) / (b - 1) * (p_e - p_s), METHODS.md 3."""

    def at(update: int, base: float = 4.0) -> float:
        return noise_probability(update, 100, start=0.2, end=0.8, base=base)

    assert at(0) == 0.2 and at(100) == pytest.approx(0.8, abs=1e-12)
    assert at(50) == pytest.approx(0.2 + (2 - 1) / 3 * 0.6)  # 4 ** 0.5 is 2
    assert at(25) == pytest.approx(0.2 + (math.sqrt(2) - 1) / 3 * 0.6)
    assert at(75, base=16.0) == pytest.approx(0.2 + (8 - 1) / 15 * 0.6)
    assert at(50, base=1.0) == pytest.approx(0.5)  # a straight line
    assert at(101) == at(100)


@given(start=SHARES, end=SHARES, base=BASES, updates=st.integers(1, 500))
def test_noise_moves_one_way_between_its_ends(
    start: float, end: float, base: float, updates: int
) -> None:
    found = [
        noise_probability(update, updates, start=start, end=end, base=base)
        for update in range(updates + 2)
    ]
    assert found[0] == start and found[-1] == pytest.approx(end, abs=1e-9)
    steps = [later - sooner for sooner, later in pairwise(found)]
    assert all(step * (end - start) >= -1e-12 for step in steps)
    low, high = min(start, end), max(start, end)
    assert all(low - 1e-9 <= one <= high + 1e-9 for one in found)


@given(base=st.floats(1, 1 + 1e-6))
def test_a_base_near_one_is_nearly_a_line(base: float) -> None:
    assert noise_probability(3, 10, start=0, end=1, base=base) == pytest.approx(0.3, abs=1e-5)


@pytest.mark.parametrize(
    ("update", "updates", "start", "base", "told"),
    [
        (-1, 3, 0.0, 4.0, "found -1 of 3"),
        (0, 0, 0.0, 4.0, "found 0 of 0"),
        (0, 3, 1.5, 4.0, "probabilities, not 1.5"),
        (0, 3, math.nan, 4.0, "probabilities, not nan"),
        (0, 3, 0.0, 0.5, "base must be"),
        (0, 3, 0.0, math.inf, "base must be"),
    ],
)
def test_noise_out_of_range_is_refused(
    update: int, updates: int, start: float, base: float, told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        noise_probability(update, updates, start=start, end=0.5, base=base)


def test_draws_of_noise_keep_to_the_probability() -> None:
    curriculum = NoiseCurriculum.of(paw_preset("zerosearch", seed=5), updates=100)
    assert curriculum == NoiseCurriculum(100, 0.25, 0.5, 4.0, 5)
    for update in (0, 60, 100):
        drawn = [
            curriculum.noisy(update, episode, turn) for episode in range(600) for turn in (0, 1)
        ]
        wanted = curriculum.probability(update)
        error = math.sqrt(wanted * (1 - wanted) / len(drawn))
        assert abs(sum(drawn) / len(drawn) - wanted) < 4 * error
    assert not NoiseCurriculum(9, 0.0, 0.0).noisy(3, 0, 0)
    assert NoiseCurriculum(9, 1.0, 1.0).noisy(3, 0, 0)


def test_a_draw_of_noise_depends_on_its_numbers_alone() -> None:
    curriculum = NoiseCurriculum(10, 0.5, 0.5, seed=1)
    places = [
        (update, episode, turn) for update in range(4) for episode in range(8) for turn in (0, 1)
    ]
    forward = {place: curriculum.noisy(*place) for place in places}
    backward = {
        place: NoiseCurriculum(10, 0.5, 0.5, seed=1).noisy(*place) for place in places[::-1]
    }
    assert forward == backward
    told = "".join("01"[forward[0, episode, 0]] for episode in range(8))
    assert told == "10110101"  # in any process, whatever its hash seed
    other = NoiseCurriculum(10, 0.5, 0.5, seed=2)
    assert forward != {place: other.noisy(*place) for place in places}
