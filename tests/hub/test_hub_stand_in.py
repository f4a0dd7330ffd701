"""The real client library against a stand-in of the Hub on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import comap
from comap.cli import main
from comap.envs.conformance.transcripts import load

StandIn = load(f"{Path(__file__).parent / 'hub_stand_in.py'}:StandIn")
TOKEN = "hf_" + "Secret0Token" * 2


def comap_hub(url: str, home: Path, *words: str, token: str = TOKEN) -> Any:
    """Run ``comap hub`` in a process of its own, which may ask the Hub at an address."""
    env = dict(os.environ) | {
        "HF_ENDPOINT": url,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HOME": str(home),
        "HF_TOKEN": token,
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": str(Path(comap.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "comap", "hub", *words], env=env, capture_output=True, text=True
    )
    assert token not in done.stdout + done.stderr
    return done


def test_push_and_load(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["--episodes", "2", "--env-option", "source=generated", "--out", str(run)]
    assert main(["run", "--agent", "expert", *words]) == 0
    home = tmp_path / "home"
    with StandIn(TOKEN) as hub:
        push = ("push", "trajectories", str(run), "me/runs", "--licence", "mit")
        done = comap_hub(hub.url, home, *push)
        assert done.returncode == 0, done.stderr
        _, (first, files) = hub.commits["datasets/me/runs"]
        assert f"revision: {first}" in done.stdout
        assert sorted(files) == [
            "README.md",
            "comap.json",
            "data/part-00000.parquet",
            "run/run.json",
            "run/summary.json",
            "run/timings.jsonl",
        ]
        hub.commits["datasets/me/runs"][-1][1]["data/old.parquet"] = b"PAR1"
        assert comap_hub(hub.url, home, *push, "--title", "again").returncode == 0
        second, files = hub.commits["datasets/me/runs"][-1]
        assert second != first and "data/old.parquet" not in files

        loads = ("load", "trajectories", "me/runs", "--out", str(tmp_path / "back"))
        done = comap_hub(hub.url, home, *loads, "--revision", first)
        assert done.returncode == 0 and f"revision: {first}" in done.stdout, done.stderr
        name = "trajectories.jsonl"
        assert (tmp_path / "back" / name).read_bytes() == (run / name).read_bytes()
        assert "again" not in (tmp_path / "back" / "README.md").read_text("utf-8")
        assert all("/resolve/" not in one or first in one for one in hub.requests)

        hub.swap["README.md"] = b"another"
        done = comap_hub(hub.url, home, *loads[:-1], str(tmp_path / "other"))
        assert done.returncode == 1 and "README.md" in done.stderr and "fault" not in done.stderr
        assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("case", ["refused", "missing", "gone"])
def test_what_the_hub_refuses_is_told_in_a_line(case: str, tmp_path: Path) -> None:
    with StandIn("another") as hub:
        url = hub.url if case != "gone" else "http://127.0.0.1:9"
        if case == "missing":
            words = ("load", "model", "me/none", "--out", str(tmp_path / "back"))
        else:
            (tmp_path / "model").mkdir()
            import numpy
            from safetensors.numpy import save_file

            save_file({"a": numpy.zeros(2)}, tmp_path / "model" / "model.safetensors")
            words = ("push", "model", str(tmp_path / "model"), "me/agent", "--licence", "mit")
        done = comap_hub(url, tmp_path / "home", *words)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "on the Hub" in done.stderr and "HF_TOKEN" in done.stderr
