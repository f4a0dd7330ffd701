"""Untrained models that tests of trainers share."""

from __future__ import annotations

import pytest

from kits import learning, trainings


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A model of a few words, for trainings on rows that are made up."""
    return learning.model_folder(tmp_path_factory.mktemp("a") / "tiny")


@pytest.fixture(scope="session")
def player(tmp_path_factory):
    """A model that knows the words of ALFWorld, for whole trainings."""
    return trainings.model_at(tmp_path_factory.mktemp("b") / "model")
