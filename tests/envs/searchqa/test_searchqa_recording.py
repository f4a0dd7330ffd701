"""Searches that are written down, by several processes and through kills, and answered from there."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import comap  # noqa: F401
from comap.envs.searchqa import (
    CallableRetriever,
    Hit,
    RecordingRetriever,
    ReplayRetriever,
    open_index,
)
from comap.errors import DataCorrupt, DataNotFound, EngineError

HEAD = '{"format": "comap searches 1", "identity": "x"}\n'


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


def write(path: Path, name: str, number: int, barrier: Any = None) -> None:
    if barrier is not None:
        barrier.wait(30)
    recorder = RecordingRetriever(ENGINE, path)
    for one in range(number):
        recorder.search([f"{name} {one}", f"{name} {one} again"])


def test_many_processes_write_one_recording(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "searches.jsonl"
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    workers = [context.Process(target=write, args=(path, name, 25, barrier)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert ["format" in line for line in lines] == [True] + [False] * 200
    assert len(ReplayRetriever(path)) == 200


def test_many_threads_write_one_recording(tmp_path: Path) -> None:
    recorder = RecordingRetriever(ENGINE, tmp_path / "searches.jsonl")
    threads = [
        threading.Thread(
            target=lambda name=name: [recorder.search([f"{name} {n}"]) for n in range(50)]
        )
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ReplayRetriever(tmp_path / "searches.jsonl")) == 200


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


@pytest.mark.parametrize("kept", range(1, 400, 7))
def test_a_line_that_breaks_off_anywhere_costs_itself_alone(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    write(path, "first", 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    lines = whole[:kept].count(b"\n")
    if lines:
        assert len(ReplayRetriever(path)) == max(lines - 1, 0)
    else:
        with pytest.raises(DataCorrupt, match="nothing"):
            ReplayRetriever(path)
    write(path, "second", 2)
    replayed = ReplayRetriever(path)
    assert len(replayed) == max(lines - 1, 0) + 4
    assert replayed.search(["second 1"], 1)[0][0].title == "second 1"


def test_a_last_line_without_its_end_counts_if_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    write(path, "a", 1)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert len(ReplayRetriever(path)) == 2
    write(path, "b", 1)
    assert len(ReplayRetriever(path)) == 4


def test_a_head_that_was_written_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    path.write_text(HEAD + HEAD.replace('"x"', '"y"'))
    write(path, "a", 1)
    assert ReplayRetriever(path).identity == "replay:x" and len(ReplayRetriever(path)) == 2


def test_a_recording_that_is_removed_meanwhile_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    recorder = RecordingRetriever(ENGINE, path)
    recorder.search(["a"])
    path.unlink()
    recorder.search(["b"])
    assert len(ReplayRetriever(path)) == 1


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "file" / "searches.jsonl", tmp_path / "folder"):
        with pytest.raises(EngineError, match="name a file that can be written"):
            RecordingRetriever(ENGINE, place)


def test_a_disk_that_fills_up_ends_the_episode_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = RecordingRetriever(ENGINE, tmp_path / "searches.jsonl")
    env = gym.make("comap/SearchQA-v0", source="generated", retriever=recorder)
    env.reset(seed=0)

    def full(path: Path, lines: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("comap.envs.searchqa.recording.append_lines", full)
    _, _, _, truncated, info = env.step("<search>emma</search>")
    assert truncated and "No space left" in info["error"]
    monkeypatch.undo()
    env.reset(seed=1)
    assert "error" not in env.step("<search>emma</search>")[4]


def test_another_file_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for text in ("my notes", "my notes\n", '{"my": "notes"}', '{"format": "other"}\n'):
        path.write_text(text)
        with pytest.raises(DataCorrupt):
            RecordingRetriever(ENGINE, path)
        assert path.read_text() == text


NONE = (
    "",
    "{",
    "[]",
    '{"format": "x"}',
    "\n",
    '{"query"',
    HEAD + '{"query": 3}\n',
    HEAD + "x\n",
    HEAD + '{"other": 1}\n',
    '{"query": "x", "k": 1, "hits": []}\n',
)


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_recording(text: str, tmp_path: Path) -> None:
    path = tmp_path / "searches.jsonl"
    path.write_text(text)
    with pytest.raises(DataCorrupt):
        ReplayRetriever(path)
    with pytest.raises(DataNotFound):
        ReplayRetriever(tmp_path / "nothing")
