"""Searches that are written down, by several processes and through kills, and answered from there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.envs.searchqa import (
    CallableRetriever,
    Hit,
    RecordingRetriever,
    ReplayRetriever,
    open_index,
)
from comap.errors import DataCorrupt, DataNotFound, EngineError

HEAD = '{"format": "comap searches 2", "identity": "x"}\n'


def echo(queries: Sequence[str], k: int) -> list[list[Hit]]:
    return [[Hit("1", query, "long " * 200, 1.0)] for query in queries]


ENGINE = CallableRetriever(echo)


def test_record_and_replay(index: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "searches.jsonl"
    opened = open_index(index)
    found = RecordingRetriever(opened, path).search(["emma", "river"], 3)
    RecordingRetriever(opened, path).search(["emma"], 2)
    replayed = ReplayRetriever(path)
    assert replayed.search(["river", "emma"], 3) == found[::-1] and len(replayed) == 2
    assert replayed.search(["emma"], 1) == [found[0][:1]]
    with pytest.raises(EngineError, match="found none"):
        replayed.search(["other"])
    with pytest.raises(EngineError, match="one of 3 passages"):
        replayed.search(["emma"], 4)
    env = gym.make("comap/SearchQA-v0", source="generated", retriever=replayed)
    env.reset(seed=0)
    assert "Emma" in env.step("<search>emma</search>")[0]
    assert "error" in env.step("<search>other</search>")[4]


def write(path: Path, name: str, number: int) -> None:
    recorder = RecordingRetriever(ENGINE, path)
    for one in range(number):
        recorder.search([f"{name} {one}", f"{name} {one} again"])


def test_a_killed_recorder_is_followed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    for round_number in range(3):
        child = multiprocessing.get_context("fork").Process(
            target=write, args=(path, f"round {round_number}", 100_000)
        )
        size = path.stat().st_size if path.exists() else 0
        child.start()
        while not path.exists() or path.stat().st_size < size + 20_000:
            assert child.is_alive()
            time.sleep(0.002)
        os.kill(child.pid, signal.SIGKILL)
        child.join(30)
        assert len(ReplayRetriever(path)) > 5
    write(path, "last", 1)
    replayed = ReplayRetriever(path)
    asked = ["last 0", "last 0 again", "round 0 0", "round 1 0", "round 2 0"]
    assert [hits[0].title for hits in replayed.search(asked, 1)] == asked


@pytest.mark.parametrize("kept", range(1, 400, 60))
def test_a_line_that_breaks_off_anywhere_costs_itself_alone(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    write(path, "first", 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    lines = whole[:kept].count(b"\n")
    if lines:
        assert len(ReplayRetriever(path)) == max(lines - 1, 0)
    else:
        with pytest.raises(DataCorrupt, match=r"found the head \{\}"):
            ReplayRetriever(path)
    write(path, "second", 2)
    replayed = ReplayRetriever(path)
    assert len(replayed) == max(lines - 1, 0) + 4
    assert replayed.search(["second 1"], 1)[0][0].title == "second 1"


def test_a_disk_that_fills_up_ends_the_episode_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = RecordingRetriever(ENGINE, tmp_path / "searches.jsonl")
    env = gym.make("comap/SearchQA-v0", source="generated", retriever=recorder)
    env.reset(seed=0)

    def full(file: Any, records: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("comap.jsonl._add", full)
    _, _, _, truncated, info = env.step("<search>emma</search>")
    assert truncated and "No space left" in info["error"]
    monkeypatch.undo()
    env.reset(seed=1)
    assert "error" not in env.step("<search>emma</search>")[4]


NONE = (
    "",
    "{",
    "[]",
    '{"format": "x"}',
    "\n",
    HEAD + '{"key": 3}\n',
    HEAD + "x\n",
    HEAD + '{"other": 1}\n',
    '{"key": "1 x", "value": []}\n',
)


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_recording(text: str, tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    path.write_text(text)
    with pytest.raises(DataCorrupt):
        ReplayRetriever(path)
    with pytest.raises(DataNotFound):
        ReplayRetriever(tmp_path / "nothing")
