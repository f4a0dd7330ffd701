"""The histogram: parts by hand, borders, and that no value is lost. Wilson intervals of shares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.errors import OptionError
from comap.metrics import histogram, success_rate, wilson


def test_values_on_borders_count_in_the_upper_part() -> None:
    assert histogram(k / 10 for k in range(11)) == [1] * 9 + [2]
    assert histogram([0.05, 0.1, 0.15, 0.999999, 1], bins=10) == [1, 2, 0, 0, 0, 0, 0, 0, 0, 2]
    assert histogram([], bins=3) == [0, 0, 0]


@given(st.lists(st.floats(0, 1)), st.integers(1, 30))
def test_every_value_is_in_one_part(values: list[float], bins: int) -> None:
    counts = histogram(values, bins)
    assert len(counts) == bins and sum(counts) == len(values)
    assert counts == histogram(reversed(values), bins)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_other_values_are_refused(value: float) -> None:
    with pytest.raises(OptionError, match="from 0 to 1"):
        histogram([0.5, value])


def test_no_parts_are_refused() -> None:
    with pytest.raises(OptionError, match="at least 1 bin"):
        histogram([0.5], bins=0)


@pytest.mark.parametrize(("wins", "n"), [(0, 5), (5, 5), (3, 7), (0, 0), (50, 100)])
def test_wilson_is_the_interval_of_success_rate(wins: int, n: int) -> None:
    share = wins / n if n else 0.0
    assert wilson(share, n) == success_rate([True] * wins + [False] * (n - wins))


@pytest.mark.parametrize(("share", "n"), [(-0.1, 3), (1.1, 3), (float("nan"), 3), (0.5, -1)])
def test_wilson_refuses_what_is_no_share(share: float, n: int) -> None:
    with pytest.raises(OptionError):
        wilson(share, n)
