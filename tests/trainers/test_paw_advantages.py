from __future__ import annotations

import math
import random
import statistics
import string
from difflib import SequenceMatcher
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.errors import OptionError
from comap.trainers.paw import anchors
from comap.trainers.paw.advantages import (
    anchor_groups,
    gigpo_advantages,
    grpo_advantages,
    rloo_advantages,
    row_returns,
    step_returns,
)

EPSILON = 1e-6
RETURNS = st.lists(
    st.tuples(st.integers(-3, 3), st.integers(0, 2), st.floats(-10, 10)), min_size=1, max_size=30
)


def step(group: int = 0, trajectory: int = 0, t: int = 0, **fields: Any) -> Any:
    """A row with the fields that advantages are made of."""
    plain = {"reward": 0.0, "valid": True, "anchor": "", "episode_return": 0.0}
    return SimpleNamespace(group=group, trajectory=trajectory, t=t, **(plain | fields))


def played(seed: int, groups: int = 3, members: int = 4) -> list[Any]:
    """Rows of episodes of different lengths, in their order."""
    draw = random.Random(seed)
    rows = []
    for number in range(groups * members):
        rewards = [draw.choice([0.0, 0.0, 1.5, -0.25]) for _ in range(draw.randint(1, 5))]
        rows += [
            step(
                number // members,
                number,
                t,
                reward=reward,
                valid=draw.random() < 0.7,
                anchor=f"room {draw.randint(0, 3)}",
                episode_return=math.fsum(rewards),
            )
            for t, reward in enumerate(rewards)
        ]
    return rows


def shuffled(count: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(count), count)


def columns(rows: list[Any]) -> tuple[Any, list[int], list[int]]:
    return row_returns(rows, 0.1), [r.group for r in rows], [r.trajectory for r in rows]


# --- GRPO and RLOO ---------------------------------------------------------------------------------


def test_a_row_return_is_the_episodes_less_its_own_penalty() -> None:
    rows = [step(episode_return=10.0), step(t=1, episode_return=10.0, valid=False)]
    assert row_returns(rows, 0.1).tolist() == [10.0, 9.9]
    assert row_returns(rows, 0.0).tolist() == [10.0, 10.0]
    assert row_returns([], 0.1).shape == (0,)


def test_grpo_worked_by_hand_over_rows_and_over_trajectories() -> None:
    returns, groups, trajectories = [10.0, 10.0, 10.0, 0.0], [7, 7, 7, 7], [1, 1, 1, 2]
    rows = grpo_advantages(returns, groups)
    assert rows.tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5], rel=1e-6)  # mean 7.5, std 5
    both = grpo_advantages(returns, groups, trajectories=trajectories, over="trajectories")
    assert both.tolist() == pytest.approx([math.sqrt(0.5)] * 3 + [-math.sqrt(0.5)], rel=1e-6)


def test_rloo_is_the_return_less_the_mean_of_the_others() -> None:
    returns = [3.0, 5.0, -1.0, 8.0, 2.0]
    found = rloo_advantages(returns, [0, 0, 0, 1, 1])
    assert found.tolist() == pytest.approx([3 - 2, 5 - 1, -1 - 4, 8 - 2, 2 - 8])


def test_a_penalty_outweighs_nothing_where_trajectories_tie() -> None:
    """Upstream divides by epsilon there, so that one of these rows has the advantage 5,000."""
    returns, trajectories = [0.0, -0.01, -0.01, 0.0], [0, 0, 1, 1]
    found = grpo_advantages(returns, [0] * 4, trajectories=trajectories, over="trajectories")
    within = math.sqrt(4 * 0.005**2 / 2)
    assert found.tolist() == pytest.approx([0.005 / within * s for s in (1, -1, -1, 1)], rel=1e-3)
    won = [10.0, 9.9, 0.0, 0.0]  # where one wins, penalties do not matter for the deviation
    found = grpo_advantages(won, [0] * 4, trajectories=trajectories, over="trajectories")
    assert found[0] == pytest.approx((10 - 4.975) / (9.95 / math.sqrt(2)), rel=1e-4)


