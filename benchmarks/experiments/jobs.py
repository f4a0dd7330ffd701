"""What has to be run for experiments at a scale: jobs with resolved settings, each of them once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import OptionError
from .definition import Experiment, Method
from .recipes import Recipe, recipe
from .scale import Backbone, Place, Scale

__all__ = ["Cell", "Job", "Plan", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one recipe.

    Attributes:
        id: Its name, and its folder's: what it is, and the first digits of `config_hash`.
        recipe: How it is measured.
        policy: The recipe that trained the policy that it begins or plays with; None for the backbone.
        backbone: The language model that it begins with; None where there is none.
        place: The environment; None where there is none.
        seed: The seed.
        preset: The preset that its command begins with.
        settings: What is set beside it.
        needs: Ids of the jobs whose results it begins with, by recipe.
        config_hash: SHA-256 of all that its result depends on, 12 digits: of the jobs that it needs as
            well, but not of versions or of the machine.
    """

    id: str
    recipe: Recipe
    policy: str | None
    backbone: Backbone | None
    place: Place | None
    seed: int
    preset: str
    settings: Mapping[str, Any]
    needs: Mapping[str, str]
    config_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one method of an experiment comes to in one place, with one backbone and seed.

    Attributes:
        experiment: The experiment's id.
        method: The method.
        slot: The backbone's slot.
        backbone: The backbone; None where the scale has none, or none is needed.
        env: The environment's id, if there is one.
        seed: The seed.
        job: The id of the job that measures it; None where it is not run.
        why: Why it is not run.
    """

    experiment: str
    method: Method
    slot: str
    backbone: Backbone | None
    env: str | None
    seed: int
    job: str | None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run.

    Attributes:
        scale: The scale.
        jobs: All jobs by id; those that others need come before them.
        cells: All cells of all experiments.
    """

    scale: Scale
    jobs: Mapping[str, Job]
    cells: tuple[Cell, ...]


def plan(
    experiments: Sequence[Experiment], scale: Scale, seeds: Sequence[int] | None = None
) -> Plan:
    """Return the jobs that experiments need at a scale, shared between them.

    Args:
        experiments: The experiments.
        scale: The scale.
        seeds: The seeds; None for the scale's.

    Raises:
        OptionError: A seed is negative, or there is none.

    Example:
        >>> from comap.benchmarks.experiments.definition import experiment
        >>> from comap.benchmarks.experiments.scale import scale_named
        >>> found = plan([experiment("comap-t2")], scale_named("tiny"))
        >>> [job.recipe.name for job in found.jobs.values()][-2:]
        ['comap', 'comap']
    """
    seeds = scale.seeds if seeds is None else tuple(seeds)
    if not seeds or min(seeds) < 0:
        raise OptionError(f"expected seeds of 0 or more, found {list(seeds)}")
    planner = _Planner(scale)
    cells = []
    for one in experiments:
        for method in one.methods:
            for slot in _slots(one, method, scale):
                for env in _envs(one, method):
                    for seed in seeds if one.seeds else seeds[:1]:
                        cells.append(planner.cell(one, method, slot, env, seed))
    return Plan(scale=scale, jobs=planner.jobs, cells=tuple(cells))


class _Planner:
    """Resolves cells to jobs, each job once."""

    def __init__(self, scale: Scale):
        self.scale = scale
        self.jobs: dict[str, Job] = {}

    def cell(self, one: Experiment, method: Method, slot: str, env: str | None, seed: int) -> Cell:
        backbone = self.scale.backbone(one.paper, slot)
        why, job = self._refusal(method, slot, backbone, env), None
        if why is None and method.recipe is not None:
            job = self.job(recipe(method.recipe), backbone, env, seed).id
        return Cell(
            experiment=one.id,
            method=method,
            slot=slot,
            backbone=backbone,
            env=env,
            seed=seed,
            job=job,
            why=why,
        )

    def _refusal(
        self, method: Method, slot: str, backbone: Backbone | None, env: str | None
    ) -> str | None:
        """Return why a cell is not run at this scale; None where it is."""
        name = self.scale.name
        if method.recipe is None:
            return "cited only"
        if slot and backbone is None:
            return f"the scale {name} has no model in the slot {slot}"
        if env is not None and env not in self.scale.places:
            return f"the scale {name} leaves {env} out"
        skipped: Mapping[str, str] = self.scale.kinds.get("skipped", {})
        return skipped.get(method.recipe)

    def job(self, made: Recipe, backbone: Backbone | None, env: str | None, seed: int) -> Job:
        """Return the job of a recipe, and plan those that it needs before it."""
        policy = self.scale.policy_of(made, env)
        needs = {
            name: self.job(recipe(name), backbone, env, seed).id for name in made.needs(policy)
        }
        if made.kind == "predict":  # a model that cannot be trained has no transitions of its own
            other = self.scale.backbone("CoMap", "small")
            needs["sft"] = self.job(recipe("sft"), other, env, seed).id
        place = None if env is None else self.scale.places[env]
        settings = {**self.scale.settings(made.kind, env, made.name), **made.settings}
        own = settings.pop("env_options", None)
        if place is not None and own:
            place = replace(place, options={**place.options, **own})
        preset = self.scale.preset(made.kind, env, made.name)
        config = {
            "recipe": made.name,
            "kind": made.kind,
            "uses": [made.agent, made.method, policy, made.world_model, made.fact],
            "backbone": None if backbone is None else [backbone.model, backbone.parameters],
            "env": None if place is None else _told(place),
            "seed": seed,
            "preset": preset,
            "settings": settings,
            "needs": {name: self.jobs[job].config_hash for name, job in needs.items()},
        }
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
        parts = (made.name, env and _short(env), backbone and backbone.name, seed, digest[:6])
        name = "-".join(str(part) for part in parts if part is not None)
        name = "".join(letter if letter.isalnum() or letter in "-_.+" else "_" for letter in name)
        job = Job(
            id=name,
            recipe=made,
            policy=policy,
            backbone=backbone,
            place=place,
            seed=seed,
            preset=preset,
            settings=settings,
            needs=needs,
            config_hash=digest,
        )
        return self.jobs.setdefault(name, job)


def _slots(one: Experiment, method: Method, scale: Scale) -> tuple[str, ...]:
    wanted = one.backbones if method.backbones is None else method.backbones
    kept = scale.slots.get(one.id, scale.slots.get("*", wanted))
    return tuple(slot for slot in wanted if slot in kept or slot == "") or ("",) * (not wanted)


def _envs(one: Experiment, method: Method) -> tuple[str | None, ...]:
    if method.envs is not None:
        return method.envs
    return tuple(dict.fromkeys(column.env for column in one.columns if not column.average))


def _told(place: Place) -> list[Any]:
    """Return what results in an environment depend on: no place on this machine."""
    told = [place.env, place.options, place.splits, place.data]
    return told if place.judge is None else [*told, place.judge]


def _short(env: str) -> str:
    return env.rpartition("/")[2].rpartition("-v")[0].lower()
