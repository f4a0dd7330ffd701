"""PaW's loss on observations: its value and gradient, the rows that have it, and their weights."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.lm.chat import ChatTokenizer
from comap.lm.tiny import tokenizer_of
from comap.trainers.paw.config import preset
from comap.trainers.paw.losses import (
    LossInputs,
    action_tokens,
    adaptive_coefficients,
    objective,
    observation_losses,
    rank_correlation,
    row_entropies,
    row_weights,
    select_rows,
)

torch = pytest.importorskip("torch")

KINDS = ["cmae", "mae", "ce", "clipped_ce"]
POOLS = st.lists(st.tuples(st.integers(-5, 5).map(float), st.booleans()), max_size=30)
SHARES = st.sampled_from([0.0, 0.001, 0.25, 0.5, 0.75, 0.99, 1.0])


def logs_of(*rows, dtype=torch.float64):
    return torch.tensor(rows, dtype=dtype).log()


def random_logps(rows, tokens, seed=0):
    """Log-probabilities and a mask, of which the last row has no token."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(rows, tokens, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, tokens, generator=generator) < 0.7
    mask[-1] = False
    return p.log(), mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cmae_worked_by_hand(dtype):
    losses = observation_losses(logs_of([0.1, 0.3, 0.2], dtype=dtype), torch.ones(1, 3))
    assert float(losses.rows[0]) == pytest.approx((0.9 + 0 + 0.8) / 3, rel=1e-6)
    assert (losses.clipped.tolist(), losses.tokens.tolist()) == ([1], [3])
    assert float(losses.probability[0]) == pytest.approx(0.6, rel=1e-6)


