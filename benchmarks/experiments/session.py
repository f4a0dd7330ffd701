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
from .report import (
    Results,
    latex,
    markdown,
    picture,
    plot_of,
    print_results,
    render_html,
    results_of,
)
from .runner import Main, job_record, run_jobs

FORMATS = ("md", "tex", "html")
"""The formats of reports, each the end of a file's name."""
PLAN = "plan.json"
ROWS = "rows.jsonl"
_PAPERS = ("comap", "paw", "webevolver")


def experiments_named(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of names; ``all`` (of papers), a paper's name and ``lab`` stand for many."""
    ids: set[str] = set()
    for name in names:
        if name in ("all", *_PAPERS, "lab"):
            papers = _PAPERS if name == "all" else (name,)
            prefixes = tuple(f"{paper}-" for paper in papers)
            ids |= {id_ for id_ in experiment_ids() if id_.startswith(prefixes)}
        else:
            ids.add(experiment(name).id)
    return [experiment(id_) for id_ in experiment_ids() if id_ in ids]


def listed(scale_name: str) -> Table:
    """Return the tables and figures of papers and of our lab, and what each needs at a scale."""
    scale = scale_named(scale_name)
    rows = []
    for definition in map(experiment, experiment_ids()):
        planned = plan([definition], scale)
        cells = [cell for cell in planned.cells if cell.why != "cited only"]
        left_out = sum(cell.job is None for cell in cells) or ""
        published = f"{definition.paper}, {definition.published}"
        rows.append(
            (definition.id, published, definition.title, len(planned.jobs), len(cells), left_out)
        )

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
    models: Mapping[str, str] | None = None,
    device: str = "auto",
    launcher: str | None = None,
    dry_run: bool = False,
) -> bool:
    """Run commands of comap for tables and figures and write reports; return whether all ended well."""
    scale = scale_named(scale_name)
    experiments = experiments_named(names)
    whole_plan = plan(experiments, scale, seeds)
    planned = _left(whole_plan, out)
    if elsewhere := len(whole_plan.jobs) - len(planned.jobs):
        print(f"jobs left out, since {out / ROWS} has their rows from another machine: {elsewhere}")

    paths = Paths(
        out.resolve(), _absolute(data), _absolute(demos), _absolute(models), device, dry_run
    )
    # Made before anything is printed or run: it says what is missing.
    words = {name: commands(planned, job, paths) for name, job in planned.jobs.items()}
    _show_plan(planned, paths, words if dry_run or scale.name == "paper" else {})
    if dry_run:
        return True

    planned_seeds = sorted({cell.seed for cell in planned.cells})
    ids = [definition.id for definition in experiments]
    _remember(out, scale.name, ids, planned_seeds)

    # A job of the scale paper needs whole GPUs; a cluster has its own queue.
    default_workers = 1 if scale.name == "paper" else os.cpu_count() or 1
    if is_cluster(launcher):
        default_workers = len(planned.jobs)
    outcomes = run_jobs(
        planned,
        paths,
        main,
        workers=default_workers if workers is None else workers,
        launcher=launcher,
        listener=_progress(len(planned.jobs)),
    )
    _report(out, experiments, FORMATS, out)

    failed = {name: outcome.why for name, outcome in outcomes.items() if not outcome.ok}
    for name, why in failed.items():
        print(f"failed: {name}: {why.partition(chr(10))[0]}")
    print(f"\n{len(outcomes) - len(failed)} of {len(outcomes)} jobs done; rows: {out / ROWS}")
    if failed:
        print("the same command tries again what failed")
    return not failed


def _absolute(files: Mapping[str, str] | None) -> dict[str, str]:
    """Return files by name with absolute paths: jobs run in folders of their own."""
    return {name: str(Path(path).expanduser().resolve()) for name, path in (files or {}).items()}


def report_experiments(
    results: Path,
    names: Sequence[str] = (),
    out: Path | None = None,
    formats: Sequence[str] = FORMATS,
) -> None:
    """Write reports of tables and figures that were run in the folder `results`; of all without names."""
    ids_run = _read_plan(results)["experiments"]
    experiments = experiments_named(names or ids_run)

    ids_not_run = {definition.id for definition in experiments} - set(ids_run)
    if ids_not_run:
        first_id = min(ids_not_run)
        raise DataNotFound(
            f"expected {first_id} in {results}, found {', '.join(ids_run)}; "
            f"comap bench run {first_id} --out {results} runs it"
        )

    _report(results, experiments, formats, out or results)


