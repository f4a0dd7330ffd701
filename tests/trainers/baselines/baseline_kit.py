"""Trainings of baselines that take seconds: for tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from comap.envs.conformance.transcripts import load
from comap.trainers.baselines.config import BaselineTraining
from comap.trainers.baselines.presets import BASELINES
from comap.trainers.baselines.training import BaselineRun, roles_of_baseline
from comap.trajectory import Trajectory

__all__ = ["HORIZON", "KIT", "SMALL", "Killed", "demos_of", "model_at", "run_of", "small"]

kit = load(f"{Path(__file__).parents[1] / 'training_kit.py'}:KIT")
demos_of: Callable[[int], Sequence[Trajectory]] = kit.demos_of
model_at: Callable[[Path], Path] = kit.model_at
HORIZON = 4
OPTIONS: dict[str, Any] = {"source": "generated", "max_episode_steps": HORIZON}
SMALL: dict[str, Any] = {**kit.SHARED, "form": "given", "learning_rate": 3e-3, "epochs": 1}
OWN: dict[str, dict[str, Any]] = {
    "sft": {"predict_tokens": 12},
    "iwm": {"predict_tokens": 12, "alternatives": 2, "explored": 2, "explorer": "sft"},
    "wkm": {"task_knowledge": "none", "state_knowledge": "belief"},
    "itp": {
        "predict_tokens": 8,
        "foresight_tokens": 8,
        "reply_tokens": 12,
        "k_max": 2,
        "labelled": 2,
        "warmup_epochs": 1,
        "world_model_epochs": 1,
        "draft_weight": 1.0,
        "head_rate": 1e-2,
        "episodes": 3,
        "episodes_per_update": 2,
        "online_rate": 1e-3,
        "micro_batches": 2,
    },
}


class Killed(BaseException):
    """Stops a training as a signal does."""


def small(method: str, **settings: Any) -> BaselineTraining:
    """Return settings of the smallest training of a method, with some changed."""
    return BASELINES[method](**{**SMALL, **OWN[method], **settings})


class Splits:
    """Makes environments whose episodes are short, and remembers of which splits."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, split: str) -> gym.Env[str, str]:
        self.made.append(split)
        return gym.make("comap/ALFWorld-v0", split=split, **OPTIONS)


def run_of(
    config: BaselineTraining,
    model: Path,
    out: Path,
    tell: Callable[[Mapping[str, Any]], object] = lambda event: None,
    **told: Any,
) -> BaselineRun:
    """Return a training that is ready to run."""
    roles = kit.opened(config, model, roles_of_baseline(config, told.get("begun", ())))
    env = {"id": "comap/ALFWorld-v0", "options": OPTIONS}
    told = {"demos": demos_of(3), "make_env": Splits(), "about": {"env": env}, **told}
    return BaselineRun(config, roles, out=out, tell=tell, **told)


KIT = sys.modules[__name__]
"""This module, for tests: ``load("baseline_kit.py:KIT")``."""
