from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from comap.errors import LanguageModelError, OptionError
from comap.lm.base import Completion, Encode, Generate, Message, Sampling, Score, Scores
from comap.lm.hf import HFLanguageModel
from comap.lm.tiny import build_tiny

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytest.importorskip("transformers")

CORPUS = ["You see a cabinet 1, a shelf 2 and a fridge; go to take open close apple"] * 2
TALK = (Message("user", "You see a cabinet 1."),)
SCORE = Score(TALK, ("go to shelf 2", "take apple"))


def lora(**options: Any) -> Any:
    options = {"r": 4, "target_modules": ["q_proj", "down_proj"], **options}
    return peft.LoraConfig(task_type="CAUSAL_LM", **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), CORPUS, parameters=200_000, max_length=256)


@pytest.fixture(scope="module")
def saved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters with random weights, as peft saves them."""
    made = {}
    for seed, name in enumerate(("agent", "wm")):
        lm = HFLanguageModel(folder, device="cpu")
        lm.add_adapter("default", lora())
        torch.manual_seed(seed)
        for key, weight in lm.model.named_parameters():
            if "lora_" in key:
                weight.data.normal_(std=0.5)
        made[name] = tmp_path_factory.mktemp(name)
        lm.model.save_pretrained(made[name])
    return made


@pytest.fixture
def lm(folder: Path, saved: dict[str, Path]) -> HFLanguageModel:
    return HFLanguageModel(folder, adapters=saved, device="cpu")


def with_adapter(name: str | None) -> Score:
    return Score(SCORE.messages, SCORE.completions, adapter=name)


def totals(lm: HFLanguageModel, *names: str | None) -> list[tuple[float, ...]]:
    replies = lm.score([with_adapter(name) for name in names])
    return [reply.totals for reply in replies if isinstance(reply, Scores)]


def test_adapters_answer_differently_and_the_base_is_as_without(
    lm: HFLanguageModel, folder: Path
) -> None:
    base, agent, wm = totals(lm, None, "agent", "wm")
    assert len({base, agent, wm}) == 3
    assert base == totals(HFLanguageModel(folder, device="cpu"), None)[0]


def test_mixed_in_one_call_is_as_asked_one_by_one(lm: HFLanguageModel) -> None:
    names = ["wm", None, "agent", "wm", None, "agent"]
    assert totals(lm, *names) == [totals(lm, name)[0] for name in names]
    hot = Sampling(9, temperature=1.0, seed=4)
    asked = [Generate(TALK, hot, adapter=name) for name in names]
    mixed = [reply.token_ids for reply in lm.generate(asked) if isinstance(reply, Completion)]
    single = [lm.generate([one])[0] for one in asked]
    assert mixed == [reply.token_ids for reply in single if isinstance(reply, Completion)]
    assert len(set(mixed)) == 3


def test_an_adapter_answers_as_peft_does(lm: HFLanguageModel, saved: dict[str, Path]) -> None:
    (prompt,) = lm._chat.prompts([SCORE])
    tokens = lm._chat.tokens(["take apple"])[0] + [lm._chat.end]
    assert isinstance(prompt, list)
    lm.model.set_adapter("wm")
    with torch.inference_mode():
        table = lm.model(input_ids=torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
    plain = sum(float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens))
    assert totals(lm, "wm")[0][1] == pytest.approx(plain, abs=1e-9)


def test_the_default_adapter_answers_who_names_none(folder: Path, saved: dict[str, Path]) -> None:
    lm = HFLanguageModel(folder, adapters=saved, adapter="wm", device="cpu")
    assert totals(lm, None) == totals(lm, "wm") != totals(lm, "agent")
    assert lm.config()["adapter"] == "wm" and lm.config()["adapters"] == ["agent", "wm"]
    with pytest.raises(LanguageModelError, match="agent, wm"):
        HFLanguageModel(folder, adapters=saved, adapter="wn", device="cpu")


def test_an_unknown_adapter_is_that_requests_error(lm: HFLanguageModel) -> None:
    good, wrong = lm.score([with_adapter("wm"), with_adapter("wm_ema")])
    assert isinstance(good, Scores)
    assert isinstance(wrong, LanguageModelError)
    assert "agent, wm" in str(wrong) and "wm_ema" in str(wrong)


def test_parameters_are_counted_without_adapters(lm: HFLanguageModel, folder: Path) -> None:
    bare = HFLanguageModel(folder, device="cpu")
    assert lm.config()["parameters"] == bare.config()["parameters"]
    assert lm.adapters == ("agent", "wm") and bare.adapters == ()


def test_asking_leaves_a_training_as_it_was(lm: HFLanguageModel) -> None:
    lm.add_adapter("student", lora(lora_dropout=0.5))
    model = lm.model
    model.set_adapter("student")
    next(w for w in model.parameters() if w.requires_grad).requires_grad_(False)
    model.train()

    def state() -> list[Any]:
        flags = [weight.requires_grad for weight in model.parameters()]
        modes = [module.training for module in model.modules()]
        layers = [
            (list(layer.active_adapters), layer.disable_adapters)
            for layer in model.modules()
            if isinstance(layer, peft.tuners.lora.LoraLayer)
        ]
        return [flags, modes, layers, model.active_adapter]

    before = state()
    first = totals(lm, None, "wm", "student")
    lm.encode([Encode(TALK, adapter="agent")])
    assert before == state() and first == totals(lm, None, "wm", "student")
    with model.disable_adapter():
        off = state()
        assert totals(lm, "wm")[0] == first[1]
        assert off == state()
    trainable = [key for key, weight in model.named_parameters() if weight.requires_grad]
    assert trainable and all(".student." in key for key in trainable)


def test_what_a_trainer_changes_is_what_answers(lm: HFLanguageModel) -> None:
    lm.add_adapter("student", lora())
    before = totals(lm, None, "student")
    assert before[0] == pytest.approx(before[1], abs=1e-9)
    lm.model.set_adapter("student")
    optimizer = torch.optim.SGD([w for w in lm.model.parameters() if w.requires_grad], lr=50.0)
    lm.model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits.square().mean().backward()
    optimizer.step()
    after = totals(lm, None, "student")
    assert after[0] == before[0] and after[1] != before[1]
    served = HFLanguageModel.from_model(lm.model, lm.tokenizer, adapter="student")
    assert totals(served, None)[0] == after[1]


def test_names_are_new_and_plain(lm: HFLanguageModel, saved: dict[str, Path]) -> None:
    for name in ("wm", "a.b", "", "../x"):
        with pytest.raises(OptionError, match="name"):
            lm.add_adapter(name, saved["wm"])


def changed(source: Path, target: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    shutil.copytree(source, target)
    config = json.loads((target / "adapter_config.json").read_text())
    change(config)
    (target / "adapter_config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("bias", "all"),
        ("init_lora_weights", "pissa"),
        ("modules_to_save", ["lm_head"]),
        ("peft_type", "IA3"),
        ("target_modules", ["nowhere"]),
        ("r", 3),
        ("peft_type", "NONSENSE"),
    ],
)
def test_what_changes_the_base_or_does_not_fit_is_refused(
    folder: Path, saved: dict[str, Path], tmp_path: Path, option: str, value: Any
) -> None:
    wrong = changed(saved["wm"], tmp_path / "wrong", lambda config: config.update({option: value}))
    lm = HFLanguageModel(folder, device="cpu")
    before = totals(lm, None)
    with pytest.raises(LanguageModelError):
        lm.add_adapter("wm", wrong)
    assert not lm.adapters and totals(lm, None) == before
    lm.add_adapter("agent", saved["agent"])
    with pytest.raises(LanguageModelError):
        lm.add_adapter("wm", wrong)
    lm.add_adapter("wm", saved["wm"])
    assert list(lm.adapters) == ["agent", "wm"] and len(set(totals(lm, None, "agent", "wm"))) == 3


def test_folders_that_are_no_adapters_are_refused(
    folder: Path, saved: dict[str, Path], tmp_path: Path
) -> None:
    lm = HFLanguageModel(folder, device="cpu")
    with pytest.raises(LanguageModelError, match=r"adapter_config\.json"):
        lm.add_adapter("wm", tmp_path / "missing")
    pickled = tmp_path / "pickled"
    shutil.copytree(saved["wm"], pickled)
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    with pytest.raises(LanguageModelError, match="pickled weights are not loaded"):
        lm.add_adapter("wm", pickled)
    broken = tmp_path / "broken"
    shutil.copytree(saved["wm"], broken)
    (broken / "adapter_model.safetensors").write_bytes(b"\x10" * 100)
    with pytest.raises(LanguageModelError, match="damaged"):
        lm.add_adapter("wm", broken)
