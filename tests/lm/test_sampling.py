"""The choice of the next tokens: in double precision, and as a GPU does it, which a CPU can do, too."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from comap.lm import HFLanguageModel  # noqa: E402
from comap.lm.engine import passes, sampling  # noqa: E402
from comap.lm.engine.sampling import Pick, choose, choose_on_gpu  # noqa: E402

from .test_cache import play  # noqa: E402
from .test_hf import mixed  # noqa: E402

ROWS = 24


def wide_logits() -> Any:
    """Return logits of a large vocabulary: from all alike, with many equals, to one token alone."""
    logits = torch.randn((ROWS, 20_000), generator=torch.Generator().manual_seed(0)).bfloat16()
    return logits * torch.linspace(0, 12, ROWS)[:, None]


def picks(top_p: float, temperature: float = 0.9) -> list[Pick]:
    draws = torch.rand(ROWS, generator=torch.Generator().manual_seed(1)).tolist()
    return [Pick(temperature, top_p, draw, None) for draw in draws]


def test_top_p_of_a_large_vocabulary_draws_what_sorting_all_of_it_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = wide_logits()
    together, _ = choose(logits, picks(0.9))
    alone = [choose(logits[i : i + 1], [pick])[0][0] for i, pick in enumerate(picks(0.9))]
    assert together == alone
    monkeypatch.setattr(sampling, "_TOP", 10_000)
    assert choose(logits, picks(0.9))[0] == together


@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("temperature", [0.0, 1e-40, 0.9, 1.0, 3.0])
def test_a_gpu_chooses_what_a_cpu_does(
    top_p: float, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the nucleus is wider than the tokens that are looked at first, and in several parts."""
    logits = torch.randn((ROWS, 20_000), generator=torch.Generator().manual_seed(0))
    logits *= torch.linspace(0.1, 6, ROWS)[:, None]
    tokens, logprobs = choose(logits, picks(top_p, temperature))
    assert choose_on_gpu(logits, picks(top_p, temperature))[0] == tokens

    monkeypatch.setattr(sampling, "_AT_ONCE", 5 * 20_000)
    split_tokens, split_logprobs = choose_on_gpu(logits, picks(top_p, temperature))
    assert split_tokens == tokens
    assert split_logprobs == pytest.approx(logprobs, abs=1e-5)


def test_a_gpu_draws_tokens_as_often_as_they_are_probable() -> None:
    count = 4000
    probabilities = [0.5, 0.3, 0.15, 0.05]
    logits = torch.tensor(probabilities).log().expand(count, -1)
    draws = torch.rand(count, generator=torch.Generator().manual_seed(0)).tolist()
    for top_p, kept_count in ((1.0, 4), (0.8, 2)):
        tokens, _ = choose_on_gpu(logits, [Pick(1.0, top_p, draw, None) for draw in draws])
        counts = Counter(tokens)
        total = sum(probabilities[:kept_count])
        for token, probability in enumerate(probabilities[:kept_count]):
            share = probability / total
            error = 5 * (share * (1 - share) / count) ** 0.5
            assert abs(counts[token] / count - share) < error
        assert set(tokens) == set(range(kept_count))


def test_a_gpu_draws_no_token_without_probability() -> None:
    """However near to a border the random number is: what is impossible, or not allowed, is not drawn."""
    logits = torch.full((5, 30_000), -1e9)
    logits[:, 10_000:10_002] = 0.0
    draws = [0.0, 0.5 - 2**-53, 0.5, 0.5 + 2**-52, 1 - 2**-53]
    tokens, logprobs = choose_on_gpu(logits, [Pick(1.0, 1.0, draw, None) for draw in draws])
    assert tokens == [10_000, 10_000, 10_001, 10_001, 10_001]
    assert logprobs == pytest.approx([-0.6931472] * 5)

    allowed = [Pick(1.0, 1.0, draw, [3, 7]) for draw in draws[:-1]]
    allowed.append(Pick(1.0, 1.0, draws[-1], [5]))
    tokens, _ = choose_on_gpu(logits, allowed)
    assert tokens == [3, 3, 7, 7, 5]


def answers(lm: HFLanguageModel) -> tuple[list[Any], list[float]]:
    requests = mixed(24)
    replies = [*lm.generate(requests), *lm.generate(requests[::-1])]
    texts = [(reply.text, reply.token_ids, reply.finish) for reply in replies]
    return texts, [logprob for reply in replies for logprob in reply.logprobs]


def as_on_gpu(folder: Path, **options: Any) -> HFLanguageModel:
    lm = HFLanguageModel(folder, device="cpu", **options)
    lm._engine.for_gpu = True
    return lm


def test_texts_as_on_a_gpu_are_those_of_a_cpu(folder: Path) -> None:
    """Texts with guessed tokens, choices, stop texts, top-p: all columns of a pass are read at once."""
    texts, logprobs = answers(HFLanguageModel(folder, device="cpu"))
    gpu_written, gpu_logprobs = answers(as_on_gpu(folder))
    assert gpu_written == texts
    assert gpu_logprobs == pytest.approx(logprobs, abs=1e-5)
    assert play(as_on_gpu(folder), episodes=2, turns=2)


def test_a_pass_waits_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers come back once in a pass; nothing else makes Python wait for what a GPU computes."""
    lm = as_on_gpu(folder)
    waits: Counter[str] = Counter()
    reads: list[int] = []

    def noting(name: str) -> None:
        method = getattr(torch.Tensor, name)

        def noted(*args: Any, **options: Any) -> Any:
            waits[name] += 1
            return method(*args, **options)

        monkeypatch.setattr(torch.Tensor, name, noted)

    read = passes.Rows.read

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        reads.append(1)
        return read(self, *args, **options)

    monkeypatch.setattr(passes.Rows, "read", counted)
    for name in ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "nonzero"):
        noting(name)
    lm.generate(mixed(24))
    assert len(reads) > 10
    assert waits.keys() == {"tolist"} and waits["tolist"] <= len(reads)
