"""Scores: examples worked by hand, and properties that hold for any input."""

from __future__ import annotations

import math
from itertools import combinations, product
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.errors import OptionError
from comap.facts import State, diff
from comap.metrics import (
    Outcome,
    compare,
    consistency,
    delta_f1,
    delta_f1_report,
    goal_condition_success,
    histogram,
    mcnemar,
    normal_quantile,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    revision_rates,
    success_rate,
    t_interval,
    wilson,
)

FACTS = st.frozensets(st.tuples(st.sampled_from("pqr"), st.sampled_from("abcd")), max_size=8)
STATES = st.builds(State, FACTS, st.booleans())
BOOLS = st.booleans()


def state(*names: str) -> State:
    return State(frozenset((name,) for name in names))


def test_delta_f1_by_hand() -> None:
    before = state("a", "b", "z")
    actual = state("c", "d", "z")  # four changes: -a -b +c +d
    predicted = state("b", "c", "x", "z")  # three changes: -a +c +x, two of them right
    assert len(diff(before, predicted)) == 3 and len(diff(before, actual)) == 4
    assert delta_f1(before, predicted, actual) == pytest.approx(4 / 7)
    assert delta_f1(before, actual, actual) == 1.0
    assert delta_f1(before, before, before) == 1.0, "rightly nothing"
    assert delta_f1(before, before, actual) == 0.0, "one empty"
    assert delta_f1(before, actual, before) == 0.0, "the other empty"
    assert delta_f1(before, State(actual.facts, parsed=False), actual) == 0.0
    assert delta_f1(before, actual, State(actual.facts, parsed=False)) == 0.0


def test_sets_of_facts_are_beliefs_too() -> None:
    before, guess, after = {("a",)}, {("b",)}, [("b",), ("c",)]
    states = (State(frozenset(before)), State(frozenset(guess)), State(frozenset(after)))
    assert delta_f1(before, guess, after) == delta_f1(*states) == 0.8
    assert delta_f1_report([(before, guess, after)]) == delta_f1_report([states])


def test_the_sign_of_a_change_counts() -> None:
    assert delta_f1(state("a"), state(), state("a", "b")) == 0.0
    assert delta_f1(state(), state("a"), state("a")) == 1.0


@given(STATES, STATES, STATES)
def test_delta_f1_is_a_symmetric_share(before: State, first: State, second: State) -> None:
    score = delta_f1(before, first, second)
    assert 0.0 <= score <= 1.0
    assert score == delta_f1(before, second, first)
    if first.parsed and second.parsed:
        assert (score == 1.0) == (first.facts == second.facts)


@given(st.lists(st.tuples(STATES, STATES, STATES), max_size=12))
def test_the_report_agrees_with_single_scores(rows: list[tuple[State, State, State]]) -> None:
    report = delta_f1_report(rows)
    parsed_rows = [row for row in rows if row[2].parsed]
    changed = [row for row in parsed_rows if row[0].facts != row[2].facts]
    assert (report.n, report.dropped) == (len(parsed_rows), len(rows) - len(parsed_rows))
    assert report.n_nonempty == len(changed)
    for reported, part in ((report.mean, parsed_rows), (report.nonempty_mean, changed)):
        expected = sum(delta_f1(*row) for row in part) / len(part) if part else 0.0
        assert reported == pytest.approx(expected)
    if parsed_rows:
        assert report.no_op_share == pytest.approx(1 - len(changed) / len(parsed_rows))
        failures = sum(not row[1].parsed for row in parsed_rows)
        assert report.parse_failure_rate == pytest.approx(failures / len(parsed_rows))
    truth = [diff(row[0], row[2]) for row in parsed_rows]
    total = sum(len(delta) for delta in truth)
    assert sum(score.support for score in report.by_predicate.values()) == total


