"""`comap bench speed searchqa`: steps for each CPU second, what indexes find, cost and hold."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..envs.searchqa.index import KINDS as INDEX_KINDS
from ..errors import DataCorrupt, OptionError, suggest
from .fresh_process import in_fresh_process
from .many_environments import measure_environments
from .record import circumstances, spread, write_result
from .searchqa_scale import measure_episodes, quality, scale

__all__ = ["KINDS", "SIZES", "main", "run", "table"]

SIZES = (1_000_000,)
"""Numbers of invented passages at which search is measured."""

KINDS = ("fts5", "bm25s")
"""The kinds of indexes that are measured unless others are named."""

_PACKAGES = ("gymnasium", "numpy", "bm25s", "PyStemmer")
_STEPS = 600
_ENV, _EMBEDDED = "comap/SearchQA-v0", {"source": "generated"}


def run(
    data_dir: str | Path | None = None,
    *,
    passages: Sequence[int] = SIZES,
    kinds: Sequence[str] = KINDS,
    environments: Sequence[int] = (1, 16),
    processes: int = 5,
    out: str | Path | None = None,
    seed: int = 0,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure search QA.

    Args:
        data_dir: Folder with ``mini_corpus.jsonl`` and ``*_with_context.jsonl``, for what indexes find;
            None leaves that out.
        passages: At how many invented passages to measure search; a million takes some minutes, and
            with bm25s some GB of memory.
        kinds: Kinds of indexes.
        environments: Of how many environments to measure the memory.
        processes: In how many fresh processes, one after another, to play episodes; medians are told.
        out: File for the result, or None. What a result that is there tells of other kinds and
            numbers of passages is kept, each with its date.
        seed: Of the invented passages and the choice of tasks.
        progress: Told of each part that is done.

    Returns:
        The result, as written to `out`.

    Raises:
        DataNotFound, DataCorrupt: A file is missing or broken.
        OptionError: There is no such kind, or a number is less than 1.
        MissingExtra: A kind needs a package that is not installed.

    Example:
        >>> result = run(passages=(), environments=(1,), processes=1)
        >>> result["steps"] >= 600, result["ours"]["again"] < 0.01
        (True, True)
    """
    if any(type(count) is not int or count < 1 for count in (*passages, processes)):
        raise OptionError(
            "passages and processes must be whole numbers of at least 1, not "
            f"{passages!r} and {processes!r}"
        )
    for kind in kinds:
        if kind not in INDEX_KINDS:
            raise OptionError(f"there is no index of kind {kind!r}; {suggest(kind, INDEX_KINDS)}")
    before = _before(out)
    result: dict[str, Any] = {
        "benchmark": "speed",
        "env": "searchqa",
        **circumstances(_PACKAGES),
        "units": "CPU seconds of one process (time.process_time) unless named otherwise, bytes",
        "processes": processes,
        **_steps(seed, processes, progress),
        "memory": {
            str(count): in_fresh_process(measure_environments, _ENV, _EMBEDDED, count)[
                "resident_bytes"
            ]
            for count in environments
        },
    }
    found = {row["kind"]: row for row in before["retrieval"]}
    sizes = {(row["kind"], row["passages"]): row for row in before["scale"]}
    for kind in kinds if data_dir is not None else ():
        found[kind] = {**quality(str(data_dir), kind, progress), "date": result["date"]}
    for count in passages:
        for kind in kinds:
            row = {**scale(count, kind, seed, progress), "date": result["date"]}
            sizes[kind, count] = row
            result["retrieval"] = list(found.values())
            result["scale"] = [sizes[key] for key in sorted(sizes)]
            if out is not None:
                write_result(Path(out), result)
    result["retrieval"] = [found[kind] for kind in sorted(found)]
    result["scale"] = [sizes[key] for key in sorted(sizes)]
    if out is not None:
        write_result(Path(out), result)
    return result


def _steps(seed: int, processes: int, progress: Callable[[str], object]) -> dict[str, Any]:
    """Return what a step costs, the median of some processes."""
    measured = []
    for number in range(1, processes + 1):
        measured.append(in_fresh_process(measure_episodes, _STEPS, seed))
        progress(f"episodes, process {number} of {processes}")
    spreads = {
        name: spread([one[name] for one in measured]) for name in ("first", "again", "reset")
    }
    ours = {name: found["median"] for name, found in spreads.items()}
    return {
        "episodes": measured[0]["episodes"],
        "steps": measured[0]["steps"],
        "ours": ours,
        "spread": spreads,
    }


def _before(out: str | Path | None) -> dict[str, list[dict[str, Any]]]:
    """Return what an earlier result tells of indexes."""
    if out is None or not Path(out).is_file():
        return {"retrieval": [], "scale": []}
    try:
        told = json.loads(Path(out).read_bytes())
        kept = {name: list(told[name]) for name in ("retrieval", "scale")}
        for row in [*kept["retrieval"], *kept["scale"]]:
            row["kind"], row["passages"], row["date"] = row["kind"], row["passages"], row["date"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(
            f"expected an earlier result of this benchmark in {out}, found {error!r}; choose another "
            "--out, or remove that file"
        ) from error
    return kept


def main(args: argparse.Namespace) -> int:
    """Run `comap bench speed searchqa` with parsed arguments and return the exit status.

    Example:
        >>> from .speed import add_parser
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> main(parser.parse_args(["speed", "searchqa"]))  # doctest: +SKIP
        0
    """
    result = run(
        args.data_dir,
        passages=SIZES if args.passages is None else args.passages,
        kinds=KINDS if args.kinds is None else args.kinds,
        out=args.out,
        seed=args.seed,
        progress=lambda line: print(line, file=sys.stderr),
    )
    print(table(result))
    return 0


def table(result: Mapping[str, Any]) -> str:
    """Return the result for people.

    Example:
        >>> print(table(run(passages=(), processes=1)))  # doctest: +SKIP
        239 episodes, 600 steps; CPU time
        ...
    """
    lines = [f"{result['episodes']} episodes, {result['steps']} steps; CPU time", ""]
    for name, title in (
        ("first", "step, first time"),
        ("again", "step, again"),
        ("reset", "reset"),
    ):
        lines.append(f"{title:18}{result['ours'][name] * 1e6:>9,.1f} us")
    for count, held in result["memory"].items():
        lines.append(f"{count} environments in one process: {_mib(held)}")
    head = f"{'index':>8}{'passages':>12}{'build':>10}{'peak':>12}{'disk':>12}{'open':>10}"
    lines += ["", f"{head}{'opened':>12}{'query, median':>16}  recall@3"]
    for row in (*result["retrieval"], *result["scale"]):
        recall = ", ".join(
            f"{name} {told['recall']:.3f}" for name, told in row.get("recall", {}).items()
        )
        lines.append(
            f"{row['kind']:>8}{row['passages']:>12,}{row['build_seconds']:>8,.1f} s"
            f"{_mib(row['peak_bytes']):>12}{_mib(row['bytes']):>12}"
            f"{row['open_seconds'] * 1e3:>7,.1f} ms{_mib(row['resident_bytes']['opened']):>12}"
            f"{row['query_seconds']['median'] * 1e3:>13,.2f} ms  {recall}"
        )
    return "\n".join(lines)


def _mib(size: int | None) -> str:
    return "?" if size is None else f"{size / 2**20:,.0f} MiB"
