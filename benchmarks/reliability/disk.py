"""A disk that fills while something is written: what was recorded stays, the error tells, runs go on.

The disk is full for one child process: the system refuses to let its files grow beyond a size. Where
the size lies is drawn, so that writes fail at their beginning, in their middle and at their end.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...trajectory import read_trajectories
from .engines import RUN
from .findings import Findings

__all__ = ["FILLS", "run_disk"]

FILLS = 100
"""How many times the disk fills at scale 1."""

_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
from comap.cli import main
sys.exit(main(sys.argv[2:]))
"""
_SECONDS = 600.0


def run_disk(
    scale: float = 1.0, seed: int = 0, tell: Callable[[str], object] = lambda line: None
) -> dict[str, Any]:
    """Fill the disk at random places while runs and data are written, and return what was found.

    Args:
        scale: Which share of `FILLS`.
        seed: Of the places.
        tell: Told a line for what was done.
    """
    found, rng = Findings(), random.Random(seed)
    if sys.platform == "win32":
        found.note("left out", "the system has no limits of file sizes")
        return found.plain()
    fills = max(4, round(FILLS * scale))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        whole = place / "whole"
        _play(None, whole)
        lines = (whole / "trajectories.jsonl").read_bytes().splitlines(keepends=True)
        for number in range(fills):
            if number % 4 == 3:
                _fill_index(found, rng, place, number)
            else:
                _fill_run(found, rng, place / f"run-{number}", lines)
    told = found.plain()
    tell(f"disk: full {fills} times, {told['lost']} lost")
    return told


def _fill_run(found: Findings, rng: random.Random, folder: Path, lines: list[bytes]) -> None:
    """Fill the disk under a run, look at what it left, and go on with it."""
    room = rng.randrange(1, sum(map(len, lines)))
    done = _play(room, folder)
    found.count("runs that met a full disk")
    _check_told(found, done, f"a run with room for {room} bytes")
    path = folder / "trajectories.jsonl"
    kept = path.read_bytes() if path.exists() else b""
    found.count("episodes kept", len(list(read_trajectories(path))) if path.exists() else 0)
    held = kept in [b"".join(lines[:number]) for number in range(len(lines) + 1)]
    found.check(held, f"with room for {room} bytes something else than whole episodes was left")
    again = _play(None, folder)
    found.check(again.returncode == 0, f"the run did not go on: {again.stderr[-300:]}")
    same = path.exists() and path.read_bytes() == b"".join(lines)
    found.check(same, "a run that went on after a full disk recorded something else")
    found.count("runs completed")


def _fill_index(found: Findings, rng: random.Random, place: Path, number: int) -> None:
    """Fill the disk while an index is built over another: the old one must stay whole."""
    corpus, index = place / "corpus.jsonl", place / f"index-{number}"
    if not corpus.exists():
        rows = ({"id": str(n), "contents": f'"Town {n}"\n{"A river. " * 30}'} for n in range(300))
        corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    words = ("data", "build", "searchqa", str(corpus), "--out", str(index))
    first = _command(None, *words)
    if not found.check(first.returncode == 0, f"no index was built: {first.stderr[-300:]}"):
        return
    before = {file.name: file.read_bytes() for file in index.iterdir()}
    done = _command(rng.randrange(1, corpus.stat().st_size // 2), *words)
    found.count("indexes that met a full disk")
    _check_told(found, done, "an index")
    after = {file.name: file.read_bytes() for file in index.iterdir()}
    found.check(before == after, "a full disk changed the index that was there")
    left = [file.name for file in place.iterdir() if file.name.startswith(f".{index.name}-")]
    found.check(not left, f"a full disk left {left} behind")


def _check_told(found: Findings, done: subprocess.CompletedProcess[str], what: str) -> None:
    """Look at how a command told of a full disk: exit status 1, one line, no traceback."""
    said = [line for line in done.stderr.splitlines() if line.startswith("comap")]
    right = done.returncode == 1 and len(said) == 1 and "Traceback" not in done.stderr
    if found.check(right, f"{what} ended with {done.returncode}: {done.stderr[-300:]}"):
        found.tell("one line and exit status 1")
        clear = "File too large" in said[0] or "full" in said[0]
        found.check(clear, f"{what} does not tell of a full disk: {said[0]}")


def _play(room: int | None, folder: Path) -> subprocess.CompletedProcess[str]:
    return _command(room, *RUN, "--live", "2", "--out", str(folder))


def _command(room: int | None, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of comap, on a disk with so much room for each file."""
    start = ("-m", "comap") if room is None else ("-c", _LIMITED, str(room))
    return subprocess.run(
        [sys.executable, *start, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