def _show_plan(planned: Plan, paths: Paths, words: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Print what is to be run and its expected cost, and the commands that are given."""
    scale = planned.scale
    jobs = list(planned.jobs.values())
    waiting = [job for job in jobs if (job_record(paths, job) or {}).get("status") != "done"]
    print(f"scale {scale.name}: {scale.about}")

    for name, job_commands in words.items():
        print(f"\n{name} (configuration {planned.jobs[name].config_hash})")
        for command in job_commands:
            print(f"  {shlex.join(['comap', *command])}")

    print(f"{len(jobs)} jobs, {len(jobs) - len(waiting)} of them done")
    for cost in estimate(planned, waiting):
        line = f"  {cost.kind}: {cost.jobs} jobs"
        if cost.hours:
            hours = cost.hours
            duration = f"{hours:,.0f} hours" if hours >= 10 else f"{60 * hours:,.0f} minutes"
            line += f", about {duration} of one worker"
        if cost.gpu_hours:
            line += f", {cost.gpu_hours:,.0f} GPU-hours"
        if cost.unknown:
            line += f"; of {cost.unknown} the cost is not known"
        print(line + "".join(f"\n    basis: {basis}" for basis in cost.basis))


def _progress(jobs: int) -> Callable[[str, Job, str], None]:
    """Return a listener that prints a line for each job that begins or ends."""
    start = time.monotonic()
    ended_jobs = 0

    def show(event: str, job: Job, why: str) -> None:
        nonlocal ended_jobs
        if event != "begun":
            ended_jobs += 1
        # Jobs that an earlier session ran are counted, not listed.
        if why == "before":
            return

        seconds = time.monotonic() - start
        print(f"{seconds:8.1f} s  [{ended_jobs}/{jobs}] {event}: {job.id}", flush=True)
        if event == "failed":
            print(f"            {why[:500]}", flush=True)

    return show


def _read_plan(results: Path) -> dict[str, Any]:
    """Return what was run in a folder: ``scale``, ``experiments``, ``seeds``."""
    path = results / PLAN
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        # A plan that is damaged is told here, and not where its parts are read: this raises where one is
        # missing or of another kind.
        _ = [record["scale"] + "", *record["experiments"], *record["seeds"]]
        return record
    except FileNotFoundError:
        raise DataNotFound(
            f"expected results of 'comap bench run' in {results}, found none"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataCorrupt(f"expected what was run in {path}, found {error!r:.100}") from error


def _remember(out: Path, scale: str, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Write down what this folder holds, with what it held before."""
    # Rows of two scales would stand in the same cells.
    earlier = _read_plan(out) if (out / PLAN).is_file() else {"scale": scale}
    if earlier["scale"] != scale:
        raise OptionError(
            f"expected a folder of scale {scale}, found one of scale {earlier['scale']} at {out}; give "
            "another --out"
        )

    all_names = {*earlier.get("experiments", ()), *names}
    record = {
        "scale": scale,
        "experiments": [name for name in experiment_ids() if name in all_names],
        "seeds": sorted({*earlier.get("seeds", ()), *seeds}),
    }
    write_result(out / PLAN, {**record, **circumstances()})


def _report(
    results: Path, experiments: Sequence[Experiment], formats: Sequence[str], out: Path
) -> None:
    """Collect rows anew where the jobs are, print the tables, and write the reports."""
    record = _read_plan(results)
    scale = scale_named(record["scale"])

    # Rows are made anew each time, since this version may read more from what jobs wrote. A folder that
    # was published has rows alone.
    if (results / "jobs").is_dir():
        all_experiments = list(map(experiment, record["experiments"]))
        planned = plan(all_experiments, scale, record["seeds"])
        rows = collect(planned, all_experiments, Paths(results.resolve()))
        write_rows(results / ROWS, _with_kept(rows, results))

    tables = results_of(read_rows(results / ROWS), experiments)
    print_results(tables)

    scale_line = ("scale", f"{scale.name}: {scale.about}")
    tables = replace(tables, about=(scale_line, *tables.about), notes=scale.notes)
    writers = [partial(write_report, tables, results, out, name) for name in dict.fromkeys(formats)]
    print("\n".join(dict.fromkeys(map(report_line, writers))))


def _kept(results: Path) -> list[ResultRow]:
    """Return the rows that a folder has of jobs that ran on another machine."""
    rows = read_rows(results / ROWS) if (results / ROWS).is_file() else ()
    return [row for row in rows if row.job and not (results / "jobs" / row.job).exists()]


def _with_kept(rows: Sequence[ResultRow], results: Path) -> list[ResultRow]:
    """Return rows with those of jobs that ran on another machine."""

    def cell_of(row: ResultRow) -> tuple[Any, ...]:
        return row.experiment, row.method, row.backbone, row.env, row.seed

    # A row without a job says why a cell is empty: not where another machine has filled it.
    kept_rows = _kept(results)
    filled = set(map(cell_of, kept_rows))
    return [*kept_rows, *(row for row in rows if row.job or cell_of(row) not in filled)]


def _left(planned: Plan, out: Path) -> Plan:
    """Return a plan without the jobs that ran on another machine, and those that only they need."""
    ran = {(row.experiment, row.method, row.job) for row in _kept(out) if not row.error}
    cells = [
        cell for cell in planned.cells if (cell.experiment, cell.method.name, cell.job) not in ran
    ]

    # What a job needs is left too, and what that needs: the list grows while it is read.
    names = [cell.job for cell in cells if cell.job is not None]
    for name in names:
        names += planned.jobs[name].needs.values()
    jobs = {name: job for name, job in planned.jobs.items() if name in names}
    return replace(planned, jobs=jobs)


def write_report(tables: Results, results: Path, out: Path, name: str) -> Path:
    """Write ``report.md``, ``report.tex`` or ``report.html``, with links into the results' folder."""
    if name not in FORMATS:
        raise OptionError(f"there is no format {name!r:.40}; {suggest(name, FORMATS)}")

    if name == "md":  # the others hold their pictures, or have none
        for section in tables.sections:
            for i, panel in enumerate(section.panels):
                svg = svg_of(plot_of(panel), alone=True).decode()
                write_whole(out / picture(section, i), svg)

    writers: dict[str, Callable[[], str]] = {
        "md": lambda: markdown(tables),
        "tex": lambda: latex(tables),
        "html": lambda: render_html(tables, results, out),
    }
    return write_whole(out / f"report.{name}", writers[name]())
