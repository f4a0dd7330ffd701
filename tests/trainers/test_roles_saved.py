"""Roles that are copied, saved and loaded, through kills and full disks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comap.envs.conformance.transcripts import load
from comap.errors import DataCorrupt, DataNotFound, LanguageModelError, OptionError
from comap.lm.hf import HFLanguageModel
from comap.lm.tiny import build_tiny
from comap.trainers.roles import ROLES, Roles

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

kit = load(f"{Path(__file__).with_name('roles_kit.py')}:KIT")
CORPUS, KINDS, LORA = kit.CORPUS, kit.KINDS, kit.LORA
answers, batch_of, everything, flags = kit.answers, kit.batch_of, kit.everything, kit.flags
folder, learn, opened, same = kit.folder, kit.learn, kit.opened, kit.same


# -- copies, saved and loaded ----------------------------------------------------------------------


@KINDS
def test_weights_are_copied_exactly(folder: Path, kind: str) -> None:
    roles = opened(folder, kind)
    learn(roles, "agent")
    state = roles.state("agent")
    roles.copy("agent", "wm_ema")
    assert same(roles.state("wm_ema"), state)
    roles.load("wm", state)
    assert same(roles.state("wm"), state)
    learn(roles, "agent")
    assert same(roles.state("wm_ema"), state) and not same(roles.state("agent"), state)


@KINDS
def test_weights_that_are_not_a_roles_are_refused(folder: Path, kind: str) -> None:
    roles = opened(folder, kind)
    before, state = roles.state("wm"), roles.state("agent")
    first = next(iter(state))
    wrong = [
        {name: weight for name, weight in state.items() if name != first},
        {**state, "other": state[first]},
        {**state, first: state[first].flatten()},
    ]
    for found, words in zip(wrong, ("1 weights are missing", "1 have no", "shape"), strict=True):
        with pytest.raises(DataCorrupt, match=words):
            roles.load("wm", found)
    assert same(roles.state("wm"), before)


@KINDS
def test_what_is_saved_is_opened_again_exactly(folder: Path, kind: str, tmp_path: Path) -> None:
    roles = opened(folder, kind)
    learn(roles, "agent")
    learn(roles, "wm", steps=3)
    roles.module("wm").train()
    before = flags(roles)
    saved = roles.save(tmp_path / "out")
    assert flags(roles) == before
    roles.module("wm").eval()  # dropout is not the same twice
    again = opened(folder, kind, saved=saved)
    assert all(same(roles.state(role), again.state(role)) for role in roles.names)
    learn(roles, "wm")
    learn(again, "wm")
    assert all(same(roles.state(role), again.state(role)) for role in roles.names)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["out"], "nothing is left beside it"


@KINDS
def test_what_is_saved_is_the_same_bytes_and_names_no_path(
    folder: Path, kind: str, tmp_path: Path
) -> None:
    one = opened(folder, kind).save(tmp_path / "one")
    other = opened(folder, kind).save(tmp_path / "other")
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    for path in files:
        content = (one / path).read_bytes()
        assert content == (other / path).read_bytes(), path
        assert str(folder.parent).encode() not in content, path


def test_a_saved_adapter_is_loaded_by_others(folder: Path, tmp_path: Path) -> None:
    roles = opened(folder, "lora")
    learn(roles, "wm", steps=4)
    saved = roles.save(tmp_path / "out")
    asked = batch_of(["wm"])
    expected = answers(roles.language_model(), asked)
    lm = HFLanguageModel(folder, adapters={"wm": saved / "wm"}, device="cpu")
    assert answers(lm, asked) == expected
    model = HFLanguageModel(folder, device="cpu").model
    loaded = peft.PeftModel.from_pretrained(model, saved / "wm")
    found = {
        name.split("base_model.model.")[1].replace(".default", ""): weight
        for name, weight in loaded.named_parameters()
        if ".lora_" in name
    }
    assert all(torch.equal(found[name], weight) for name, weight in roles.state("wm").items())


def test_a_saved_model_is_loaded_by_others_and_keeps_its_precision(tmp_path: Path) -> None:
    double = build_tiny(tmp_path / "m", CORPUS, parameters=200_000, dtype="float64")
    roles = opened(double, "full")
    learn(roles, "wm", steps=4)
    saved = roles.save(tmp_path / "out", ["wm"])
    assert json.loads((saved / "wm" / "config.json").read_text())["dtype"] == "float64"
    lm = HFLanguageModel(saved / "wm", device="cpu")
    asked = batch_of(["wm"])
    bare = [replace(request, adapter=None) for request in asked]
    assert answers(lm, bare) == answers(roles.language_model(exact=True), asked)


@KINDS
def test_a_teacher_that_was_not_saved_is_its_student(
    folder: Path, kind: str, tmp_path: Path
) -> None:
    roles = opened(folder, kind)
    learn(roles, "wm")
    saved = roles.save(tmp_path / "out", ["agent", "wm"])
    again = opened(folder, kind, saved=saved)
    assert same(again.state("wm_ema"), roles.state("wm"))
    shutil.rmtree(saved / "wm")
    with pytest.raises(DataNotFound, match="found no 'wm'"):
        opened(folder, kind, saved=saved)


def test_adapters_that_were_saved_with_other_options_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    saved = opened(folder, "lora").save(tmp_path / "out")
    again = Roles.open(folder, kind="lora", device="cpu", saved=saved)
    assert again.module("wm").peft_config["wm_ema"].r == 2
    with pytest.raises(OptionError, match="option r=4, found 2"):
        Roles.open(folder, kind="lora", device="cpu", saved=saved, lora={**LORA, "r": 4})
    (saved / "wm" / "adapter_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(
        LanguageModelError, match=r"adapter_model\.safetensors of .* found 10 bytes"
    ):
        Roles.open(folder, kind="lora", device="cpu", saved=saved)
    (saved / "wm" / "checksums.json").unlink()
    with pytest.raises(LanguageModelError, match="cannot be loaded"):
        Roles.open(folder, kind="lora", device="cpu", saved=saved)


# -- a process that is killed ----------------------------------------------------------------------


class Killed(BaseException):
    """What no code catches."""


def dies_at(monkeypatch: pytest.MonkeyPatch, rename: int) -> None:
    """Let the process die instead of doing its n-th rename."""
    real, done = Path.replace, []

    def replace(self: Path, target: Any) -> Path:
        done.append(target)
        if len(done) == rename:
            raise Killed
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # the dead clean nothing up


@KINDS
@pytest.mark.parametrize("rename", [1, 2])
def test_a_kill_leaves_the_old_whole(
    folder: Path, kind: str, rename: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = opened(folder, kind)
    out = roles.save(tmp_path / "out")
    (out / "note.txt").write_text("stays")
    old = everything(roles)
    learn(roles, "agent")
    with monkeypatch.context() as patch:
        dies_at(patch, rename)
        with pytest.raises(Killed):
            roles.save(out)
    again = opened(folder, kind, saved=out)
    assert all(same(again.state(role), old[role]) for role in ROLES)
    roles.save(out)
    again = opened(folder, kind, saved=out)
    assert all(same(again.state(role), roles.state(role)) for role in ROLES)
    assert (out / "note.txt").read_text() == "stays"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_kill_while_writing_leaves_the_old_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch

    roles = opened(folder, "lora")
    out = roles.save(tmp_path / "out")
    old = everything(roles)
    learn(roles, "agent")
    real = safetensors.torch.save_file

    def half(tensors: Any, path: Path, metadata: Any) -> None:
        real(tensors, path, metadata)
        if path.parent.name == "wm":
            raise Killed

    monkeypatch.setattr(safetensors.torch, "save_file", half)
    with pytest.raises(Killed):
        roles.save(out)
    again = opened(folder, "lora", saved=out)
    assert all(same(again.state(role), old[role]) for role in ROLES)


def test_a_part_is_saved_and_the_rest_stays(folder: Path, tmp_path: Path) -> None:
    roles = opened(folder, "lora")
    out = roles.save(tmp_path / "out")
    old = everything(roles)
    learn(roles, "agent")
    learn(roles, "wm")
    roles.save(out, ["wm"])
    again = opened(folder, "lora", saved=out)
    assert same(again.state("agent"), old["agent"])
    assert same(again.state("wm"), roles.state("wm"))


def test_a_disk_that_does_not_let_it_is_told(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OptionError, match="cannot write into"):
        opened(folder, "lora").save(tmp_path / "file" / "out")
