"""Loading models and adapters: what is refused, and that no code, pickle or network is touched."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import sys
from types import SimpleNamespace

import pytest

from comap.errors import LanguageModelError, MissingExtra
from comap.lm import Completion, Encode, Generate, Message, Sampling, Score, Scores
from comap.lm.hf import HFLanguageModel
from comap.lm.load import context_of, limits_of

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


@pytest.fixture
def copy(folder, tmp_path):
    """A copy that may be changed, as models of others: nothing tells what it was."""
    shutil.copytree(folder, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Fail every connection, and record it."""
    attempts = []

    def refuse(*args, **_):
        attempts.append(args)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return attempts


def load(place, **options):
    return HFLanguageModel(place, device="cpu", **options)


def edit(path, **changes):
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **changes}))


def refused(place, match):
    with pytest.raises(LanguageModelError, match=match) as caught:
        load(place)
    assert "\n" not in str(caught.value)


def test_a_folder_is_loaded_without_the_network(folder, no_network):
    lm = load(str(folder))
    assert not no_network
    config = lm.config()
    assert json.loads(json.dumps(config)) == config
    assert (config["name"], config["kind"], config["dtype"]) == ("tiny", "hf", "float64")
    assert str(folder.parent) not in json.dumps(config)
    assert config["parameters"] == sum(weight.numel() for weight in lm.model.parameters())
    assert lm.count_tokens("go to go") == len(lm.tokenizer.tokenize("go to go"))
    assert load(folder, name="mine").name == "mine"


def test_auto_is_single_precision_unless_the_config_says_double(copy):
    for declared, expected in (("float64", "float64"), ("bfloat16", "float32")):
        edit(copy / "config.json", dtype=declared)
        assert load(copy).config()["dtype"] == expected


def test_a_place_that_is_no_model(tmp_path):
    refused(tmp_path / "missing", "found none at")
    refused(str(tmp_path / "missing"), "found none at")
    refused("../../nowhere-at-all", "found none at")
    refused(tmp_path, r"expected config\.json")
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(tmp_path, "this is an adapter")


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_not_read(copy, name):
    sign = copy.parent / "exploded"
    (copy / "model.safetensors").unlink()
    (copy / name).write_bytes(pickle.dumps(Bomb(sign)))
    refused(copy, "only pickled ones")
    assert not sign.exists()


@pytest.mark.parametrize("shard", ["pytorch_model.bin", "../../other.safetensors", 3])
def test_an_index_that_leads_elsewhere_is_refused(copy, shard):
    index = {"metadata": {}, "weight_map": {"model.norm.weight": shard}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(LanguageModelError, match=r"index"):
        load(copy)


def test_code_in_the_folder_is_not_run(copy):
    sign = copy.parent / "ran"
    (copy / "own.py").write_text(f"import os; os.mkdir({str(sign)!r})")
    edit(copy / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})
    refused(copy, "cannot be loaded")
    assert not sign.exists()


