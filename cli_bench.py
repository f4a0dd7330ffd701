"""``comap bench list | run | report``: every table and figure of both papers."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .benchmarks.experiments.definition import Experiment, experiment, experiment_ids
from .benchmarks.experiments.known import PLAN, known_plan
from .benchmarks.record import circumstances, write_result
from .errors import DataNotFound, OptionError

if TYPE_CHECKING:
    from .benchmarks.experiments.commands import Places
    from .benchmarks.experiments.jobs import Job, Plan

__all__ = ["add_parsers", "wanted"]

_ROWS = "rows.jsonl"
_FORMATS = ("md", "tex", "html")


def add_parsers(
    kinds: argparse._SubParsersAction[argparse.ArgumentParser],
    main: Callable[[Sequence[str]], int],
) -> None:
    """Add ``list``, ``run`` and ``report`` to ``comap bench``.

    Args:
        kinds: The subparsers of ``comap bench``.
        main: Runs the words of one command: what jobs are.

    Example:
        >>> parser = argparse.ArgumentParser("comap bench")
        >>> add_parsers(parser.add_subparsers(), print)
        >>> parser.parse_args(["run", "comap-t1", "--scale", "tiny"]).experiments
        ['comap-t1']
    """
    lister = kinds.add_parser("list", help="list the tables and figures of both papers")
    lister.add_argument("--scale", default="tiny", help="tiny (default), small or paper")
    lister.set_defaults(run=_list)
    _add_run(kinds, main)
    reporter = kinds.add_parser("report", help="write the reports of tables and figures")
    reporter.set_defaults(run=_report)
    reporter.add_argument("results", metavar="DIR", help="folder of comap bench run")
    names = "tables and figures (default: all that are there)"
    reporter.add_argument("experiments", nargs="*", metavar="ID", help=names)
    reporter.add_argument("--out", metavar="DIR", help="where to write (default: DIR)")
    told = f"{', '.join(_FORMATS)} (default: all)"
    reporter.add_argument("--formats", nargs="+", default=[*_FORMATS], metavar="F", help=told)


def _add_run(
    kinds: argparse._SubParsersAction[argparse.ArgumentParser],
    main: Callable[[Sequence[str]], int],
) -> None:
    parser = kinds.add_parser(
        "run",
        help="run tables and figures of both papers",
        description="Run what tables and figures need, each job once, and write rows and reports. "
        "Jobs that ended are not run again, those that were stopped go on, and one that fails leaves "
        "out only what needs it.",
        epilog="example: comap bench run comap-t1 --scale tiny --out runs/tiny --workers 2",
    )
    parser.set_defaults(run=_run, main=main)
    add = parser.add_argument
    add("experiments", nargs="+", metavar="ID", help="such as comap-t1; comap, paw or all for many")
    add("--scale", default="tiny", help="tiny (default), small or paper")
    add("--out", metavar="DIR", help="folder of everything (default: runs/experiments-SCALE)")
    add("--seeds", type=int, nargs="+", metavar="N", help="seeds (default: the scale's)")
    add("--workers", type=int, metavar="N", help="jobs at the same time (default: cores; paper: 1)")
    data = "folder with official data of an environment (repeatable)"
    add("--data", action="append", default=[], metavar="ENV=DIR", help=data)
    demos = "file of demonstrations of an environment (repeatable)"
    add("--demos", action="append", default=[], metavar="ENV=FILE", help=demos)
    add("--device", default="auto", help="where models play: auto (default), cpu, cuda, cuda:N")
    launcher = "what trainings are started with: 'accelerate launch --num_processes 4 -m comap'"
    add("--launcher", metavar="WORDS", help=launcher)
    add(
        "--dry-run", action="store_true", help="print configuration, commands and cost; run nothing"
    )


def wanted(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of names; ``all``, ``comap`` and ``paw`` stand for many.

    Raises:
        OptionError: A name is none of an experiment.

    Example:
        >>> [one.id for one in wanted(["comap-t2"])]
        ['comap-t2']
    """
    chosen: dict[str, None] = {}
    for name in names:
        if name in ("all", "comap", "paw"):
            some = [one for one in experiment_ids() if name == "all" or one.startswith(f"{name}-")]
        else:
            some = [experiment(name).id]
        chosen |= dict.fromkeys(some)
    return [experiment(name) for name in experiment_ids() if name in chosen]