def test_rloo_over_trajectories_counts_trajectories() -> None:
    found = rloo_advantages(
        [6.0, 6.0, 0.0, 3.0], [0] * 4, trajectories=[0, 0, 1, 2], over="trajectories"
    )
    assert found.tolist() == pytest.approx([4.5, 4.5, -4.5, 0.0])


@pytest.mark.parametrize("over", ["rows", "trajectories"])
def test_a_single_member_is_compared_with_nothing(over: Any) -> None:
    given_ = {"trajectories": [4, 5], "over": over}
    assert grpo_advantages([10.0, -2.0], [0, 1], **given_).tolist() == pytest.approx([10.0, -2.0])
    assert rloo_advantages([10.0, -2.0], [0, 1], **given_).tolist() == [10.0, -2.0]


def test_a_group_of_equal_returns_has_no_advantage() -> None:
    assert grpo_advantages([10.0] * 8, [0] * 8).tolist() == [0.0] * 8
    invalid = row_returns([step(valid=False, episode_return=10.0)] * 7, 0.1)
    assert np.abs(grpo_advantages(invalid, [0] * 7)).max() < 1e-6


def test_a_trajectorys_return_is_the_mean_of_its_rows() -> None:
    # one of the four rows of the first trajectory is invalid: its return counts as 9.9
    returns = [10.0, 9.6, 10.0, 10.0, 0.0]
    found = grpo_advantages(returns, [0] * 5, trajectories=[0, 0, 0, 0, 1], over="trajectories")
    mean, deviation = 9.9 / 2, 9.9 / math.sqrt(2)
    assert found.tolist() == pytest.approx([(r - mean) / deviation for r in returns], rel=1e-6)


@given(RETURNS)
def test_grpo_and_rloo_are_what_their_formulas_say(rows: list[tuple[int, int, float]]) -> None:
    groups, _, returns = ([row[place] for row in rows] for place in range(3))
    grpo, rloo = grpo_advantages(returns, groups), rloo_advantages(returns, groups)
    for place, (group, value) in enumerate(zip(groups, returns, strict=True)):
        own = [other for other, g in zip(returns, groups, strict=True) if g == group]
        mean = statistics.fmean(own) if len(own) > 1 else 0.0
        deviation = statistics.stdev(own) if len(own) > 1 else 1.0
        assert grpo[place] == pytest.approx((value - mean) / (deviation + EPSILON), abs=1e-6)
        others = (math.fsum(own) - value) / (len(own) - 1) if len(own) > 1 else 0.0
        assert rloo[place] == pytest.approx(value - others, abs=1e-9)


@given(RETURNS)
def test_grpo_has_mean_zero_and_deviation_one_in_each_group(
    rows: list[tuple[int, int, float]],
) -> None:
    groups, _, returns = (np.array([row[place] for row in rows]) for place in range(3))
    found = grpo_advantages(returns, groups)
    for group in set(groups.tolist()):
        own = found[groups == group]
        if len(own) > 1:
            assert abs(own.mean()) < 1e-6
            assert own.std(ddof=1) <= 1
            if returns[groups == group].std(ddof=1) > 0.01:
                assert own.std(ddof=1) == pytest.approx(1, rel=1e-3)


@given(RETURNS, st.integers(0, 9), st.sampled_from(["rows", "trajectories"]))
def test_the_order_of_rows_changes_no_bit(
    rows: list[tuple[int, int, float]], seed: int, over: Any
) -> None:
    groups, trajectories, returns = (np.array([row[place] for row in rows]) for place in range(3))
    order = shuffled(len(rows), seed)
    for make in (grpo_advantages, rloo_advantages):
        found = make(returns, groups, trajectories=trajectories, over=over)
        again = make(returns[order], groups[order], trajectories=trajectories[order], over=over)
        assert np.array_equal(found[order], again)


