"""The command line: one line for a mistake, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from comap.cli import main

MISTAKES = [
    (["demo", "--env", "comap/ALFWord-v0"], "ALFWorld"),
    (["demo", "--env", "Nowhere-v0"], "Nowhere"),
    (["demo", "--env", "CartPole-v1"], "CartPole"),
    (["demo", "--test-split", "valid_sen"], "valid_seen"),
    (["demo", "--data-dir", "no/such/folder"], "json_2.1.1"),
    (["demo", "--train-tasks", "0"], "train_tasks"),
    (["demo", "--error-rates", "2"], "error_rate"),
    (["demo", "--lengths", "0"], "lengths"),
    (["data", "get", "alfwold"], "alfworld"),
    (["data", "verify", "alfworld", "--path", "no/such/folder"], "folder"),
    (["bench", "speed", "alfworld", "--data-dir", "no/such/folder"], "json_2.1.1"),
    (["bench", "parity", "alfworld", "--reference", "no/such/folder"], "folder"),
    (["bench", "experts", "alfworld", "--data-dir", "no/such/folder"], "json_2.1.1"),
]


@pytest.mark.parametrize(("arguments", "told"), MISTAKES, ids=[" ".join(a) for a, _ in MISTAKES])
def test_mistakes_are_told_in_a_line(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = ["--out", str(tmp_path / "out")] if arguments[0] == "demo" else []
    assert main([*arguments, *extra]) == 1
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and told in error[0], error
    assert "Traceback" not in error[0]


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["demo", "--train-tasks", "many"], ["data"]], ids=str
)
def test_wrong_command_lines_show_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: comap" in capsys.readouterr().err


def test_corrupt_games_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "valid_unseen"):
        folder = tmp_path / "json_2.1.1" / split / "pick_and_place_simple-A-None-B-1" / "trial_1"
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_bytes(b'{"pddl_domain": ')
    assert main(["demo", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "game.tw-pddl" in error and "Traceback" not in error


def test_the_command_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "comap", "demo", "--env", "Nowhere-v0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    version = subprocess.run(
        [sys.executable, "-m", "comap", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith("comap ")
