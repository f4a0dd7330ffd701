"""The engine computes what its plain reference does, for requests of every kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
    texts = [(reply.text, reply.token_ids, reply.finish) for reply in replies]
    numbers = [logprob for reply in replies for logprob in reply.logprobs]
    return [*texts, *play(lm, episodes=3, turns=3)], numbers


def test_the_engine_computes_what_the_reference_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are the same, and log-probabilities to nine digits, in double precision."""
    texts, numbers = answers(folder)
    monkeypatch.setattr(hf, "computed", reference.computed)
    plainly_written, plain_numbers = answers(folder)
    assert texts == plainly_written
    assert numbers == pytest.approx(plain_numbers, rel=0, abs=1e-9)


def with_new_name(forward: Callable[..., Any], must_be_new: bool) -> Callable[..., Any]:
    """Return a `forward` as transformers 5.24 has it: one that knows the cache by its new name, too."""
    name = "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"

    def renamed(
        *, position_ids: Any, logits_to_keep: Any = None, cache: Any = None, **arguments: Any
    ) -> Any:
        if logits_to_keep is not None:
            arguments["logits_to_keep"] = logits_to_keep
        assert cache is not None or not must_be_new
        if cache is not None:
            arguments[name] = cache
        return forward(**arguments, position_ids=position_ids)

    return renamed


@pytest.mark.filterwarnings("error::FutureWarning")
def test_the_cache_has_the_name_that_the_model_knows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed version gives no warning, and a model with the new name the same answers."""
    expected = answers(folder)
    load = hf.load_model

    def load_renamed(*arguments: Any) -> Any:
        model = load(*arguments)
        # The model calls the base by the name that its own version of the library has.
        model.base_model.forward = with_new_name(model.base_model.forward, must_be_new=False)
        model.forward = with_new_name(model.forward, must_be_new=True)
        return model

    monkeypatch.setattr(hf, "load_model", load_renamed)
    assert answers(folder) == expected
