"""The engine computes what its plain reference does, for requests of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from comap.lm import HFLanguageModel, hf
from comap.lm.engine import reference

from .test_cache import play
from .test_hf import mixed


def answers(folder: Path) -> tuple[list[Any], list[Any]]:
    """Return texts and log-probabilities; requests repeat, so that the engine remembers and guesses."""
    lm = HFLanguageModel(folder, device="cpu")
    requests = mixed(24)
    replies = [*lm.generate(requests), *lm.generate(requests[::-1])]
    written = [(reply.text, reply.token_ids, reply.finish) for reply in replies]
    numbers = [logprob for reply in replies for logprob in reply.logprobs]
    return [*written, *play(lm, episodes=3, turns=3)], numbers


def test_the_engine_computes_what_the_reference_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are the same, and log-probabilities to nine digits, in double precision."""
    written, numbers = answers(folder)
    monkeypatch.setattr(hf, "computed", reference.computed)
    plainly_written, plain_numbers = answers(folder)
    assert written == plainly_written
    assert numbers == pytest.approx(plain_numbers, rel=0, abs=1e-9)
