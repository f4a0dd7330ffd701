"""A training warns where what samples has other weights than it has itself."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("torch")

from comap.trainers.sampling import sampling_error


@pytest.mark.parametrize(
    ("dtype", "error", "is_large"),
    [
        ("float32", 0.01, False),
        ("float32", 0.05, True),
        # There rounding alone is .04.
        ("bfloat16", 0.05, False),
        ("bfloat16", 0.2, True),
    ],
)
def test_of_errors_those_beyond_rounding_are_warned_of(dtype, error, is_large):
    sums = [(6 * error, 4), (2 * error, 4)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert sampling_error(sums, dtype) == pytest.approx(error)
    assert [
        str(warning.message).startswith("sampled log-probabilities differ") for warning in caught
    ] == ([True] if is_large else [])
    assert sampling_error([], dtype) is None
