"""`comap data list | get | verify | path`."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import pytest

from comap import cli_data, cli_progress
from comap.envs.datasets import DataSet, catalogue
from comap.envs.downloads import get
from comap.envs.transfer import Patience

QUICK = Patience(attempts=3, pause=0.01, timeout=0.4, lock=10)


def run(*words: str) -> int:
    parser = argparse.ArgumentParser("comap")
    cli_data.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["data", *words])
    status = args.run(args)
    assert isinstance(status, int)
    return status


@pytest.fixture
def known(toy: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue(), "toy", toy)


@pytest.mark.usefixtures("known")
def test_the_commands(site: Any, home: Path, capsys: pytest.CaptureFixture[str]):
    assert run("path", "toy") == 0
    output = capsys.readouterr()
    assert output.out == f"{home / 'toy'}\n" and "comap data get toy" in output.err
    assert run("list") == 0
    assert f"in {home / 'toy'} (not here; run: comap data get toy)" in capsys.readouterr().out
    assert run("verify", "toy") == 1
    assert "run: comap data get toy" in capsys.readouterr().err
    assert not site.requests, "nothing is downloaded unless asked for"
    assert not home.exists()

    assert run("get", "toy", "--mirror", site.url, "--timeout", "5") == 0
    output = capsys.readouterr()
    assert output.out == f"{home / 'toy'}\n"
    assert "downloading: 0 %" in output.err and "downloading: 100 %" in output.err
    assert run("list") == 0
    assert f"in {home / 'toy'} (here)" in capsys.readouterr().out
    assert run("verify", "toy") == 0
    assert "dev: 3 of 3, content matches" in capsys.readouterr().out
    (home / "toy/root/dev/task-0/trial/game.txt").unlink()
    assert run("verify", "toy") == 1
    assert "comap data get toy --force" in capsys.readouterr().err


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("get", "alfwrld"), "did you mean 'alfworld'?"),
        (("verify", "x"), "known: 'alfworld'"),
        (("path", "x"), "known: 'alfworld'"),
        (("get", "toy", "--mirror", "ftp://host"), "expected an address like https"),
        (("get", "toy", "--timeout", "-1"), "expected a timeout above 0"),
        (("verify", "toy", "--path", "no/such"), "found no such folder"),
    ],
)
def test_mistakes_end_with_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
):
    assert run(*words) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_bars_of_rich(toy: DataSet):
    progress = pytest.importorskip("rich.progress")
    console = pytest.importorskip("rich.console").Console(file=io.StringIO())
    with progress.Progress(console=console) as bars:
        get(toy, patience=QUICK, progress=cli_progress._RichBars(bars))
    assert [task.description for task in bars.tasks] == ["downloading", "unpacking", "checking"]
    assert all(task.finished for task in bars.tasks)
