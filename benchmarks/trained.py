"""`comap bench trained`: what finished trainings came to, as a result file.

It measures nothing: a training's folder has all of it already. The file keeps what belongs into a
repository: settings, versions and machine, and each round's evaluation with its numbers of episodes and
transitions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataCorrupt, DataNotFound
from .record import circumstances, write_result
from .training_record import TrainingRecord, members, number, read_training

__all__ = ["add_parser", "main", "run", "trained_section"]

_RATES = ("episodes", "success", "success_low", "success_high", "score")
_SCORES = ("n", "delta_f1", "stderr")
_PARTS = ("all", "nonempty", "predictable", "unpredictable")


def run(folders: Sequence[str | Path], out: str | Path | None = None) -> dict[str, Any]:
    """Read trainings that have ended.

    Args:
        folders: Folders of ``comap train comap``.
        out: File for the result, or None. What it has of other environments is kept.

    Returns:
        ``trainings``, a list: settings, sessions, CPU seconds and ``rounds``; and `circumstances`.

    Raises:
        DataNotFound: One is no training, or has not ended.
        DataCorrupt: A file is not what a training writes, or `out` is something else.

    Example:
        >>> run([])["trainings"]
        []
    """
    trainings = [_told(Path(folder)) for folder in folders]
    new = {one["env"]["id"] for one in trainings}
    trainings += [one for one in _earlier(out) if one["env"]["id"] not in new]
    trainings.sort(key=lambda one: str(one["env"]["id"]))
    record = {"benchmark": "trained", **circumstances(), "trainings": trainings}
    if out is not None:
        write_result(Path(out), record)
    return record


def trained_section(record: Mapping[str, Any]) -> str:
    """Return the first and last round of each training, as a Markdown table.

    Args:
        record: What `run` returned.

    Example:
        >>> score = {"n": 9, "delta_f1": 12.5, "stderr": 4.0}
        >>> first = {"round": 0, "splits": {}, "world_model": {"frozen": {"all": score}}}
        >>> one = {"env": {"id": "zoo"}, "rounds": [first]}
        >>> print(trained_section({"trainings": [one]}).splitlines()[2])
        | zoo | 0 | – | – | 12.5 ± 4.0 (n=9) | – |
    """
    lines = [
        "| environment | round | success (n) | mean score | Delta-F1, frozen transitions | "
        "Delta-F1, its own |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for one in record["trainings"]:
        rounds = one["rounds"]
        for told in [rounds[0], *rounds[-1:][: len(rounds) - 1]]:
            deltas = [_delta(told, kind) for kind in ("frozen", "on_policy")]
            cells = [_success(told), _score(told), *deltas]
            lines.append(f"| {one['env']['id']} | {told['round']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _earlier(out: str | Path | None) -> list[dict[str, Any]]:
    """Return the trainings that a result file has."""
    if out is None or not Path(out).is_file():
        return []
    try:
        found: list[dict[str, Any]] = json.loads(Path(out).read_bytes())["trainings"]
        if not all(isinstance(one["env"]["id"], str) for one in found):
            raise ValueError("a training without an environment")
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(
            f"expected trainings in {out}, found something else ({error!r:.80}); move it away, or "
            "give --out another file"
        ) from error
    return found


def _told(folder: Path) -> dict[str, Any]:
    """Return what a training came to."""
    record = read_training(folder)
    rounds = record.evaluations()
    wanted = number(record.described, "config", "rounds")
    if not rounds or rounds[-1][0] != wanted:
        raise DataNotFound(
            f"expected a training at {folder} that has ended, found {len(rounds)} evaluations of "
            f"{wanted} rounds; the same command goes on with it"
        )
    spent = [number(result, "cpu_seconds") or 0.0 for _, result in record.done()]
    return {
        **{key: record.described.get(key) for key in ("preset", "env", "model", "config")},
        "demonstrations": record.described.get("demonstrations"),
        "sessions": list(record.sessions),
        "cpu_seconds": round(sum(spent), 1),
        "rounds": [_round(number_, result) for number_, result in rounds],
        "learned": _learned(record),
    }


def _round(place: int, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of an evaluation."""
    splits = members(result, "splits")
    models = members(result, "world_model")
    return {
        "round": place,
        "splits": {split: _kept(members(splits, split), _RATES) for split in splits},
        "world_model": {
            kind: {part: _kept(members(models, kind, part), _SCORES) for part in _PARTS}
            for kind in models
            if members(models, kind, "all")
        },
    }


def _learned(record: TrainingRecord) -> dict[str, Any]:
    """Return how much each stage learned from."""
    keys = ("role", "rows", "tokens", "updates", "samples")
    return {name: _kept(result, keys) for name, result in record.learned()}


def _kept(found: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: found[key] for key in keys if key in found}


def _success(told: Mapping[str, Any]) -> str:
    """Return the share of episodes that succeeded, all splits together."""
    splits = list(told["splits"].values())
    n = sum(one["episodes"] for one in splits)
    won = sum(round(one["success"] * one["episodes"]) for one in splits)
    return f"{100 * won / n:.1f} % ({n})" if n else "–"


def _score(told: Mapping[str, Any]) -> str:
    splits = list(told["splits"].values())
    n = sum(one["episodes"] for one in splits)
    total = sum(one["score"] * one["episodes"] for one in splits)
    return f"{total / n:.3f}" if n else "–"


def _delta(told: Mapping[str, Any], kind: str) -> str:
    found = members(told, "world_model", kind, "all")
    if number(found, "delta_f1") is None:
        return "–"
    error = number(found, "stderr")
    spread = "" if error is None else f" ± {error:.1f}"
    return f"{found['delta_f1']:.1f}{spread} (n={found['n']})"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `trained`; `main` is set as its default ``run``.

    Example:
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> parser.parse_args(["trained", "runs/tiny"]).folders
        ['runs/tiny']
    """
    parser = subparsers.add_parser("trained", help="write what trainings came to as a result file")
    parser.set_defaults(run=main)
    parser.add_argument("folders", nargs="+", metavar="RUN", help="folder of comap train comap")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the result to this file, as JSON; what it has of other environments is kept",
    )


def main(args: argparse.Namespace) -> int:
    """Run `comap bench trained` with parsed arguments and return the exit status.

    Example:
        >>> main(argparse.Namespace(folders=["runs/tiny"], out=None))  # doctest: +SKIP
        0
    """
    print(trained_section(run(args.folders, args.out)))
    return 0
