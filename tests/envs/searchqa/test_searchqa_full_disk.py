"""A disk that fills while an index is built: told in a line, and the index that was there stays."""

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
    assert "comap: expected to read and write" in told and "is the disk full?" in told
    assert {file.name: file.read_bytes() for file in index.iterdir()} == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["corpus.jsonl", "index"]