def test_the_report_by_predicate() -> None:
    before = state()
    rows = [
        (before, State(frozenset({("p", "1"), ("q", "1")})), State(frozenset({("p", "1")}))),
        (before, State(frozenset({("p", "2")})), State(frozenset({("p", "2"), ("p", "3")}))),
    ]
    scores = delta_f1_report(rows).by_predicate
    assert (scores["p"].precision, scores["p"].recall, scores["p"].support) == (1.0, 2 / 3, 3)
    assert scores["p"].f1 == pytest.approx(0.8)
    assert (scores["q"].precision, scores["q"].f1, scores["q"].support) == (0.0, 0.0, 0)


def test_wilson_by_hand() -> None:
    rate = success_rate([True] * 81 + [False] * 182)  # n = 263: 30.8 %, 25.5 to 36.6
    assert (rate.value, rate.n) == (pytest.approx(81 / 263), 263)
    assert (rate.low, rate.high) == (
        pytest.approx(0.2553, abs=5e-4),
        pytest.approx(0.3662, abs=5e-4),
    )
    assert (success_rate([]).low, success_rate([]).high) == (0.0, 1.0)
    assert success_rate([True] * 5).high == 1.0 and success_rate([False] * 5).low == 0.0


@given(st.lists(BOOLS, min_size=1, max_size=300))
def test_the_interval_holds_the_share(outcomes: list[bool]) -> None:
    rate = success_rate(outcomes)
    assert 0.0 <= rate.low <= rate.value <= rate.high <= 1.0
    assert rate.high - rate.low >= success_rate(outcomes * 4).high - success_rate(outcomes * 4).low


def test_revision_rates_by_hand() -> None:
    decisions = [
        (True, True, False),  # harmful
        (True, True, True),  # unnecessary
        (False, True, True),
        (False, True, False),
        (True, False, True),  # beneficial
        (True, False, False),
    ]
    rates = revision_rates(decisions)
    assert rates.urr == pytest.approx(2 / 4)
    assert rates.hrr == pytest.approx(1 / 4)
    assert rates.brp == pytest.approx(1 / 4)
    assert rates.n == 6


@given(st.lists(st.tuples(BOOLS, BOOLS, BOOLS)))
def test_harm_never_exceeds_needlessness(decisions: list[tuple[bool, bool, bool]]) -> None:
    rates = revision_rates(decisions)
    assert 0.0 <= rates.hrr <= rates.urr <= 1.0
    assert 0.0 <= rates.brp <= 1.0


def test_goal_conditions_and_consistency() -> None:
    assert goal_condition_success([]) == 0.0
    assert goal_condition_success([1.0, 0.0, 0.5]) == 0.5
    result = consistency([True, True, True, False], [True, False, False, True])
    assert (result.imagined.value, result.real.value) == (0.75, 0.5)
    assert (result.precision, result.recall) == (pytest.approx(1 / 3), 0.5)
    assert (result.agreement, result.n) == (0.25, 4)
    assert math.isclose(consistency([], []).agreement, 0.0)
    with pytest.raises(OptionError, match="2 and 1"):
        consistency([True, True], [True])


@given(st.lists(st.floats(0, 1)), st.integers(1, 30))
def test_every_value_is_in_one_part_of_a_histogram(values: list[float], bins: int) -> None:
    counts = histogram(values, bins)
    assert len(counts) == bins and sum(counts) == len(values)
    assert histogram(k / 10 for k in range(11)) == [1] * 9 + [2], "borders: the upper part"


def test_what_is_no_share_is_refused() -> None:
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(OptionError):
            histogram([0.5, value])
        with pytest.raises(OptionError):
            wilson(value, 3)
    assert wilson(3 / 7, 7) == success_rate([True] * 3 + [False] * 4)


