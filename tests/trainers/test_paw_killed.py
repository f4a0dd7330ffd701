"""A PaW training that is killed at any moment, and started again, ends as if nothing had happened.

One process imports all that training needs and forks a child for each attempt, so that a restart is
cheap; the children are killed with SIGKILL, at moments of their processor time or as soon as a file is
there. This file is that process's program as well.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from comap.checksums import unseal
from comap.envs.conformance.transcripts import load
from comap.errors import DataNotFound
from comap.lm.shipped import folder_of
from comap.trainers.paw.presets import paw_preset
from comap.trainers.paw.training import train
from comap.trainers.setup import Environments

processes = load(f"{Path(__file__).with_name('process_kit.py')}:KIT")

FILES = (
    "checkpoints/checkpoint-1/trainer_state.json",  # an update is done, its checkpoint half written
    "evaluations/0002-*/rank-0-of-1/trajectories.jsonl",  # all is trained
)
KILLS = 3
HALF = 0.4  # of the time, which an attempt that begins at the first checkpoint does not need
LEAST, MOST = (
    0.1,
    0.8,
)  # of the time: a run that is not watched may be quicker than the one measured
HORIZON = 8
ENV = Environments("comap/ALFWorld-v0", {"source": "generated", "max_episode_steps": HORIZON})
SMALL: dict[str, Any] = {
    "algorithm": "gigpo",
    "groups": 2,
    "members": 2,
    "updates": 2,
    "max_episode_steps": HORIZON,
    "response_tokens": 8,
    "warmup_tokens": 0,
    "mini_batch_rows": 16,
    "precision": "float64",  # what is sampled does not depend on which episodes are left to play
    "save_updates": 1,
    "evaluation_splits": ("valid_seen",),
    "evaluation_tasks": 2,
    "live": 4,
}


# -- the process that kills ----------------------------------------------------------------------


def attempt(out: Path, now: Callable[[int], bool], model: Path) -> tuple[bool, float]:
    """Train in a child until it ends or `now` says to kill it; tell whether it ended, and its time."""

    def work() -> None:
        train(paw_preset("tiny", **SMALL), model=model, make_env=ENV, out=out, device="cpu")

    told: tuple[bool, float] = processes.attempt(work, out.with_suffix(".log"), now)
    return told


def where(out: Path) -> str:
    """Return how far a training has come."""
    names = ("evaluations.jsonl", "metrics.jsonl", "checkpoints/checkpoint-1/complete")
    return " ".join(name for name in names if (out / name).exists())


def killed_at(out: Path, whole: float, model: Path, seed: int) -> list[str]:
    """Kill a training at moments drawn from each part of it; return how far it was each time."""
    draw, found = random.Random(seed), []
    for number in range(KILLS):
        saved = (out / "checkpoints" / "checkpoint-1" / "complete").exists()
        place = (number + draw.random()) / KILLS - (HALF if saved else 0.0)
        moment = whole * min(max(place, LEAST), MOST)
        ended, _ = attempt(out, lambda child, at=moment: processes.cpu(child) >= at, model)
        if ended:
            break
        found.append(where(out))
    attempt(out, lambda child: False, model)
    return found


def killed_when(out: Path, model: Path) -> list[str]:
    """Kill a training as soon as certain files are there, and return which those were."""
    found = []
    for pattern in FILES:
        ended, _ = attempt(out, lambda child, it=pattern: any(out.glob(it)), model)
        if not ended:
            found.append(pattern)
    attempt(out, lambda child: False, model)
    return found


def main(model: Path, place: Path) -> None:
    processes.import_trainers()
    _, whole = attempt(place / "straight", lambda child: False, model)
    report = {
        "moments": killed_at(place / "moments", whole, model, seed=1),
        "files": killed_when(place / "files", model),
    }
    (place / "report.json").write_text(json.dumps(report))


# -- what it must come to ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    pytest.importorskip("trl")
    try:
        model = folder_of("shipped:agent")
    except DataNotFound as error:
        pytest.skip(str(error))
    place = tmp_path_factory.mktemp("killed")
    yield place, processes.report_of(__file__, place, str(model))


def left(out: Path) -> dict[str, Any]:
    """Return what a training left behind, but for what tells of time."""
    metrics = [unseal(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, Any] = {
        "metrics": [{k: v for k, v in line.items() if "seconds" not in k} for line in metrics],
        "evaluations": (out / "evaluations.jsonl").read_bytes(),
    }
    for kind in ("**/*.safetensors", "**/trajectories.jsonl"):
        paths = sorted(out.glob(kind))
        found |= {str(path.relative_to(out)): path.read_bytes() for path in paths}
    return found


def check_same_end(place: Path, name: str) -> None:
    wanted, found = left(place / "straight"), left(place / name)
    assert sorted(found) == sorted(wanted)
    assert [each for each in wanted if found[each] != wanted[each]] == []
    assert not list((place / name).glob("**/*.part"))


def test_the_training_has_all_that_is_compared(killed: tuple[Path, dict[str, Any]]) -> None:
    wanted = left(killed[0] / "straight")
    assert [line["update"] for line in wanted["metrics"]] == [1, 2]
    assert all(line["grad_norm"] > 0 for line in wanted["metrics"])
    played = [name for name in wanted if name.endswith("trajectories.jsonl")]
    assert [name.split("/")[1] for name in played] == ["0000-valid_seen-0", "0002-valid_seen-0"]
    assert "models/agent/model.safetensors" in wanted


def test_a_training_killed_at_drawn_moments(killed: tuple[Path, dict[str, Any]]) -> None:
    place, report = killed
    assert KILLS - 1 <= len(report["moments"]) <= KILLS  # the last one may come too late
    assert len(set(report["moments"])) >= 2, "kills are to be spread over the training"
    check_same_end(place, "moments")


def test_a_training_killed_as_soon_as_files_are_there(
    killed: tuple[Path, dict[str, Any]],
) -> None:
    place, report = killed
    assert len(report["files"]) >= len(FILES) - 1  # the last one may come too late
    check_same_end(place, "files")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
