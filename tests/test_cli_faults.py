"""The command line as a process: no traceback, whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import comap.benchmarks.demo
from comap import __version__
from comap.cli import main

TINY = ["--train-tasks", "1", "--test-tasks", "1"]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "comap", *arguments],
        capture_output=True,
        env=os.environ | env,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--env", "a:b:c"], "a:b:c"),
        (["--env", "no_such_module:Env-v0"], "no_such_module"),
        (["--env", ""], "comap"),
        (["--test-tasks", "-1"], "test_tasks"),
        (["--error-rates", "0.1", "nan"], "error_rates"),
        (["--error-rates", "-0.1"], "error_rates"),
        (["--lengths", "3", "-4"], "lengths"),
        (["--train-split", "exam"], "train"),
    ],
    ids=str,
)
def test_wrong_values_are_told_before_any_work(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments, "--out", str(tmp_path / "out")]) == 1
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("comap: ") and told in lines[0]
    assert output.out == "" and not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_told_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--out", str(tmp_path / "file" / "out"), *TINY]) == 1
    output = capsys.readouterr()
    assert "file" in output.err and output.out == ""


def test_a_data_folder_without_one_of_the_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "json_2.1.1" / "train").mkdir(parents=True)
    assert main(["demo", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_negative_number_of_games(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed", "alfworld", "--games", "-3"]) == 1
    assert "games must be 0 (all) or more" in capsys.readouterr().err


def test_faults_of_comap_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(config: Any) -> None:
        raise KeyError("two\nlines")

    monkeypatch.setattr(comap.benchmarks.demo, "run_demo", broken)
    assert main(["demo"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert "KeyError" in line and "comap --traceback" in line
    with pytest.raises(KeyError):
        main(["--traceback", "demo"])


def test_stopping_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(config: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(comap.benchmarks.demo, "run_demo", stopped)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "comap: stopped\n"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"comap {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["demo", "--env", "nonsense::"], 1),
        (["demo", "--train-tasks", "0"], 1),
        (["demo", "--data-dir", "no/such/folder"], 1),
        (["demo", "--seed", "1e3"], 2),
        ([], 2),
    ],
    ids=str,
)
def test_no_process_ends_with_a_traceback(arguments: list[str], code: int) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert done.stderr and "Traceback" not in done.stderr


def test_a_terminal_that_knows_ascii_alone(tmp_path: Path) -> None:
    words = ("run", "--agent", "expert", "--episodes", "2", "--out", str(tmp_path / "out"))
    done = run(*words, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "success" in done.stdout and done.stdout.isascii()


@pytest.mark.skipif(os.name != "posix", reason="needs a shell's pipe")
def test_a_reader_that_goes_away() -> None:
    command = [sys.executable, "-m", "comap", "data", "list"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (141, b"")
