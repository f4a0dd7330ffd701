"""RMS norms by one call: the same numbers, for the usual ones alone, and for the time of a call."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from comap.lm.engine.norms import fused_norms  # noqa: E402

SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
IDS = {"input_ids": torch.arange(20)[None]}


def model_of(kind: str) -> Any:
    """Return a model of some family whose norms have weights that matter."""
    from transformers import (
        Gemma2Config,
        Gemma2ForCausalLM,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    torch.manual_seed(0)
    if kind == "gpt2":
        return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)).eval()
    classes = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    }
    config, model_class = classes[kind]
    model = model_class(config(**SIZES, **HEADS)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.normal_(1.0, 0.2)
    return model


def forwards(model: Any) -> int:
    return sum("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(
    ("kind", "replaced"), [("llama", 5), ("qwen3", 9), ("gemma2", 0), ("gpt2", 0)]
)
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_fused_norms_compute_the_same(kind: str, replaced: int, dtype: str, error: float) -> None:
    model = model_of(kind).to(getattr(torch, dtype))
    names = list(vars(model.base_model))
    with torch.inference_mode():
        expected = model(**IDS).logits
        with fused_norms(model):
            assert forwards(model) == replaced
            logits = model(**IDS).logits
        assert torch.allclose(logits, expected, rtol=error, atol=error)
        assert forwards(model) == 0 and list(vars(model.base_model)) == names
        assert torch.equal(model(**IDS).logits, expected)


def test_norms_that_others_changed_stay_theirs() -> None:
    model = model_of("llama")
    norm = model.model.norm
    norm.forward = lambda states: states * 0
    copies = copy.copy(vars(norm))
    with pytest.raises(ValueError, match="stop"), fused_norms(model):
        assert forwards(model) == 5 and not model(**IDS).logits.any()
        raise ValueError("stop")
    assert forwards(model) == 1 and vars(norm) == copies
