from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.benchmarks.record import (
    JOURNAL,
    circumstances,
    commit,
    journal,
    public_words,
)
from comap.cli import main
from comap.jsonl import read


def test_circumstances_name_versions_and_no_one():
    record = circumstances(["gymnasium", "no-such-package"])
    assert record["versions"]["no-such-package"] is None
    assert record["versions"]["gymnasium"]
    assert record["hardware"]["cores"] >= 1
    text = json.dumps(record)
    assert str(Path.home()) not in text


def test_a_session_is_told_however_it_ends(tmp_path, monkeypatch):
    with journal(["run"], tmp_path) as session:
        session.exit = 0
    with pytest.raises(KeyError), journal(["train"], tmp_path):
        raise KeyError("x")
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"started": "20')  # a kill came
    with journal(["bench"], tmp_path) as session:
        session.exit = 1
    monkeypatch.setenv("RANK", "1")
    with journal(["of another process"], tmp_path):
        pass
    sessions = list(read(tmp_path / JOURNAL))
    assert [(entry["command"], entry["exit"]) for entry in sessions] == [
        (["run"], 0),
        (["train"], 70),
        (["bench"], 1),
    ]
    assert all(
        entry["started"] <= entry["ended"] and entry["versions"]["comap"] for entry in sessions
    )
    assert all(entry["commit"] == commit() and entry["hardware"]["cores"] for entry in sessions)


def test_what_writes_nothing_is_not_told(tmp_path):
    with journal(["bench"], tmp_path / "nowhere") as session:
        session.exit = 0
    assert not list(tmp_path.iterdir())
    out = str(tmp_path / "run")
    assert main(["run", "--agent", "random", "--env", "comap/Nowhere-v0", "--out", out]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--out", "runs/first"], ["--out", "runs/first"]),
        (["--out", "/srv/me/first/"], ["--out", ".../first"]),
        (["--data-dir", "~/data"], ["--data-dir", ".../data"]),
        (["--data-dir=/"], ["--data-dir=..."]),
        (["a=[/srv/x,/srv/y]"], ["a=[.../x,.../y]"]),
        (["C:\\Users\\me\\x"], [".../x"]),
        (["--judge", "https://me:pw@host/v1#NAME"], ["--judge", "https://host/v1#NAME"]),
        (["api_key_env=NAME"], ["api_key_env=NAME"]),
        (["--api-key", "abc"], ["--api-key", "***"]),
        (["password=a=b"], ["password=***"]),
        (["--draft-tokens", "24"], ["--draft-tokens", "24"]),
        (["--tasks", "valid_seen/a/b"], ["--tasks", "valid_seen/a/b"]),
    ],
)
def test_words_are_public(words, shown):
    assert public_words(words) == shown


def test_a_link_in_place_of_the_journal_is_refused_before_anything_is_played(tmp_path, capsys):
    (tmp_path / JOURNAL).symlink_to(tmp_path / "elsewhere")
    words = ["run", "--agent", "expert", "--episodes", "1", "--env-option", "source=generated"]
    assert main([*words, "--out", str(tmp_path)]) == 2
    assert "expected a plain file" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [JOURNAL]


def test_a_run_that_failed_is_told(tmp_path):
    words = ["run", "--agent", "expert", "--episodes", "1", "--env-option", "source=generated"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert main([*words, "--seed", "9", "--out", str(tmp_path)]) == 2
    assert [line["exit"] for line in list(read(tmp_path / JOURNAL))] == [0, 2]
    assert str(tmp_path) not in json.dumps(list(read(tmp_path / JOURNAL)))
