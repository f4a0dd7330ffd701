from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.errors import OptionError
from comap.trainers.paw.selection import (
    rank_correlation,
    row_entropies,
    select_rows,
    top_overlap,
)

POOLS = st.lists(st.tuples(st.integers(-5, 5).map(float), st.booleans()), max_size=30)
SHARES = st.sampled_from([0.0, 0.001, 0.25, 0.5, 0.75, 0.99, 1.0])


def picked(entropies: Any, share: float, eligible: Any = None, **options: Any) -> list[int]:
    """Return the places of the selected rows."""
    pool = [True] * len(entropies) if eligible is None else eligible
    found = select_rows(np.array(entropies, float), np.array(pool, bool), share, **options)
    assert found.dtype == np.bool_ and found.shape == (len(entropies),)
    return np.flatnonzero(found).tolist()


# --- entropies -------------------------------------------------------------------------------------


def test_the_papers_formula_worked_by_hand() -> None:
    torch = pytest.importorskip("torch")
    logps = torch.tensor([[1.0, 1 / math.e]], dtype=torch.float64).log()
    found = row_entropies("sampled_plogp", logps, None, torch.ones(1, 2))
    assert float(found[0]) == pytest.approx((0 + 1 / math.e) / 2, rel=1e-12)


def test_all_definitions_on_one_distribution() -> None:
    torch = pytest.importorskip("torch")
    p = torch.tensor([[[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]], dtype=torch.float64)
    sampled = torch.tensor([[1, 0]])
    logps = p.log().gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
    entropies = -(p * p.log()).sum(-1)
    mask = torch.ones(1, 2, dtype=torch.bool)
    wanted = {
        "sampled_plogp": -(0.25 * math.log(0.25) + 0.8 * math.log(0.8)) / 2,
        "neg_logp": -(math.log(0.25) + math.log(0.8)) / 2,
        "full": (1.5 * math.log(2) - (0.8 * math.log(0.8) + 0.2 * math.log(0.1))) / 2,
    }
    for mode, value in wanted.items():
        found = row_entropies(mode, logps, entropies, mask)  # type: ignore[arg-type]
        assert float(found[0]) == pytest.approx(value, rel=1e-12), mode


@pytest.mark.parametrize("mode", ["sampled_plogp", "neg_logp", "full"])
def test_only_tokens_of_the_mask_count_and_a_row_without_any_is_last(mode: Any) -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.tensor([[-0.5, math.nan, -1.5], [math.inf, -math.inf, math.nan]])
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]])
    found = row_entropies(mode, numbers, -numbers, mask)
    terms = [0.5, 1.5]
    if mode == "sampled_plogp":
        terms = [term * math.exp(-term) for term in terms]
    assert float(found[0]) == pytest.approx(statistics.fmean(terms), rel=1e-6)
    assert float(found[1]) == -math.inf


def test_entropies_are_precise_and_keep_no_gradient() -> None:
    torch = pytest.importorskip("torch")
    logps = torch.full((1, 4), -0.1, dtype=torch.bfloat16, requires_grad=True)
    found = row_entropies("neg_logp", logps, None, torch.ones(1, 4))
    assert found.dtype == torch.float32 and not found.requires_grad


def test_an_impossible_token_has_no_entropy_by_the_papers_formula() -> None:
    torch = pytest.importorskip("torch")
    logps = torch.tensor([[-math.inf, -1.0]])
    ones = torch.ones(1, 2)
    found = float(row_entropies("sampled_plogp", logps, None, ones))
    assert found == pytest.approx(math.exp(-1) / 2, rel=1e-6)
    assert float(row_entropies("neg_logp", logps, None, ones)) == math.inf


def test_entropies_that_cannot_be_made_are_refused() -> None:
    torch = pytest.importorskip("torch")
    logps, mask = torch.zeros(2, 3), torch.ones(2, 3)
    with pytest.raises(OptionError, match="did you mean 'neg_logp'"):
        row_entropies("neglogp", logps, None, mask)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="found None"):
        row_entropies("full", logps, None, mask)
    with pytest.raises(OptionError, match=r"\(2, 3\) and \(2, 2\)"):
        row_entropies("neg_logp", logps, None, mask[:, :2])


