"""``comap bench reliability``: all parts with one command, and their figures in one file."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import DataCorrupt, OptionError, suggest
from ..record import circumstances, write_result
from .actions import run_actions
from .corruption import run_corruption
from .disk import run_disk
from .engines import run_engines
from .load import run_load
from .servers import run_servers

__all__ = ["PARTS", "add_parser", "merged", "run_reliability"]

Part = Callable[[float, int, Callable[[str], object]], dict[str, Any]]

PARTS: Mapping[str, Part] = {
    "actions": run_actions,
    "engines": run_engines,
    "disk": run_disk,
    "corruption": run_corruption,
    "load": run_load,
    "servers": run_servers,
}
"""What each part runs, given scale, seed and whom to tell."""


def run_reliability(
    scale: float = 1.0,
    parts: Sequence[str] | None = None,
    seed: int = 0,
    tell: Callable[[str], object] = lambda line: None,
    ended: Callable[[dict[str, Any]], object] = lambda found: None,
) -> dict[str, Any]:
    """Run parts and return what they found, with the circumstances.

    Args:
        scale: Which share of everything; 1 takes some hours.
        parts: Which parts; None for all.
        seed: Of all draws.
        tell: Told lines of progress.
        ended: Told all that was found when another part has ended.

    Returns:
        ``parts`` by name, each with ``counts``, ``told``, ``lost``, ``losses``, and how it was run:
        ``scale``, ``seed``, ``seconds_taken``, ``load_average``; and ``lost`` of all.

    Raises:
        OptionError: There is no such part, or the scale is none.

    Example:
        >>> run_reliability(0.001, [])["lost"]
        0
    """
    if not 0 < scale <= 100:
        raise OptionError(f"--scale must be above 0 and at most 100, not {scale!r}")
    for name in parts or ():
        if name not in PARTS:
            raise OptionError(f"there is no part {name!r:.80}; {suggest(name, PARTS)}")
    record: dict[str, Any] = {"benchmark": "reliability", "parts": {}, "lost": 0}
    for name in PARTS if parts is None else parts:
        begun = time.monotonic()
        found = PARTS[name](scale, seed, tell)
        load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
        run = {"scale": scale, "seed": seed, "seconds_taken": round(time.monotonic() - begun, 1)}
        record["parts"][name] = found | run | {"load_average": load}
        record["lost"] += found["lost"]
        ended(record | circumstances(("gymnasium", "numpy")))
    return record | circumstances(("gymnasium", "numpy"))


def merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was found now, and of the parts that were not run what was found before.

    Example:
        >>> part = {"lost": 1}
        >>> found = merged({"parts": {"load": part, "disk": part}}, {"parts": {"disk": {"lost": 0}}})
        >>> found["lost"], list(found["parts"])
        (1, ['disk', 'load'])
    """
    shared = ("scale", "seed", "load_average")  # earlier versions ran all parts alike
    alike = {name: before[name] for name in shared if name in before}
    parts = {name: alike | part for name, part in before["parts"].items()} | now["parts"]
    ordered = {name: parts[name] for name in PARTS if name in parts}
    return {**now, "parts": ordered, "lost": sum(part["lost"] for part in ordered.values())}


def add_parser(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``comap bench reliability``."""
    parser = kinds.add_parser(
        "reliability",
        help="faults and load: hostile actions, killed processes, full disks, broken files, servers",
        description="Do to comap what goes wrong in practice, and count what is lost. The exit code is "
        "0 only if nothing was.",
    )
    parser.set_defaults(run=_run)
    scale = "share of everything (default: 1, some hours)"
    parser.add_argument("--scale", type=float, default=1.0, metavar="S", help=scale)
    named = f"only these parts: {', '.join(PARTS)}"
    parser.add_argument("--parts", nargs="+", metavar="PART", help=named)
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of all draws (default: 0)"
    )
    where = "where to write the figures; those of other parts that are there stay"
    parser.add_argument("--result", metavar="FILE", help=where)


def _run(options: argparse.Namespace) -> int:
    def tell(line: str) -> None:
        print(line, flush=True)

    file = Path(options.result) if options.result else None
    before = None if file is None or not file.exists() else _read(file)

    def keep(found: dict[str, Any]) -> None:
        if file is not None:
            write_result(file, found if before is None else merged(before, found))

    found = run_reliability(options.scale, options.parts, options.seed, tell, keep)
    if file is not None:
        tell(f"figures: {file}")
    for name, part in found["parts"].items():
        tell(f"{name}: {part['lost']} lost, {part['seconds_taken']:.0f} s")
        for loss in part["losses"]:
            tell(f"  lost: {loss}")
    return 1 if found["lost"] else 0


def _read(file: Path) -> dict[str, Any]:
    """Return the figures that a file has.

    Raises:
        DataCorrupt: It has others.
    """
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
        whole = all(part["lost"] >= 0 for part in found["parts"].values())
        if found["benchmark"] != "reliability" or not whole:
            raise ValueError(f"benchmark {found['benchmark']!r:.40}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataCorrupt(
            f"expected figures of comap bench reliability in {file}, found something else ({error}); "
            "name another file"
        ) from error
    return found
