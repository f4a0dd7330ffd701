"""The models that comap ships: where they are, how they are found, and that they can act."""

from __future__ import annotations

import importlib
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import comap
from comap.agents import run_episodes
from comap.agents.create import create_agent
from comap.envs.conformance.transcripts import load
from comap.envs.panel import evenly
from comap.errors import DataCorrupt, DataNotFound, MissingExtra, OptionError
from comap.lm import shipped as module
from comap.lm.base import Generate, Message, Sampling
from comap.lm.create import create_language_model
from comap.lm.shipped import check_packages, folder_of, full_name, model_folder, shipped
from comap.worldmodel.language import LanguageWorldModel

STAND_IN = f"{Path(__file__).with_name('shipped_stand_in.py')}:stand_in"
ROOT = Path(comap.__file__).parent
REAL = model_folder()
TASKS, LEAST_WINS = 6, 3  # of so many generated tasks that the models were not trained on

needs_weights = pytest.mark.skipif(
    not (REAL / "settings.json").is_file(), reason="this comap was built without its models"
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    place: Path = load(STAND_IN)(tmp_path_factory.mktemp("models"))
    return place


def test_everything_is_found(root: Path) -> None:
    found = shipped("alfworld", root)
    assert found.folder == root / "alfworld" == model_folder(root=root)
    assert found.agent.name == "agent" and found.world_model.name == "wm"
    assert found.head.is_file() and found.settings["agent"]["tau_p"] == 0.4


def test_the_number_of_parameters_is_the_models_own(root: Path) -> None:
    from transformers import AutoModelForCausalLM

    found = shipped("alfworld", root)
    model = AutoModelForCausalLM.from_pretrained(found.agent)
    assert found.parameters == model.num_parameters()


def test_they_are_language_models_by_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_package_folder", lambda: root)
    ask = Generate((Message("user", "Is the fridge open?"),), Sampling(2))
    for spec, name in {
        "shipped": "shipped:agent",
        " shipped:agent ": "shipped:agent",
        "shipped:wm": "shipped:wm",
    }.items():
        lm = create_language_model(spec, device="cpu")
        assert lm.name == name and lm.config()["model"] == name.partition(":")[2]
        assert str(root) not in json.dumps(lm.config()) and len(lm.generate([ask])) == 1
    assert create_language_model("shipped", name="mine", dtype="float32").name == "mine"


def test_other_names_are_no_shipped_models() -> None:
    names = ("tiny", "ship", "./shipped", "shippedx", "http://h/v1#shipped")
    assert {full_name(name) for name in names} == {None}
    for spec in ("shipped:", "shipped:head", "shipped:../agent"):
        with pytest.raises(OptionError, match="shipped:agent or shipped:wm"):
            create_language_model(spec)
    with pytest.raises(OptionError, match="found 'tiny'"):
        folder_of("tiny")
    for name in ("alfword", "../alfworld", ""):
        with pytest.raises(DataNotFound, match="alfworld"):
            shipped(name)


@pytest.mark.parametrize(
    "file", ["settings.json", "agent/model.safetensors", "wm/model.safetensors", "head.safetensors"]
)
def test_a_package_without_them_says_so(root: Path, tmp_path: Path, file: str) -> None:
    folder = tmp_path / "alfworld"
    for part in ("agent", "wm"):
        (folder / part).mkdir(parents=True)
        (folder / part / "model.safetensors").touch()
    (folder / "head.safetensors").touch()
    (folder / "settings.json").write_text('{"agent": {}, "world_model": {}}')
    assert shipped(root=tmp_path).settings == {"agent": {}, "world_model": {}}
    (folder / file).unlink()
    with pytest.raises(DataNotFound, match=rf"found no {re.escape(file)}; .*--model"):
        shipped(root=tmp_path)


@pytest.mark.parametrize(
    "settings", [b"", b"[]", b"{}", b'{"agent": {}}', b'{"agent": {}, "world_model": 3}', b"\xff"]
)
def test_damaged_settings_are_told(tmp_path: Path, root: Path, settings: bytes) -> None:
    folder = tmp_path / "alfworld"
    folder.mkdir()
    for name in ("agent", "wm", "head.safetensors"):
        (folder / name).symlink_to(root / "alfworld" / name)
    (folder / "settings.json").write_bytes(settings)
    with pytest.raises(DataCorrupt, match="install comap again"):
        shipped(root=tmp_path)


@pytest.mark.parametrize("weights", [b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]"])
def test_damaged_weights_are_told(tmp_path: Path, weights: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(weights)
    with pytest.raises(DataCorrupt, match=r"model\.safetensors"):
        print(module.Shipped(tmp_path, tmp_path, tmp_path, file, {}).parameters)


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_missing_packages_are_told_before_anything_is_loaded(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"comap\[local\]"):
        check_packages()


def test_the_package_data_covers_every_file() -> None:
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = toml.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["comap.lm"]
    covered = {path for pattern in patterns for path in (ROOT / "lm").glob(pattern)}
    files = {path for path in (ROOT / "lm" / "models").rglob("*") if path.is_file()}
    assert files and files <= covered
    extras = project["project"]["optional-dependencies"]
    assert [line.partition(">")[0] for line in extras["local"]] == ["torch", "transformers"]
    assert set(extras["local"]) <= set(extras["train"]), "the same versions"


@needs_weights
def test_the_real_ones_are_small_and_safe() -> None:
    files = [path for path in REAL.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 10 * 1024**2
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".jinja", ".md"}
    assert not [path for path in files if path.is_symlink()]
    assert "comap bench shipped" in (REAL / "CARD.md").read_text("utf-8")
    for path in files:
        if path.suffix != ".safetensors":
            told = path.read_text("utf-8")
            assert not re.search(r"/(tmp|home|root|work|Users)/", told), f"{path}: a machine's path"
    assert shipped().settings["env"] == "comap/ALFWorld-v0"
    assert 200_000 <= shipped().parameters <= 1_200_000


@needs_weights
def test_the_real_ones_win_tasks_they_have_not_seen() -> None:
    pytest.importorskip("torch")
    found = shipped()
    make_env = partial(gym.make, "comap/ALFWorld-v0", split="valid_unseen", source="generated")
    episodes = run_episodes(
        make_env,
        create_agent("comap", **found.settings["agent"], head=found.head),
        evenly(make_env().unwrapped.tasks.ids, TASKS),
        lm=create_language_model("shipped:agent", device="cpu"),
        world_model=LanguageWorldModel(
            create_language_model("shipped:wm", device="cpu"), **found.settings["world_model"]
        ),
    )
    assert not [episode.error for episode in episodes if episode.error]
    assert sum(episode.success for episode in episodes) >= LEAST_WINS
    notes = [step.notes for episode in episodes for step in episode.steps]
    assert {note["path"] for note in notes} & {"reflected"}