def test_damaged_files(copy):
    whole = (copy / "model.safetensors").read_bytes()
    for wrong in (whole[: len(whole) // 2], b"", b"\xff" * 64):
        (copy / "model.safetensors").write_bytes(wrong)
        refused(copy, "damaged")
    (copy / "model.safetensors").write_bytes(whole)
    (copy / "tokenizer.json").write_text("{")
    refused(copy, "tokenizer.json', found something else")


def test_weights_that_are_missing_are_not_made_up(copy):
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    refused(copy, "lack 1 of its weights")


def test_a_tokenizer_of_another_model(copy):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.add_tokens(["countertop", "dishwasher"])
    tokenizer.save_pretrained(copy)
    refused(copy, "token ids below")


def test_models_without_a_past_of_keys_and_values_are_refused(copy):
    from transformers import BloomConfig, BloomForCausalLM, MambaConfig, Qwen3Config

    with pytest.raises(LanguageModelError, match="attention in all layers"):
        context_of(Qwen3Config(layer_types=["linear_attention"] * 32))
    bloom = BloomForCausalLM(BloomConfig(vocab_size=400, hidden_size=8, n_layer=1, n_head=1))
    with pytest.raises(LanguageModelError, match="bloom"):
        HFLanguageModel.from_model(bloom, load(copy).tokenizer)
    edit(copy / "config.json", **MambaConfig(num_hidden_layers=1).to_dict())
    with pytest.raises(LanguageModelError):
        load(copy)


def test_a_sliding_window_bounds_the_context():
    from transformers import Qwen3Config

    window = Qwen3Config(
        num_hidden_layers=2,
        layer_types=["full_attention", "sliding_attention"],
        use_sliding_window=True,
        sliding_window=512,
        max_window_layers=1,
    )
    assert context_of(window) == 512
    assert context_of(Qwen3Config(max_position_embeddings=4096)) == 4096


def test_a_missing_library_is_named(folder, monkeypatch):
    for library in ("torch", "transformers"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, library, None)
            with pytest.raises(MissingExtra, match=r"\[train\]"):
                load(folder)


# Adapters.

TALK = (Message("user", "You see a cabinet 1."),)
SCORE = Score(TALK, ("go to shelf 2", "take apple"))


def lora(**options):
    options = {"r": 4, "target_modules": ["q_proj", "down_proj"], **options}
    return peft.LoraConfig(task_type="CAUSAL_LM", **options)


@pytest.fixture(scope="module")
def saved(folder, tmp_path_factory):
    """Two adapters with random weights, as peft saves them."""
    folders = {}
    for seed, name in enumerate(("agent", "wm")):
        lm = HFLanguageModel(folder, device="cpu")
        lm.add_adapter("default", lora())
        torch.manual_seed(seed)
        for key, weight in lm.model.named_parameters():
            if "lora_" in key:
                weight.data.normal_(std=0.5)
        folders[name] = tmp_path_factory.mktemp(name)
        lm.model.save_pretrained(folders[name])
    return folders


@pytest.fixture
def lm(folder, saved):
    return HFLanguageModel(folder, adapters=saved, device="cpu")


def with_adapter(name):
    return Score(SCORE.messages, SCORE.completions, adapter=name)


def totals(lm, *names):
    replies = lm.score([with_adapter(name) for name in names])
    return [reply.totals for reply in replies if isinstance(reply, Scores)]


def test_adapters_answer_differently_and_the_base_is_as_without(lm, folder):
    base, agent, wm = totals(lm, None, "agent", "wm")
    assert len({base, agent, wm}) == 3
    assert base == totals(HFLanguageModel(folder, device="cpu"), None)[0]


def test_mixed_in_one_call_is_as_asked_one_by_one(lm):
    names = ["wm", None, "agent", "wm", None, "agent"]
    assert totals(lm, *names) == [totals(lm, name)[0] for name in names]
    hot = Sampling(9, temperature=1.0, seed=4)
    requests = [Generate(TALK, hot, adapter=name) for name in names]
    mixed = [reply.token_ids for reply in lm.generate(requests) if isinstance(reply, Completion)]
    single = [lm.generate([request])[0] for request in requests]
    assert mixed == [reply.token_ids for reply in single if isinstance(reply, Completion)]
    assert len(set(mixed)) == 3


def test_an_adapter_answers_as_peft_does(lm, saved):
    (prompt,) = lm._chat.prompts([SCORE])
    tokens = lm._chat.tokens(["take apple"])[0] + [lm._chat.end]
    lm.model.set_adapter("wm")
    with torch.inference_mode():
        table = lm.model(input_ids=torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
    plain = sum(float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(tokens))
    assert totals(lm, "wm")[0][1] == pytest.approx(plain, abs=1e-9)


def test_the_default_adapter_answers_who_names_none(folder, saved):
    lm = HFLanguageModel(folder, adapters=saved, adapter="wm", device="cpu")
    assert totals(lm, None) == totals(lm, "wm") != totals(lm, "agent")
    assert lm.config()["adapter"] == "wm" and lm.config()["adapters"] == ["agent", "wm"]
    with pytest.raises(LanguageModelError, match="agent, wm"):
        HFLanguageModel(folder, adapters=saved, adapter="wn", device="cpu")


def test_asking_leaves_a_training_as_it_was(lm):
    lm.add_adapter("student", lora(lora_dropout=0.5))
    model = lm.model
    model.set_adapter("student")
    next(w for w in model.parameters() if w.requires_grad).requires_grad_(False)
    model.train()

    def state():
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


def test_what_a_trainer_changes_is_what_answers(lm):
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


def changed(source, target, change):
    shutil.copytree(source, target)
    config = json.loads((target / "adapter_config.json").read_text())
    change(config)
    (target / "adapter_config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("bias", "all"),
        ("modules_to_save", ["lm_head"]),
        ("peft_type", "IA3"),
        ("target_modules", ["nowhere"]),
    ],
)
def test_what_changes_the_base_or_does_not_fit_is_refused(folder, saved, tmp_path, option, value):
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


def test_folders_that_are_no_adapters_are_refused(folder, saved, tmp_path):
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


def test_a_batch_fills_an_eighth_of_a_gpu(monkeypatch):
    memory = SimpleNamespace(total_memory=80 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    config = transformers.Qwen3Config(num_hidden_layers=28, num_key_value_heads=8, head_dim=128)
    model = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, config=config)
    rows, tokens = limits_of(model)
    token_bytes = 2 * 2 * 28 * 8 * 128  # bytes: a key and a value of every head of every layer
    assert rows == 256 and tokens * token_bytes <= 10**10 < (tokens + 1) * token_bytes
