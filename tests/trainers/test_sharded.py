"""Weights that two processes share: trained as by one process, and whole again after each stage."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from comap.envs.conformance.transcripts import load
from comap.errors import OptionError
from comap.trainers.arguments import Optimization, trainer_arguments
from comap.trainers.learning import learn
from comap.trainers.sharded import (
    Shards,
    check_sharding,
    forget_sharding,
    local_shards,
    wants_shards,
    whole_head,
)

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("torch.distributed.fsdp", reason="this torch cannot share weights")

FOLDER = Path(__file__).parent
processes = load(f"{Path(__file__).with_name('process_kit.py')}:KIT")
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "Qwen3DecoderLayer",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}


def loaded(name: str) -> ModuleType:
    """A script of this folder, as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


learning = loaded("learning")  # which the other script imports
sharing = loaded("sharing")
STAGES = [*sharing.STAGES, "half"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = learning.model_folder(tmp_path_factory.mktemp("models") / "tiny")
    return folder


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process ends as, without FSDP."""
    before = dict(os.environ)
    try:
        found: dict[str, Any] = sharing.learned(model, tmp_path_factory.mktemp("alone"))
    finally:
        os.environ.clear()
        os.environ.update(before)
    return found


@pytest.fixture(scope="module")
def together(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes ends as that share the weights."""
    out = tmp_path_factory.mktemp("together")
    processes.together(FOLDER / "sharing.py", str(model), str(out), env=FSDP)
    return [torch.load(out / f"found-{rank}.pt", weights_only=True) for rank in (0, 1)]


@processes.needs_gloo
@pytest.mark.parametrize("stage", STAGES)
def test_sharing_weights_changes_nothing_that_is_learned(
    stage: str, alone: dict[str, Any], together: list[dict[str, Any]]
) -> None:
    """Warm-up; distillation and its teacher; a policy and its head; distillation in half precision."""
    one = alone[stage]
    trained = one["weights"]["agent" if stage == "policy" else "wm"]
    assert max(w.abs().max() for name, w in trained.items() if "lora_B" in name) > 1e-3
    for two in (found[stage] for found in together):
        assert len(two["log"]) == len(one["log"]) >= 2
        for line, other in zip(one["log"], two["log"], strict=True):
            assert line == pytest.approx(other, rel=1e-6, abs=1e-6)
        assert one["weights"].keys() == two["weights"].keys()
        for part, named in one["weights"].items():
            for name, weight in named.items():
                other = two["weights"][part][name]
                assert (weight - other).abs().max() < 1e-6, (part, name)


@processes.needs_gloo
@pytest.mark.parametrize("stage", STAGES)
def test_models_are_whole_between_stages(
    stage: str, alone: dict[str, Any], together: list[dict[str, Any]]
) -> None:
    """No weight of the base differs by a bit, and nothing of the sharing is left on the models."""
    first, second = (found[stage] for found in together)
    for two in (first, second):
        assert two["changed"] == [] == alone[stage]["changed"]
        assert two["answers"] == alone[stage]["answers"]
        assert two["checkpoints"] == 0 < alone[stage]["checkpoints"]
    assert {seen[0] > 1 for seen in first["seen"]} == {True}  # modules are wrapped,
    assert {seen[1:] for seen in first["seen"]} == {(1.0, 1.0)}  # and whole weights are let go
    assert set(alone[stage]["seen"]) == {(0, 0.0, 0.0)}


@pytest.fixture
def fsdp(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in FSDP.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.mark.parametrize(
    ("name", "value", "kind", "message"),
    [
        ("FSDP_VERSION", "1", "lora", "expected FSDP2, found FSDP1: set fsdp_version: 2"),
        ("FSDP_OFFLOAD_PARAMS", "true", "lora", "set fsdp_offload_params: false"),
        ("FSDP_CPU_RAM_EFFICIENT_LOADING", "1", "lora", "fsdp_cpu_ram_efficient_loading: false"),
        ("FSDP_VERSION", "2", "full", "found whole models and FSDP"),
    ],
)
def test_other_ways_of_sharing_are_refused(
    fsdp: pytest.MonkeyPatch, name: str, value: str, kind: str, message: str
) -> None:
    check_sharding("lora")
    assert wants_shards()
    fsdp.setenv(name, value)
    with pytest.raises(OptionError, match=message):
        check_sharding(kind)
    fsdp.setenv("ACCELERATE_USE_FSDP", "false")
    check_sharding(kind)


def test_a_trainer_refuses_to_share_whole_models(
    fsdp: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    roles = learning.opened(model, "full")
    with pytest.raises(OptionError, match="use weights 'lora'"):
        learning.make("warm_up", roles, tmp_path)


def test_with_fsdp_there_are_no_checkpoints(fsdp: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = {"accumulate": 2, "seed": 0, "save_steps": 100, "device": "cpu"}
    assert trainer_arguments(tmp_path, Optimization(), **told).save_strategy == "no"
    fsdp.delenv("ACCELERATE_USE_FSDP")
    assert trainer_arguments(tmp_path, Optimization(), **told).save_strategy == "steps"


def test_the_first_stage_already_refuses_to_predict_anew_each_epoch(
    fsdp: pytest.MonkeyPatch,
) -> None:
    config = SimpleNamespace(fresh_per="epoch", world_model_epochs=3, distill_on="rollout", eta=0.5)
    session: Any = SimpleNamespace(config=config, roles=SimpleNamespace(kind="lora"))
    stage: Any = SimpleNamespace(name="warm-up")
    with pytest.raises(OptionError, match="set fresh_per to 'round'"):
        learn(session, stage, "wm", [], 1e-3, warm_up=True)


def test_weights_are_put_back_where_they_were_in_all_their_places() -> None:
    """Two layers of one weight, of which another has taken the place, and one that nobody touched."""
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False) for _ in range(3)])
    model[1].weight = model[0].weight
    whole, left = model[0].weight, model[2].weight
    shards = Shards(model)
    model[0].weight = model[1].weight = torch.nn.Parameter(torch.full((2, 2), 3.0))
    shards.begin()
    assert whole.numel() == 0 and left.numel() == 4
    now = shards.of({"b": left, "a": whole})
    assert list(now) == ["b", "a"] and now["a"] is model[0].weight and now["b"] is left
    with torch.no_grad():
        local_shards(now)[1].mul_(2)
    shards.gather()
    assert model[0].weight is whole is model[1].weight and model[2].weight is left
    assert whole.tolist() == [[6.0, 6.0]] * 2 and whole.is_leaf


def test_an_output_layer_must_be_a_frozen_matrix() -> None:
    layer = torch.nn.Linear(2, 3)
    with pytest.raises(OptionError, match="leave it out of LoRA's targets"):
        whole_head(layer)
    with pytest.raises(OptionError, match="found a Sequential"):
        whole_head(torch.nn.Sequential(layer))
    head, hidden = whole_head(layer.requires_grad_(False)), torch.ones(1, 2, requires_grad=True)
    assert head(hidden).tolist() == layer(hidden).tolist()
    head(hidden).sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.tolist() == [pytest.approx(layer.weight.sum(0).tolist())]


def test_a_model_that_was_never_wrapped_has_nothing_to_forget() -> None:
    forget_sharding(torch.nn.Linear(1, 1))