def test_batches_and_padding_do_not_change_entropies() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    logps = -torch.rand(6, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(6, 5, generator=generator) < 0.7
    found = row_entropies("sampled_plogp", logps, None, mask)
    for row in range(6):
        kept = logps[row : row + 1, mask[row]]
        alone = row_entropies("sampled_plogp", kept, None, torch.ones_like(kept))
        assert torch.allclose(found[row : row + 1], alone, rtol=1e-12, atol=0)


# --- selection -------------------------------------------------------------------------------------


def test_three_quarters_of_ten_rows_are_eight() -> None:
    entropies = [0.3, 0.9, 0.1, 0.8, 0.7, 0.2, 0.6, 0.5, 0.4, 1.0]
    assert picked(entropies, 0.75) == [0, 1, 3, 4, 6, 7, 8, 9]


def test_copies_and_rows_without_observation_are_never_selected() -> None:
    entropies = [0.9] * 5 + [0.1] * 10
    eligible = [False] * 5 + [True] * 10
    for how in ("top", "random", "bottom"):
        for share in (0.3, 0.75, 1.0):
            found = picked(entropies, share, eligible, how=how)
            assert min(found) >= 5 and len(found) == math.ceil(share * 10)


def test_equal_entropies_are_taken_in_their_order() -> None:
    assert picked([0.5] * 6, 0.5) == [0, 1, 2]
    assert picked([0.5] * 6, 0.5, how="bottom") == [0, 1, 2]
    assert picked([0.1, 0.5, 0.9, 0.5, 0.5], 0.6) == [1, 2, 3]


@pytest.mark.parametrize(
    ("share", "rows", "count"),
    [(0.07, 100, 7), (0.29, 100, 29), (0.1, 30, 3), (0.55, 100, 55), (1e-9, 7, 1), (1.0, 7, 7)],
)
def test_the_share_is_a_decimal_number(share: float, rows: int, count: int) -> None:
    assert len(picked(list(range(rows)), share)) == count
    assert len(picked(list(range(rows)), np.float64(share))) == count


@pytest.mark.parametrize("how", ["top", "random", "bottom"])
def test_nothing_is_selected_of_nothing(how: Any) -> None:
    assert picked([], 0.75, how=how) == []
    assert picked([math.nan, 2.0], 0.75, [False, False], how=how) == []
    assert picked([1.0, 2.0], 0.0, how=how) == []


def test_rows_without_an_action_come_last_either_way() -> None:
    entropies = [-math.inf, 0.2, 0.1, math.inf]
    assert picked(entropies, 0.75) == [1, 2, 3]
    assert picked(entropies, 0.75, how="bottom") == [1, 2, 3]
    assert picked(entropies, 0.5, how="bottom") == [1, 2]
    assert picked(entropies, 1.0) == [0, 1, 2, 3]


@given(POOLS, SHARES)
def test_top_rows_have_at_least_the_entropy_of_the_others(
    pool: list[tuple[float, bool]], share: float
) -> None:
    entropies, eligible = [e for e, _ in pool], [p for _, p in pool]
    candidates = [place for place, inside in enumerate(eligible) if inside]
    count = math.ceil(share * len(candidates))
    ordered = sorted(candidates, key=lambda place: (-entropies[place], place))
    assert picked(entropies, share, eligible) == sorted(ordered[:count])
    ordered = sorted(candidates, key=lambda place: (entropies[place], place))
    assert picked(entropies, share, eligible, how="bottom") == sorted(ordered[:count])


@given(st.sets(st.integers(-50, 50), max_size=20), SHARES, st.randoms(use_true_random=False))
def test_the_order_of_rows_selects_no_others(values: set[int], share: float, draw: Any) -> None:
    entropies = [float(value) for value in values]
    mixed = draw.sample(entropies, len(entropies))
    for how in ("top", "bottom"):
        kept = {entropies[place] for place in picked(entropies, share, how=how)}
        assert kept == {mixed[place] for place in picked(mixed, share, how=how)}


def test_random_selection_depends_on_the_seed_and_not_on_entropies() -> None:
    one = picked([0.0] * 40, 0.5, how="random", seed=3)
    assert len(one) == 20
    assert one == picked(list(range(40)), 0.5, how="random", seed=3)
    assert one != picked([0.0] * 40, 0.5, how="random", seed=4)
    counts = np.zeros(8)
    for seed in range(400):
        counts[picked([0.0] * 8, 0.25, how="random", seed=seed)] += 1
    assert counts.sum() == 800
    assert counts.min() > 60 and counts.max() < 140  # 100 each, deviation below 9


@pytest.mark.parametrize(
    ("entropies", "eligible", "share", "how", "said"),
    [
        ([1.0], [True], 1.5, "top", "share must be"),
        ([1.0], [True], -0.1, "top", "share must be"),
        ([1.0], [True], math.nan, "top", "share must be"),
        ([1.0], [True, True], 0.5, "top", "found shapes"),
        ([[1.0]], [[True]], 0.5, "top", "found shapes"),
        ([math.nan], [True], 0.5, "top", "NaN"),
        ([1.0], [True], 0.5, "most", "there is no selection 'most'"),
    ],
)
def test_a_selection_that_means_nothing_is_refused(
    entropies: Any, eligible: Any, share: float, how: Any, said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        select_rows(entropies, eligible, share, how=how)


# --- comparing definitions -------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=20))
def test_rank_correlation_is_that_of_mean_ranks(pairs: list[tuple[int, int]]) -> None:
    both = [[float(pair[place]) for pair in pairs] for place in range(2)]
    found = rank_correlation(*both)
    if any(len(set(values)) == 1 for values in both):
        assert found is None
        return
    ranks = [
        [sum(v < w for v in values) + (sum(v == w for v in values) + 1) / 2 for w in values]
        for values in both
    ]
    assert found == pytest.approx(statistics.correlation(*ranks), abs=1e-12)
    assert rank_correlation(both[1], both[0]) == pytest.approx(found, abs=1e-15)


def test_rank_correlation_of_orders_and_its_limits() -> None:
    assert rank_correlation([1, 2, 3], [-math.inf, 0.0, math.inf]) == 1.0
    assert rank_correlation([0.1, 0.2, 0.3], [9, 8, 7]) == -1.0
    for nothing in ([], [1.0], [2.0, 2.0]):
        assert rank_correlation(nothing, nothing) is None
    with pytest.raises(OptionError, match="as many"):
        rank_correlation([1.0], [1.0, 2.0])
    with pytest.raises(OptionError, match="NaN"):
        rank_correlation([1.0, math.nan], [1.0, 2.0])


def test_overlap_is_the_share_selected_by_both() -> None:
    a, b = np.array([4.0, 3.0, 2.0, 1.0, 9.0]), np.array([1.0, 4.0, 3.0, 2.0, 9.0])
    eligible = np.array([True, True, True, True, False])
    assert top_overlap(a, b, eligible, 0.5) == 0.5
    assert top_overlap(a, a, eligible, 0.5) == 1.0
    assert top_overlap(a, -a, eligible, 0.5) == 0.0
    assert top_overlap(a, b, eligible, 1.0) == 1.0
    assert top_overlap(a, b, eligible & False, 0.5) is None
