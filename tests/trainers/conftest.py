"""Untrained models that tests of trainers share."""

from __future__ import annotations

import pytest

from kits import learning, processes, trainings


@pytest.fixture(scope="session", autouse=True)
def packages():
    """Trainings of tests know from the first one on what is installed."""
    pytest.importorskip("accelerate")
    processes.look_packages_up_once()


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A model of a few words, for trainings on rows that are made up."""
    return learning.model_folder(tmp_path_factory.mktemp("a") / "tiny")


@pytest.fixture(scope="session")
def player(tmp_path_factory):
    """A model that knows the words of ALFWorld, for whole trainings."""
    return trainings.model_at(tmp_path_factory.mktemp("b") / "model")


@pytest.fixture
def double(monkeypatch):
    """The norms of small models in double precision too, as all else: gradients are then comparable."""
    from transformers.models.qwen3 import modeling_qwen3

    def forward(norm, hidden):
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return norm.weight * hidden * (variance + norm.variance_epsilon).rsqrt()

    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", forward)
