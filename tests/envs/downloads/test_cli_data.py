"""`comap data list | get | verify | path`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comap.cli import main
from comap.envs.datasets import DataSet, catalogue


def run(*words: str) -> int:
    return main(["data", *words])


@pytest.fixture
def toy_in_catalogue(toy: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue(), "toy", toy)


@pytest.mark.usefixtures("toy_in_catalogue")
def test_the_commands(site: Any, home: Path, capsys: pytest.CaptureFixture[str]):
    assert run("path", "toy") == 0
    output = capsys.readouterr()
    assert output.out == f"{home / 'toy'}\n" and "comap data get toy" in output.err
    assert run("list") == 0
    listed = capsys.readouterr().out
    assert f"not here in {home / 'toy'}\n  to get it:\n    comap data get toy\n" in listed
    assert run("verify", "toy") == 1
    missing = capsys.readouterr().out
    assert "toy in " in missing and ": not here\n  to get it:\n    comap data get toy\n" in missing
    assert not site.requests, "nothing is downloaded unless asked for"
    assert not home.exists()

    assert run("get", "toy", "--mirror", site.url, "--timeout", "5") == 0
    output = capsys.readouterr()
    assert output.out == f"{home / 'toy'}\n"
    assert "downloading: 0 %" in output.err and "downloading: 100 %" in output.err
    assert run("list") == 0
    assert f"  here in {home / 'toy'}\n" in capsys.readouterr().out
    assert run("verify", "toy") == 0
    assert "dev: 3 of 3, content matches" in capsys.readouterr().out
    (home / "toy/root/dev/task-0/trial/game.txt").unlink()
    assert run("verify", "toy") == 1
    assert "2 of 3, 1 missing" in (output := capsys.readouterr().out)
    assert "to get it:\n    comap data get toy --force" in output

    # A folder of the user's is not replaced: the command that gets the data writes elsewhere.
    copy = home.parent / "copy"
    (home / "toy").rename(copy)
    assert run("verify", "toy", "--data-dir", str(copy)) == 1
    output = capsys.readouterr().out
    assert f"to get it into {home / 'toy'}:\n    comap data get toy\n" in output


def test_a_folder_that_a_variable_names_is_the_place(
    home: Path,
    tmp_path: Path,
    toy: DataSet,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(catalogue(), "toy", replace(toy, variable="TOY_DATA"))
    monkeypatch.setenv("TOY_DATA", str(tmp_path))
    assert run("path", "toy") == 0
    output = capsys.readouterr()
    assert (output.out, output.err) == (f"{tmp_path}\n", "")

    (home / "toy").mkdir(parents=True)
    assert run("path", "toy") == 0
    assert capsys.readouterr().out == f"{home / 'toy'}\n", "as the environment looks for it"


def test_steps_are_lines_that_can_be_copied(home: Path, capsys: pytest.CaptureFixture[str]):
    steps = catalogue()["webshop"].steps
    assert run("get", "webshop") == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("comap: webshop is at no address")
    assert lines[1:] == list(steps)
    assert run("path", "webshop") == 0
    output = capsys.readouterr()
    assert output.out == f"{home / 'webshop'}\n"
    assert [line.strip() for line in output.err.splitlines()[1:]] == list(steps)


def test_a_part_of_the_files_is_not_called_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    data_set = catalogue()["webvoyager"]
    (file,) = data_set.files
    second_file = replace(file, path="other.jsonl", size=None, sha256=None, records=None)
    monkeypatch.setitem(catalogue(), "webvoyager", replace(data_set, files=(file, second_file)))
    data_set.place.mkdir(parents=True)
    (data_set.place / "other.jsonl").write_text("{}\n")
    assert run("verify", "webvoyager") == 1
    assert ": not all here" in capsys.readouterr().out


@pytest.mark.usefixtures("toy_in_catalogue")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("get", "alfwrld"), "did you mean 'alfworld'?"),
        (("verify", "x"), "comap data list"),
        (("path", "x"), "comap data list"),
        (("get", "toy", "--mirror", "ftp://host"), "mirror must be a URL like"),
        (("get", "toy", "--timeout", "-1"), "expected a timeout above 0"),
        (("verify", "toy", "--data-dir", "no/such"), "found no such folder"),
    ],
)
def test_mistakes_end_with_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
):
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
