"""Returns and advantages: GRPO, RLOO, GiGPO, and PPO's of tokens."""

from __future__ import annotations

import math
import random
import statistics
from difflib import SequenceMatcher
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.trainers.paw.advantages import (
    anchor_groups,
    gae,
    gigpo_advantages,
    grpo_advantages,
    rloo_advantages,
    row_returns,
    step_returns,
    whiten,
)

torch = pytest.importorskip("torch")

EPSILON = 1e-6
RETURNS = st.lists(
    st.tuples(st.integers(-3, 3), st.integers(0, 2), st.floats(-10, 10)), min_size=1, max_size=30
)


def step(group=0, trajectory=0, t=0, **fields):
    """A row with the fields that advantages are made of."""
    plain = {"reward": 0.0, "valid": True, "anchor": "", "episode_return": 0.0}
    return SimpleNamespace(group=group, trajectory=trajectory, t=t, **(plain | fields))


def played(seed, groups=3, members=4):
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


def shuffled(count, seed):
    return random.Random(seed).sample(range(count), count)


def test_grpo_worked_by_hand_over_rows_and_over_trajectories():
    returns, groups, trajectories = [10.0, 10.0, 10.0, 0.0], [7, 7, 7, 7], [1, 1, 1, 2]
    rows = grpo_advantages(returns, groups)
    assert rows.tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5], rel=1e-6)  # mean 7.5, std 5
    by_trajectory = grpo_advantages(returns, groups, trajectories=trajectories, over="trajectories")
    assert by_trajectory.tolist() == pytest.approx(
        [math.sqrt(0.5)] * 3 + [-math.sqrt(0.5)], rel=1e-6
    )
    over = {"trajectories": [0, 0, 1, 2], "over": "trajectories"}
    rloo = rloo_advantages([6.0, 6.0, 0.0, 3.0], [0] * 4, **over)
    assert rloo.tolist() == pytest.approx([4.5, 4.5, -4.5, 0.0])


def test_a_penalty_outweighs_nothing_where_trajectories_tie():
    """Upstream divides by epsilon there, so that one of these rows has the advantage 5,000."""
    returns, trajectories = [0.0, -0.01, -0.01, 0.0], [0, 0, 1, 1]
    advantages = grpo_advantages(returns, [0] * 4, trajectories=trajectories, over="trajectories")
    deviation = math.sqrt(4 * 0.005**2 / 2)
    assert advantages.tolist() == pytest.approx(
        [0.005 / deviation * s for s in (1, -1, -1, 1)], rel=1e-3
    )
    wins = [10.0, 9.9, 0.0, 0.0]  # where one wins, penalties do not matter for the deviation
    advantages = grpo_advantages(wins, [0] * 4, trajectories=trajectories, over="trajectories")
    assert advantages[0] == pytest.approx((10 - 4.975) / (9.95 / math.sqrt(2)), rel=1e-4)


@given(RETURNS)
def test_grpo_and_rloo_are_what_their_formulas_say(rows):
    groups, _, returns = ([row[index] for row in rows] for index in range(3))
    grpo, rloo = grpo_advantages(returns, groups), rloo_advantages(returns, groups)
    for index, (group, value) in enumerate(zip(groups, returns, strict=True)):
        peers = [peer_return for peer_return, g in zip(returns, groups, strict=True) if g == group]
        mean = statistics.fmean(peers) if len(peers) > 1 else 0.0
        deviation = statistics.stdev(peers) if len(peers) > 1 else 1.0
        assert grpo[index] == pytest.approx((value - mean) / (deviation + EPSILON), abs=1e-6)
        others = (math.fsum(peers) - value) / (len(peers) - 1) if len(peers) > 1 else 0.0
        assert rloo[index] == pytest.approx(value - others, abs=1e-9)


@given(RETURNS, st.integers(0, 9), st.sampled_from(["rows", "trajectories"]))
def test_the_order_of_rows_changes_no_bit(rows, seed, over):
    groups, trajectories, returns = (np.array([row[index] for row in rows]) for index in range(3))
    order = shuffled(len(rows), seed)
    for make in (grpo_advantages, rloo_advantages):
        advantages = make(returns, groups, trajectories=trajectories, over=over)
        reordered = make(returns[order], groups[order], trajectories=trajectories[order], over=over)
        assert np.array_equal(advantages[order], reordered)
    steps = played(seed)
    order = shuffled(len(steps), seed)
    assert np.array_equal(
        gigpo_advantages(steps)[order], gigpo_advantages([steps[index] for index in order])
    )


def test_step_returns_worked_by_hand():
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


def parts_of(rows, **options):
    """Return the part of the episode, and that of the step."""
    episode = gigpo_advantages(rows, **options, omega=0.0)
    return episode, gigpo_advantages(rows, **options) - episode


def test_gigpo_of_two_episodes_worked_by_hand():
    rows = [
        step(0, 0, 0, anchor="start", episode_return=10.0),
        step(0, 0, 1, anchor="kitchen", episode_return=10.0, reward=10.0),
        step(0, 1, 0, anchor="start"),
        step(0, 1, 1, anchor="garden"),
    ]
    half = math.sqrt(0.5)
    episode, single = parts_of(rows)  # over rows: mean 5, deviation 5 sqrt(4 / 3)
    by_rows = math.sqrt(0.75)
    assert episode.tolist() == pytest.approx([by_rows, by_rows, -by_rows, -by_rows], abs=1e-6)
    episode, single = parts_of(rows, over="trajectories")  # mean 5, deviation 5 sqrt(2)
    assert episode.tolist() == pytest.approx([half, half, -half, -half], abs=1e-6)
    # step returns 9.5, 10, 0, 0: the start is shared, the other states stand alone
    assert single.tolist() == pytest.approx([half, 0.0, -half, 0.0], abs=1e-6)


