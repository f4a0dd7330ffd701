"""The models that comap ships: where they are, how they are found, and that they can act."""

from __future__ import annotations

import json
import re
import tomllib
from functools import partial
from pathlib import Path

import gymnasium as gym
import pytest

import comap
from comap.agents import run_episodes
from comap.agents.create import create_agent
from comap.envs.panel import evenly
from comap.errors import DataNotFound, OptionError
from comap.lm import Generate, Message, Sampling, create_language_model, shipped_models
from comap.lm import create as module
from comap.lm.create import model_folder
from comap.worldmodel.language import LanguageWorldModel

ROOT = Path(comap.__file__).parent
REAL = model_folder()
STEPS = 4

needs_weights = pytest.mark.skipif(
    not (REAL / "settings.json").is_file(), reason="this comap was built without its models"
)


def test_everything_is_found(stand_ins):
    from safetensors.torch import load_file

    models = shipped_models("alfworld", stand_ins)
    assert models.folder == stand_ins / "alfworld" == model_folder(root=stand_ins)
    assert models.agent.name == "agent" and models.world_model.name == "wm"
    assert models.settings["agent"]["tau_p"] == 0.4
    weights = load_file(models.agent / "model.safetensors")
    assert models.parameters == sum(weight.numel() for weight in weights.values())


def test_they_are_language_models_by_name(stand_ins, monkeypatch):
    monkeypatch.setattr(module, "_package_folder", lambda: stand_ins)
    ask = Generate((Message("user", "Is the fridge open?"),), Sampling(2))
    for spec, name in {
        "shipped": "shipped:agent",
        " shipped:agent ": "shipped:agent",
        "shipped:wm": "shipped:wm",
    }.items():
        lm = create_language_model(spec, device="cpu")
        assert lm.name == name and lm.config()["model"] == name.partition(":")[2]
        assert str(stand_ins) not in json.dumps(lm.config()) and len(lm.generate([ask])) == 1
    assert create_language_model("shipped", name="mine", dtype="float32").name == "mine"


def test_other_names_are_no_shipped_models():
    for spec in ("shipped:", "shipped:head", "shipped:../agent"):
        with pytest.raises(OptionError, match="shipped:agent or shipped:wm"):
            create_language_model(spec)
    for name in ("alfword", "../alfworld", ""):
        with pytest.raises(DataNotFound, match="alfworld"):
            shipped_models(name)


@pytest.mark.parametrize(
    "file", ["settings.json", "agent/model.safetensors", "wm/model.safetensors"]
)
def test_a_package_without_them_says_so(tmp_path, file):
    folder = tmp_path / "alfworld"
    for part in ("agent", "wm"):
        (folder / part).mkdir(parents=True)
        (folder / part / "model.safetensors").touch()
    (folder / "settings.json").write_text('{"agent": {}, "world_model": {}}')
    assert shipped_models(root=tmp_path).settings == {"agent": {}, "world_model": {}}
    (folder / file).unlink()
    with pytest.raises(DataNotFound, match=rf"found no {re.escape(file)}; .*--model"):
        shipped_models(root=tmp_path)


def test_the_package_data_covers_every_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["comap.lm"]
    covered = {path for pattern in patterns for path in (ROOT / "lm").glob(pattern)}
    files = {path for path in (ROOT / "lm" / "models").rglob("*") if path.is_file()}
    assert files and files <= covered
    extras = project["project"]["optional-dependencies"]
    assert [line.partition(">")[0] for line in extras["local"]] == ["torch", "transformers"]
    assert set(extras["local"]) <= set(extras["train"]), "the same versions"


@needs_weights
def test_the_real_ones_are_small_and_safe():
    files = [path for path in REAL.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 10 * 1024**2
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".jinja", ".md"}
    assert not [path for path in files if path.is_symlink()]
    assert "python benchmarks/measure/shipped.py" in (REAL / "CARD.md").read_text("utf-8")
    for path in files:
        if path.suffix != ".safetensors":
            text = path.read_text("utf-8")
            assert not re.search(r"/(tmp|home|root|work|Users)/", text), f"{path}: a machine's path"
    assert shipped_models().settings["env"] == "comap/ALFWorld-v0"
    assert 200_000 <= shipped_models().parameters <= 1_200_000


@needs_weights
def test_the_real_ones_play():
    pytest.importorskip("torch")
    models = shipped_models()
    make_env = partial(
        gym.make,
        "comap/ALFWorld-v0",
        split="valid_unseen",
        source="generated",
        max_episode_steps=STEPS,
    )
    episodes = run_episodes(
        make_env,
        create_agent("comap", **models.settings["agent"]),
        evenly(make_env().unwrapped.tasks.ids, 1),
        lm=create_language_model("shipped:agent", device="cpu"),
        world_model=LanguageWorldModel(
            create_language_model("shipped:wm", device="cpu"), **models.settings["world_model"]
        ),
    )
    assert not [episode.error for episode in episodes if episode.error]
    assert all(episode.success or len(episode.steps) == STEPS for episode in episodes)
    steps = [step for episode in episodes for step in episode.steps]
    assert {step.notes["path"] for step in steps} == {"reflected"}
    assert not [step.action for step in steps if step.invalid_action], "all actions are admissible"
