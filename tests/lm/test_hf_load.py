from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from comap.errors import LanguageModelError, MissingExtra, OptionError
from comap.lm.base import Generate, Message, Sampling
from comap.lm.hf import HFLanguageModel
from comap.lm.hf_batch import chunks
from comap.lm.hf_load import context_of, place_of
from comap.lm.model_sums import SUMS
from comap.lm.sft import fine_tune
from comap.lm.tiny import build_tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

CORPUS = ["You see a cabinet 1, a shelf 2 and a fridge; go to take open close apple"] * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    return build_tiny(path, CORPUS, parameters=200_000, max_length=256)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy that may be changed, as models of others: nothing tells what it was."""
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / SUMS).unlink()
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fail every connection, and record it."""
    tried: list[Any] = []

    def refuse(*args: Any, **_: Any) -> Any:
        tried.append(args)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tried


def load(place: str | Path, **options: Any) -> HFLanguageModel:
    return HFLanguageModel(place, device="cpu", **options)


def edit(path: Path, **changes: Any) -> None:
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **changes}))


def refused(place: str | Path, match: str) -> None:
    with pytest.raises(LanguageModelError, match=match) as caught:
        load(place)
    assert "\n" not in str(caught.value)


def test_a_folder_is_loaded_without_the_network(folder: Path, no_network: list[Any]) -> None:
    lm = load(str(folder))
    assert not no_network
    config = lm.config()
    assert json.loads(json.dumps(config)) == config
    assert (config["name"], config["kind"], config["dtype"]) == ("tiny", "hf", "float64")
    assert str(folder.parent) not in json.dumps(config)
    assert config["parameters"] == sum(weight.numel() for weight in lm.model.parameters())
    assert lm.count_tokens("go to go") == len(lm.tokenizer.tokenize("go to go"))
    assert load(folder, name="mine").name == "mine"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_dtypes(folder: Path, dtype: str) -> None:
    lm = load(folder, dtype=dtype)
    assert lm.config()["dtype"] == dtype
    (reply,) = lm.generate([Generate((Message("user", "go"),), Sampling(3, temperature=1.0))])
    assert not isinstance(reply, LanguageModelError)


def test_auto_is_single_precision_unless_the_config_says_double(copy: Path) -> None:
    for declared, expected in (("float64", "float64"), ("bfloat16", "float32")):
        edit(copy / "config.json", dtype=declared)
        assert load(copy).config()["dtype"] == expected


def test_a_place_that_is_no_model(tmp_path: Path) -> None:
    refused(tmp_path / "missing", "found none at")
    refused(str(tmp_path / "missing"), "found none at")
    refused("../../nowhere-at-all", "found none at")
    refused(tmp_path, r"expected config\.json")
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(tmp_path, "this is an adapter")


def test_a_name_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("comap/there-is-no-such-model", "check the name and the network")


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_not_read(copy: Path, name: str) -> None:
    sign = copy.parent / "exploded"
    (copy / "model.safetensors").unlink()
    (copy / name).write_bytes(pickle.dumps(Bomb(sign)))
    refused(copy, "only pickled ones")
    assert not sign.exists()


@pytest.mark.parametrize("shard", ["pytorch_model.bin", "../../other.safetensors", 3])
def test_an_index_that_leads_elsewhere_is_refused(copy: Path, shard: Any) -> None:
    index = {"metadata": {}, "weight_map": {"model.norm.weight": shard}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(LanguageModelError, match=r"index"):
        load(copy)


def test_code_in_the_folder_is_not_run(copy: Path) -> None:
    sign = copy.parent / "ran"
    (copy / "own.py").write_text(f"import os; os.mkdir({str(sign)!r})")
    edit(copy / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})
    refused(copy, "cannot be loaded")
    assert not sign.exists()


def test_damaged_files(copy: Path) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    for wrong in (whole[: len(whole) // 2], b"", b"\xff" * 64):
        (copy / "model.safetensors").write_bytes(wrong)
        refused(copy, "damaged")
    (copy / "model.safetensors").write_bytes(whole)
    (copy / "tokenizer.json").write_text("{")
    refused(copy, "tokenizer of 'model' cannot be loaded")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", SUMS])
def test_a_changed_bit_is_told(folder: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    (copy / "notes.txt").write_text("added later: no part of the model")
    load(copy)
    content = bytearray((copy / name).read_bytes())
    place = content.index(b"256") if name == "config.json" else len(content) - 40
    content[place] ^= 1
    (copy / name).write_bytes(content)
    said = f"{name}.*in .*model; save or download it again, or if .* on purpose, remove {SUMS}"
    refused(copy, said)
    if name != SUMS:
        with pytest.raises(LanguageModelError, match=said):
            fine_tune(copy, tmp_path / "out", [])
    (copy / SUMS).unlink()
    if name in ("config.json", SUMS):
        load(copy)


def test_weights_that_are_missing_are_not_made_up(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    refused(copy, "lack 1 of its weights")


def test_a_model_without_a_chat_template(copy: Path) -> None:
    (copy / "chat_template.jinja").unlink()
    refused(copy, "chat template")


def test_a_tokenizer_of_another_model(copy: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.add_tokens(["countertop", "dishwasher"])
    tokenizer.save_pretrained(copy)
    refused(copy, "token ids below")


def test_models_without_a_past_of_keys_and_values_are_refused(copy: Path) -> None:
    from transformers import BloomConfig, BloomForCausalLM, MambaConfig, Qwen3Config

    with pytest.raises(LanguageModelError, match="attention in all layers"):
        context_of(Qwen3Config(layer_types=["linear_attention"] * 32))
    bloom = BloomForCausalLM(BloomConfig(vocab_size=400, hidden_size=8, n_layer=1, n_head=1))
    with pytest.raises(LanguageModelError, match="bloom"):
        HFLanguageModel.from_model(bloom, load(copy).tokenizer)
    edit(copy / "config.json", **MambaConfig(num_hidden_layers=1).to_dict())
    with pytest.raises(LanguageModelError):
        load(copy)


def test_a_sliding_window_bounds_the_context() -> None:
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


def test_options_are_checked(folder: Path) -> None:
    for options in (
        {"dtype": "int8"},
        {"batch_rows": 0},
        {"batch_tokens": 1.5},
        {"max_length": -1},
    ):
        with pytest.raises(OptionError):
            load(folder, **options)
    with pytest.raises(OptionError, match="device"):
        HFLanguageModel(folder, device="toaster")
    assert load(folder, max_length=100).context == 100
    assert load(folder, max_length=100_000).context == 256


def test_a_missing_library_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("torch", "transformers"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, library, None)
            with pytest.raises(MissingExtra, match=r"comap\[train\]"):
                load(folder)


def test_hub_names_and_folders_are_told_apart(folder: Path) -> None:
    assert place_of("Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
    assert place_of(str(folder)) == folder


def test_chunks_hold_everything_once_within_their_bounds() -> None:
    lengths = [5, 100, 7, 7, 300, 1, 50, 8]
    found = chunks(lengths, 3, 120)
    assert sorted(i for chunk in found for i in chunk) == list(range(len(lengths)))
    for chunk in found:
        widest = max(lengths[i] for i in chunk)
        assert len(chunk) == 1 or (len(chunk) <= 3 and len(chunk) * widest <= 120)
