"""What a plan is expected to cost, before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .jobs import Job, Plan

__all__ = ["Estimate", "estimate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The expected cost of jobs of one kind.

    Attributes:
        kind: The kind.
        jobs: How many there are.
        unknown: For how many of them nothing is known.
        hours: By the clock, all of them one after the other; of those that are known.
        gpu_hours: The same times the GPUs that they take; 0 on CPUs.
        basis: Where the numbers come from.
    """

    kind: str
    jobs: int
    unknown: int
    hours: float
    gpu_hours: float
    basis: tuple[str, ...]


def estimate(plan: Plan, jobs: Iterable[Job]) -> list[Estimate]:
    """Return the expected cost of jobs, by kind.

    A scale tells what a job of a kind costs, or of one recipe, or on one environment, whatever is most
    particular; and models larger than what that was measured with cost in proportion to parameters.

    Args:
        plan: The plan that they are of.
        jobs: The jobs.

    Example:
        >>> from comap.benchmarks.experiments.definition import experiment
        >>> from comap.benchmarks.experiments.jobs import plan
        >>> from comap.benchmarks.experiments.scale import scale_named
        >>> found = plan([experiment("comap-t2")], scale_named("paper"))
        >>> estimate(found, found.jobs.values())[0].gpu_hours > 100
        True
    """
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.recipe.kind, []).append(job)
    return [_of_kind(plan, kind, some) for kind, some in sorted(found.items())]


def _of_kind(plan: Plan, kind: str, jobs: list[Job]) -> Estimate:
    hours = gpu_hours = 0.0
    unknown, basis = 0, list[str]()
    for job in jobs:
        told = _told(plan.scale.cost, job)
        if told is None:
            unknown += kind != "told"
            continue
        own = float(told["hours"])
        reference = told.get("parameters")
        if reference and job.backbone is not None:
            own *= job.backbone.parameters / float(reference)
        hours += own
        gpu_hours += own * float(told.get("gpus", 0))
        basis.append(str(told["basis"]))
    return Estimate(
        kind=kind,
        jobs=len(jobs),
        unknown=unknown,
        hours=hours,
        gpu_hours=gpu_hours,
        basis=tuple(dict.fromkeys(basis)),
    )


def _told(costs: Mapping[str, Mapping[str, Any]], job: Job) -> Mapping[str, Any] | None:
    env = "" if job.place is None else job.place.env
    kind, name = job.recipe.kind, job.recipe.name
    for key in (f"{name} {env}", name, f"{kind} {env}", kind):
        if key in costs:
            return costs[key]
    return None