@pytest.mark.parametrize("rho", [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_probability_of_exactly_rho_is_learned(rho, dtype):
    losses = observation_losses(logs_of([rho, rho], dtype=dtype), torch.ones(1, 2), rho=rho)
    assert losses.clipped.tolist() == [0]
    assert float(losses.rows[0]) == pytest.approx(1 - rho, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rho", [0.2, 0.6, 1.0])
def test_each_loss_is_what_its_formula_says(kind, rho):
    logps, mask = random_logps(6, 8)
    losses = observation_losses(logps, mask, kind=kind, rho=rho)
    for row in range(6):
        p = [math.exp(v) for v, m in zip(logps[row].tolist(), mask[row], strict=True) if m]
        terms = [1 - q if "mae" in kind else -math.log(q) for q in p]
        if kind.startswith("c") and kind != "ce":
            terms = [term for term, q in zip(terms, p, strict=True) if q <= rho]
        expected = math.fsum(terms) / len(p) if p else 0.0
        assert float(losses.rows[row]) == pytest.approx(expected, rel=1e-12, abs=1e-15)
        assert int(losses.clipped[row]) == sum(q > rho for q in p)
        assert float(losses.probability[row]) == pytest.approx(math.fsum(p), rel=1e-12)
        assert int(losses.tokens[row]) == len(p)


def gradients(kind, rho=0.2):
    """Return probabilities, targets, and the gradients of one row's loss by its logits."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(1, 6, 5, generator=generator, dtype=torch.float64)
    targets = torch.randint(5, (1, 6, 1), generator=generator)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0]])
    logits.requires_grad_()
    logps = logits.log_softmax(-1).gather(-1, targets).squeeze(-1)
    observation_losses(logps, mask, kind=kind, rho=rho).rows.sum().backward()
    return logits.detach().softmax(-1)[0], targets[0, :, 0], logits.grad[0], logps.detach().exp()[0]


@pytest.mark.parametrize("kind", ["cmae", "mae"])
def test_gradient_of_the_targets_logit_is_minus_p_times_one_minus_p(kind):
    _, targets, gradient, p = gradients(kind)
    learned_count = 0
    for place in range(6):
        left_out = place == 5 or (kind == "cmae" and p[place] > 0.2)
        learned_count += not left_out
        expected = 0.0 if left_out else -float(p[place] * (1 - p[place])) / 5
        assert float(gradient[place, targets[place]]) == pytest.approx(expected, abs=1e-15)
        assert left_out == bool((gradient[place] == 0).all())
    assert learned_count > 0 and (kind == "mae" or learned_count < 5)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_outside_of_the_mask_is_looked_at(kind):
    logps, mask = random_logps(4, 5)
    clean = observation_losses(logps, mask, kind=kind)
    spoilt = logps.masked_fill(~mask, math.nan).requires_grad_()
    losses = observation_losses(spoilt, mask, kind=kind)
    assert torch.equal(losses.rows, clean.rows)
    losses.rows.sum().backward()
    assert (spoilt.grad[~mask] == 0).all() and spoilt.grad.isfinite().all()
    assert float(losses.rows[-1].detach()) == 0.0 and int(losses.tokens[-1]) == 0


@given(
    st.lists(st.tuples(st.floats(-20, 20), st.integers(0, 4)), max_size=20),
    st.floats(0.5, 20),
    st.booleans(),
)
def test_lambda_is_one_less_the_share_of_the_greatest_return(played, r_max, enabled):
    returns, groups = [r for r, _ in played], [g for _, g in played]
    coefficients = adaptive_coefficients(returns, groups, r_max, enabled=enabled, count=5)
    assert coefficients.shape == (5,) and ((coefficients >= 0) & (coefficients <= 1)).all()
    for group in range(5):
        peers = [r for r, g in played if g == group]
        expected = min(max(1 - math.fsum(peers) / len(peers) / r_max, 0.0), 1.0) if peers else 0.0
        assert coefficients[group] == pytest.approx(
            expected if enabled else float(bool(peers)), abs=1e-12
        )


def test_weights_worked_by_hand():
    selected = np.array([True, True, False, True, False])
    weights = row_weights(selected, [0, 0, 0, 1, 2], [0.5, 1.0, 0.25])
    assert weights.tolist() == pytest.approx([0.5 / 6, 0.5 / 6, 0.0, 1 / 3, 0.0])
    twice = row_weights(selected, [0, 0, 0, 1, 2], [0.5, 1.0, 0.25], wm_coef=2.0)
    assert np.array_equal(twice, 2 * weights)
    assert not row_weights(selected & False, [0, 0, 0, 1, 2], [0.5, 1.0, 0.25]).any()
    assert row_weights([], [], []).shape == (0,)


def picked(entropies, share, eligible=None, **options):
    """Return the places of the selected rows."""
    pool = [True] * len(entropies) if eligible is None else eligible
    selected = select_rows(np.array(entropies, float), np.array(pool, bool), share, **options)
    assert selected.dtype == np.bool_ and selected.shape == (len(entropies),)
    return np.flatnonzero(selected).tolist()


def test_all_definitions_on_one_distribution():
    p = torch.tensor([[[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]], dtype=torch.float64)
    sampled = torch.tensor([[1, 0]])
    logps = p.log().gather(-1, sampled.unsqueeze(-1)).squeeze(-1)
    entropies = -(p * p.log()).sum(-1)
    mask = torch.ones(1, 2, dtype=torch.bool)
    expected = {
        "sampled_plogp": -(0.25 * math.log(0.25) + 0.8 * math.log(0.8)) / 2,
        "neg_logp": -(math.log(0.25) + math.log(0.8)) / 2,
        "full": (1.5 * math.log(2) - (0.8 * math.log(0.8) + 0.2 * math.log(0.1))) / 2,
    }
    for mode, value in expected.items():
        computed = row_entropies(mode, logps, entropies, mask)
        assert float(computed[0]) == pytest.approx(value, rel=1e-12), mode


@pytest.mark.parametrize("mode", ["sampled_plogp", "neg_logp", "full"])
def test_only_tokens_of_the_mask_count_and_a_row_without_any_is_last(mode):
    numbers = torch.tensor([[-0.5, math.nan, -1.5], [math.inf, -math.inf, math.nan]])
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]])
    entropies = row_entropies(mode, numbers, -numbers, mask)
    terms = [0.5, 1.5]
    if mode == "sampled_plogp":
        terms = [term * math.exp(-term) for term in terms]
    assert float(entropies[0]) == pytest.approx(statistics.fmean(terms), rel=1e-6)
    assert float(entropies[1]) == -math.inf


def test_an_impossible_token_has_no_entropy_by_the_papers_formula():
    logps = torch.tensor([[-math.inf, -1.0]])
    mask = torch.ones(1, 2)
    entropy = float(row_entropies("sampled_plogp", logps, None, mask))
    assert entropy == pytest.approx(math.exp(-1) / 2, rel=1e-6)
    assert float(row_entropies("neg_logp", logps, None, mask)) == math.inf


@pytest.mark.parametrize(
    ("share", "rows", "count"),
    [(0.07, 100, 7), (0.29, 100, 29), (0.1, 30, 3), (0.55, 100, 55), (1e-9, 7, 1), (1.0, 7, 7)],
)
def test_the_share_is_a_decimal_number(share, rows, count):
    assert len(picked(list(range(rows)), share)) == count
    assert len(picked(list(range(rows)), np.float64(share))) == count


def test_rows_without_an_action_come_last_either_way():
    entropies = [-math.inf, 0.2, 0.1, math.inf]
    assert picked(entropies, 0.75) == [1, 2, 3]
    assert picked(entropies, 0.75, how="bottom") == [1, 2, 3]
    assert picked(entropies, 0.5, how="bottom") == [1, 2]
    assert picked(entropies, 1.0) == [0, 1, 2, 3]


@given(POOLS, SHARES)
def test_top_rows_have_at_least_the_entropy_of_the_others(pool, share):
    entropies, eligible = [e for e, _ in pool], [p for _, p in pool]
    candidates = [place for place, inside in enumerate(eligible) if inside]
    count = math.ceil(share * len(candidates))
    ordered = sorted(candidates, key=lambda place: (-entropies[place], place))
    assert picked(entropies, share, eligible) == sorted(ordered[:count])
    ordered = sorted(candidates, key=lambda place: (entropies[place], place))
    assert picked(entropies, share, eligible, how="bottom") == sorted(ordered[:count])


def test_random_selection_depends_on_the_seed_and_not_on_entropies():
    selection = picked([0.0] * 40, 0.5, how="random", seed=3)
    assert selection == picked(list(range(40)), 0.5, how="random", seed=3)
    assert len(selection) == 20 and selection != picked([0.0] * 40, 0.5, how="random", seed=4)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=20))
def test_rank_correlation_is_that_of_mean_ranks(pairs):
    columns = [[float(pair[place]) for pair in pairs] for place in range(2)]
    correlation = rank_correlation(*columns)
    if any(len(set(values)) == 1 for values in columns):
        assert correlation is None
        return
    ranks = [
        [sum(v < w for v in values) + (sum(v == w for v in values) + 1) / 2 for w in values]
        for values in columns
    ]
    assert correlation == pytest.approx(statistics.correlation(*ranks), abs=1e-12)
    assert rank_correlation(columns[1], columns[0]) == pytest.approx(correlation, abs=1e-15)


TEXTS = ["<think> I look </think><action> go to desk 1 </action>", "<search> who <answer> Paris"]


@cache
def chat():
    return ChatTokenizer(tokenizer_of(TEXTS * 2, 360))


def tokens_of(text):
    """Return the tokens of a reply, and the text of each."""
    ids = chat().tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids, chat().texts(ids)


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("<think> I look </think><action> go to desk 1 </action>", " go to desk 1 "),
        ("<action>look</action> and <action>go</action>", "look"),
        ("so <search> who is it </search>", " who is it "),
        ("<answer>Paris</answer><search>no</search>", "Paris"),
        ("<action> caf\N{LATIN SMALL LETTER E WITH ACUTE} </action>", " caf\xe9 "),
        ("\N{SNOWMAN}\xe9<action>\N{SNOWMAN}</action>\xe9", "\N{SNOWMAN}"),
        ("<action>one\ntwo</action>", "one\ntwo"),
    ],
)
def test_tokens_between_the_first_tags_count(text, inside):
    ids, texts = tokens_of(text)
    inside_ids = [token for token, on in zip(ids, action_tokens(texts), strict=True) if on]
    assert chat().tokenizer.decode(inside_ids) == inside


@pytest.mark.parametrize(
    "text", ["", "go to desk 1", "<action> go", "<action></action> go", "</action>"]
)
def test_without_a_whole_tag_all_tokens_count(text):
    ids, texts = tokens_of(text)
    assert action_tokens(texts) == [True] * len(ids)


def test_the_objective_worked_by_hand():
    """Two rows: a response of two tokens and an observation of one; and a response of one."""
    config = preset("alfworld", kl=0.5, entropy_bonus=0.1, dual_clip=3.0, rho=0.5)
    inputs = LossInputs(
        logps=logs_of([0.5, 0.6, 0.3], [0.8, 1.0, 1.0]),
        old=logs_of([0.5, 0.3, 0.3], [0.1, 1.0, 1.0]),
        reference=logs_of([0.5, 0.6, 0.3], [0.4, 1.0, 1.0]),
        entropies=torch.tensor([[1.0, 2.0, 50.0], [3.0, 50.0, 50.0]]),
        advantages=torch.tensor([1.0, -2.0]),
        mask=torch.tensor([[1, 1, 0], [1, 0, 0]]),
        tokens=4,  # one more on another process
        observed=torch.tensor([[0, 0, 1], [0, 0, 0]]),
        weights=torch.tensor([0.25, 1.0]),
    )
    terms = objective(config, inputs)
    assert float(terms.policy) == pytest.approx(-(1 + 1.2 - 2 * 3) / 4)  # ratios 1, 2 and 8
    assert float(terms.kl) == pytest.approx(0.5 * (0.5 - math.log(0.5) - 1) / 4)
    assert float(terms.entropy) == pytest.approx(-0.1 * (1 + 2 + 3) / 4)
    assert float(terms.world_model) == pytest.approx(0.25 * 0.7)
    parts = (terms.policy, terms.kl, terms.entropy, terms.world_model)
    assert float(terms.loss) == pytest.approx(float(sum(parts)))

    doubled = objective(config, inputs, wm_loss=lambda logps, mask: 2 * mask.sum(-1))
    assert float(doubled.world_model) == pytest.approx(0.25 * 2)
    with_tokens = replace(inputs, advantages=torch.tensor([[1.0, 1.0, 9.0], [-2.0, 9.0, 9.0]]))
    assert float(objective(config, with_tokens).loss) == pytest.approx(float(terms.loss))
    unmoved = replace(inputs, old=None, reference=None)
    assert float(objective(config, unmoved).policy) == pytest.approx(-(1 + 1 - 2) / 4)
    assert float(objective(config, unmoved).kl) == 0
