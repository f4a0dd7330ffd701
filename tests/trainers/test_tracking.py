"""Curves of trainings in a tracker."""

from __future__ import annotations

import pytest

from comap.errors import OptionError
from comap.trainers.tracking import Curves, check_tracker, tracked

EVENTS = [
    {"event": "known", "stage": "warmup-policy", "result": {"updates": 4, "success": 1.0}},
    {"event": "update", "stage": "round-1-policy", "step": 2, "steps": 3, "loss": 0.5},
    {"event": "episode", "done": 1, "of": 2, "won": 1},
    {"event": "done", "stage": "round-1-policy", "result": {"updates": 3, "rows": 7, "log": []}},
    {"event": "update", "stage": "round-2-policy", "step": 1, "steps": 3, "loss": 0.25},
    {
        "event": "done",
        "stage": "round-2-evaluation",
        "result": {"splits": {"valid_seen": {"success": 0.5, "greedy": {"success": 0.25}}}},
    },
]
OF_PAW = [
    {"event": "update", "update": 1, "of": 2, "success": 0.5, "return": 5.0, "steps": 3.5},
    {"event": "evaluated", "update": 1, "split": "valid_seen", "success": 0.75, "won": {"a": 1}},
]


class Seen:
    def __init__(self):
        self.lines = []

    def log(self, values, step):
        self.lines.append((step, values))


def test_curves_go_on_from_round_to_round():
    curves = Curves(Seen())
    for event in EVENTS:
        curves.add(event)
    assert curves.tracker.lines == [
        (6, {"policy/loss": 0.5}),
        (7, {"policy/updates": 3.0, "policy/rows": 7.0}),
        (8, {"policy/loss": 0.25}),
        (
            8,
            {
                "evaluation/splits/valid_seen/success": 0.5,
                "evaluation/splits/valid_seen/greedy/success": 0.25,
            },
        ),
    ]


def test_tensorboard_has_success_return_and_evaluations(tmp_path):
    pytest.importorskip("tensorboard")
    pytest.importorskip("accelerate")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told = []
    with tracked(told.append, "tensorboard", tmp_path, {"seed": 0}) as tell:
        for event in OF_PAW:
            tell(event)
    assert told == OF_PAW
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    curves = {
        name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]
    }
    assert curves == {
        "success": [(1, 0.5)],
        "return": [(1, 5.0)],
        "steps": [(1, 3.5)],
        "evaluation/valid_seen/success": [(1, 0.75)],
    }


def test_trackers_that_are_not_there(monkeypatch):
    with pytest.raises(OptionError, match="no tracker 'tensorbord'; did you mean 'tensorboard'"):
        check_tracker("tensorbord")
    monkeypatch.setattr("comap.trainers.tracking.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="pip install wandb"):
        check_tracker("wandb")
    check_tracker("none")
