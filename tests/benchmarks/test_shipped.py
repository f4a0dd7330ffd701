"""The models that comap ships are those of today's recipe, and come with all that says what they are."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import comap
from comap.benchmarks.experiments.definition import ResultRow, write_rows
from comap.lm import shipped_models
from comap.lm.create import model_folder
from comap.trainers.comap.config import preset

RECORD = model_folder() / "training.json"
PROGRAM = Path(comap.__file__).parent / "benchmarks" / "measure" / "shipped.py"


@pytest.fixture(scope="module")
def shipped():
    """The program, which is not in the package."""
    spec = importlib.util.spec_from_file_location("shipped", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


@pytest.mark.skipif(not RECORD.is_file(), reason="this comap was built without its models")
def test_the_shipped_models_can_be_made_again(shipped):
    record = json.loads(RECORD.read_text("utf-8"))
    assert record["command"] == shipped.COMMAND
    assert record["configuration"] == shipped.training().config_hash


def test_models_come_with_settings_a_record_and_a_card(shipped, stand_ins, tmp_path):
    """Of jobs as they lie in a folder, without the hour that they take."""
    job = tmp_path / "jobs" / shipped.training().id / "out"
    job.parent.mkdir(parents=True)
    shutil.copytree(stand_ins / "alfworld", job / "models")
    described = {
        "config": preset("tiny", temperature=0.5).describe(),
        "env": {
            "id": "comap/ALFWorld-v0",
            "options": {"max_episode_steps": 9, "expert": "explore"},
        },
    }
    (job / "run.json").write_text(
        json.dumps({"format": "comap training 2", "described": described}), "utf-8"
    )
    job_record = {
        "recipe": "lab-shipped-masked",
        "date": "2027-01-01",
        "hardware": {"cpu": "a CPU"},
    }
    (job.parent / "job.json").write_text(json.dumps(job_record))
    (job / "summary.json").write_text(json.dumps({"stages": {"one": {"cpu_seconds": 7.4}}}))
    row = ResultRow(
        experiment="lab-shipped",
        method="CoMap",
        metric="success_rate",
        value=61.0,
        low=57.6,
        high=64.3,
        n=800,
    )
    write_rows(tmp_path / "rows.jsonl", [row, replace(row, split="train")])
    record = shipped.ship(tmp_path, tmp_path / "made" / "alfworld")
    models = shipped_models(root=tmp_path / "made")
    assert models.settings["env_options"] == {"max_episode_steps": 9}
    assert models.settings["agent"]["temperature"] == 0.5 and record["cpu_seconds"] == 7
    assert record["trainings"] == {"lab-shipped-masked": {"date": "2027-01-01", "cpu": "a CPU"}}
    card = (models.folder / "CARD.md").read_text("utf-8")
    assert "| CoMap | 61.0 [57.6, 64.3] | 800 |" in card and shipped.COMMAND in card
