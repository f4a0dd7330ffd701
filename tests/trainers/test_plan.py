from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.errors import OptionError
from comap.trainers.plan import Batching, MicroBatch, plan_updates

LENGTHS = st.lists(st.integers(1, 60), max_size=40)
BATCHINGS = st.one_of(
    st.builds(Batching, rows=st.integers(1, 7), accumulate=st.integers(1, 5)),
    st.builds(Batching, tokens=st.integers(1, 128), accumulate=st.integers(1, 5)),
)


@given(st.lists(LENGTHS, max_size=3), BATCHINGS, st.integers(0, 3))
def test_every_row_is_in_each_epoch_once_and_no_update_is_of_two_epochs(
    lengths: list[list[int]], batching: Batching, seed: int
) -> None:
    plan = plan_updates(lengths, batching, seed)
    for epoch, rows in enumerate(lengths):
        seen = [row for batch in plan if batch.epoch == epoch for row in batch.rows]
        assert sorted(seen) == list(range(len(rows)))
    size = batching.accumulate
    assert len(plan) % size == 0
    updates = [plan[at : at + size] for at in range(0, len(plan), size)]
    assert all(len({batch.epoch for batch in update}) == 1 for update in updates)
    assert all(any(batch.rows for batch in update) for update in updates)
    assert plan == plan_updates(lengths, batching, seed)


@given(LENGTHS, st.integers(1, 128))
def test_batches_of_tokens_keep_the_limit_with_their_padding(lengths: list[int], most: int) -> None:
    for batch in plan_updates([lengths], Batching(tokens=most)):
        longest = max(lengths[row] for row in batch.rows)
        assert longest * len(batch.rows) <= most or len(batch.rows) == 1


def test_batches_of_rows_are_full_but_for_the_last() -> None:
    plan = plan_updates([[9] * 7], Batching(rows=3, accumulate=2))
    assert [len(batch.rows) for batch in plan] == [3, 3, 1, 0]
    assert plan[-1] == MicroBatch(0, ())


def test_the_order_follows_the_seed_and_the_epoch() -> None:
    one, two = ([b.rows for b in plan_updates([[1] * 20] * 2, Batching(rows=1), s)] for s in (0, 1))
    assert one[:20] != one[20:] and one != two


def test_how_rows_are_split_does_not_change_which_make_an_update() -> None:
    ones = plan_updates([[5] * 12], Batching(rows=1, accumulate=4), 2)
    fours = plan_updates([[5] * 12], Batching(rows=4, accumulate=1), 2)
    joined = [tuple(row for b in ones[at : at + 4] for row in b.rows) for at in (0, 4, 8)]
    assert joined == [batch.rows for batch in fours]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rows": 1, "tokens": 1},
        {"rows": 0},
        {"tokens": -1},
        {"rows": 1, "accumulate": 0},
        {"rows": 1.5},
        {"rows": True},
        {"tokens": "9"},
    ],
)
def test_what_is_no_batching_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="expected either rows or tokens"):
        Batching(**options)
