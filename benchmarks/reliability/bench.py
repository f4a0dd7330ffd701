"""``comap bench reliability``: all parts with one command, and their figures in one file."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import OptionError, suggest
from ..record import circumstances, write_result
from .actions import run_actions
from .corruption import run_corruption
from .disk import run_disk
from .engines import run_engines
from .load import run_load
from .servers import run_servers

__all__ = ["PARTS", "add_parser", "run_reliability"]

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
) -> dict[str, Any]:
    """Run parts and return what they found, with the circumstances.

    Args:
        scale: Which share of everything; 1 takes some hours.
        parts: Which parts; None for all.
        seed: Of all draws.
        tell: Told lines of progress.

    Returns:
        ``parts`` by name, each with ``counts``, ``told``, ``lost``, ``losses`` and ``seconds``, and
        ``lost`` of all.

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
    found = {}
    for name in PARTS if parts is None else parts:
        begun = time.monotonic()
        found[name] = PARTS[name](scale, seed, tell)
        found[name]["seconds_taken"] = round(time.monotonic() - begun, 1)
    return {
        "benchmark": "reliability",
        **circumstances(("gymnasium", "numpy")),
        "scale": scale,
        "seed": seed,
        "load_average": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "parts": found,
        "lost": sum(part["lost"] for part in found.values()),
    }


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
    parser.add_argument("--result", metavar="FILE", help="where to write the figures")


def _run(options: argparse.Namespace) -> int:
    def tell(line: str) -> None:
        print(line, flush=True)

    found = run_reliability(options.scale, options.parts, options.seed, tell)
    if options.result:
        write_result(Path(options.result), found)
        tell(f"figures: {options.result}")
    for name, part in found["parts"].items():
        tell(f"{name}: {part['lost']} lost, {part['seconds_taken']:.0f} s")
        for loss in part["losses"]:
            tell(f"  lost: {loss}")
    return 1 if found["lost"] else 0
