"""What a pass keeps for the backward pass, and what follows from it."""

from __future__ import annotations

import pytest

from comap.trainers.config import Optimization

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from comap.trainers.memory import (  # noqa: E402
    Activations,
    decided,
    fitted,
    kept_logits,
    kept_per_token,
)

SIZES = {"vocab_size": 50, "num_hidden_layers": 3}
SHAPES = [
    {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 2, "head_dim": 32},
    {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 8, "head_dim": 32},
]


def counted(model, base, autocast):
    """The bytes that are kept for each token, but for the weights themselves."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage  # alive, so that no address is used twice
        return tensor

    ids = torch.randint(0, SIZES["vocab_size"], (2, 128))
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        base(input_ids=ids, use_cache=False)
    return sum(storage.nbytes() for storage in storages.values()) / ids.numel()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
@pytest.mark.parametrize(("lora", "mixed"), [(False, False), (True, False), (True, True)])
def test_the_estimate_is_what_is_kept(shape, kind, lora, mixed):
    """Never less, so that memory is enough, and not twice as much, so that it is used."""
    import transformers
    from peft import LoraConfig, get_peft_model

    config = getattr(transformers, f"{kind}Config")(
        **SIZES, **shape, num_key_value_heads=shape["num_attention_heads"]
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    if mixed:
        model = model.bfloat16()
    base = model.base_model
    estimate = kept_per_token(model, mixed=mixed)
    if lora:
        layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(r=2, lora_dropout=0.05, target_modules=layers))
    model.train()
    kept_bytes = counted(model, base, mixed)
    assert kept_bytes <= estimate.whole <= 2 * kept_bytes
    assert SIZES["num_hidden_layers"] * estimate.checkpointed < 2 * estimate.whole


KEPT = Activations(whole=1000, checkpointed=100)


@pytest.mark.parametrize(
    ("budget", "checkpoints", "tokens"),
    [
        (None, False, 2048),  # a CPU
        (10_000_000, False, 8192),  # 10,000 fit
        (2_000_000, False, 1024),  # rows of 2,000 just fit
        (1_999_999, True, 16_384),  # they do not: 19,999 fit then
        (1, True, 1),
        (10**12, False, 32_768),
    ],
)
def test_activations_are_recomputed_only_where_they_do_not_fit(budget, checkpoints, tokens):
    decision = decided(Optimization(), budget, KEPT, longest=2000)
    assert decision == Optimization(gradient_checkpointing=checkpoints, micro_batch_tokens=tokens)


def test_what_is_given_stays():
    for checkpoints, tokens in ((True, 16_384), (False, 1024)):
        optimization = Optimization(gradient_checkpointing=checkpoints)
        assert decided(optimization, 2_000_000, KEPT, longest=10**6).micro_batch_tokens == tokens
    optimization = Optimization(micro_batch_tokens=77, gradient_checkpointing=False)
    assert decided(optimization, 1, KEPT, longest=2000) == optimization
    planned = Optimization(batch_rows=None, batch_tokens=512)
    assert decided(planned, 10**9, KEPT, longest=2000).micro_batch_tokens is None


def test_a_cpu_asks_for_no_memory():
    model = torch.nn.Linear(2, 2)
    model.device = torch.device("cpu")
    optimization = fitted(Optimization(), model, model.parameters(), longest=10**9)
    assert (optimization.micro_batch_tokens, optimization.gradient_checkpointing) == (2048, False)
    assert kept_logits(model.device) == 2**27
