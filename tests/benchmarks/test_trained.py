"""What finished trainings came to, as a result file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.trained import run, trained_section
from comap.checksums import unseal
from comap.cli import main
from comap.errors import DataCorrupt
from comap.trainers.run_folder import FORMAT


def evaluation(place: int, won: float, delta: float) -> dict[str, Any]:
    splits = {
        "seen": {"episodes": 4, "success": won, "score": won, "calls": 9},
        "unseen": {"episodes": 12, "success": 0.0, "score": 0.25},
    }
    part = {"n": 30, "delta_f1": delta, "stderr": 1.25, "exact_text": 3.0}
    return {
        "cpu_seconds": 2.0,
        "round": place,
        "splits": splits,
        "world_model": {"frozen": {"all": part, "n": 30}, "on_policy": None},
    }


@pytest.fixture
def training(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    described = {"config": {"rounds": 1}, "preset": "tiny", "env": {"id": "comap/Zoo-v0"}}
    written = {"format": FORMAT, "described": described, "sessions": [{"date": "2026-01-01"}]}
    learned = {"role": "wm", "rows": 3, "tokens": 90, "updates": 2, "cpu_seconds": 5.0, "log": []}
    stages = {
        "00-round-0-evaluation": evaluation(0, 0.0, 10.0),
        "01-round-1-world-model": learned,
        "02-round-1-evaluation": evaluation(1, 0.5, 20.0),
    }
    for name, result in stages.items():
        (folder / "stages" / name).mkdir(parents=True)
        done = {"stage": name.partition("-")[2], **result}
        (folder / "stages" / name / "done.json").write_text(json.dumps(done))
    (folder / "run.json").write_text(json.dumps(written))
    return folder


def test_first_and_last_round_are_shown(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    assert main(["bench", "trained", str(training), "--out", str(out)]) == 0
    *_, first, last = capsys.readouterr().out.splitlines()
    assert first == "| comap/Zoo-v0 | 0 | 0.0 % (16) | 0.188 | 10.0 ± 1.2 (n=30) | – |"
    assert last == "| comap/Zoo-v0 | 1 | 12.5 % (16) | 0.312 | 20.0 ± 1.2 (n=30) | – |"
    record = json.loads(out.read_text())
    (one,) = record["trainings"]
    assert one["cpu_seconds"] == 9.0 and one["preset"] == "tiny"
    assert one["learned"] == {
        "round-1-world-model": {"role": "wm", "rows": 3, "tokens": 90, "updates": 2}
    }
    assert "calls" not in one["rounds"][0]["splits"]["seen"]
    assert str(tmp_path) not in out.read_text()
    assert trained_section(record).splitlines()[2:] == [first, last]


def test_other_environments_are_kept_and_the_same_is_replaced(
    training: Path, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    run([training], out)
    written = unseal((training / "run.json").read_text())
    written["described"]["env"]["id"] = "comap/Garden-v0"
    (training / "run.json").write_text(json.dumps(written))
    for _ in range(2):
        record = run([training], out)
        kept = [one["env"]["id"] for one in record["trainings"]]
        assert kept == ["comap/Garden-v0", "comap/Zoo-v0"]
    assert json.loads(out.read_text())["trainings"] == record["trainings"]
    out.write_text('{"trainings": [{}]}')
    with pytest.raises(DataCorrupt, match="expected trainings in"):
        run([training], out)


def test_a_training_that_goes_on_is_refused(training: Path) -> None:
    (training / "stages" / "02-round-1-evaluation" / "done.json").unlink()
    with pytest.raises(Exception, match=r"has ended, found 1 evaluations of 1 rounds; the same"):
        run([training])


def test_no_training_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "trained", str(tmp_path)])
    assert "expected a training at" in capsys.readouterr().err
