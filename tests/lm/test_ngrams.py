"""Texts that are guessed and read ahead are those that are written without, in fewer passes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from comap.lm import Generate, HFLanguageModel, Message, Sampling  # noqa: E402
from comap.lm.decode import TokenTrie  # noqa: E402
from comap.lm.ngrams import NGrams  # noqa: E402


def test_a_guess_goes_on_while_it_is_more_probable_than_not():
    ngrams, nothing = NGrams(), frozenset[int]()
    text = [1, 2, 3, 4, 5, 6]
    assert ngrams.after(text[:2], 9, nothing) == []
    ngrams.learn(text, 4)
    assert ngrams.after(text[:2], 9, nothing) == [], "seen once: half as probable as all else"
    for _ in range(8):
        ngrams.learn(text, 4)
    assert ngrams.after(text[:2], 9, nothing) == [3, 4, 5, 6]
    assert ngrams.after(text[:2], 2, nothing) == [3, 4]
    assert ngrams.after(text[:2], 9, frozenset({5})) == [3, 4], "nothing is read after an end"
    assert ngrams.after([0, 0], 9, nothing) == []
    for _ in range(10):
        ngrams.learn([3, 4, 7], 1)
    assert ngrams.after(text[:2], 9, nothing) == [3, 4], "5 follows in 9 of 19 texts"


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
        replies = lm.generate(asked)
        rounded = [[round(x, 9) for x in one.logprobs] for one in replies]
        return len(passes), [(one.token_ids, one.finish) for one in replies], rounded

    monkeypatch.setattr(type(lm.model), "forward", counting)
    texts = ("take apple 1", "go to shelf 2 now", "You see a cabinet 1")
    asked = [
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
        count, *found = answers()
        assert found == expected
    assert count < singly
