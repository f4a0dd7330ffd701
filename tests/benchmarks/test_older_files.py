"""Files as earlier versions wrote them, without checksums, are read as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comap.benchmarks.reliability.corruption_kinds import KINDS

ADDED = ("crc32", "digests", "weights_files")
SLOWEST = {"indexes (bm25s)"}  # its index.json is that of FTS5
SAME = {"frozen transitions", "ALFWorld games"}  # as they were


def without(data: Any) -> Any:
    """Return JSON data as it was before there were checksums."""
    if isinstance(data, dict):
        kept = {name: value for name, value in data.items() if name not in ADDED}
        if kept.get("format") == "comap retrieval world model 1":
            del kept["sha256"]
        return kept["content"] if set(kept) == {"content"} else kept
    return data


def as_before(path: Path) -> None:
    if path.suffix == ".jsonl":
        lines = path.read_text("ascii").splitlines()
        path.write_text("".join(json.dumps(without(json.loads(one))) + "\n" for one in lines))
    elif path.name == "checksums.json":
        path.unlink()
    elif path.suffix == ".json":
        path.write_text(json.dumps(without(json.loads(path.read_bytes())), indent=2))
    elif path.name == "complete":
        path.write_bytes(b"")
    elif path.suffix == ".safetensors" and path.parent.name != "tiny":
        from safetensors.numpy import load_file, save_file

        save_file(load_file(path), path)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in SLOWEST | SAME])
def test_older_files_are_read(name: str, tmp_path: Path) -> None:
    if name in ("checkpoints", "language models", "heads", "trainings"):
        pytest.importorskip("torch")
    kind, new, old = KINDS[name], tmp_path / "new", tmp_path / "old"
    for folder in (new, old):
        folder.mkdir()
        kind.make(folder)
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    for path in before:
        as_before(path)
    changed = [path for path in before if not path.exists() or path.read_bytes() != before[path]]
    assert changed
    assert kind.load(old) == kind.load(new)
