"""Indexes on a full disk and in broken files: told, and what was there before stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from comap.cli import main

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from comap.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs limits of file sizes")
@pytest.mark.parametrize("room", [5_000, 30_000])
def test_the_old_index_stays_whole(room: int, tmp_path: Path) -> None:
    corpus, index = tmp_path / "corpus.jsonl", tmp_path / "index"
    rows = ({"id": str(n), "contents": f'"Town {n}"\n{"A river. " * 40}'} for n in range(200))
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    words = ["data", "build", "searchqa", str(corpus), "--out", str(index)]
    assert main(words) == 0
    before = {file.name: file.read_bytes() for file in index.iterdir()}
    command = [sys.executable, "-c", LIMITED, str(room), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    told = done.stderr.splitlines()[-1]
    assert "expected to read and write" in told and "is the disk full?" in told
    assert {file.name: file.read_bytes() for file in index.iterdir()} == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["corpus.jsonl", "index"]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all indexes be too large to be compared with their checksums when they are opened."""
    monkeypatch.setattr("comap.envs.searchqa.index.QUICK", 0)


def build(tmp_path: Path, kind: str) -> Path:
    from comap.envs.searchqa import build_index

    corpus = tmp_path / "corpus.jsonl"
    rows = ({"id": f"{n}", "contents": f'"Town {n}"\nA river.'} for n in range(30))
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return build_index(corpus, tmp_path / "index", kind)


@pytest.mark.usefixtures("large")
def test_an_index_without_a_passage_that_its_words_lead_to(tmp_path: Path) -> None:
    import sqlite3

    from comap.envs.searchqa import open_index
    from comap.errors import DataCorrupt

    folder = build(tmp_path, "fts5")
    with sqlite3.connect(folder / "passages.db") as table:
        table.execute("UPDATE passages SET row = 1000 WHERE row = 7")
    table.close()
    with pytest.raises(DataCorrupt, match=f"{folder}.*no passage in row 7.*build it again"):
        open_index(folder).search(["river"], k=30)


@pytest.mark.usefixtures("large")
def test_an_index_of_bm25s_whose_numbers_are_others(tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    import numpy as np

    from comap.envs.searchqa import open_index
    from comap.errors import DataCorrupt

    folder = build(tmp_path, "bm25s")
    numbers = np.load(folder / "indices.csc.index.npy")
    np.save(folder / "indices.csc.index.npy", numbers + 1000)
    with pytest.raises(DataCorrupt, match=f"{folder}.*build it again"):
        open_index(folder).search(["river"], k=3)
