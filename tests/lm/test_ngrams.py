"""Texts that are guessed and read ahead are those that are written without, in fewer passes."""

from __future__ import annotations

import tracemalloc

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from comap.lm import Generate, HFLanguageModel, Message, Sampling  # noqa: E402
from comap.lm.engine.ngrams import NGrams  # noqa: E402
from comap.lm.engine.passes import TokenTrie, until_unique  # noqa: E402


def test_a_guess_goes_on_while_it_is_more_probable_than_not():
    ngrams, no_ends = NGrams(), frozenset[int]()
    text = [1, 2, 3, 4, 5, 6]
    assert ngrams.after(text[:2], 9, no_ends) == []
    ngrams.learn(text, 4)
    assert ngrams.after(text[:2], 9, no_ends) == [], "seen once: half as probable as all else"
    for _ in range(8):
        ngrams.learn(text, 4)
    assert ngrams.after(text[:2], 9, no_ends) == [3, 4, 5, 6]
    assert ngrams.after(text[:2], 2, no_ends) == [3, 4]
    assert ngrams.after(text[:2], 9, frozenset({5})) == [3, 4], "nothing is read after an end"
    assert ngrams.after([0, 0], 9, no_ends) == []
    for _ in range(10):
        ngrams.learn([3, 4, 7], 1)
    assert ngrams.after(text[:2], 9, no_ends) == [3, 4], "5 follows in 9 of 19 texts"


def test_all_that_is_counted_is_bounded(monkeypatch):
    """A few beginnings may be followed by any number of tokens."""
    monkeypatch.setattr(f"{NGrams.__module__}._MOST_COUNTS", 100)
    ngrams = NGrams()
    for token in range(1_000):
        ngrams.learn([1, 2, token], 1)
        assert sum(map(len, ngrams._counts.values())) <= 101
    for _ in range(9):
        ngrams.learn([1, 2, 7], 1)
    assert ngrams._size == sum(map(len, ngrams._counts.values()))


def test_words_are_cut_where_they_are_unique():
    words = [[1, 2, 3], [1, 2], [1, 2, 4, 5], [9, 9], [1, 2, 3]]
    assert until_unique(words) == [(1, 2, 3), (1, 2), (1, 2, 4), (9,), (1, 2, 3)]
    assert until_unique([[], [1]]) == [(), (1,)] and until_unique([]) == []


def test_long_words_are_cut_in_linear_time_and_memory():
    words = [list(range(30_000)), [*range(29_999), 7], [1]]
    tracemalloc.start()
    try:
        assert list(map(len, until_unique(words))) == [30_000, 30_000, 1]
        assert tracemalloc.get_traced_memory()[1] < 10e6  # 14 GB where each beginning is kept
    finally:
        tracemalloc.stop()


def test_a_guess_keeps_to_choices():
    ngrams, trie = NGrams(), TokenTrie([[3, 4, 5], [3, 4, 6, 7, 8]])
    assert ngrams.after([1, 2], 9, frozenset(), (trie, 0)) == [3, 4], "there is no other"
    for _ in range(5):
        ngrams.learn([3, 4, 9], 1)
        ngrams.learn([3, 4, 6], 1)
    assert ngrams.after([1, 2], 9, frozenset(), (trie, 0)) == [3, 4, 6, 7]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("choices", [None, ("go to shelf 2 now", "go to shelf 1", "open it")])
def test_what_is_written_again_takes_fewer_passes(folder, monkeypatch, temperature, choices):
    lm, passes = HFLanguageModel(folder, device="cpu"), []
    forward, after = type(lm.model).forward, NGrams.after

    def counting(self, *args, **options):
        passes.append(options["input_ids"].shape)
        return forward(self, *args, **options)

    def answers():
        passes.clear()
        replies = lm.generate(requests)
        rounded = [[round(x, 9) for x in reply.logprobs] for reply in replies]
        return len(passes), [(reply.token_ids, reply.finish) for reply in replies], rounded

    monkeypatch.setattr(type(lm.model), "forward", counting)
    texts = ("take apple 1", "go to shelf 2 now", "You see a cabinet 1")
    requests = [
        Generate(
            (Message("user", text),),
            Sampling(10, temperature=temperature, stop=("shelf",), seed=seed),
            choices=choices,
        )
        for text in texts
        for seed in range(2)
    ]
    monkeypatch.setattr(NGrams, "after", lambda *_: [])
    singly, *expected = answers()
    monkeypatch.setattr(NGrams, "after", after)
    for _ in range(5):
        count, *guessed_answers = answers()
        assert guessed_answers == expected
    assert count < singly


@pytest.fixture
def repeated(monkeypatch):
    """Everything is guessed to be the last token again, and widths of passes are noted."""
    widths = []

    def passes(model):
        forward = model.forward

        def noted(*args, **options):
            widths.append(options["input_ids"].shape[1])
            return forward(*args, **options)

        monkeypatch.setattr(model, "forward", noted)
        return widths

    monkeypatch.setattr(NGrams, "after", lambda _, text, most, *__: [text[-1]] * most)
    return passes


def test_nothing_is_read_beyond_the_context(folder, repeated):
    """Learned positions end there, padding included."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = HFLanguageModel(folder, device="cpu").tokenizer
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes)).double().eval()
    lm, widths = HFLanguageModel.from_model(model, tokenizer), repeated(model)
    talks = [(Message("user", text),) for text in ("open it", "take apple 1", "a " * 14)]
    replies = lm.generate([Generate(talk, Sampling(60)) for talk in talks])
    for talk, reply in zip(talks, replies, strict=True):
        assert reply.token_ids == lm.generate([Generate(talk, Sampling(60))])[0].token_ids
    assert max(widths[1:]) > 2


def test_rotary_embeddings_that_look_at_the_last_position_get_no_guesses(folder, repeated):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = HFLanguageModel(folder, device="cpu").tokenizer
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    config = Qwen3Config(vocab_size=len(tokenizer), rope_parameters=rope, **sizes)
    model = Qwen3ForCausalLM(config).double().eval()
    lm, widths = HFLanguageModel.from_model(model, tokenizer), repeated(model)
    lm.generate([Generate((Message("user", "open it"),), Sampling(8))])
    assert set(widths[1:]) == {1}
