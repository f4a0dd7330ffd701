"""Trainings go on only from what was written: results, weights, checkpoints, lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.errors import DataCorrupt
from comap.trainers.baselines.once import each_once
from comap.trainers.paw.journal import read_lines
from comap.trainers.run_folder import RunFolder, StageFolder, read_json, write_json
from comap.trainers.trainer_checkpoints import last_checkpoint, mark_complete


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def stage_in(folder: Path) -> StageFolder:
    with RunFolder(folder).open({"a": 1}, {}) as run:
        return run.stage(0, "warmup")


def test_weights_that_were_changed_are_not_taken(tmp_path: Path) -> None:
    stage = stage_in(tmp_path)
    file = stage.weights("agent")
    file.write_bytes(b"weights")
    stage.finish({"weights": {"agent": file.name}}, 1.0)
    assert stage.trained(("agent",)) == {"agent": file}
    flip(file, 3)
    with pytest.raises(
        DataCorrupt, match=r"expected agent\.safetensors with the SHA-256 .*restore"
    ):
        stage.trained(("agent",))
    file.unlink()
    with pytest.raises(DataCorrupt, match=r"agent\.safetensors of 7 bytes, found none"):
        stage.trained(("agent",))
    told = json.loads((stage.path / "done.json").read_bytes())
    older = {key: told[key] for key in ("stage", "seconds", "weights")}
    (stage.path / "done.json").write_text(json.dumps(older))
    file.write_bytes(b"others")
    assert stage.trained(("agent",)) == {"agent": file}


def test_results_that_were_changed_are_told(tmp_path: Path) -> None:
    stage = stage_in(tmp_path)
    stage.finish({"rows": 31}, 1.0)
    path = stage.path / "done.json"
    path.write_text(path.read_text().replace("31", "32"))
    with pytest.raises(DataCorrupt, match=r"done\.json.*was changed.*remove that file"):
        stage.result()
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace('"a": 1', '"a": 2'))
    with pytest.raises(DataCorrupt, match=r"run\.json.*was changed"):
        stage_in(tmp_path)


def test_lists_are_written_with_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, [[1, 2], []])
    assert read_json(path) == [[1, 2], []] and "crc32" in json.loads(path.read_bytes())
    path.write_text(path.read_text().replace("2", "3", 1))
    with pytest.raises(DataCorrupt):
        read_json(path)
    path.write_text("[[1, 3], []]")
    assert read_json(path) == [[1, 3], []]


def checkpoint(folder: Path, number: int) -> Path:
    place = folder / f"checkpoint-{number}"
    (place / "critic").mkdir(parents=True)
    for name in ("weights.safetensors", "optimizer.pt", "critic/optimizer.pt"):
        (place / name).write_bytes(f"{number} {name}".encode())
    mark_complete(place)
    return place


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.pt", "critic/optimizer.pt"])
def test_a_checkpoint_with_a_changed_file_is_not_taken(tmp_path: Path, name: str) -> None:
    first, second = checkpoint(tmp_path, 9), checkpoint(tmp_path, 10)
    assert last_checkpoint(tmp_path) == str(second)
    flip(second / name, 0)
    said = rf"expected {name} with .*checkpoint-10; restore it, or remove that folder to go on"
    with pytest.raises(DataCorrupt, match=said):
        last_checkpoint(tmp_path)
    (second / name).unlink()
    with pytest.raises(DataCorrupt, match=f"{name} of .* found none"):
        last_checkpoint(tmp_path)
    for path in sorted(second.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    second.rmdir()
    assert last_checkpoint(tmp_path) == str(first)


def test_marks_of_checkpoints(tmp_path: Path) -> None:
    place = checkpoint(tmp_path, 1)
    mark = (place / "complete").read_bytes()
    mark_complete(place)
    assert (place / "complete").read_bytes() == mark, "the same files, the same mark"
    for wrong in (mark.replace(b'"size": 2', b'"size": 3'), b"{}", b"\0" * 9, mark[:40]):
        (place / "complete").write_bytes(wrong)
        with pytest.raises(DataCorrupt, match=r"the file complete.*checkpoint-1"):
            last_checkpoint(tmp_path)
    (place / "complete").write_bytes(b"")  # as older versions wrote it
    assert last_checkpoint(tmp_path) == str(place)


def test_a_last_line_is_told_if_it_was_changed_and_cut_off_if_it_is_half(tmp_path: Path) -> None:
    once = each_once(tmp_path, ["a", "b"], lambda keys: [(key, 7) for key in keys])
    (path,) = tmp_path.glob("*.jsonl")
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"b", "value": 7', b'"b", "value": 8'))
    with pytest.raises(DataCorrupt, match=r"as it was written, in line 2 of "):
        each_once(tmp_path, ["a", "b"], lambda keys: [])
    path.write_bytes(before[:-9])
    assert each_once(tmp_path, ["a", "b"], lambda keys: [(key, 7) for key in keys]) == once
    assert path.read_bytes() == before


def test_a_journal_tells_changed_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1}\n{"update": 2, "crc32": "00000000"}\n')
    with pytest.raises(DataCorrupt, match=r"line 2 .*was changed"):
        read_lines(path)
    path.write_text('{"update": 1}\n{"update": 2, "crc32": "000')
    assert read_lines(path) == [{"update": 1}]
