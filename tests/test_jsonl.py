"""JSON lines: torn tails, broken lines, replaced files, recorded calls."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import resource
from pathlib import Path

import pytest

from comap import jsonl
from comap.errors import DataCorrupt
from comap.jsonl import RecordedCalls


def test_lines_are_appended_and_read(tmp_path):
    path = tmp_path / "new" / "lines.jsonl"
    assert jsonl.append(path, [{"n": 1}, {"text": "é\n"}]) == [(0, 9), (9, 30)]
    assert jsonl.append(path, [{"n": 3}], sync=True) == [(30, 39)]
    assert list(jsonl.read(path)) == [{"n": 1}, {"text": "é\n"}, {"n": 3}]
    assert path.read_bytes().isascii()


@pytest.mark.parametrize("length", [1, 9, 200_000])
def test_a_torn_last_line_is_dropped_and_cut_off(tmp_path, length):
    path = tmp_path / "lines.jsonl"
    jsonl.append(path, [{"n": 1}])
    whole = path.read_bytes()
    torn = json.dumps({"text": "x" * 300_000})[:length].encode()
    path.write_bytes(whole + torn)
    assert list(jsonl.read(path)) == [{"n": 1}]
    jsonl.append(path, [{"n": 2}])
    assert list(jsonl.read(path)) == [{"n": 1}, {"n": 2}]


def test_a_last_line_without_its_end_counts_if_it_is_whole(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 1}\n\n{"n": 2}')
    assert [line.number for line in jsonl.scan(path)] == [1, 3]
    jsonl.append(path, [{"n": 3}])
    assert [record["n"] for record in jsonl.read(path)] == [1, 2, 3]


@pytest.mark.parametrize("broken", ['{"n": ', "[1]", '{"m": 1}', "[" * 100_000, '"\\ud800', "\x00"])
def test_a_broken_line_is_an_error_with_its_number(tmp_path, broken):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 1}\n' + broken + '\n{"n": 3}\n')
    lines = jsonl.read(path, lambda record: record["n"], expected="a number", remedy="remove it")
    assert next(lines) == 1
    with pytest.raises(DataCorrupt, match=r"expected a number in line 2 of .*; remove it"):
        next(lines)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "value.json"
    jsonl.write_json(path, {"a": [1, "ü"]})
    assert jsonl.read_json(path) == {"a": [1, "ü"]}
    with pytest.raises(TypeError):
        jsonl.write(path, [{"a": 1}, {"a": object()}])
    with pytest.raises(TypeError):
        jsonl.write_json(path, object())
    assert jsonl.read_json(path) == {"a": [1, "ü"]}
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]
    path.write_text("{")
    with pytest.raises(DataCorrupt, match="expected JSON in"):
        jsonl.read_json(path)


def _append_until_full(path: Path, size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        while True:
            jsonl.append(path, [{"n": 1}, {"n": 2}])
    except OSError:
        os._exit(7)


def test_a_full_disk_leaves_whole_appends(tmp_path):
    path = tmp_path / "lines.jsonl"
    process = multiprocessing.get_context("fork").Process(
        target=_append_until_full, args=(path, 100)
    )
    process.start()
    process.join()
    assert process.exitcode == 7
    assert len(path.read_bytes()) == 90
    assert len(list(jsonl.read(path))) == 10


def _record(path: Path, who: int) -> None:
    calls = RecordedCalls(path)
    for key in range(40):
        calls.add([{"key": str(key), "value": [who] * 50}])


def test_of_several_processes_the_first_answer_counts(tmp_path):
    path = tmp_path / "calls.jsonl"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_record, args=(path, who)) for who in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    records = list(jsonl.read(path))
    assert sorted(int(record["key"]) for record in records) == list(range(40))
    calls = RecordedCalls(path)
    assert all(calls.get(record["key"]) == record["value"] for record in records)


def test_calls_are_recorded_with_a_header_and_come_back(tmp_path):
    path = tmp_path / "calls.jsonl"
    calls = RecordedCalls(path, {"model": "a"})
    calls.add([{"key": "x", "value": 1, "note": "kept"}, {"key": "y", "value": None}])
    calls.add([{"key": "x", "value": 2}])
    assert (calls.get("x"), "y" in calls, calls.get("z"), len(calls)) == (1, True, None, 2)
    reopened = pickle.loads(pickle.dumps(RecordedCalls(path, {"model": "b"})))
    assert reopened.header == {"model": "a"}
    assert list(reopened) == ["x", "y"]
    calls.add([{"key": "z", "value": 3}])
    assert reopened.get("z") is None
    reopened.refresh()
    assert reopened.get("z") == 3


def test_a_killed_recorder_loses_only_its_last_line(tmp_path):
    path = tmp_path / "calls.jsonl"
    RecordedCalls(path, {"model": "a"}).add([{"key": "x", "value": 1}])
    path.write_bytes(path.read_bytes() + b'{"key": "y", "val')
    calls = RecordedCalls(path)
    assert list(calls) == ["x"]
    calls.add([{"key": "z", "value": 3}])
    assert list(RecordedCalls(path)) == ["x", "z"]


@pytest.mark.parametrize("line", ['{"value": 1}', "[]", "3", '{"key": "x"}'])
def test_a_broken_record_is_an_error(tmp_path, line):
    path = tmp_path / "calls.jsonl"
    path.write_text('{"key": "a", "value": 1}\n' + line + "\n")
    with pytest.raises(DataCorrupt, match="expected a recorded answer in line 2"):
        RecordedCalls(path)


def test_changed_files_are_seen(tmp_path):
    (tmp_path / "a").write_bytes(b"0123")
    digests = json.loads(json.dumps(jsonl.digests_of(tmp_path, ["a"])))
    assert jsonl.wrong_file(tmp_path, digests) == ""
    (tmp_path / "a").write_bytes(b"0124")
    assert "expected a with the SHA-256 1be2e452b46d..., found" in jsonl.wrong_file(
        tmp_path, digests
    )
    (tmp_path / "a").write_bytes(b"012")
    assert "expected a of 4 bytes, found 3" in jsonl.wrong_file(tmp_path, digests)
    (tmp_path / "a").unlink()
    assert "found none" in jsonl.wrong_file(tmp_path, digests)
    for hostile in ({"../a": {}}, {"/etc/passwd": {"size": 1}}, {"a": 3}, [1]):
        assert jsonl.wrong_file(tmp_path, hostile)
