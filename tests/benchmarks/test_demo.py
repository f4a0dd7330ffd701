"""The main job, end to end: on generated tasks and on official files."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks import demo
from comap.benchmarks.demo import DemoConfig, run_demo
from comap.cli import main
from comap.errors import DataNotFound, OptionError
from comap.trajectory import read_trajectories
from comap.worldmodel import RetrievalWorldModel

SMALL = ["--train-tasks", "4", "--test-tasks", "2", "--lengths", "1", "4", "16"]
OFFICIAL = Path(__file__).parents[2].parent / "shared" / "data" / "alfworld" / "games.tar.xz"


def results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text("utf-8"))
    return found


def lasting(found: dict[str, Any]) -> dict[str, Any]:
    """Return the results without what may differ from run to run."""
    return {key: value for key, value in found.items() if key not in ("date", "seconds")}


def test_the_demo_writes_everything_and_repeats_itself(tmp_path: Path) -> None:
    out = tmp_path / "first"
    assert main(["demo", "--out", str(out), *SMALL]) == 0
    found = results(out)
    assert set(found["one_step"]) == {"expert", "random", "all"}
    for reports in found["one_step"].values():
        assert reports["oracle"]["mean"] == 1.0 > reports["noisy 0.3"]["mean"]
        assert reports["null"]["mean"] <= reports["retrieval"]["mean"]
        assert len({report["n"] for report in reports.values()}) == 1
    parts = [found["one_step"][agent]["null"]["n"] for agent in ("expert", "random")]
    assert (
        sum(parts) == found["one_step"]["all"]["null"]["n"] == found["counts"]["test transitions"]
    )
    assert all(point["delta_f1"] == 1.0 for point in found["rollouts"]["oracle"])
    assert found["plans"]["oracle"]["agreement"] == 1.0
    rates = {(agent, world): rate for agent, world, rate, _ in found["agents"]}
    assert rates["expert", "real"] == rates["expert", "oracle"]

    trajectories = list(read_trajectories(out / "trajectories.jsonl"))
    assert len(trajectories) == 4 and not any(t.imagined for t in trajectories)
    assert (
        len(RetrievalWorldModel(out / "retrieval.jsonl")) == found["counts"]["training transitions"]
    )
    page = (out / "report.html").read_text("utf-8")
    assert "Delta-F1" in page and "http://" not in page.replace("http://www.w3.org", "")

    second = tmp_path / "second"
    code = f"from comap.cli import main; main({['demo', '--out', str(second), *SMALL]!r})"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        env={"PYTHONHASHSEED": "17", "PATH": "", "COMAP_HOME": str(tmp_path)},
    )
    assert lasting(results(second)) == lasting(found)


@pytest.mark.skipif(not OFFICIAL.exists(), reason="the official games are not on this machine")
def test_the_demo_plays_official_games(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(env_id: str) -> Any:
        raise DataNotFound("no models here")

    monkeypatch.setattr(demo, "learned_models", none)
    wanted: dict[str, int] = {"train": 3, "valid_unseen": 3}
    with tarfile.open(OFFICIAL) as archive:
        for member in archive:
            split = member.name.split("/")[1] if "/" in member.name else ""
            if member.isfile() and wanted.get(split, 0):
                wanted[split] -= 1
                member.name = member.name.removeprefix("./")
                archive.extract(member, tmp_path / "data")
            if not any(wanted.values()):
                break
    out = tmp_path / "out"
    assert main(["demo", "--data-dir", str(tmp_path / "data"), "--out", str(out), *SMALL]) == 0
    assert "No learned agent is shown: no models here" in capsys.readouterr().out
    found = results(out)
    assert found["fingerprint"]["games"] == "unknown 3", "three games are not the official panel"
    assert str(tmp_path) not in (out / "results.json").read_text("utf-8")
    rates = {(agent, world): rate["value"] for agent, world, rate, _ in found["agents"]}
    assert rates["expert", "real"] == 1.0


def test_bad_numbers_are_explained() -> None:
    with pytest.raises(OptionError, match="train_tasks"):
        run_demo(DemoConfig(train_tasks=0))
