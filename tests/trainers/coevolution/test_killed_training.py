"""A training that is killed at any moment, and started again, ends as if nothing had happened.

One process imports all that training needs and forks a child for each attempt, so that a restart is
cheap; the children are killed with SIGKILL as soon as certain files exist. This file is that process's
program as well.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kits import processes, trainings

BOUNDARIES = (  # one of each kind
    "stages/*-warmup-policy/checkpoints/checkpoint-1",  # being written
    "stages/*-round-1-rollouts/episodes/*/trajectories.jsonl",
    "stages/*-round-1-world-model/predictions-0/*.jsonl",
)
FEW = {
    "frozen_transitions": 0,
    "diagnosed": 0,
    "demonstrations": 2,
    "warmup_rollouts": 1,
    "reflection_tasks": 1,
    "states_per_episode": 1,
    "tasks_per_round": 1,
    "label_states": "both",
}


def main(place):
    """Train in one go, and in another folder with kills, and leave a report.

    The model is the one in the place, if there is one: a test of a real tokenizer puts it there.
    """
    processes.import_trainers()
    if not (place / "model").is_dir():
        trainings.build_elsewhere(place / "model")
    trainings.demos_of(FEW["demonstrations"])  # before the forks

    def attempt(out, now):
        def train():
            trainings.training(trainings.small(weights="lora", **FEW), place / "model", out).run()

        return processes.attempt(train, out.with_suffix(".log"), now)

    attempt(place / "whole", lambda: False)
    out, kills = place / "killed", []
    for pattern in BOUNDARIES:
        if not attempt(out, lambda pattern=pattern: any(out.glob(pattern))):
            kills.append(pattern)
    attempt(out, lambda: False)
    (place / "report.json").write_text(json.dumps(kills))


def test_killed_at_boundaries(tmp_path):
    pytest.importorskip("trl")
    kills = processes.report_of(__file__, tmp_path)
    check_killed(tmp_path, kills)


def check_killed(place, kills):
    """The training with kills has written what the one in one go has."""
    assert kills == list(BOUNDARIES)
    assert trainings.results_of(place / "killed") == trainings.results_of(place / "whole")
    files, expected_files = (
        trainings.files_of(place / "killed"),
        trainings.files_of(place / "whole"),
    )
    assert sorted(files) == sorted(expected_files)
    assert [name for name in expected_files if files[name] != expected_files[name]] == []
    assert not list((place / "killed").rglob("checkpoint*"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
