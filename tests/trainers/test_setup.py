"""What trainings begin from: demonstrations that runs recorded."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

from comap.agents import ExpertAgent, run_episode
from comap.errors import DataCorrupt
from comap.trainers.setup import demonstrations, read_demonstrations
from comap.trajectory import write_trajectories


def test_trajectories_of_a_run_are_demonstrations(tmp_path: Path) -> None:
    env = gymnasium.make("comap/ALFWorld-v0", source="generated")
    shown = run_episode(env, ExpertAgent(), seed=1)
    write_trajectories(tmp_path / "trajectories.jsonl", [shown])
    plans = list(read_demonstrations(tmp_path / "trajectories.jsonl"))
    assert plans == [(shown.task, tuple(step.action for step in shown.steps))]
    (again,) = demonstrations(env, plans)
    assert again.success and again.steps == shown.steps


def test_other_lines_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"task": "a", "steps": [{}]}')
    with pytest.raises(DataCorrupt, match="line 1: expected a trajectory"):
        list(read_demonstrations(tmp_path / "x.jsonl"))
