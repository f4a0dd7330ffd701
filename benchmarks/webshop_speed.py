"""`comap bench speed webshop`: steps for each CPU second, search at scale, and memory."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataCorrupt, OptionError
from .fresh_process import in_fresh_process
from .record import circumstances, spread, write_result
from .webshop_scale import memory, scale
from .webshop_sessions import measure_sessions

__all__ = ["PEER", "SIZES", "main", "run", "table"]

SIZES = (1_000, 100_000, 1_000_000)
"""Numbers of products at which search is measured."""

PEER: Mapping[str, Any] = {
    "seconds_per_step": 0.0374,
    "steps": 819,
    "what": "the original WebShop text environment on its 1,000 products; CPU time of a mixed script, "
    "recorded earlier (env/webshop.md, section 4), not run beside ours",
}
"""What the original costs; a record, since it needs Java, spaCy and Flask to run."""

_PACKAGES = ("gymnasium", "numpy", "rapidfuzz")
_STEPS = {
    "page_first": "as the original tells it, first time",
    "page_again": "as the original tells it, again",
    "first": "with state facts, first time",
    "again": "with state facts, again",
}
"""What of a step is measured, and how it is called."""


def run(
    data_dir: str | Path | None = None,
    sessions: Sequence[str | Path] = (),
    *,
    products: Sequence[int] = SIZES,
    environments: Sequence[int] = (1, 16),
    processes: int = 9,
    out: str | Path | None = None,
    seed: int = 0,
    progress: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Measure WebShop.

    Args:
        data_dir: Folder of a catalogue; None for the generated one.
        sessions: Files of recorded sessions (``transcripts_*.jsonl``) on that catalogue; none for
            the expert's episodes, which cannot be compared with the original.
        products: At how many invented products to measure search; a million takes some minutes
            and 3 GB of disk for a while.
        environments: Of how many environments to measure the memory.
        processes: In how many fresh processes, one after another, to play the sessions; what other
            programs slow down is then one of several values, the least of which is told.
        out: File for the result, or None. What a result that is there tells of other numbers of
            products is kept, each with its date.
        seed: Of the invented products and the expert's tasks.
        progress: Told of each part that is done.

    Returns:
        The result, as written to `out`. ``first`` is the mean step when each session is played for
        the first time in a process, ``again`` when it is played again; ``page_first`` and
        ``page_again`` are the same without state facts, which the original has not. All are of the
        fastest of the processes, of which ``spread`` has the quartiles.

    Raises:
        DataNotFound, DataCorrupt: The catalogue or a recording is missing or broken.
        OptionError: A number of products is less than 1.

    Example:
        >>> result = run(products=(), environments=(1,), processes=1)
        >>> result["steps"] > 100, result["ours"]["again"] < 0.01
        (True, True)
    """
    if any(type(count) is not int or count < 1 for count in (*products, processes)):
        raise OptionError(
            "products and processes must be whole numbers of at least 1, not "
            f"{products!r} and {processes!r}"
        )
    where = None if data_dir is None else str(data_dir)
    kept = {row["products"]: row for row in _before(out)}
    result: dict[str, Any] = {
        "benchmark": "speed",
        "env": "webshop",
        **circumstances(_PACKAGES),
        "units": "CPU seconds of one process (time.process_time), bytes; ratios are peer / ours",
        "sessions": [Path(path).name for path in sessions] or "the expert's",
        "processes": processes,
        **_steps(where, [str(path) for path in sessions], seed, processes, progress),
    }
    result["memory"] = memory(where, environments)
    progress("memory")
    for count in products:
        kept[count] = {**scale(count, seed, progress), "date": result["date"]}
    result["scale"] = [kept[count] for count in sorted(kept)]
    if out is not None:
        write_result(Path(out), result)
    return result