def test_a_rank_that_has_some_of_the_groups_finds_the_same_advantages() -> None:
    rows = played(0)
    own = [place for place, row in enumerate(rows) if row.group != 1]
    for make in (grpo_advantages, rloo_advantages):
        assert np.array_equal(
            make(*columns(rows)[:2])[own], make(*columns([rows[place] for place in own])[:2])
        )
    assert np.array_equal(
        gigpo_advantages(rows).total[own], gigpo_advantages([rows[p] for p in own]).total
    )


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (([1.0, 2.0], [0]), {}, "groups of 2 rows"),
        (([1.0, math.nan], [0, 0]), {}, "finite"),
        (([[1.0]], [[0]]), {}, "finite return for each row"),
        (([1.0], [0]), {"over": "trajectories"}, "give trajectories"),
        (([1.0], [0]), {"over": "trajectories", "trajectories": [1, 2]}, "trajectories of 1 rows"),
        (([1.0], [0]), {"over": "steps"}, "there is no over 'steps'"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    arguments: tuple[Any, Any], options: dict[str, Any], said: str
) -> None:
    for make in (grpo_advantages, rloo_advantages):
        with pytest.raises(OptionError, match=said):
            make(*arguments, **options)


def test_epsilon_must_keep_from_division_by_zero() -> None:
    for epsilon in (0.0, -1.0, math.nan):
        with pytest.raises(OptionError, match="epsilon"):
            grpo_advantages([1.0, 1.0], [0, 0], epsilon=epsilon)
        with pytest.raises(OptionError, match="epsilon"):
            gigpo_advantages([step()], epsilon=epsilon)


# --- GiGPO -----------------------------------------------------------------------------------------


def test_step_returns_worked_by_hand() -> None:
    rows = [
        step(trajectory=5, t=2, reward=4.0),
        step(trajectory=5, t=0, reward=1.0, valid=False),
        step(trajectory=5, t=1, reward=2.0),
        step(trajectory=6, t=0, reward=7.0, valid=False),
    ]
    # 1 + 0.5 * 2 + 0.25 * 4, and only the first step's own penalty
    assert step_returns(rows, 0.5, 0.1).tolist() == pytest.approx([4.0, 2.9, 4.0, 6.9])
    assert step_returns([], 0.5, 0.1).shape == (0,)
    gap = [step(t=0), step(t=3, reward=8.0)]  # a discount for each step that passed
    assert step_returns(gap, 0.5, 0.1).tolist() == [1.0, 8.0]