def test_quantiles_are_those_of_printed_tables() -> None:
    assert normal_quantile() == pytest.approx(NormalDist().inv_cdf(0.975), abs=1e-12)
    assert normal_quantile(0.9) == pytest.approx(1.6449, abs=5e-5)
    printed = {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 30: 2.042}
    for degrees, quantile in printed.items():
        values = [float(number) for number in range(degrees + 1)]
        low, high = t_interval(values)
        mean = degrees / 2
        variance = sum((value - mean) ** 2 for value in values) / degrees
        stderr = math.sqrt(variance / (degrees + 1))
        assert (mean - low) / stderr == pytest.approx(quantile, abs=6e-4)
        assert high - mean == pytest.approx(mean - low)
    with pytest.raises(OptionError, match="two or more values, found 1"):
        t_interval([1.0])
    for confidence in (0.0, 1.0, 95.0, math.nan):
        with pytest.raises(OptionError, match="between 0 and 1"):
            success_rate([True], confidence)


@given(st.lists(st.lists(BOOLS, min_size=1, max_size=7), min_size=1, max_size=4))
def test_pass_k_counts_every_choice_of_k_attempts(attempts: list[list[bool]]) -> None:
    one_succeeds, all_succeed = pass_at_k(attempts), pass_hat_k(attempts)
    assert one_succeeds.keys() == all_succeed.keys()
    for k in one_succeeds:
        choices_by_task = [list(combinations(outcomes, k)) for outcomes in attempts]
        any_shares = [sum(map(any, choices)) / len(choices) for choices in choices_by_task]
        all_shares = [sum(map(all, choices)) / len(choices) for choices in choices_by_task]
        assert one_succeeds[k] == pytest.approx(sum(any_shares) / len(any_shares))
        assert all_succeed[k] == pytest.approx(sum(all_shares) / len(all_shares))
    assert one_succeeds[1] == pytest.approx(all_succeed[1])


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_counts_the_splits_that_are_as_uneven(first: int, second: int) -> None:
    n = first + second
    as_uneven = [count for count in range(n + 1) if abs(2 * count - n) >= abs(first - second)]
    assert mcnemar(first, second) == pytest.approx(
        sum(math.comb(n, count) for count in as_uneven) / 2**n
    )
    with pytest.raises(OptionError, match="at least 0"):
        mcnemar(-1, second)


def test_the_bootstrap_draws_from_all_resamples() -> None:
    first, second = [0.0, 1.0, 2.0, 0.0, 4.0], [3.0, 1.0, 1.0, 5.0, 9.0]
    gains = [3.0, 0.0, -1.0, 5.0, 5.0]
    difference = paired_difference(first, second)
    assert (difference.first, difference.second, difference.value) == (1.4, 3.8, 2.4)

    means = sorted(sum(resample) / 5 for resample in product(gains, repeat=5))
    exact = (means[int(0.025 * len(means))], means[int(0.975 * len(means))])
    assert (difference.low, difference.high) == pytest.approx(exact, abs=0.2)
    assert paired_difference(first, second) == difference, "the same seed draws the same"
    turned = paired_difference(second, first)
    assert (turned.value, turned.low) == (-2.4, pytest.approx(-difference.high))
    narrow = paired_difference(first, second, confidence=0.5)
    assert difference.low < narrow.low < narrow.high < difference.high


def test_differences_without_spread_and_of_one_task() -> None:
    equal = paired_difference([0.0, 1.0], [1.0, 2.0])
    assert (equal.value, equal.low, equal.high) == (1.0, 1.0, 1.0)
    single = paired_difference([0.25], [1.0])
    assert (single.value, single.low, single.high, single.n) == (0.75, None, None, 1)
    for first, second in (([], []), ([1.0], [1.0, 2.0])):
        with pytest.raises(OptionError, match="a value of both for each task"):
            paired_difference(first, second)


def outcomes(*successes: bool, task: str = "a", first_seed: int = 0) -> list[Outcome]:
    return [
        Outcome(task, first_seed + number, success, float(success), 4)
        for number, success in enumerate(successes)
    ]


