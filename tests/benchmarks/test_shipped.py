"""The command that makes the shipped models is the one that made them, and works at the smallest size."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from comap.benchmarks.shipped import WarmUp, make
from comap.lm.create import model_folder
from comap.trainers.comap.config import preset
from comap.trainers.config import presets

RECORD = model_folder() / "training.json"
SMALL = {
    "concurrency": 8,
    "logging_steps": 1,
    "reflection_tasks": 2,
    "states_per_episode": 1,
    "init_epochs": 1,
    "rounds": 1,
    "tasks_per_round": 2,
    "evaluation_tasks": 1,
    "final_tasks": 2,
    "frozen_transitions": 8,
    "diagnosed": 2,
    "predict_tokens": 16,
    "reflect_tokens": 12,
    "draft_tokens": 8,
}


@pytest.mark.skipif(not RECORD.is_file(), reason="this comap was built without its models")
def test_the_shipped_models_can_be_made_again():
    record = json.loads(RECORD.read_text("utf-8"))
    assert record["command"] == f"comap bench shipped --seed {record['seed']}"
    settings = leaves(preset("tiny", **presets("shipped")["comap"], seed=record["seed"]).describe())
    shared = settings.keys() & record["training"].keys()  # the record is older than some settings
    assert len(shared) > 50
    assert {name: settings[name] for name in shared} == {
        name: record["training"][name] for name in shared
    }
    assert settings["suffix_temperature"] == 0.0


def leaves(described):
    """Return nested settings by their last names."""
    found = {}
    for name, value in described.items():
        found |= leaves(value) if isinstance(value, dict) else {name: value}
    return found


def test_models_come_with_settings_a_record_and_a_card(tmp_path):
    warm = WarmUp(
        tasks=4,
        parameters=200_000,
        policy_tokens=4000,
        world_model_tokens=4000,
        max_episode_steps=4,
        side_tasks=2,
    )
    record = make(tmp_path / "run", 0, tmp_path / "models", warm, SMALL)
    card = (tmp_path / "models" / "CARD.md").read_text("utf-8")
    assert "comap bench shipped --seed 0" in card
    assert {"agent", "wm", "settings.json", "training.json"} <= {
        path.name for path in (tmp_path / "models").iterdir()
    }
    assert record["evaluation"]["splits"]["valid_seen"]["n"] == 2
