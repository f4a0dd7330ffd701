from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from comap.errors import LanguageModelError
from comap.lm import hf_score
from comap.lm.base import Encode, Encoding, Message, Score, Scores, WordProbabilities, Words
from comap.lm.hf import HFLanguageModel
from comap.lm.model_sums import write_model_sums
from comap.lm.tiny import build_tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

CORPUS = ["You see a cabinet 1, a shelf 2 and a fridge; go to take open close KEEP KEPT apple"] * 2
COMPLETIONS = (
    "go to shelf 1",
    "go to shelf 12",
    "go to shelf",
    "take apple",
    "",
    "o",
    "go to shelf 1",
    "something else entirely, with Ünicode",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from safetensors.torch import load_file, save_file

    path = build_tiny(tmp_path_factory.mktemp("tiny"), CORPUS, parameters=200_000, max_length=256)
    weights = load_file(path / "model.safetensors")
    sharp = {key: 6 * value if value.ndim == 2 else value for key, value in weights.items()}
    save_file(sharp, path / "model.safetensors", {"format": "pt"})
    write_model_sums(path)
    return path


@pytest.fixture(scope="module")
def lm(folder: Path) -> HFLanguageModel:
    return HFLanguageModel(folder, device="cpu")


def talk(text: str) -> tuple[Message, ...]:
    return (Message("system", "Play."), Message("user", text))


def plain(lm: HFLanguageModel, request: Any, tokens: list[int]) -> list[float]:
    """The log-probabilities of some tokens after a request's prompt, by a forward pass of their own."""
    (prompt,) = lm._chat.prompts([request])
    assert isinstance(prompt, list)
    with torch.inference_mode():
        logits = lm.model(input_ids=torch.tensor([prompt + tokens])).logits[0]
    table = logits.log_softmax(-1)
    return [float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens)]


REQUESTS = [
    Score(talk(text), completions, prefix, ended)
    for text, completions, prefix, ended in (
        ("You see a cabinet 1.", COMPLETIONS, "", True),
        ("Hello", COMPLETIONS, "Action: ", False),
        ("a " * 60, ("take",), "", True),
        ("b", ("",), "", True),
        ("b", ("",), "", False),
        ("c", ("o", "apple"), "", False),
    )
]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-9), ("float32", 1e-5)])
def test_scores_are_those_of_separate_passes(
    folder: Path, attention: str, dtype: str, error: float
) -> None:
    lm = HFLanguageModel(folder, device="cpu", dtype=dtype)
    lm.model.set_attn_implementation(attention)
    if attention == "eager":  # it looks at double precision in single
        error = 1e-5
    for request, reply in zip(REQUESTS, lm.score(REQUESTS), strict=True):
        assert isinstance(reply, Scores)
        for text, logprobs in zip(request.completions, reply.logprobs, strict=True):
            tokens = lm._chat.tokens([text])[0] + [lm._chat.end] * request.ended
            assert logprobs == pytest.approx(plain(lm, request, tokens), abs=error)


def test_an_empty_completion_is_the_end_token_or_nothing(lm: HFLanguageModel) -> None:
    ended, bare = lm.score([Score(talk("x"), ("",)), Score(talk("x"), ("", "a"), ended=False)])
    assert isinstance(ended, Scores) and isinstance(bare, Scores)
    assert len(ended.logprobs[0]) == 1 and bare.logprobs[0] == ()
    assert bare.best == 0 and bare.totals[0] == 0


