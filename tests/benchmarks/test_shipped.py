"""The command that makes the shipped models is the one that made them."""

from __future__ import annotations

import json

import pytest

from comap.benchmarks.coevolution_rows import BASE, training_of
from comap.benchmarks.shipped import MADE_WITH
from comap.lm.shipped import model_folder

RECORD = model_folder() / "training.json"


@pytest.mark.skipif(not RECORD.is_file(), reason="this comap was built without its models")
def test_the_shipped_models_can_be_made_again() -> None:
    record = json.loads(RECORD.read_text("utf-8"))
    assert record["command"] == f"comap bench shipped --seed {record['seed']}"
    settings = training_of(BASE, record["seed"], MADE_WITH).describe()
    since = {"suffix_temperature"}  # settings that came later, at what was done before them
    assert {name: value for name, value in settings.items() if name not in since} == record[
        "training"
    ]
    assert settings["suffix_temperature"] == 0.0