@given(st.integers(0, 99), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_step_returns_are_discounted_sums(seed: int, gamma: float) -> None:
    rows = played(seed)
    order = shuffled(len(rows), seed)
    found = step_returns([rows[place] for place in order], gamma, 0.1)
    for value, row in zip(found, (rows[place] for place in order), strict=True):
        later = [r for r in rows if r.trajectory == row.trajectory and r.t >= row.t]
        total = sum(gamma ** (r.t - row.t) * r.reward for r in later)
        assert value == pytest.approx(total - 0.1 * (not row.valid), abs=1e-12)


def test_two_rows_of_one_step_are_refused() -> None:
    with pytest.raises(OptionError, match="two of trajectory 3, step 1"):
        step_returns([step(trajectory=3, t=1), step(trajectory=3, t=1)], 0.95, 0.1)


def test_gigpo_of_two_episodes_worked_by_hand() -> None:
    rows = [
        step(0, 0, 0, anchor="start", episode_return=10.0),
        step(0, 0, 1, anchor="kitchen", episode_return=10.0, reward=10.0),
        step(0, 1, 0, anchor="start"),
        step(0, 1, 1, anchor="garden"),
    ]
    half = math.sqrt(0.5)
    found = gigpo_advantages(rows)
    assert found.episode.tolist() == pytest.approx([half, half, -half, -half], abs=1e-6)
    # step returns 9.5, 10, 0, 0: the start is shared, the other states stand alone
    assert found.step.tolist() == pytest.approx([half, 0.0, -half, 0.0], abs=1e-6)
    assert found.step[1] == found.step[3] == 0.0
    assert found.group_sizes.tolist() == [2, 1, 1]
    assert np.array_equal(found.total, found.episode + found.step)


def test_gigpo_without_the_deviation_and_with_other_weight() -> None:
    rows = [
        step(0, 0, 0, anchor="a", reward=10.0, episode_return=10.0),
        step(0, 1, 0, anchor="a", valid=False),
    ]
    found = gigpo_advantages(rows, mode="mean_norm", omega=0.5, penalty=1.0)
    # returns 10 and -1: mean 4.5
    assert found.episode.tolist() == [5.5, -5.5]
    assert found.step.tolist() == [5.5, -5.5]
    assert found.total.tolist() == [8.25, -8.25]


def test_gigpo_of_one_episode_and_of_none() -> None:
    alone = gigpo_advantages([step(0, 0, 0, reward=10.0, episode_return=10.0)])
    assert alone.episode.tolist() == pytest.approx([10.0], rel=1e-5)
    assert alone.step.tolist() == [0.0]
    nothing = gigpo_advantages([])
    assert [len(part) for part in (nothing.total, nothing.episode, nothing.step)] == [0, 0, 0]
    assert nothing.group_sizes.shape == (0,)


@pytest.mark.parametrize("mode", ["mean_std_norm", "mean_norm"])
@pytest.mark.parametrize("seed", range(4))
def test_gigpo_is_what_its_formulas_say(seed: int, mode: Any) -> None:
    rows = played(seed)
    found = gigpo_advantages(rows, omega=0.7, gamma=0.9, mode=mode, penalty=0.1)
    own, discounted = row_returns(rows, 0.1), step_returns(rows, 0.9, 0.1)
    for place, row in enumerate(rows):
        peers = sorted({r.trajectory for r in rows if r.group == row.group})
        returns = [
            statistics.fmean(v for v, r in zip(own, rows, strict=True) if r.trajectory == number)
            for number in peers
        ]
        alike = [
            value
            for value, r in zip(discounted, rows, strict=True)
            if (r.group, r.anchor) == (row.group, row.anchor)
        ]
        scale = scale_step = 1.0
        if mode == "mean_std_norm":
            scale = statistics.stdev(returns) + EPSILON
            scale_step = (statistics.stdev(alike) if len(alike) > 1 else 1.0) + EPSILON
        episode = (own[place] - statistics.fmean(returns)) / scale
        single = (discounted[place] - statistics.fmean(alike)) / scale_step
        assert found.episode[place] == pytest.approx(episode, abs=1e-6)
        assert found.step[place] == pytest.approx(single, abs=1e-6)
        assert found.total[place] == pytest.approx(episode + 0.7 * single, abs=1e-6)


@given(st.integers(0, 99))
def test_gigpo_does_not_depend_on_the_order_of_rows(seed: int) -> None:
    rows = played(seed)
    order = shuffled(len(rows), seed + 1)
    found, again = gigpo_advantages(rows), gigpo_advantages([rows[place] for place in order])
    assert np.array_equal(found.total[order], again.total)
    assert sorted(found.group_sizes) == sorted(again.group_sizes)


def test_gigpo_passes_the_similarity_on_and_refuses_what_it_does_not_know() -> None:
    rows = [step(0, k, 0, anchor=f"page {k} of a long list", reward=float(k)) for k in range(2)]
    assert gigpo_advantages(rows).group_sizes.tolist() == [1, 1]
    assert gigpo_advantages(rows, similarity=0.9).group_sizes.tolist() == [2]
    with pytest.raises(OptionError, match="there is no mode"):
        gigpo_advantages(rows, mode="std")  # type: ignore[arg-type]


# --- anchor groups ---------------------------------------------------------------------------------


def greedy(rows: list[Any], least: float) -> list[int]:
    """Similarity grouping as METHODS.md says it, without a shortcut."""
    opened: list[tuple[int, str]] = []
    found = []
    for row in rows:
        for number, (group, text) in enumerate(opened):
            if group == row.group and SequenceMatcher(None, row.anchor, text).ratio() >= least:
                found.append(number)
                break
        else:
            found.append(len(opened))
            opened.append((row.group, row.anchor))
    return found


def test_anchors_are_told_apart_by_group_and_exact_text() -> None:
    rows = [step(0, anchor="a"), step(1, anchor="a"), step(0, anchor="a "), step(1, anchor="a")]
    assert anchor_groups(rows).tolist() == [0, 1, 2, 1]
    assert anchor_groups(rows).dtype == np.int64
    assert anchor_groups([]).shape == (0,)


def test_a_text_joins_the_first_group_that_is_alike_not_the_most_alike() -> None:
    texts = ["aaaaaaaaaa", "aaaaaaabbb", "aaaaaaaabb"]
    rows = [step(anchor=text) for text in texts]
    assert SequenceMatcher(None, texts[2], texts[1]).ratio() == 0.9
    assert SequenceMatcher(None, texts[2], texts[0]).ratio() == 0.8
    assert anchor_groups(rows, 0.8).tolist() == [0, 1, 0]
    assert anchor_groups(rows, 0.9).tolist() == [0, 1, 1]  # exactly the threshold
    assert anchor_groups(rows, 0.91).tolist() == [0, 1, 2]
    # only the first text of a group is compared with: order matters
    assert anchor_groups(rows[::-1], 0.8).tolist() == [0, 0, 0]


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.text("abc ", max_size=10)), max_size=14),
    st.sampled_from([0.3, 0.6, 0.8, 0.9, 1.0]),
)
def test_similar_anchors_are_grouped_greedily(seen: list[tuple[int, str]], least: float) -> None:
    rows = [step(group, anchor=text) for group, text in seen]
    assert anchor_groups(rows, least).tolist() == greedy(rows, least)


