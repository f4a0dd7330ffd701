"""What one run of `comap bench paw` gave, from its folder."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checksums import unseal
from ..errors import DataCorrupt
from ..trainers.paw.journal import EVALUATIONS, METRICS, read_lines
from .paw_bench_pairs import share_won
from .paw_bench_training import CPU, has_ended, last_update
from .paw_curves import PHASES

__all__ = ["CURVES", "LAST", "read_run"]

CURVES = (
    "success",
    "return",
    "invalid",
    "rows",
    "wm_lambda",
    "wm_loss",
    "wm_clipped_ratio",
    "wm_probability",
    "policy_loss",
    "value_loss",
    "clip_fraction",
    "entropy",
    "kl",
    "grad_norm",
    *PHASES,
)
"""The measures whose course over the updates is kept (PaW, Figures 5, 10 and 11)."""

LAST = 5
"""So many updates' rollouts are taken together for the success at the end of training."""


def read_run(
    folder: Path, seed: int, again: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
) -> dict[str, Any] | None:
    """Return what a run gave; None where it is not there or has not ended.

    Args:
        folder: Its folder.
        seed: Its seed.
        again: Further plays of the evaluation tasks, as `further_plays` returns them.

    Raises:
        DataCorrupt: A file is not what a training writes.

    Example:
        >>> read_run(Path("no/such/run"), 0) is None
        True
    """
    if not has_ended(folder):
        return None
    run = unseal((folder / "run.json").read_bytes())
    described, last = run["described"], run["sessions"][-1]
    config = described["config"]
    lines = sorted(read_lines(folder / METRICS), key=lambda line: int(line["update"]))
    tests = {(line["update"], line["split"]): line for line in read_lines(folder / EVALUATIONS)}
    ends = {"start": 0, "final": last_update(run)}
    lines = [line for line in lines if line["update"] <= ends["final"]]
    splits: list[str] = config["evaluation_splits"]
    again = again or dict.fromkeys(ends, ())
    won = {
        end: {split: _won(tests[at, split], again[end], folder) for split in splits}
        for end, at in ends.items()
    }
    plays = 1 + len(again["final"])
    rows = _total(lines, "rows")
    seconds = {name: round(_total(lines, name), 1) for name in PHASES}
    return {
        "seed": seed,
        "start": described["model"],
        "env": described["env"],
        "config": config,
        "success": {end: _rates(texts, plays) for end, texts in won.items()},
        "score": {
            end: _scores([tests[at, split] for split in splits], again[end])
            for end, at in ends.items()
        },
        "won": won,
        "plays": plays,
        "tasks": {split: _digest(tests[0, split]) for split in splits},
        "errors": int(
            sum(line["errors"] for line in tests.values())
            + sum(play["errors"] for some in again.values() for play in some)
        ),
        "training_last": _mean(lines[-LAST:], "success"),
        "training_mean": _mean(lines, "success"),
        "curve": {name: told for name in CURVES if (told := _curve(lines, name)) is not None},
        "seconds": seconds,
        "rows": int(rows),
        "cpu_seconds": _cpu(folder / CPU),
        "stopped_after": ends["final"] if ends["final"] < config["updates"] else None,
        "sessions": len(run["sessions"]),
        "ran": {name: last.get(name) for name in ("started", "versions", "hardware")},
    }


def _won(line: Mapping[str, Any], again: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Return one digit for each task of a split, in the order of their ids: how often it was won."""
    further = [play["won"][line["split"]] for play in again]
    if any(play.keys() != line["won"].keys() for play in further):
        raise DataCorrupt(
            f"expected further plays of {folder} to be of its tasks of {line['split']}, found others; "
            "remove its folder plays, and that of its start, and play again"
        )
    return "".join(
        str(bool(won) + sum(play[task] for play in further))
        for task, won in sorted(line["won"].items())
    )


def _digest(line: Mapping[str, Any]) -> str:
    """Return what tells whether two evaluations are of the same tasks."""
    return hashlib.sha256("\n".join(sorted(line["won"])).encode()).hexdigest()[:12]


def _rates(won: Mapping[str, str], plays: int) -> dict[str, Any]:
    """Return the share of each split's plays that is won, and of all, with its interval."""
    everything = (*won.items(), ("all", "".join(won.values())))
    return {name: share_won(text, plays) for name, text in everything}


def _scores(
    lines: Sequence[Mapping[str, Any]], again: Sequence[Mapping[str, Any]]
) -> dict[str, float] | None:
    """Return the mean score of all plays of each split, and of all tasks; None where one is unknown."""
    plays = [{line["split"]: line.get("score") for line in lines}]
    plays += [play.get("scores") or {} for play in again]
    found: dict[str, float] = {}
    for line in lines:
        known = [score for play in plays if (score := play.get(line["split"])) is not None]
        if len(known) < len(plays):
            return None
        found[line["split"]] = statistics.mean(known)
    tasks = {line["split"]: len(line["won"]) for line in lines}
    found["all"] = sum(found[s] * n for s, n in tasks.items()) / max(sum(tasks.values()), 1)
    return {name: round(value, 4) for name, value in found.items()}


def _curve(lines: Sequence[Mapping[str, Any]], name: str) -> list[float | None] | None:
    """Return a measure of each update; None where no update has it."""
    told = [line.get(name) for line in lines]
    if all(value is None for value in told):
        return None
    return [None if value is None else float(f"{value:.4g}") for value in told]


def _total(lines: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(line.get(name) or 0.0 for line in lines))


def _mean(lines: Sequence[Mapping[str, Any]], name: str) -> float:
    return round(statistics.mean(float(line[name]) for line in lines), 4)


def _cpu(path: Path) -> dict[str, float] | None:
    """Return the CPU seconds of updates and of evaluations; what a kill undid counts once."""
    if not path.is_file():
        return None
    spent: dict[tuple[int, str | None], float] = {}
    try:
        for text in path.read_text("ascii").splitlines():
            line = json.loads(text)
            spent[line["update"], line["split"]] = line["cpu_seconds"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(
            f"expected CPU times in {path}, found something else ({error}); remove that file"
        ) from error
    told = {"updates": 0.0, "evaluation": 0.0}
    for (_, split), seconds in spent.items():
        told["updates" if split is None else "evaluation"] += seconds
    return {name: round(value, 1) for name, value in told.items()}
