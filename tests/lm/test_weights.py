"""What changes weights is noticed, also where it leaves no mark; adapters as on a GPU leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytest.importorskip("transformers")

from comap.lm import HFLanguageModel, Message, Score  # noqa: E402
from comap.lm.engine import lora  # noqa: E402
from comap.lm.engine.passes import Engine  # noqa: E402
from comap.lm.engine.weights import WeightWatch  # noqa: E402

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=NO_GPU)]
TALK = (Message("user", "You see a cabinet 1."),)
SCORE = Score(TALK, ("go to shelf 2", "take apple"))


def weights_of(model: Any) -> list[Any]:
    return list(model.parameters())


@pytest.mark.parametrize("device", DEVICES)
def test_what_changes_weights_is_noticed(device: str) -> None:
    """An optimizer, a new tensor, and a write to a weight's data, which has no version."""
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.LayerNorm(40).double())
    model.to(device)
    watch = WeightWatch()
    assert watch.changed(weights_of(model))
    assert not watch.changed(weights_of(model))

    with torch.no_grad():
        model[0].weight.mul_(1.0)
    assert watch.changed(weights_of(model)), "its version is another one"
    model[0].weight.data.mul_(-1)
    assert watch.changed(weights_of(model)), "its values are others"
    model[1].bias.data[7] = 3.0
    model[1].weight.data = model[1].weight.data.clone()
    assert watch.changed(weights_of(model)), "it is another tensor"
    assert watch.changed(weights_of(model)[:-1])
    assert watch.changed(weights_of(model))
    assert not watch.changed(weights_of(model))


def adapted(folder: Path, dtype: str, targets: str | list[str] = "all-linear") -> HFLanguageModel:
    """Return a model with two adapters that do something."""
    lm = HFLanguageModel(folder, device="cpu", dtype=dtype, cache_mb=0)
    generator = torch.Generator().manual_seed(0)
    for name in ("agent", "wm"):
        config = peft.LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM")
        lm.add_adapter(name, config)
    for key, weight in lm.model.named_parameters():
        if "lora_B" in key:
            weight.data.normal_(std=0.2, generator=generator)
    return lm


def scores(lm: HFLanguageModel, *names: str | None) -> list[float]:
    requests = [Score(SCORE.messages, SCORE.completions, adapter=name) for name in names]
    tokens: list[float] = []
    for reply in lm.score(requests):
        assert not isinstance(reply, Exception), reply
        for logprobs in reply.logprobs:
            tokens += logprobs
    return tokens


@contextmanager
def added(lm: HFLanguageModel) -> Iterator[None]:
    """Have the adapter "agent" computed as on a GPU."""
    base = lm._adapters.base
    with lm._adapters.using("agent"), lora.lean_adapter(base, "agent"):
        yield


def state(lm: HFLanguageModel) -> list[Any]:
    """Return copies of all weights, where they lie, and which adapters are on."""
    weights = [(weight.clone(), weight.data_ptr()) for weight in lm.model.parameters()]
    flags = [weight.requires_grad for weight in lm.model.parameters()]
    layers = [
        (list(layer.active_adapters), layer.disable_adapters)
        for layer in lm.model.modules()
        if isinstance(layer, peft.tuners.lora.LoraLayer)
    ]
    return [weights, flags, layers]


def same(before: list[Any], after: list[Any]) -> bool:
    pairs = zip(before[0], after[0], strict=True)
    are_equal = all(torch.equal(a[0], b[0]) and a[1] == b[1] for a, b in pairs)
    return are_equal and before[1:] == after[1:]


# In double precision, too, transformers' own norms are computed in single precision.
@pytest.mark.parametrize(("dtype", "error"), [("float64", 2e-6), ("float32", 1e-5)])
def test_merged_adapters_answer_as_others_and_leave_no_trace(
    folder: Path, dtype: str, error: float
) -> None:
    lm = adapted(folder, dtype)
    names = (None, "agent", "wm", None, "agent")
    plain = scores(lm, *names)
    before = state(lm)
    layers = [m for m in lm.model.modules() if isinstance(m, peft.tuners.lora.LoraLayer)]
    with added(lm):
        assert layers and all(layer.disable_adapters for layer in layers)
    assert same(before, state(lm))

    lm._engine.for_gpu = True
    assert scores(lm, *names) == pytest.approx(plain, abs=error)
    assert scores(lm, "agent") != pytest.approx(scores(lm, "wm"), abs=1e-3)
    assert same(before, state(lm))
    assert not lm._watch.changed(weights_of(lm._adapters.base))


