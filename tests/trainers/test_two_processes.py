"""Two processes that train together end as one process does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.trainers.processes import gathered, is_first, rank, wait, world_size
from kits import learning, processes

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

SCRIPT = Path(learning.__file__)


EACH = ("warm_up-full", "evolve-lora", "policy-lora")


@pytest.fixture(scope="module")
def together(model, tmp_path_factory):
    """What two processes made of all three trainings."""
    out = tmp_path_factory.mktemp("two")
    processes.together(SCRIPT, ",".join(EACH), str(model), str(out))
    return out


@processes.needs_gloo
@pytest.mark.parametrize("training_name", EACH)
def test_two_processes_end_as_one_does(training_name, model, together, tmp_path):
    """The warm-up; WMSD on the student's own texts; and a head, of which some batches know nothing."""
    learning.learn(training_name, model, tmp_path)
    single_log, double_log = (
        json.loads((out / "log.json").read_text()) for out in (tmp_path, together / training_name)
    )
    assert len(single_log) == len(double_log) >= 4
    for line, other_line in zip(single_log, double_log, strict=True):
        line.pop("padding", None), other_line.pop("padding", None)  # each process pads its own rows
        assert line == pytest.approx(other_line, rel=1e-6, abs=1e-6)
    weights, others = (
        torch.load(out / "result.pt", weights_only=True)
        for out in (tmp_path, together / training_name)
    )
    for part, tensors in weights.items():
        for name, weight in tensors.items():
            assert (weight - others[part][name]).abs().max() < 1e-6, (part, name)
    predictions = [
        {
            path.parent.name: read
            for path in out.glob("predictions-*/rank-0-*")
            if (read := sorted(line for file in path.parent.iterdir() for line in file.open()))
        }
        for out in (tmp_path, together / training_name)
    ]
    assert predictions[0] == predictions[1]
    assert len(predictions[0]) == (2 if "evolve" in training_name else 0)


@processes.needs_gloo
def test_processes_leave_their_group_before_they_end(together):
    """Else a thread of gloo can abort one whose training has succeeded."""
    assert [(together / f"group-{rank}").read_text() for rank in (0, 1)] == ["False", "False"]


def test_one_process_waits_for_nobody():
    wait()
    assert (world_size(), rank(), is_first(), gathered([3])) == (1, 0, True, [3])
