"""``comap bench reliability``: faults and load on purpose, and what is lost by them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import DataCorrupt, OptionError, suggest
from ...jsonl import read_json
from ..record import circumstances, write_result

PARTS: Mapping[str, str] = {
    "actions": "environments",
    "engines": "environments",
    "corruption": "files",
    "load": "environments",
    "servers": "servers",
}
"""The module of each part, which has a function ``run_<part>(scale, seed, progress)``."""


def run_reliability(
    scale: float = 1.0,
    parts: Sequence[str] | None = None,
    seed: int = 0,
    out: Path | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Run parts and return what they found; write it after each part, beside parts that `out` has."""
    if not 0 < scale <= 100:
        raise OptionError(f"--scale must be above 0 and at most 100, not {scale!r}")
    for name in parts or ():
        if name not in PARTS:
            raise OptionError(f"there is no part {name!r:.80}; {suggest(name, PARTS)}")
    before = _recorded(out) if out is not None and out.exists() else {}
    found: dict[str, Any] = {}
    for name in PARTS if parts is None else parts:
        begun = time.monotonic()
        part = getattr(import_module(f".{PARTS[name]}", __name__), f"run_{name}")
        found[name] = part(scale, seed, progress) | {"scale": scale, "seed": seed}
        found[name]["seconds_taken"] = round(time.monotonic() - begun, 1)
        found[name]["load_average"] = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        if out is not None:
            write_result(out, _record(before | found))
    return _record(found)


def _record(parts: Mapping[str, Any]) -> dict[str, Any]:
    ordered = {name: parts[name] for name in PARTS if name in parts}
    lost = sum(part["lost"] for part in ordered.values())
    record = {"benchmark": "reliability", "parts": ordered, "lost": lost}
    return record | circumstances(("gymnasium", "numpy"))


def _recorded(file: Path) -> dict[str, Any]:
    found = read_json(file)
    if not isinstance(found, dict) or found.get("benchmark") != "reliability":
        raise DataCorrupt(
            f"expected figures of comap bench reliability in {file}, found something else; name "
            "another folder"
        )
    parts: dict[str, Any] = found["parts"]
    return parts
