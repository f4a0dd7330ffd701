"""What ``comap bench list | run | report`` do: plans shown, jobs run, and reports written."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import DataCorrupt, DataNotFound, OptionError, suggest
from ..record import circumstances, write_result
from ..report import report_line, write_whole
from ..tables import Table, svg_of
from .cluster import is_cluster
from .collect import collect
from .definition import (
    Experiment,
    ResultRow,
    experiment,
    experiment_ids,
    read_rows,
    scale_named,
    write_rows,
)
from .plan import Job, Paths, Plan, commands, estimate, plan
from .report import Results, latex, markdown, picture, plot_of, print_shown, render_html, results_of
from .runner import Main, job_record, run_jobs

FORMATS = ("md", "tex", "html")
"""The formats of reports, each the end of a file's name."""
PLAN, ROWS = "plan.json", "rows.jsonl"
_PAPERS = ("comap", "paw", "webevolver")


def wanted(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of names; ``all`` (of papers), a paper's name and ``lab`` stand for many."""
    chosen: set[str] = set()
    for name in names:
        if name in ("all", *_PAPERS, "lab"):
            starts = tuple(f"{one}-" for one in (_PAPERS if name == "all" else (name,)))
            chosen |= {one for one in experiment_ids() if one.startswith(starts)}
        else:
            chosen.add(experiment(name).id)
    return [experiment(name) for name in experiment_ids() if name in chosen]


def listed(scale_name: str) -> Table:
    """Return the tables and figures of papers and of our lab, and what each needs at a scale."""
    scale = scale_named(scale_name)
    rows = []
    for one in map(experiment, experiment_ids()):
        found = plan([one], scale)
        cells = [cell for cell in found.cells if cell.why != "cited only"]
        left = sum(cell.job is None for cell in cells) or ""
        published = f"{one.paper}, {one.published}"
        rows.append((one.id, published, one.title, len(found.jobs), len(cells), left))
    heads = ("id", "published as", "what", "jobs", "cells", "left out")
    note = f"Scale {scale.name}: {scale.about}. Jobs are shared between tables."
    return Table("Tables and figures", heads, tuple(rows), note)


def run_experiments(  # noqa: PLR0913 one session: each comes from an option
    names: Sequence[str],
    scale_name: str,
    out: Path,
    main: Main,
    *,
    seeds: Sequence[int] | None = None,
    workers: int | None = None,
    data: Mapping[str, str] | None = None,
    demos: Mapping[str, str] | None = None,
    device: str = "auto",
    launcher: str | None = None,
    dry_run: bool = False,
) -> bool:
    """Run commands of comap for tables and figures and write reports; return whether all ended well."""
    scale, chosen = scale_named(scale_name), wanted(names)
    planned = plan(chosen, scale, seeds)
    found = _left(planned, out)
    if elsewhere := len(planned.jobs) - len(found.jobs):
        print(f"jobs left out, since {out / ROWS} has their rows from another machine: {elsewhere}")
    official, shown = (
        {env: str(Path(path).expanduser().resolve()) for env, path in (given or {}).items()}
        for given in (data, demos)
    )
    paths = Paths(out.resolve(), official, shown, device, dry_run)
    # made before anything is printed or run: it says what is missing
    words = {name: commands(found, job, paths) for name, job in found.jobs.items()}
    _show_plan(found, paths, words if dry_run or scale.name == "paper" else {})
    if dry_run:
        return True
    drawn = sorted({cell.seed for cell in found.cells})
    _remember(out, scale.name, [one.id for one in chosen], drawn)
    usual = 1 if scale.name == "paper" else os.cpu_count() or 1
    if is_cluster(launcher):
        usual = len(found.jobs)
    ended = run_jobs(
        found,
        paths,
        main,
        workers=usual if workers is None else workers,
        launcher=launcher,
        listener=_progress(len(found.jobs)),
    )
    failed = {name: one.why for name, one in ended.items() if not one.ok}
    _report(out, chosen, FORMATS, out)
    for name, why in failed.items():
        print(f"failed: {name}: {why.partition(chr(10))[0]}")
    print(f"\n{len(ended) - len(failed)} of {len(ended)} jobs done; rows: {out / ROWS}")
    if failed:
        print("the same command tries again what failed")
    return not failed


def report_experiments(
    results: Path,
    names: Sequence[str] = (),
    out: Path | None = None,
    formats: Sequence[str] = FORMATS,
) -> None:
    """Write the reports of tables and figures that were run into a folder; all of them without names."""
    known = _known_plan(results)
    asked = wanted(names or known["experiments"])
    missing = {one.id for one in asked} - set(known["experiments"])
    if missing:
        raise DataNotFound(
            f"expected {min(missing)} in {results}, found {', '.join(known['experiments'])}; "
            f"comap bench run {min(missing)} --out {results} runs it"
        )
    _report(results, asked, formats, out or results)


def _show_plan(found: Plan, paths: Paths, words: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Print what is to be run and its expected cost, and the commands that are given."""
    jobs, scale = list(found.jobs.values()), found.scale
    waiting = [job for job in jobs if (job_record(paths, job) or {}).get("status") != "done"]
    print(f"scale {scale.name}: {scale.about}")
    for name in words:
        job = found.jobs[name]
        print(f"\n{name} (configuration {job.config_hash})")
        for command in words[name]:
            print(f"  {shlex.join(['comap', *command])}")
    print(f"{len(jobs)} jobs, {len(jobs) - len(waiting)} of them done")
    for one in estimate(found, waiting):
        line = f"  {one.kind}: {one.jobs} jobs"
        if one.hours:
            hours = one.hours
            time_ = f"{hours:,.0f} hours" if hours >= 10 else f"{60 * hours:,.0f} minutes"
            line += f", about {time_} of one worker"
        if one.gpu_hours:
            line += f", {one.gpu_hours:,.0f} GPU-hours"
        if one.unknown:
            line += f"; of {one.unknown} the cost is not known"
        print(line + "".join(f"\n    basis: {basis}" for basis in one.basis))


def _progress(jobs: int) -> Callable[[str, Job, str], None]:
    """Return what prints a line for each job that begins or ends."""
    start, ended = time.monotonic(), 0

    def show(event: str, job: Job, why: str) -> None:
        nonlocal ended
        ended += event != "begun"
        if why == "before":
            return
        spent = time.monotonic() - start
        print(f"{spent:8.1f} s  [{ended}/{jobs}] {event}: {job.id}", flush=True)
        if event == "failed":
            print(f"            {why[:500]}", flush=True)

    return show


def _known_plan(results: Path) -> dict[str, Any]:
    """Return what was run in a folder: ``scale``, ``experiments``, ``seeds``."""
    path = results / PLAN
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        _ = [found["scale"] + "", *found["experiments"], *found["seeds"]]
        return found
    except FileNotFoundError:
        raise DataNotFound(
            f"expected results of 'comap bench run' in {results}, found none"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataCorrupt(f"expected what was run in {path}, found {error!r:.100}") from error


def _remember(out: Path, scale: str, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Write down what this folder holds, with what it held before."""
    known = _known_plan(out) if (out / PLAN).is_file() else {"scale": scale}
    if known["scale"] != scale:
        raise OptionError(
            f"expected a folder of scale {scale}, found one of scale {known['scale']} at {out}; give "
            "another --out"
        )
    both = {*known.get("experiments", ()), *names}
    held = {
        "scale": scale,
        "experiments": [name for name in experiment_ids() if name in both],
        "seeds": sorted({*known.get("seeds", ()), *seeds}),
    }
    write_result(out / PLAN, {**held, **circumstances()})


def _report(results: Path, chosen: Sequence[Experiment], formats: Sequence[str], out: Path) -> None:
    """Collect rows anew where the jobs are, print the tables, and write the reports."""
    known = _known_plan(results)
    scale = scale_named(known["scale"])
    if (results / "jobs").is_dir():
        every = [experiment(name) for name in known["experiments"]]
        rows = collect(plan(every, scale, known["seeds"]), every, Paths(results.resolve()))
        write_rows(results / ROWS, _with_kept(rows, results))
    found = results_of(read_rows(results / ROWS), chosen)
    print_shown(found)
    about = (("scale", f"{scale.name}: {scale.about}"), *found.about)
    found = replace(found, about=about, notes=scale.notes)
    writers = [partial(write_report, found, results, out, name) for name in dict.fromkeys(formats)]
    print("\n".join(dict.fromkeys(map(report_line, writers))))


def _kept(results: Path) -> list[ResultRow]:
    """Return the rows that a folder has of jobs that ran on another machine."""
    before = read_rows(results / ROWS) if (results / ROWS).is_file() else ()
    return [row for row in before if row.job and not (results / "jobs" / row.job).exists()]


def _with_kept(found: Sequence[ResultRow], results: Path) -> list[ResultRow]:
    """Return rows with those of jobs that ran on another machine."""

    def place(row: ResultRow) -> tuple[Any, ...]:
        return row.experiment, row.method, row.backbone, row.env, row.seed

    kept = _kept(results)
    known = set(map(place, kept))
    return [*kept, *(row for row in found if row.job or place(row) not in known)]


def _left(found: Plan, out: Path) -> Plan:
    """Return a plan without the jobs that ran on another machine, and those that only they need."""
    ran = {(row.experiment, row.method, row.job) for row in _kept(out) if not row.error}
    cells = [
        cell for cell in found.cells if (cell.experiment, cell.method.name, cell.job) not in ran
    ]
    left = [cell.job for cell in cells if cell.job is not None]
    for name in left:  # grows
        left += found.jobs[name].needs.values()
    jobs = {name: job for name, job in found.jobs.items() if name in left}
    return replace(found, jobs=jobs)


def write_report(found: Results, results: Path, out: Path, name: str) -> Path:
    """Write ``report.md``, ``report.tex`` or ``report.html``, with links into the results' folder."""
    if name not in FORMATS:
        raise OptionError(f"there is no format {name!r:.40}; {suggest(name, FORMATS)}")
    for one in found.shown if name == "md" else ():
        for i, panel in enumerate(one.panels):
            write_whole(out / picture(one, i), svg_of(plot_of(panel), alone=True).decode())
    writers: dict[str, Callable[[], str]] = {
        "md": lambda: markdown(found),
        "tex": lambda: latex(found),
        "html": lambda: render_html(found, results, out),
    }
    return write_whole(out / f"report.{name}", writers[name]())
