"""Mini-batches, micro-batches and tensors of PaW's rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.trainers.paw.batches import collate, deal, micro_batches, placed
from comap.trainers.paw.rows import PaWRow

torch = pytest.importorskip("torch")

PAD = 0


# -- mini-batches --------------------------------------------------------------------------------


def dealt(owners: Sequence[int], rank: int, size: int | None, seed: int) -> list[list[int]]:
    """Return the places of a process's rows in each mini-batch, in order of places."""
    places = np.array([place for place, owner in enumerate(owners) if owner == rank], np.int64)
    parts = deal(places, len(owners), size, seed)
    return [sorted(int(places[row]) for row in part) for part in parts]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.integers(1, 3),
    st.none() | st.integers(1, 25),
    st.integers(0, 3),
)
def test_a_mini_batch_has_the_same_rows_however_many_processes_share_them(
    groups: list[int], processes: int, size: int | None, seed: int
) -> None:
    owners = [group % processes for group in groups]
    parts = [dealt(owners, rank, size, seed) for rank in range(processes)]
    together = [sorted(chain(*batch)) for batch in zip(*parts, strict=True)]
    alone = dealt([0] * len(groups), 0, size, seed)
    assert together == alone
    assert sorted(chain(*alone)) == list(range(len(groups)))
    sizes = {len(batch) for batch in alone}
    assert max(sizes) - min(sizes) <= 1
    wanted = 1 if size is None else -(-len(groups) // size)
    assert len(alone) == wanted and (size is None or max(sizes) <= size)


def test_rows_are_dealt_anew_with_another_seed() -> None:
    first, again, other = (dealt([0] * 40, 0, 10, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert first[0] != list(range(10)), "not in the order of the episodes"


def test_a_process_without_rows_takes_part() -> None:
    assert deal(np.zeros(0, np.int64), 7, 3, seed=0) == [[], [], []]


# -- micro-batches -------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=40),
    st.data(),
    st.none() | st.integers(1, 6),
    st.none() | st.integers(1, 90),
)
def test_micro_batches_have_each_row_once_and_keep_to_their_limits(
    sizes: list[tuple[int, int]],
    data: st.DataObject,
    most_rows: int | None,
    most_tokens: int | None,
) -> None:
    rows = data.draw(st.lists(st.sampled_from(range(len(sizes))), unique=True))
    found = micro_batches(rows, sizes, most_rows, most_tokens)
    assert sorted(row for micro in found for row in micro) == sorted(rows)
    assert all(found), "none is empty"
    assert found == micro_batches(rows[::-1], sizes, most_rows, most_tokens)
    widths = []
    for micro in found:
        assert most_rows is None or len(micro) <= most_rows
        width = sum(max(sizes[row][side] for row in micro) for side in (0, 1))
        assert most_tokens is None or len(micro) * width <= most_tokens or len(micro) == 1
        widths.append(width)
    assert widths == sorted(widths, reverse=True)


def test_micro_batches_are_as_large_as_they_may_be() -> None:
    assert micro_batches(range(5), [(3, 4)] * 5, None, None) == [(0, 1, 2, 3, 4)]
    assert micro_batches(range(5), [(3, 4)] * 5, 2, 700) == [(0, 1), (2, 3), (4,)]
    mixed = [(2, 1), (7, 2), (2, 1), (7, 2), (2, 1)]
    assert micro_batches(range(5), mixed, 9, 18) == [(1, 3), (0, 2, 4)]
    assert micro_batches([], [(3, 4)], None, None) == []


def test_long_prompts_and_long_observations_are_not_padded_by_each_other() -> None:
    """By the sum of both lengths they are alike; together they would be 18 tokens wide."""
    sizes = [(9, 1), (1, 9)] * 4
    found = micro_batches(range(8), sizes, None, 40)
    assert found == [(0, 2, 4, 6), (1, 3, 5, 7)]


# -- tensors -------------------------------------------------------------------------------------


IDS = st.lists(st.integers(1, 99), max_size=6).map(tuple)


@st.composite
def drawn_row(draw: st.DrawFn) -> PaWRow:
    observed = draw(st.booleans())
    return PaWRow(
        group=0,
        trajectory=0,
        t=0,
        prompt_ids=draw(IDS.filter(bool)),
        response_ids=draw(IDS),
        header_ids=draw(IDS) if observed else (),
        observation_ids=draw(IDS.filter(bool)) if observed else (),
        footer_ids=draw(IDS) if observed else (),
    )


def read(line: Any, mask: Any) -> tuple[int, ...]:
    """Return the tokens that a mask marks."""
    return tuple(token for token, on in zip(line.tolist(), mask.tolist(), strict=True) if on)


@settings(deadline=None)
@given(st.lists(st.tuples(drawn_row(), st.booleans()), min_size=1, max_size=5))
def test_masks_mark_responses_and_observations_and_nothing_else(
    given_rows: list[tuple[PaWRow, bool]],
) -> None:
    rows, shown = [row for row, _ in given_rows], [shows for _, shows in given_rows]
    found = collate(rows, shown, PAD)
    for number, (row, shows) in enumerate(given_rows):
        line = {name: column[number] for name, column in found.items()}
        assert read(line["prompt_ids"], line["prompt_mask"]) == row.prompt_ids
        assert line["prompt_mask"].tolist() == sorted(line["prompt_mask"].tolist()), "on the left"
        assert read(line["completion_ids"], line["completion_mask"]) == row.response_ids
        observation = row.observation_ids if shows else ()
        assert read(line["completion_ids"], line["observation_mask"]) == observation
        tail = (*row.header_ids, *row.observation_ids, *row.footer_ids) if shows else ()
        assert read(line["completion_ids"], line["seen_mask"]) == (*row.response_ids, *tail)
        seen = line["seen_mask"].tolist()
        assert seen == sorted(seen, reverse=True), "padding is on the right"
        assert not (line["completion_mask"] & line["observation_mask"]).any()
        unscored = line["seen_mask"] - line["completion_mask"] - line["observation_mask"]
        template = (*row.header_ids, *row.footer_ids) if shows else ()
        assert read(line["completion_ids"], unscored) == template
    for name, column in found.items():
        assert column.dtype == torch.int64, name
        assert column.shape[0] == len(rows) and column.shape[1] >= 1
        if name.endswith("_ids"):
            unseen = found[name.replace("_ids", "_mask").replace("completion", "seen")] == 0
            assert bool((column[unseen] == PAD).all())


def test_no_rows_are_one_row_that_carries_no_loss() -> None:
    found = collate([], [], 7)
    assert found["prompt_ids"].tolist() == found["completion_ids"].tolist() == [[7]]
    assert found["prompt_mask"].tolist() == found["seen_mask"].tolist() == [[1]], "it can be read"
    assert not found["completion_mask"].any() and not found["observation_mask"].any()


def test_replies_of_no_tokens_leave_something_to_read() -> None:
    row = PaWRow(group=0, trajectory=0, t=0, prompt_ids=(5,), response_ids=())
    found = collate([row, row], [False, False], PAD)
    assert found["completion_ids"].tolist() == [[PAD], [PAD]]
    assert found["completion_ids"].dtype == torch.int64 and not found["seen_mask"].any()


def test_values_stand_at_the_tokens_of_their_replies() -> None:
    values = [torch.tensor([1.0, 2.0]), torch.tensor([]), torch.tensor([3.0])]
    found = placed(values, 4, torch.zeros, torch.zeros(3, 4))
    assert found.tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [3, 0, 0, 0]]
    doubled = placed([torch.ones(1, dtype=torch.float64)], 2, torch.zeros, torch.zeros(1, 2))
    assert doubled.dtype == torch.float64
    assert placed([], 3, torch.zeros, torch.zeros(1, 3)).tolist() == [[0, 0, 0]]
