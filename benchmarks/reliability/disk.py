"""A disk that fills while something is written: what was recorded stays, the error tells, runs go on.

The disk is full for one child process: the system refuses to let its files grow beyond a size. Where
the size lies is drawn, so that writes fail at their beginning, in their middle and at their end.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .disk_fills import KINDS, Place, play
from .findings import Findings

__all__ = ["FILLS", "run_disk"]

FILLS = 100
"""How many times the disk fills at scale 1."""


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
    kinds = {}
    for name, (fill, needs) in KINDS.items():
        missing = [module for module in needs if find_spec(module) is None]
        if missing:
            found.note(f"{name} left out", f"not installed: {', '.join(missing)}")
            tell(f"disk: {name} left out, {', '.join(missing)} not installed")
        else:
            kinds[name] = fill
    fills = max(len(kinds), round(FILLS * scale))
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "whole")
        play(None, whole)
        lines = (whole / "trajectories.jsonl").read_bytes().splitlines(keepends=True)
        place = Place(Path(folder), lines, rng, found)
        for number in range(fills):
            name = list(kinds)[number % len(kinds)]
            kinds[name](place, number)
            found.count(f"{name} that met a full disk")
    told = found.plain()
    tell(f"disk: full {fills} times, {told['lost']} lost")
    return told