@pytest.mark.parametrize("seed", range(3))
def test_long_pages_are_grouped_with_difflibs_own_junk(seed: int) -> None:
    # from 200 characters on, SequenceMatcher does not begin a match at a character that is common
    draw = random.Random(seed)
    page = draw.choices("etaoin ", k=200) + draw.choices(string.printable, k=400)
    draw.shuffle(page)
    rows = []
    for changes in draw.choices([0, 2, 10, 60], k=12):
        changed = list(page)
        for place in draw.sample(range(600), changes):
            changed[place] = draw.choice(string.printable)
        rows.append(step(anchor="".join(changed)))
    found = anchor_groups(rows, 0.9).tolist()
    assert found == greedy(rows, 0.9)
    assert 1 < len(set(found)) < len({row.anchor for row in rows})


def test_a_long_text_of_common_characters_is_alike_only_by_its_beginning() -> None:
    text = "ab" * 150
    assert anchor_groups([step(anchor=text), step(anchor=text + "x")], 0.9).tolist() == [0, 0]
    assert anchor_groups([step(anchor=text), step(anchor="x" + text)], 0.9).tolist() == [0, 1]


def test_copies_and_texts_of_other_lengths_are_not_compared(monkeypatch: Any) -> None:
    compared = []

    class Counting(SequenceMatcher):  # type: ignore[type-arg]
        def ratio(self) -> float:
            compared.append((self.a, self.b))
            return super().ratio()

    monkeypatch.setattr(anchors, "SequenceMatcher", Counting)
    texts = ["a page of results", "a page of results!", "short", "zzzzzzzzzzzzzzzzz"]
    rows = [step(anchor=text) for text in texts * 500]
    assert anchor_groups(rows, 0.9).tolist() == [0, 0, 1, 2] * 500
    assert compared == [(texts[1], texts[0])]


@pytest.mark.parametrize("similarity", [0.0, -0.5, 1.1, math.nan])
def test_a_similarity_is_a_share(similarity: float) -> None:
    with pytest.raises(OptionError, match="similarity must be"):
        anchor_groups([step()], similarity)
