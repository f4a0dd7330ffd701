"""What tests of `comap bench paw` share: runs that are made up, and the command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comap.benchmarks import paw_bench
from comap.benchmarks.paw_bench_arms import arm_of, training_of
from comap.benchmarks.paw_bench_starts import PaWBench
from comap.trainers.paw.journal import EVALUATIONS, METRICS

UPDATES = 2
ENV = {"id": "comap/ALFWorld-v0", "options": {}, "fingerprint": {"train": {"games": "2"}}}
START = {"name": "3000-tokens/policy-0", "sha256": "ab" * 32, "parameters": 5}


def evaluated(update: int, split: str, won: str, names: str = "task") -> dict[str, Any]:
    found = {f"{names} {number}": int(digit) for number, digit in enumerate(won)}
    rate = won.count("1") / len(won)
    common = {"update": update, "split": split, "n": len(won), "success": rate, "errors": 0}
    return {**common, "won": dict(reversed(found.items()))}  # the file's order does not matter


def made_up(
    bench: PaWBench,
    arm: str,
    seed: int,
    final: Sequence[str],
    *,
    start: Mapping[str, Any] = START,
    successes: Sequence[float] = (0.25, 0.75),
    names: str = "task",
    **changed: Any,
) -> Path:
    """Write the folder of a run that has ended."""
    config = training_of(arm_of(arm), seed, {"updates": UPDATES, **changed}).describe()
    config.pop("max_updates")
    folder = bench.place_of(arm, seed)
    folder.mkdir(parents=True)
    described = {"method": "paw", "config": config, "arm": arm, "env": ENV, "model": dict(start)}
    sessions = [{"started": "2026-01-01T00:00:00Z", "versions": {}, "hardware": {"cores": 2}}]
    run = {"format": "comap training 1", "described": described, "sessions": sessions}
    (folder / "run.json").write_text(json.dumps(run))
    paw = {"wm_lambda": 0.123456} if config["paw"] else {}
    lines = [
        {"update": number, "success": success, "rows": 10, "kl": None, **paw}
        | {"seconds_rollout": 3.0, "seconds_old_logps": 0.25, "seconds_advantages": 0.0}
        | {"seconds_update": 1.5 if paw else 1.0}
        for number, success in enumerate(successes, 1)
    ]
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    tests = [
        evaluated(at, split, won, names)
        for at, wins in ((0, ("00", "10")), (UPDATES, final))
        for split, won in zip(("valid_seen", "valid_unseen"), wins, strict=True)
    ]
    (folder / EVALUATIONS).write_text("".join(json.dumps(line) + "\n" for line in tests))
    return folder


def by_name(result: Mapping[str, Any]) -> dict[str, Any]:
    return {arm["arm"]: arm for arm in result["arms"]}


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser("comap bench")
    paw_bench.add_parser(parser.add_subparsers())
    return parser.parse_args(["paw", *words])


def command(*words: str) -> int:
    options = parsed(*words)
    code: int = options.run(options)
    return code


TINY = {
    "groups": 2,
    "members": 2,
    "updates": 2,
    "max-episode-steps": 3,
    "evaluation-tasks": 1,
    "seeds": 0,
    "warmup-tokens": 2000,
    "warmup-tasks": 2,
    "warmup-recoveries": 1,
    "warmup-parameters": 200_000,
    "device": "cpu",
}
REAL = [
    *(word for name, value in TINY.items() for word in (f"--{name}", str(value))),
    *("--arms", "grpo", "grpo+paw", "--plays", "2"),
]


def written(place: Path, split: str, number: int, won: str) -> None:
    """Write down a further play."""
    folder = place / f"{split}-{number}"
    folder.mkdir(parents=True)
    told = {f"task {n}": int(digit) for n, digit in enumerate(won)}
    (folder / "won.json").write_text(json.dumps({"of": {}, "errors": 1, "won": told}))


KIT = sys.modules[__name__]
"""This module, for tests: ``load("paw_bench_kit.py:KIT")``."""