@pytest.mark.parametrize("over", ["rows", "trajectories"])
@pytest.mark.parametrize("mode", ["mean_std_norm", "mean_norm"])
@pytest.mark.parametrize("seed", range(4))
def test_gigpo_is_what_its_formulas_say(seed, mode, over):
    rows = played(seed)
    advantages = gigpo_advantages(rows, omega=0.7, gamma=0.9, mode=mode, penalty=0.1, over=over)
    penalized_returns, discounted = row_returns(rows, 0.1), step_returns(rows, 0.9, 0.1)
    for index, row in enumerate(rows):
        peers = sorted({r.trajectory for r in rows if r.group == row.group})
        returns = [
            statistics.fmean(
                v for v, r in zip(penalized_returns, rows, strict=True) if r.trajectory == number
            )
            for number in peers
        ]
        if over == "rows":
            returns = [
                v for v, r in zip(penalized_returns, rows, strict=True) if r.group == row.group
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
        episode = (penalized_returns[index] - statistics.fmean(returns)) / scale
        single = (discounted[index] - statistics.fmean(alike)) / scale_step
        assert advantages[index] == pytest.approx(episode + 0.7 * single, abs=1e-6)


def greedy(rows, least):
    """Similarity grouping as it is defined, without a shortcut."""
    opened = []
    numbers = []
    for row in rows:
        for number, (group, text) in enumerate(opened):
            if group == row.group and SequenceMatcher(None, row.anchor, text).ratio() >= least:
                numbers.append(number)
                break
        else:
            numbers.append(len(opened))
            opened.append((row.group, row.anchor))
    return numbers


def test_anchors_are_told_apart_by_group_and_exact_text():
    rows = [step(0, anchor="a"), step(1, anchor="a"), step(0, anchor="a "), step(1, anchor="a")]
    assert anchor_groups(rows).tolist() == [0, 1, 2, 1]
    assert anchor_groups(rows).dtype == np.int64
    assert anchor_groups([]).shape == (0,)


def test_a_text_joins_the_first_group_that_is_alike_not_the_most_alike():
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
def test_similar_anchors_are_grouped_greedily(anchors, least):
    rows = [step(group, anchor=text) for group, text in anchors]
    assert anchor_groups(rows, least).tolist() == greedy(rows, least)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (0.5, 0.0)])
def test_gae_is_the_sum_of_discounted_differences(gamma, lam):
    generator = torch.Generator().manual_seed(0)
    rewards, values = (
        torch.randn(5, 7, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    mask = torch.rand(5, 7, generator=generator) < 0.7
    mask[4] = False
    hidden = values.masked_fill(~mask, math.nan).requires_grad_()
    advantages, returns = gae(rewards.masked_fill(~mask, math.inf), hidden, mask, gamma, lam)
    assert not advantages.requires_grad and not returns.requires_grad
    for row in range(5):
        indexs = [index for index in range(7) if mask[row, index]]
        r = [float(rewards[row, index]) for index in indexs]
        v = [float(values[row, index]) for index in indexs] + [0.0]
        delta = [r[i] + gamma * v[i + 1] - v[i] for i in range(len(indexs))]
        for i, index in enumerate(indexs):
            expected = sum((gamma * lam) ** (k - i) * delta[k] for k in range(i, len(indexs)))
            assert float(advantages[row, index]) == pytest.approx(expected, abs=1e-12)
            assert float(returns[row, index]) == pytest.approx(expected + v[i], abs=1e-12)
    for estimates in (advantages, returns):
        assert (estimates[~mask] == 0).all()


def test_whitened_advantages_have_mean_zero_and_variance_one():
    generator = torch.Generator().manual_seed(0)
    advantages = 3 + 5 * torch.randn(6, 9, generator=generator, dtype=torch.float64)
    mask = torch.rand(6, 9, generator=generator) < 0.6
    whitened = whiten(advantages.masked_fill(~mask, math.nan), mask)
    masked = advantages[mask]
    expected = (masked - masked.mean()) / (masked.var(unbiased=True) + 1e-8).sqrt()
    assert torch.allclose(whitened[mask], expected, rtol=1e-12, atol=1e-12)
    assert (whitened[~mask] == 0).all()


def test_whitening_over_ranks_is_that_of_all_tokens():
    advantages = torch.arange(24, dtype=torch.float64).reshape(4, 6).square()
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[2:] = False  # another rank has no token at all
    mask[0, 3:] = False
    whole, sums = whiten(advantages, mask), []
    whiten(advantages, mask, lambda value: sums.append(value.clone()) or value)
    for part in (slice(0, 2), slice(2, 4)):
        shared_sums = iter(sums)  # what the ranks' sums add up to
        whitened = whiten(
            advantages[part], mask[part], lambda value, shared_sums=shared_sums: next(shared_sums)
        )
        assert torch.allclose(whitened, whole[part], rtol=1e-12, atol=0)
