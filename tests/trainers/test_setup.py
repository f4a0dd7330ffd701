"""What trainings begin from: demonstrations that runs recorded."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

from comap.agents import ExpertAgent, run_episode
from comap.errors import DataCorrupt, OptionError
from comap.trainers.run_folder import RunFolder
from comap.trainers.setup import Environments, demonstrations, read_demonstrations
from comap.trajectory import write_trajectories


def test_trajectories_of_a_run_are_demonstrations(tmp_path: Path) -> None:
    env = gymnasium.make("comap/ALFWorld-v0", source="generated")
    demonstration = run_episode(env, ExpertAgent(), seed=1)
    write_trajectories(tmp_path / "trajectories.jsonl", [demonstration])
    plans = list(read_demonstrations(tmp_path / "trajectories.jsonl"))
    assert plans == [(demonstration.task, tuple(step.action for step in demonstration.steps))]
    (replayed,) = demonstrations(env, plans)
    assert replayed.success and replayed.steps == demonstration.steps


def test_other_lines_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"task": "a", "steps": [{}]}')
    with pytest.raises(DataCorrupt, match="line 1: expected a trajectory"):
        list(read_demonstrations(tmp_path / "x.jsonl"))


def test_environments_describe_whether_their_tasks_are_generated() -> None:
    homes = Environments("comap/ALFWorld-v0", {"source": "generated"})
    described = homes.describe(["valid_seen"])
    assert described["tasks"] == {"valid_seen": "140 generated tasks"}


def test_a_training_of_before_goes_on_though_it_did_not_count_its_tasks(tmp_path: Path) -> None:
    env = {"id": "e", "fingerprint": {}}
    with RunFolder(tmp_path).open({"config": {"seed": 0}, "env": env}, {}) as folder:
        folder.stage(1, "warmup")
    counted = {**env, "tasks": {"train": "3 generated tasks"}}
    with RunFolder(tmp_path).open({"config": {"seed": 0}, "env": counted}, {}):
        pass
    with (
        pytest.raises(OptionError, match=r"config\.seed: 0 there, 1 now"),
        RunFolder(tmp_path).open({"config": {"seed": 1}, "env": counted}, {}),
    ):
        pass
