"""From jobs that have run to the rows of the shared results schema."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...checksums import unseal
from ...errors import CoMapError
from ..training_record import get
from .commands import Places, folder_of
from .definition import Experiment
from .jobs import Cell, Job, Plan
from .measures import Measure, measures_of
from .rows import ResultRow
from .runner import job_record

__all__ = ["collect"]


def collect(plan: Plan, experiments: Sequence[Experiment], places: Places) -> list[ResultRow]:
    """Return a row for each value that was measured, and one for each cell that has none.

    Args:
        plan: What was planned.
        experiments: The experiments, in the order in which they shall stand.
        places: Where the jobs are.

    Raises:
        DataCorrupt: A job's record cannot be read.

    Example:
        >>> from comap.benchmarks.experiments.definition import experiment
        >>> from comap.benchmarks.experiments.jobs import plan
        >>> from comap.benchmarks.experiments.scale import scale_named
        >>> one = experiment("comap-t2")
        >>> rows = collect(plan([one], scale_named("tiny")), [one], Places(Path("nowhere")))
        >>> rows[0].value is None, rows[0].error
        (True, 'not run yet')
    """
    known = {one.id: one for one in experiments}
    found: dict[str, tuple[list[Measure], dict[str, Any] | None, str | None]] = {}
    rows = []
    for cell in plan.cells:
        one = known[cell.experiment]
        if cell.job is None:
            if cell.why != "cited only":
                rows.append(_empty(cell, cell.why or "not run", one))
            continue
        job = plan.jobs[cell.job]
        if job.id not in found:
            found[job.id] = _measured(job, places)
        measures, record, why = found[job.id]
        if why is not None:
            rows.append(_empty(cell, why, one, record))
            continue
        own = list(_rows(one, cell, job, measures, record or {}))
        rows += own or [_empty(cell, "measured nothing that a column shows", one, record)]
    return rows


def _measured(job: Job, places: Places) -> tuple[list[Measure], dict[str, Any] | None, str | None]:
    """Return what a job measured, its record, and why there is nothing."""
    record = job_record(places, job)
    if record is None:
        return [], None, "not run yet"
    if record["status"] != "done":
        return [], record, f"{record['status']}: {record['why']}"
    folder = folder_of(places, job.id)
    record["fingerprint"] = _fingerprint(folder)
    try:
        return measures_of(job, folder), record, None
    except CoMapError as error:
        return [], record, f"failed: {error}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return [], record, f"failed: what it wrote is not understood ({error!r:.200})"


def _rows(
    one: Experiment,
    cell: Cell,
    job: Job,
    measures: Sequence[Measure],
    record: Mapping[str, Any],
) -> Iterator[ResultRow]:
    over = None if one.axis is None else one.axis.over
    for measure in measures:
        if measure.method not in (None, cell.method.name):
            continue
        if one.column(measure.metric, cell.env, measure.split) is None:
            continue
        x = measure.x
        if measure.over is None:
            x = cell.method.x
            if over == "parameters" and cell.backbone is not None:
                x = cell.backbone.parameters
            elif over in ("round", "update", "threshold") and x is None:
                continue  # the end of a curve that is told point by point
        elif measure.over != over:
            continue
        yield ResultRow(
            **_about(cell, one, record),
            metric=measure.metric,
            split=measure.split,
            unit=measure.unit,
            value=measure.value,
            low=measure.low,
            high=measure.high,
            n=measure.n,
            x=x,
            text=measure.text,
            trajectories=measure.trajectories
            and f"jobs/{job.id}/{folder_of(Places(Path()), job.id).name}/{measure.trajectories}",
        )


def _empty(
    cell: Cell, why: str, one: Experiment, record: Mapping[str, Any] | None = None
) -> ResultRow:
    column = next((c for c in one.columns if c.env in (None, cell.env) and not c.average), None)
    return ResultRow(
        **_about(cell, one, record or {}),
        metric="" if column is None else column.metric,
        unit="" if column is None else column.unit,
        error=why[:2000],
    )


def _about(cell: Cell, one: Experiment, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all rows of a cell have in common."""
    cost = dict(record.get("cost") or {})
    seconds = cost.pop("seconds", None)
    backbone = cell.backbone
    return {
        "experiment": one.id,
        "method": cell.method.name,
        "backbone": None if backbone is None else backbone.name,
        "env": cell.env,
        "seed": cell.seed if one.seeds else None,
        "config_hash": record.get("config_hash"),
        "code_version": record.get("code"),
        "fingerprint": record.get("fingerprint"),
        "hardware": _hardware(record),
        "seconds": seconds,
        "cost": cost or None,
        "job": cell.job if record else None,
    }


def _fingerprint(folder: Path) -> str | None:
    """Return twelve digits for the fingerprints of the environments that a job was run in.

    They tell tasks, facts and engine, and are in what its commands wrote.
    """
    told = []
    for path in [folder / "run.json", *sorted(folder.glob("*/run.json")), folder / "result.json"]:
        try:
            found = unseal(path.read_bytes())
        except (OSError, ValueError):
            continue
        known = get(found, "described", "env", "fingerprint")
        told.append(known or get(found, "environment") or get(found, "env", "fingerprint"))
    told = [one for one in told if isinstance(one, Mapping)]
    if not told:
        return None
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def _hardware(record: Mapping[str, Any]) -> str | None:
    told = record.get("hardware")
    if not isinstance(told, Mapping):
        return None
    gpus = told.get("gpus") or ()
    return ", ".join([f"{told.get('cpu')}, {told.get('cores')} cores", *map(str, gpus)])
