"""Trees of sequences: what is read once gives the values and gradients of separate passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from comap.trainers import trees  # noqa: E402
from comap.trainers.row_trainer import add_hidden_forward  # noqa: E402
from comap.trainers.trees import Span, Tree, grouped, plant, token_scores  # noqa: E402

SEQUENCES = st.lists(
    st.lists(st.integers(1, 3), min_size=2, max_size=9).map(tuple), min_size=1, max_size=8
)


@given(SEQUENCES)
def test_a_tree_has_each_beginning_once(sequences):
    tree = Tree(sequences)
    for sequence, path in zip(sequences, tree.paths, strict=True):
        assert tuple(tree.ids[n] for n in path) == sequence
        assert [tree.depths[n] for n in path] == list(range(len(sequence)))
        assert sorted(path) == list(path), "a token comes after those that it follows"
    assert len(tree) == len({tokens[:n] for tokens in sequences for n in range(1, len(tokens) + 1)})
    limb_paths = [
        (*path, *range(start, n + 1)) for start, end, path in tree.limbs for n in range(start, end)
    ]
    whole = {tuple(path[: n + 1]) for path in tree.paths for n in range(len(path))}
    assert len(limb_paths) == len(tree) and set(limb_paths) == whole, (
        "limbs are all tokens, and what each one sees"
    )


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)  # and no norm in single precision, as those of Qwen and Llama are
    sizes = {"vocab_size": 20, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    config = GPT2Config(**sizes, attn_implementation=request.param)
    gpt2 = GPT2LMHeadModel(config).double().eval()
    add_hidden_forward(gpt2)
    return gpt2


def episodes(branching):
    """Steps of three episodes, two of which begin alike; with branches, a step has several replies."""
    steps = []
    for episode, start in enumerate([(1, 2, 3, 4), (1, 2, 3, 4), (5, 6)]):
        so_far = start
        for t in range(4):
            replies = [(7 + t, 8, 9 + episode)]
            replies += [(11, 12 + t), (7 + t, 15)] if branching else []
            steps += [(episode, (*so_far, *reply), len(so_far)) for reply in replies]
            so_far = (*so_far, *replies[0], 16, 17 - t)
    return steps


def forest_of(model, rows, key):
    """Rows of episodes as trees of each episode, as one tree of all, or padded."""
    numbers = range(len(rows))
    trees = {
        "episode": [[n for n in numbers if rows[n][0] == episode] for episode in range(3)],
        "all": [numbers],
        "padded": None,
    }[key]
    spans = [[Span(begin, len(ids), 0)] for _, ids, begin in rows]
    return plant([ids for _, ids, _ in rows], trees, spans, 4, model=model, device="cpu")


@pytest.mark.parametrize("branching", [False, True])
@pytest.mark.parametrize("key", ["episode", "all", "padded"])
@pytest.mark.parametrize("logits", [2**27, 100])
def test_values_and_gradients_are_those_of_separate_passes(
    model, branching, key, logits, monkeypatch
):
    monkeypatch.setattr(trees, "kept_logits", lambda device: logits)
    rows = episodes(branching)
    forest = forest_of(model, rows, key)
    read = forest.inputs["input_ids"].numel()
    if key != "padded":
        assert read < sum(len(ids) for _, ids, _ in rows) / 1.5
    weights = torch.rand(2, *forest.shape, generator=torch.Generator().manual_seed(1)).double()

    def gradient(value):
        model.zero_grad()
        value.backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters()])

    logps, entropies = model(**forest.inputs, then=token_scores(forest, 0.7))
    shared = gradient((torch.stack([logps, entropies]) * weights).sum())
    total = 0.0
    for number, (_, ids, begin) in enumerate(rows):
        logits = model(input_ids=torch.tensor([ids])).logits[0, begin - 1 : -1] / 0.7
        table = logits.log_softmax(-1)
        sampled_logps = table.gather(1, torch.tensor(ids[begin:])[:, None])[:, 0]
        spread = -(table.exp() * table).sum(-1)
        assert logps[number, : len(sampled_logps)].tolist() == pytest.approx(
            sampled_logps.tolist(), abs=1e-12
        )
        assert entropies[number, : len(sampled_logps)].tolist() == pytest.approx(
            spread.tolist(), abs=1e-12
        )
        assert not logps[number, len(sampled_logps) :].any()
        total = (
            total
            + (
                torch.stack([sampled_logps, spread]) * weights[:, number, : len(sampled_logps)]
            ).sum()
        )
    separate = gradient(total)
    assert float((shared - separate).norm() / separate.norm()) < 1e-9


def test_entropies_are_those_of_marked_spans_and_cost_nothing_where_nobody_wants_them(model):
    rows = [(1, 2, 3, 4, 5), (1, 2, 6, 7)]
    spans = [[Span(3, 5, 2, has_entropy=False), Span(1, 3, 0)], [Span(2, 4, 0)]]
    forest = plant(rows, None, spans, 4, model=model, device="cpu")
    logps, entropies = model(**forest.inputs, then=token_scores(forest))
    assert (logps != 0).tolist() == [[True] * 4, [True, True, False, False]]
    assert (entropies != 0).tolist() == [[True, True, False, False]] * 2
    same_logps, no_entropies = model(**forest.inputs, then=token_scores(forest, entropy=False))
    assert torch.equal(logps, same_logps) and no_entropies is None


def test_mixed_precision_and_recomputed_layers_change_no_more_than_rounding():
    """As on a GPU: there some of what attention gets is single precision, some bfloat16."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"vocab_size": 30, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**sizes)).train()
    add_hidden_forward(model)
    rows = [(1, 2, 3, 4, 5), (1, 2, 3, 9, 8, 7), (1, 2, 11), (20, 21, 22)]
    scored = [[Span(1, len(row), 1)] for row in rows]
    forest = plant(rows, [[0, 1, 2], [3]], scored, 6, model=model, device="cpu")
    gradients = []
    for mixed in (False, True):
        if mixed:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            logps, _ = model(**forest.inputs, then=token_scores(forest))
        logps.sum().backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 0.05


@given(
    SEQUENCES,
    st.data(),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(1, 40),
)
def test_micro_batches_have_each_row_once_and_keep_to_their_limits(
    sequences, data, most_rows, most_tokens
):
    keys = data.draw(st.lists(st.integers(0, 2), min_size=len(sequences), max_size=len(sequences)))
    numbers = list(range(100, 100 + len(sequences)))
    micro_batches = grouped(numbers, keys, sequences, max_rows=most_rows, max_tokens=most_tokens)
    assert sorted(row for micro in micro_batches for tree in micro for row in tree) == numbers
    widest = []
    for micro in micro_batches:
        assert most_rows is None or sum(map(len, micro)) <= most_rows
        sizes = [len(Tree([sequences[row - 100] for row in tree])) for tree in micro]
        alone = all(len(tree) == 1 for tree in micro) and len(micro) == 1
        assert most_tokens is None or alone or len(sizes) * max(sizes) <= most_tokens
        assert all(len({keys[row - 100] for row in tree}) == 1 for tree in micro)
        widest.append(sizes[0])
    assert widest == sorted(widest, reverse=True)


def test_sequences_that_begin_alike_are_read_together():
    turns = [(1, 2), (1, 2, 3), (4, 5), (4, 6), (7, 8)]
    (micro,) = grouped(range(5), [0] * 5, turns, max_rows=None, max_tokens=None)
    assert sorted(micro) == [(0, 1), (2, 3), (4,)]