def _steps(
    data_dir: str | None,
    recordings: Sequence[str],
    seed: int,
    processes: int,
    progress: Callable[[str], object],
) -> dict[str, Any]:
    """Return what a step costs in the fastest of some processes, and how that compares.

    What else runs on a core, or beside it, adds to a process's CPU time and takes nothing away.
    """
    measured = []
    for number in range(1, processes + 1):
        one = _played(data_dir, recordings, seed, True, processes)
        pages = _played(data_dir, recordings, seed, False, processes)
        measured.append(one | {f"page_{name}": pages[name] for name in ("first", "again")})
        progress(f"sessions, process {number} of {processes}")
    spreads = {name: spread([one[name] for one in measured]) for name in (*_STEPS, "reset")}
    ours = {name: found["min"] for name, found in spreads.items()}
    told = {name: measured[0][name] for name in ("episodes", "steps")}
    result: dict[str, Any] = {**told, "ours": ours, "spread": spreads}
    if recordings:
        ratios = {name: PEER["seconds_per_step"] / ours[name] for name in _STEPS}
        agreed = min(one["agreed"] for one in measured)
        result |= {"peer": PEER, "ratios": ratios, "steps_that_agree": agreed}
    return result


def _played(
    data_dir: str | None, recordings: Sequence[str], seed: int, facts: bool, processes: int
) -> dict[str, Any]:
    """Return what playing sessions costs: in this process where it is the only one."""
    args = (data_dir, recordings, seed, facts)
    return measure_sessions(*args) if processes == 1 else in_fresh_process(measure_sessions, *args)


def _before(out: str | Path | None) -> list[dict[str, Any]]:
    """Return what an earlier result tells of catalogues of many sizes."""
    if out is None or not Path(out).is_file():
        return []
    try:
        told = json.loads(Path(out).read_bytes())
        return [{"date": told["date"], **row} for row in told["scale"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(
            f"expected an earlier result of this benchmark in {out}, found {error!r}; choose another "
            "--out, or remove that file"
        ) from error


def main(args: argparse.Namespace) -> int:
    """Run `comap bench speed webshop` with parsed arguments and return the exit status.

    Example:
        >>> from .speed import add_parser
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parser(parser.add_subparsers())
        >>> main(parser.parse_args(["speed", "webshop"]))  # doctest: +SKIP
        0
    """
    result = run(
        args.data_dir,
        args.sessions,
        products=SIZES if args.products is None else args.products,
        out=args.out,
        seed=args.seed,
        progress=lambda line: print(line, file=sys.stderr),
    )
    print(table(result))
    return 0


def table(result: Mapping[str, Any]) -> str:
    """Return the result for people.

    Example:
        >>> print(table(run(products=())))  # doctest: +SKIP
        60 sessions, 769 steps; CPU time
        ...
    """
    lines = [f"{result['episodes']} sessions, {result['steps']} steps; CPU time", ""]
    for name, title in (*_STEPS.items(), ("reset", "reset")):
        row = f"{title:38}{result['ours'][name] * 1e6:>9,.1f} us"
        if name in result.get("ratios", ()):
            row += f"{result['ratios'][name]:>8,.0f} times the original's steps (recorded)"
        lines.append(row)
    if "steps_that_agree" in result:
        lines.append(f"same answers in {result['steps_that_agree']} of {result['steps']} steps")
    lines += ["", f"{'environments':>14}{'one process':>16}{'processes':>16}"]
    for count, held in result["memory"].items():
        lines.append(f"{count:>14}{_mib(held['one_process']):>16}{_mib(held['processes']):>16}")
    lines += [
        "",
        f"{'products':>14}{'open':>12}{'before query':>16}{'query, median':>16}{'q3':>12}",
    ]
    for row in result["scale"]:
        query = row["query_seconds"]
        lines.append(
            f"{row['products']:>14,}{row['open_seconds'] * 1e3:>9,.1f} ms"
            f"{_mib(row['resident_bytes']['opened']):>16}{query['median'] * 1e3:>13,.2f} ms"
            f"{query['q3'] * 1e3:>9,.2f} ms"
        )
    return "\n".join(lines)


def _mib(size: int | None) -> str:
    return "?" if size is None else f"{size / 2**20:,.0f} MiB"
