"""Trees of sequences: what is read once gives the values and gradients of separate passes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from comap.trainers.row_trainer import add_hidden_forward  # noqa: E402
from comap.trainers.trees import Tree, grouped, plant, token_scores  # noqa: E402

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
    assert len(tree) == len({one[:n] for one in sequences for n in range(1, len(one) + 1)})
    longest = max(sequences, key=len)
    assert tree.is_chain == all(longest[: len(one)] == one for one in sequences)


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)  # and no norm in single precision, as those of Qwen and Llama are
    sizes = {"vocab_size": 20, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    config = GPT2Config(**sizes, attn_implementation=request.param)
    found = GPT2LMHeadModel(config).double().eval()
    add_hidden_forward(found)
    return found


def episodes(branching):
    """Steps of three episodes, two of which begin alike; with branches, a step has several replies."""
    found = []
    for episode, start in enumerate([(1, 2, 3, 4), (1, 2, 3, 4), (5, 6)]):
        so_far = start
        for t in range(4):
            replies = [(7 + t, 8, 9 + episode)]
            replies += [(11, 12 + t), (7 + t, 15)] if branching else []
            found += [(episode, (*so_far, *reply), len(so_far)) for reply in replies]
            so_far = (*so_far, *replies[0], 16, 17 - t)
    return found


@pytest.mark.parametrize("branching", [False, True])
@pytest.mark.parametrize("key", ["episode", "all"])
def test_values_and_gradients_are_those_of_separate_passes(model, branching, key):
    rows = episodes(branching)
    scored = [[(n, n - begin) for n in range(begin, len(ids))] for _, ids, begin in rows]
    keys = [episode if key == "episode" else 0 for episode, _, _ in rows]
    forest = plant([ids for _, ids, _ in rows], keys, scored, 4, model=model, device="cpu")
    read = forest.inputs["input_ids"].numel()
    assert read < sum(len(ids) for _, ids, _ in rows) / 1.5
    weights = torch.rand(2, *forest.shape, generator=torch.Generator().manual_seed(1)).double()

    def gradient(value):
        model.zero_grad()
        value.backward()
        return torch.cat([one.grad.flatten() for one in model.parameters()])

    logps, entropies = model(**forest.inputs, then=token_scores(forest, 0.7))
    shared = gradient((torch.stack([logps, entropies]) * weights).sum())
    total = 0.0
    for number, (_, ids, begin) in enumerate(rows):
        logits = model(input_ids=torch.tensor([ids])).logits[0, begin - 1 : -1] / 0.7
        table = logits.log_softmax(-1)
        own = table.gather(1, torch.tensor(ids[begin:])[:, None])[:, 0]
        spread = -(table.exp() * table).sum(-1)
        assert logps[number, : len(own)].tolist() == pytest.approx(own.tolist(), abs=1e-12)
        assert entropies[number, : len(own)].tolist() == pytest.approx(spread.tolist(), abs=1e-12)
        assert not logps[number, len(own) :].any()
        total = total + (torch.stack([own, spread]) * weights[:, number, : len(own)]).sum()
    separate = gradient(total)
    assert float((shared - separate).norm() / separate.norm()) < 1e-9


@given(SEQUENCES, st.data(), st.none() | st.integers(1, 4), st.none() | st.integers(1, 40))
def test_micro_batches_have_each_row_once_and_keep_to_their_limits(
    sequences, data, most_rows, most_tokens
):
    keys = data.draw(st.lists(st.integers(0, 2), min_size=len(sequences), max_size=len(sequences)))
    numbers = list(range(100, 100 + len(sequences)))
    found = grouped(numbers, keys, sequences, most_rows, most_tokens)
    assert sorted(row for micro in found for row in micro) == numbers
    widest = []
    for micro in found:
        assert most_rows is None or len(micro) <= most_rows
        own = Counter(keys[row - 100] for row in micro)
        sizes = [
            len(Tree([sequences[row - 100] for row in micro if keys[row - 100] == key]))
            for key in own
        ]
        assert most_tokens is None or len(sizes) == 1 or len(sizes) * max(sizes) <= most_tokens
        widest.append(max(sizes))
    assert most_rows is not None or widest == sorted(widest, reverse=True)