@pytest.mark.parametrize("failing", ["merging", "answering"])
def test_an_error_leaves_the_weights_as_they_were(
    folder: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = adapted(folder, "float32")
    before = state(lm)
    calls = []
    addmm = torch.addmm

    def short_of_memory(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return addmm(*args, **options)

    if failing == "merging":
        monkeypatch.setattr(torch, "addmm", short_of_memory)
    with pytest.raises(torch.OutOfMemoryError), added(lm):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert same(before, state(lm)) and len(calls) == (3 if failing == "merging" else 0)


def test_what_cannot_be_merged_answers_unmerged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that shares its weights with the embedding, DoRA, and where memory is short."""
    tied = adapted(folder, "float32", ["q_proj", "lm_head"])
    head = tied.model.get_output_embeddings()
    tied._adapters.base.get_input_embeddings().weight = head.base_layer.weight
    plain = scores(tied, "agent")
    with added(tied):
        assert not head.disable_adapters
    tied._engine.for_gpu = True
    assert scores(tied, "agent") == pytest.approx(plain, abs=1e-5)

    lm = adapted(folder, "float32")
    plain = scores(lm, "agent")
    lm.add_adapter("dora", peft.LoraConfig(r=2, target_modules=["q_proj"], use_dora=True))
    lm._engine.for_gpu = True
    assert scores(lm, "dora") == pytest.approx(scores(lm, None), abs=1e-4)
    monkeypatch.setattr(lora, "_has_room", lambda *_: False)
    assert scores(lm, "agent") == plain


def test_in_half_precision_a_young_adapter_is_not_rounded_away(folder: Path) -> None:
    """Added to the weights, half of it would be gone: its numbers are a thousandth of theirs."""
    lm = adapted(folder, "bfloat16")
    layers = [m for m in lm.model.modules() if isinstance(m, peft.tuners.lora.LoraLayer)]
    generator = torch.Generator().manual_seed(0)
    assert len(layers) > 5
    for layer in layers:
        first = layer.lora_A["agent"].weight.detach()
        second = layer.lora_B["agent"].weight.detach()
        weight = layer.base_layer.weight.detach()
        product = layer.scaling["agent"] * second.double() @ first.double()
        size = 1e-3 * float(weight.double().std() / product.std())
        second.mul_(size)
        product *= size

        # An adapter has learned from inputs that lie in its own directions.
        inputs = (torch.randn(2_000, len(first), generator=generator) @ first).bfloat16()
        expected = inputs.double() @ product.T
        with added(lm), torch.no_grad():
            outputs = layer(inputs)
        in_weights = inputs @ (weight.double() + product).bfloat16().T

        bare_outputs = (inputs @ weight.T).double()
        share = _share_of(expected, outputs.double() - bare_outputs)
        share_in_weights = _share_of(expected, in_weights.double() - bare_outputs)
        assert share > 0.95 and share_in_weights < 0.8, (share, share_in_weights)
    assert not any("forward" in vars(layer) for layer in layers)


def _share_of(expected: Any, computed: Any) -> float:
    return float((computed * expected).sum() / (expected**2).sum())


def test_in_half_precision_answers_are_nearly_those_of_peft(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, too, they are computed by few operations."""
    lm = adapted(folder, "bfloat16")
    names = (None, "agent", "wm", None, "agent")
    with monkeypatch.context() as changed:
        changed.setattr(Engine, "takes_few_operations", False)
        plain = scores(lm, *names)
    before = state(lm)
    by_few_operations = scores(lm, *names)
    assert by_few_operations == pytest.approx(plain, abs=0.15) and by_few_operations != plain
    assert scores(lm, "agent") != pytest.approx(scores(lm, "wm"), abs=0.15)
    assert same(before, state(lm))