# -- list ----------------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
    from .benchmarks.experiments.jobs import plan
    from .benchmarks.experiments.scale import scale_named
    from .benchmarks.tables import Table
    from .benchmarks.terminal import print_table

    scale = scale_named(options.scale)
    rows = []
    for name in experiment_ids():
        one = experiment(name)
        found = plan([one], scale)
        cells = [cell for cell in found.cells if cell.why != "cited only"]
        left = sum(cell.job is None for cell in cells)
        rows.append(
            (
                one.id,
                f"{one.paper}, {one.published}",
                one.title,
                len(found.jobs),
                len(cells),
                left or "",
            )
        )
    heads = ("id", "published as", "what", "jobs", "cells", "left out")
    note = f"Scale {scale.name}: {scale.about}. Jobs are shared between tables."
    print_table(Table("Tables and figures", heads, tuple(rows), note))
    print("\nto run one: comap bench run ID --scale SCALE --out DIR")
    return 0


# -- run -----------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from .benchmarks.experiments.commands import Places, commands
    from .benchmarks.experiments.jobs import plan
    from .benchmarks.experiments.runner import run_jobs
    from .benchmarks.experiments.scale import scale_named

    scale = scale_named(options.scale)
    chosen = wanted(options.experiments)
    out = Path(options.out or f"runs/experiments-{scale.name}")
    found = plan(chosen, scale, options.seeds)
    places = Places(
        out.resolve(),
        _pairs(options.data, "--data"),
        _pairs(options.demos, "--demos"),
        options.device,
        named=options.dry_run,
    )
    if not options.dry_run:
        for job in found.jobs.values():
            commands(found, job, places)  # says what is missing before anything is printed or run
    _show_plan(found, places, in_full=options.dry_run or scale.name == "paper")
    if options.dry_run:
        return 0
    seeds = sorted({cell.seed for cell in found.cells})
    _remember(out, scale.name, [one.id for one in chosen], seeds)
    workers = 1 if scale.name == "paper" else os.cpu_count() or 1
    workers = workers if options.workers is None else options.workers
    ended = run_jobs(
        found,
        places,
        options.main,
        workers=workers,
        launcher=options.launcher,
        tell=_Teller(len(found.jobs)),
    )
    failed = {name: one.why for name, one in ended.items() if not one.ok}
    _write(out, chosen, _FORMATS, out)
    for name, why in failed.items():
        print(f"failed: {name}: {why.splitlines()[0] if why else ''}")
    print(f"\n{len(ended) - len(failed)} of {len(ended)} jobs done; rows: {out / _ROWS}")
    if failed:
        print("the same command tries again what failed")
    return 1 if failed else 0


def _show_plan(found: Plan, places: Places, in_full: bool) -> None:
    """Print what is to be run and its expected cost, and in full every command."""
    from .benchmarks.experiments.commands import commands
    from .benchmarks.experiments.costs import estimate
    from .benchmarks.experiments.runner import job_record

    jobs = list(found.jobs.values())
    waiting = [job for job in jobs if (job_record(places, job) or {}).get("status") != "done"]
    scale = found.scale
    print(f"scale {scale.name}: {scale.about}")
    if in_full:
        for job in jobs:
            _show_job(job, commands(found, job, places))
    print(f"{len(jobs)} jobs, {len(jobs) - len(waiting)} of them done")
    for one in estimate(found, waiting):
        told = f"  {one.kind}: {one.jobs} jobs"
        if one.hours:
            told += f", about {_hours(one.hours)} of one worker"
        if one.gpu_hours:
            told += f", {one.gpu_hours:,.0f} GPU-hours"
        if one.unknown:
            told += f"; of {one.unknown} the cost is not known"
        print(told + "".join(f"\n    basis: {basis}" for basis in one.basis))


def _hours(hours: float) -> str:
    return f"{hours:,.0f} hours" if hours >= 10 else f"{60 * hours:,.0f} minutes"