def test_a_comparison_by_hand() -> None:
    first = [
        Outcome("a", 0, True, 1.0, 4, 0.5, 0.25),
        Outcome("b", 0, False, 0.5, 10, 0.75),
        Outcome("c", 0, False, 0.0, 10),
        Outcome("alone", 0, True, 1.0, 1),
    ]
    second = [
        Outcome("c", 0, False, 0.0, 10, 1.0),  # replaced by the next one: another trial
        Outcome("c", 0, True, 1.0, 6, 1.0),
        Outcome("b", 0, True, 1.0, 6, 0.25),
        Outcome("a", 0, True, 1.0, 6, 1.0, 1.0),
    ]
    comparison = compare(first, second)
    assert (comparison.n, comparison.episodes) == (3, (3, 3))
    assert comparison.paired_by == "task and seed"
    assert (comparison.first_wins, comparison.second_wins) == ((), ("b", "c"))
    assert comparison.p_value == 0.5, "two of two discordant tasks, two-sided"
    differences = comparison.differences
    assert list(differences) == ["success", "score", "steps", "delta_f1", "delta_f1_nonempty"]
    assert (differences["success"].first, differences["success"].second) == pytest.approx(
        (1 / 3, 1.0)
    )
    assert (differences["score"].value, differences["steps"].value) == pytest.approx((0.5, -2.0))
    assert (differences["delta_f1"].value, differences["delta_f1"].n) == (0.0, 2), (
        "where both predicted"
    )
    assert (differences["delta_f1_nonempty"].value, differences["delta_f1_nonempty"].low) == (
        0.75,
        None,
    )


def test_seeds_of_a_task_count_together() -> None:
    first = outcomes(True, False, False, False) + outcomes(True, True, task="b")
    second = outcomes(True, True, True, False) + outcomes(True, False, task="b")
    comparison = compare(first, second)
    assert (comparison.n, comparison.episodes) == (2, (6, 6))
    assert comparison.differences["success"].value == pytest.approx((0.5 - 0.5) / 2)
    assert (comparison.first_wins, comparison.second_wins) == (("b",), ("a",))
    assert comparison.p_value == 1.0, "one task each, whatever their seeds"
    # Up to the fewest attempts at a task, two: of four with one success 3 of 6 pairs have it.
    assert comparison.differences["pass@2"].first == pytest.approx((1 / 2 + 1) / 2)
    assert comparison.differences["pass^2"].first == pytest.approx((0 + 1) / 2)
    assert comparison.differences["pass^2"].second == pytest.approx((1 / 2 + 0) / 2)
    assert "pass@4" not in comparison.differences


def test_seeds_that_only_one_run_has() -> None:
    first = outcomes(True, True, False) + outcomes(True, task="b", first_seed=9)
    second = outcomes(False, False, first_seed=1) + outcomes(True, task="b")
    comparison = compare(first, second)
    assert (comparison.n, comparison.episodes) == (1, (2, 2)), "seeds 1 and 2 of the task a"
    assert comparison.differences["success"].value == -0.5

    apart = compare(outcomes(True, True, False), outcomes(True, False, first_seed=5))
    assert (apart.paired_by, apart.episodes) == ("task", (3, 2))
    assert apart.differences["success"].value == pytest.approx(1 / 2 - 2 / 3)
    assert apart.first_wins == ("a",)
    for others in ([], outcomes(True, task="b")):
        with pytest.raises(OptionError, match="tasks that both runs played, found none"):
            compare(outcomes(True), others)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), BOOLS, BOOLS), min_size=1))
def test_comparisons_are_antisymmetric(rows: list[tuple[str, int, bool, bool]]) -> None:
    first = [Outcome(task, seed, success, float(success), 1) for task, seed, success, _ in rows]
    second = [Outcome(task, seed, success, float(success), 1) for task, seed, _, success in rows]
    comparison, turned = compare(first, second), compare(second, first)
    assert turned.p_value == comparison.p_value
    assert (turned.first_wins, turned.second_wins) == (
        comparison.second_wins,
        comparison.first_wins,
    )
    for name, difference in comparison.differences.items():
        assert turned.differences[name].value == pytest.approx(-difference.value)
    itself = compare(first, first)
    assert itself.p_value == 1.0 and not itself.first_wins + itself.second_wins
    assert {difference.value for difference in itself.differences.values()} == {0.0}
