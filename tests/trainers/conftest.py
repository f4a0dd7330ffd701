"""Untrained models that tests of trainers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from comap.envs.conformance.transcripts import load

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A model of a few words, for trainings on rows that are made up."""
    return load(f"{HERE / 'learning.py'}:model_folder")(tmp_path_factory.mktemp("a") / "tiny")


@pytest.fixture(scope="session")
def player(tmp_path_factory):
    """A model that knows the words of ALFWorld, for whole trainings."""
    return load(f"{HERE / 'training_kit.py'}:model_at")(tmp_path_factory.mktemp("b") / "model")
