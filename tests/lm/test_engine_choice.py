"""Which engine runs a Hugging Face model, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from comap.errors import MissingExtra, OptionError
from comap.lm import EngineChoice, HFLanguageModel, create_language_model, resolved_engine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that sets what this machine has."""

    def set_up(vllm: bool, gpu: bool) -> None:
        monkeypatch.setattr("comap.lm.engine_choice.has_vllm", lambda: vllm)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)

    return set_up


@pytest.mark.parametrize(
    ("vllm", "gpu", "choice"),
    [
        (False, False, EngineChoice("hf", "vLLM is not installed")),
        (False, True, EngineChoice("hf", "vLLM is not installed")),
        (True, False, EngineChoice("hf", "there is no CUDA GPU")),
        (True, True, EngineChoice("vllm", "it is installed and there is a CUDA GPU")),
    ],
)
def test_auto_takes_vllm_where_it_can_run(
    machine: Any, vllm: bool, gpu: bool, choice: EngineChoice
) -> None:
    machine(vllm, gpu)
    assert resolved_engine() == resolved_engine("auto") == choice
    assert resolved_engine("hf").name == "hf"
    assert resolved_engine("http://127.0.0.1:8000").name == "vllm"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"device": "cpu"}, "hf"),
        ({"device": "cuda:1"}, "hf"),
        ({"dtype": "float64"}, "hf"),
        ({"batch_rows": 8}, "hf"),
        ({"device": "cuda", "dtype": "bfloat16", "max_length": 512}, "vllm"),
        ({"device": "auto", "eager": True}, "vllm"),
    ],
)
def test_options_of_hf_decide_for_it(machine: Any, options: dict[str, Any], name: str) -> None:
    machine(vllm=True, gpu=True)
    choice = resolved_engine("auto", options)
    assert choice.name == name
    assert name == "vllm" or next(iter(options)) in choice.why


def test_vllm_that_is_named_must_be_installed(machine: Any) -> None:
    machine(vllm=False, gpu=True)
    with pytest.raises(MissingExtra, match=r"pip install .*\[vllm\]"):
        resolved_engine("vllm")


def test_a_folder_called_vllm_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comap.lm.engine_choice import has_vllm

    (tmp_path / "vllm").mkdir()
    before = has_vllm()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert has_vllm() == before


@pytest.mark.parametrize("engine", ["vllm", "http://127.0.0.1:1"])
@pytest.mark.parametrize("spec", ["tiny", "shipped", "replay:x", "http://127.0.0.1:1/v1#m"])
def test_other_models_are_refused(engine: str, spec: str) -> None:
    with pytest.raises(OptionError, match=r"runs a Hugging Face model.*leave the engine out"):
        create_language_model(spec, engine=engine)


def test_other_models_have_an_engine_of_their_own(machine: Any) -> None:
    machine(vllm=True, gpu=True)
    assert isinstance(
        create_language_model("shipped", engine="auto", device="cpu"), HFLanguageModel
    )


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("vlm", {}, "did you mean 'vllm'"),
        ("vllm", {"device": "cpu"}, "no device, found 'cpu'"),
        ("vllm", {"dtype": "float64"}, "dtype cannot be 'float64'"),
        ("vllm", {"batch_rows": 8}, "no option 'batch_rows'"),
        ("http://127.0.0.1:1", {"device": "cuda"}, "no device, found 'cuda'"),
        ("http://127.0.0.1:1", {"dtype": "float32"}, "no dtype, found 'float32'"),
    ],
)
def test_what_the_engine_cannot_have_is_refused(
    machine: Any, engine: str, options: dict[str, Any], message: str
) -> None:
    machine(vllm=True, gpu=True)
    with pytest.raises(OptionError, match=message):
        create_language_model("Qwen/Qwen3-0.6B", engine=engine, **options)