def _show_job(job: Job, made: Sequence[Sequence[str]]) -> None:
    print(f"\n{job.id} (configuration {job.config_hash})")
    for words in made:
        print(f"  {shlex.join(['comap', *words])}")
    config = _resolved(job)
    if config:
        print(f"  {json.dumps(config, sort_keys=True)}")


def _resolved(job: Job) -> dict[str, Any]:
    """Return all settings of a training, the preset's included."""
    if job.recipe.kind == "comap":
        from .trainers.config import preset

        return dict(preset(job.preset, **{**job.settings, "seed": job.seed}).describe())
    if job.recipe.kind == "paw":
        from .trainers.paw.presets import paw_preset

        own = {
            k: v for k, v in job.settings.items() if k not in ("model", "simulator", "parameters")
        }
        return dict(paw_preset(job.preset, **{**own, "seed": job.seed}).describe())
    return {}


class _Teller:
    """Prints a line for each job that begins or ends."""

    def __init__(self, jobs: int):
        self.jobs, self.ended, self.start = jobs, 0, time.monotonic()

    def __call__(self, event: str, job: Job, word: str) -> None:
        if event != "begun":
            self.ended += 1
        if word == "before":
            return
        spent = time.monotonic() - self.start
        print(f"{spent:8.1f} s  [{self.ended}/{self.jobs}] {event}: {job.id}", flush=True)
        if event == "failed":
            print(f"            {word[:500]}", flush=True)


# -- report --------------------------------------------------------------------------------------


def _report(options: argparse.Namespace) -> int:
    strange = set(options.formats) - set(_FORMATS)
    if strange:
        raise OptionError(f"there is no format {min(strange)!r}; there are {', '.join(_FORMATS)}")
    results = Path(options.results)
    known = known_plan(results)
    names = options.experiments or known["experiments"]
    chosen = [one for one in wanted(names) if one.id in known["experiments"]]
    missing = {one.id for one in wanted(names)} - set(known["experiments"])
    if missing:
        raise DataNotFound(
            f"expected {min(missing)} in {results}, found {', '.join(known['experiments'])}; "
            f"comap bench run {min(missing)} --out {results} runs it"
        )
    _write(results, chosen, options.formats, Path(options.out) if options.out else results)
    return 0


def _remember(out: Path, scale: str, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Write down what this folder holds, with what it held before."""
    out.mkdir(parents=True, exist_ok=True)
    known = known_plan(out) if (out / PLAN).is_file() else {"scale": scale}
    if known["scale"] != scale:
        raise OptionError(
            f"expected a folder of scale {scale}, found one of scale {known['scale']} at {out}; give "
            "another --out"
        )
    both = {*known.get("experiments", ()), *names}
    told = {
        "scale": scale,
        "experiments": [name for name in experiment_ids() if name in both],
        "seeds": sorted({*known.get("seeds", ()), *seeds}),
    }
    write_result(out / PLAN, {**told, **circumstances()})


def _write(results: Path, chosen: Sequence[Experiment], formats: Sequence[str], out: Path) -> None:
    """Collect rows anew, write them and the reports, and print the tables."""
    from .benchmarks.experiments.collect import collect
    from .benchmarks.experiments.commands import Places
    from .benchmarks.experiments.jobs import plan
    from .benchmarks.experiments.report import print_report, write_reports
    from .benchmarks.experiments.rows import write_rows
    from .benchmarks.experiments.scale import scale_named

    known = known_plan(results)
    every = [experiment(name) for name in known["experiments"]]
    found = plan(every, scale_named(known["scale"]), known["seeds"])
    rows = collect(found, every, Places(results.resolve()))
    write_rows(results / _ROWS, rows)
    print_report(rows, chosen)
    for path in write_reports(results, out, formats, chosen):
        print(f"report: {path}")


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    found = {}
    for one in given:
        env, sign, place = one.partition("=")
        if not sign or not env or not place:
            raise OptionError(f"expected {option} as ENV=PLACE, found {one!r:.120}")
        found[env] = str(Path(place).expanduser().resolve())
    return found