def test_all_completions_are_one_forward_pass(
    lm: HFLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    forward = lm.model.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        sizes.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", counted)
    lm.score(REQUESTS[:2])
    assert len(sizes) == 1 and sizes[0][0] == 2


def test_the_end_of_the_probabilities_is_one(lm: HFLanguageModel) -> None:
    """All first tokens together, as texts of one byte and words, have no more than probability 1."""
    letters = tuple(chr(code) for code in range(32, 127))
    (reply,) = lm.score([Score(talk("x"), letters, ended=False)])
    assert isinstance(reply, Scores)
    assert sum(map(math.exp, reply.totals)) < 1 + 1e-9


@pytest.mark.parametrize("limit", [3, 40])
def test_large_trees_are_split_and_score_the_same(
    folder: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = HFLanguageModel(folder, device="cpu", batch_tokens=limit)
    whole = HFLanguageModel(folder, device="cpu").score(REQUESTS)
    for found, expected in zip(lm.score(REQUESTS), whole, strict=True):
        assert isinstance(found, Scores) and isinstance(expected, Scores)
        assert found.totals == pytest.approx(expected.totals, abs=1e-9)
    monkeypatch.setattr(hf_score, "_LOGITS", 2000)
    monkeypatch.setattr(hf_score, "_SLICE", 100)
    for found, expected in zip(lm.score(REQUESTS), whole, strict=True):
        assert isinstance(found, Scores) and isinstance(expected, Scores)
        assert found.totals == pytest.approx(expected.totals, abs=1e-9)


def test_memory_that_is_short_costs_time_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = HFLanguageModel(folder, device="cpu")
    whole = lm.score(REQUESTS)
    forward = lm.model.forward

    def short(*args: Any, **kwargs: Any) -> Any:
        if len(kwargs["input_ids"]) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*args, **kwargs)

    monkeypatch.setattr(lm.model, "forward", short)
    with pytest.warns(ResourceWarning):
        halved = lm.score(REQUESTS)
    for found, expected in zip(halved, whole, strict=True):
        assert isinstance(found, Scores) and isinstance(expected, Scores)
        assert found.totals == pytest.approx(expected.totals, abs=1e-9)


def test_words_that_begin_differently_are_next_tokens(lm: HFLanguageModel) -> None:
    ask = Words(talk("x"), (" cabinet", " fridge", " cabinet"))
    (reply,) = lm.words([ask])
    assert isinstance(reply, WordProbabilities)
    first = [plain(lm, ask, lm._chat.tokens([word])[0][:1])[0] for word in ask.words]
    assert reply.probabilities == pytest.approx([math.exp(value) for value in first], abs=1e-9)


def test_words_that_begin_alike_are_followed_to_where_they_part(lm: HFLanguageModel) -> None:
    ask = Words(talk("x"), ("zab", "zac", "zacd", "q"), prefix=">")
    tokens = lm._chat.tokens(ask.words)
    assert tokens[0][:2] == tokens[1][:2] == tokens[2][:2] and len(tokens[1]) == 3
    (reply,) = lm.words([ask])
    assert isinstance(reply, WordProbabilities)
    zab, zac, zacd, q = (math.exp(math.fsum(plain(lm, ask, some))) for some in tokens)
    assert reply.probabilities == pytest.approx((zab, zac - zacd, zacd, reply.probabilities[3]))
    assert reply.probabilities[3] == pytest.approx(math.exp(plain(lm, ask, tokens[3][:1])[0]))
    assert q <= reply.probabilities[3]


def test_the_vector_is_the_last_hidden_state(lm: HFLanguageModel) -> None:
    requests = [Encode(talk("go " * n), prefix="so" * (n % 3)) for n in (1, 30, 4)]
    replies = lm.encode(requests)
    for request, reply in zip(requests, replies, strict=True):
        (prompt,) = lm._chat.prompts([request])
        assert isinstance(reply, Encoding) and isinstance(prompt, list)
        with torch.inference_mode():
            output = lm.model(input_ids=torch.tensor([prompt]), output_hidden_states=True)
        expected = output.hidden_states[-1][0, -1].tolist()
        assert reply.vector == pytest.approx(expected, rel=1e-6)
        assert reply.prompt_tokens == len(prompt)
        assert reply.vector == tuple(torch.tensor(reply.vector, dtype=torch.float32).tolist())


def test_wrong_requests_are_errors_in_their_places(lm: HFLanguageModel) -> None:
    found = lm.score([Score(talk("x"), ()), Score(talk("x"), ("a",)), Score((), ("a",))])
    assert [isinstance(reply, LanguageModelError) for reply in found] == [True, False, True]
    long = Words(talk("go " * 300), ("a", "b"))
    words = lm.words([Words(talk("x"), ()), Words(talk("x"), ("", "b")), long])
    assert all(isinstance(reply, LanguageModelError) for reply in words)
    (vector,) = lm.encode([Encode(talk("go " * 300))])
    assert isinstance(vector, LanguageModelError) and "256" in str(vector)
