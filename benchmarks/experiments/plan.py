"""What has to be run for experiments at a scale: jobs, each of them once, their commands and their cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

from ...errors import OptionError
from ...trainers.baselines.config import WKMTraining, baseline_preset
from ...trainers.comap.config import preset
from ..training_record import env_words
from .definition import Backbone, EnvSetup, Experiment, Method, Recipe, Scale, recipe, recipes

VERDICTS = "judged.json"
"""How the name of a split's scores by a judge ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one recipe."""

    id: str
    recipe: Recipe
    policy: str | None
    backbone: Backbone | None
    setup: EnvSetup | None
    seed: int
    preset: str
    settings: Mapping[str, Any]
    needs: Mapping[str, str]
    """the job of each recipe that comes before it"""
    config_hash: str


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """One method of an experiment in one environment, with one language model and seed."""

    experiment: str
    method: Method
    backbone: Backbone | None
    env: str | None
    seed: int
    job: str | None
    why: str | None = None
    """why there is no job"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run."""

    scale: Scale
    jobs: Mapping[str, Job]
    cells: tuple[PlannedCell, ...]


def plan(
    experiments: Sequence[Experiment], scale: Scale, seeds: Sequence[int] | None = None
) -> Plan:
    """Return the jobs that experiments need at a scale, shared between them."""
    seeds = scale.seeds if seeds is None else tuple(seeds)
    if not seeds or min(seeds) < 0:
        raise OptionError(f"expected seeds of 0 or more, found {list(seeds)}")
    jobs: dict[str, Job] = {}
    cells = []
    for one, method in [(found, method) for found in experiments for method in found.methods]:
        for slot, env in product(_slots(one, method, scale), _envs(one, method)):
            backbone, why = scale.backbone(one.paper, slot), None
            if method.recipe is None:
                why = "cited only"
            elif slot and backbone is None:
                why = f"the scale {scale.name} has no model in the slot {slot}"
            elif env is not None and env not in scale.environments:
                why = f"the scale {scale.name} leaves {env} out"
            for seed in seeds if one.seeds else seeds[:1]:
                job = None
                if why is None and method.recipe is not None:
                    job = _job(scale, jobs, recipe(method.recipe), backbone, env, seed).id
                cells.append(PlannedCell(one.id, method, backbone, env, seed, job, why))
    return Plan(scale=scale, jobs=jobs, cells=tuple(cells))


def _slots(one: Experiment, method: Method, scale: Scale) -> tuple[str, ...]:
    wanted = one.backbones if method.backbones is None else method.backbones
    kept = scale.slots.get(one.id, scale.slots.get("*", wanted))
    return tuple(slot for slot in wanted if slot in kept or slot == "") or ("",) * (not wanted)


def _envs(one: Experiment, method: Method) -> tuple[str | None, ...]:
    if method.envs is not None:
        return method.envs
    return tuple(dict.fromkeys(column.env for column in one.columns if not column.average))


def _job(
    scale: Scale,
    jobs: dict[str, Job],
    made: Recipe,
    backbone: Backbone | None,
    env: str | None,
    seed: int,
) -> Job:
    """Return the job of a recipe, and plan those that it needs before it."""
    policy = scale.policy_of(made, env)
    before = (made.start, policy, made.world_model if made.world_model in recipes() else None)
    needs = {
        name: _job(scale, jobs, recipe(name), backbone, env, seed).id for name in before if name
    }
    if made.kind == "predict" and made.start is None:  # its model has no transitions of its own
        other = scale.backbone("CoMap", "small")
        needs["sft"] = _job(scale, jobs, recipe("sft"), other, env, seed).id
    setup = None if env is None else scale.environments[env]
    asked = scale.limited(made.name, made.settings)
    settings = {**scale.settings(made.kind, env, made.name), **asked}
    own = settings.pop("env_options", None)
    splits = settings.pop("splits", None)
    if setup is not None and own:
        setup = replace(setup, options={**setup.options, **own})
    if setup is not None and splits:
        setup = replace(setup, splits=tuple(splits))
    preset_name = scale.preset(made.kind, env, made.name)
    identity: list[Any] | None = None  # what results depend on: no path on this machine
    if setup is not None:
        identity = [setup.env, setup.options, setup.splits, setup.data]
        identity += [] if setup.judge is None else [setup.judge]
    config = {
        "recipe": made.name,
        "kind": made.kind,
        "uses": [made.agent, made.method, policy, made.world_model, made.fact],
        "backbone": None if backbone is None else [backbone.model, backbone.parameters],
        "env": identity,
        "seed": seed,
        "preset": preset_name,
        "settings": settings,
        "needs": {name: jobs[job].config_hash for name, job in needs.items()},
    }
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
    short = env and env.rpartition("/")[2].rpartition("-v")[0].lower()
    parts = (made.name, short, backbone and backbone.name, seed, digest[:6])
    name = "-".join(str(part) for part in parts if part is not None)
    name = "".join(letter if letter.isalnum() or letter in "-_.+" else "_" for letter in name)
    job = Job(
        id=name,
        recipe=made,
        policy=policy,
        backbone=backbone,
        setup=setup,
        seed=seed,
        preset=preset_name,
        settings=settings,
        needs=needs,
        config_hash=digest,
    )
    return jobs.setdefault(name, job)


@dataclass(frozen=True, slots=True)
class Paths:
    """Where things are on this machine: no job's result depends on it."""

    out: Path
    data: Mapping[str, str] = field(default_factory=dict)
    demos: Mapping[str, str] = field(default_factory=dict)
    device: str = "auto"
    dry_run: bool = False
    """whether DATA and DEMOS stand for what was not given"""

    def of(self, job: str) -> Path:
        return self.out / "jobs" / job / "out"

    def given(self, kind: str, env: str, what: str) -> str:
        """Return the path that was given for an environment: ``data`` or ``demos``."""
        known: Mapping[str, str] = getattr(self, kind)
        if env in known:
            return known[env]
        if self.dry_run:
            return kind.upper()
        raise OptionError(
            f"expected {what} for {env} at this scale, found none; add "
            f"--{'data-dir' if kind == 'data' else kind} {env}=PLACE"
        )


def commands(plan: Plan, job: Job, paths: Paths) -> list[list[str]]:
    """Return the commands of a job, in their order, each without the word ``comap``."""
    found: list[list[str]] = getattr(_Commands(plan, job, paths), job.recipe.kind)()
    return found


def option_words(settings: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in settings.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list | tuple):
            words += [f"--{option}", *map(str, value)]
        else:
            words += [f"--{option}", "none" if value is None else str(value)]
    return words


class _Commands:
    """The words of a job's commands; one method for each kind of job."""

    def __init__(self, plan: Plan, job: Job, paths: Paths):
        self.plan, self.job, self.paths = plan, job, paths
        self.out = paths.of(job.id)
        self.settings = dict(job.settings)
        self.end = ["--seed", str(job.seed)]

    @property
    def setup(self) -> EnvSetup:
        assert self.job.setup is not None, self.job.id
        return self.job.setup

    def models(self, name: str) -> Path:
        """Return the folder of the models that a job that this one needs has trained."""
        return self.paths.of(self.job.needs[name]) / "models"

    def told(self) -> list[list[str]]:
        return []

    def comap(self) -> list[list[str]]:
        words = ["train", "comap", "--preset", self.job.preset, *self.model(), *self.where()]
        words += ["--evaluation-splits", *self.setup.splits]
        if self.job.recipe.start is not None:
            models, start = self.models(self.job.recipe.start), recipe(self.job.recipe.start)
            is_base = start.kind == "baseline"  # a model that both begin as, to be warmed up
            words += [] if is_base else ["--warmed-up"]
            words += ["--policy", str(models / "agent")]
            words += ["--world-model", str(models / ("agent" if is_base else "wm"))]
        return [self.training(words)]

    def baseline(self) -> list[list[str]]:
        words = ["train", str(self.job.recipe.method), "--preset", self.job.preset]
        words += [*self.model(), *self.where()]
        if self.job.recipe.start is not None:
            words += ["--world-model", str(self.models(self.job.recipe.start) / "wm")]
        return [self.training(words)]

    def paw(self) -> list[list[str]]:
        own = self.settings.pop("model", None)
        limit = self.setup.options.get("max_episode_steps")
        if limit is not None:  # a setting of this training, which its preset has too
            self.settings.setdefault("max_episode_steps", limit)
        words = ["train", "paw", "--preset", self.job.preset]
        if self.job.policy is not None:
            is_start = recipe(self.job.policy).kind == "paw"  # whose warm-up is meant
            models = self.models(self.job.policy)
            words += ["--model", str(models.parent / "model" if is_start else models / "agent")]
        else:
            words += self.model() if own is None else ["--model", str(own)]
        words += self.where(demos=False, without="max_episode_steps")
        return [self.training([*words, "--evaluation-splits", *self.setup.splits])]

    def training(self, words: list[str]) -> list[str]:
        return [*words, *option_words(self.settings), *self.end, "--out", str(self.out)]

    def play(self) -> list[list[str]]:
        """Return one run for each split, and the judging of its answers where that says what success is."""
        shared: list[str] = [name for name in ("episodes", "live") if name in self.settings]
        first = {name: self.settings.pop(name) for name in shared}
        runs, judged = [], []
        for split in self.setup.splits:
            words = ["run", "--agent", str(self.job.recipe.agent), *self.where(demos=False)]
            words += ["--split", split, *self.policy(), *self.world_model()]
            words += [*option_words(first), *option_words(self.settings), *self.end]
            served = self.job.backbone is not None and self.job.backbone.api and not self.job.needs
            words += [] if served else ["--device", self.paths.device]  # a server has its own
            runs.append([*words, "--out", str(self.out / split)])
            if self.setup.judge is not None:
                words = ["score", "tools", str(self.out / split), "--judge", self.setup.judge]
                words += ["--data-dir", self.paths.given("data", self.setup.env, "official data")]
                judged.append([*words, "--out", str(self.out / f"{split}-{VERDICTS}")])
        return runs + judged

    def predict(self) -> list[list[str]]:
        """Return the scoring of a world model, on the frozen transitions of another job."""
        assert self.job.backbone is not None
        words = ["score", "world-model", *self.where(demos=False)]
        words += ["--split", self.setup.splits[0]]
        start = self.job.recipe.start or "sft"
        words += ["--transitions", str(self.paths.of(self.job.needs[start]))]
        if self.job.recipe.world_model == "base":
            words += ["--world-model", self.job.backbone.model]
            return [self.result([*words, *self.model_options("--world-model-option")])]
        return [self.result([*words, *self.world_model()])]

    def noise(self) -> list[list[str]]:
        backbone = self.job.backbone.model if self.job.backbone else "tiny"
        model = self.settings.pop("model", None) or backbone
        if self.job.policy is not None:
            model = self.models(self.job.policy) / "agent"
        words = ["bench", "noise-gradients", "--model", str(model), *self.where(demos=False)]
        return [self.result(words)]

    def result(self, words: list[str]) -> list[str]:
        out = str(self.out / "result.json")
        return [*words, *option_words(self.settings), *self.end, "--out", out]

    # What several of them say.

    def where(self, demos: bool = True, without: str = "") -> list[str]:
        setup = self.setup
        options = {name: value for name, value in setup.options.items() if name != without}
        if setup.data:
            folder = self.paths.given("data", setup.env, "official data")
            options |= {name: str(Path(folder, part)) for name, part in setup.folders.items()}
        words = env_words(setup.env, options)
        if demos and setup.demos:
            words += ["--demos", self.paths.given("demos", setup.env, "a file of demonstrations")]
        return words

    def model(self) -> list[str]:
        backbone = self.job.backbone
        if backbone is None:
            return []
        if backbone.model == "tiny":
            return ["--model", "tiny", "--tiny-parameters", str(int(backbone.parameters))]
        return ["--model", backbone.model, *self.model_options("--model-option")]

    def model_options(self, option: str) -> list[str]:
        assert self.job.backbone is not None
        pairs = (f"{name}={value}" for name, value in self.job.backbone.options.items())
        return list(chain.from_iterable((option, pair) for pair in pairs))

    @property
    def is_lora(self) -> bool:
        """Whether trained models are adapters of the language model."""
        return self.job.backbone is not None and self.job.backbone.model != "tiny"

    def policy(self) -> list[str]:
        """Return the words that name the model that acts, and what belongs to it."""
        name = self.job.policy
        if name is None:
            return self.model()
        models, trained = self.models(name), self.plan.jobs[self.job.needs[name]]
        words, is_wkm = ["--model", str(models / "agent")], name == "wkm"
        if self.is_lora:
            words = [*self.model(), "--adapter", f"agent={models / 'agent'}"]
            words += ["--agent-adapter", "agent"]
            config = baseline_preset("wkm", trained.preset, **trained.settings) if is_wkm else None
            if isinstance(config, WKMTraining) and config.trains_knowledge:
                words += ["--adapter", f"knowledge={models / 'knowledge'}"]
                words += ["--knowledge-adapter", "knowledge"]
            if isinstance(config, WKMTraining) and config.agent.encoder is not None:
                words += ["--encoder", config.agent.encoder]
        if is_wkm:
            words += ["--agent-option", f"knowledge={models.parent / 'knowledge.jsonl'}"]
        if name == "itp":
            words += ["--agent-option", f"k_head={models / 'k_head.safetensors'}"]
        if self.job.recipe.agent == "comap":
            usual = preset(self.plan.scale.preset("comap", self.setup.env)).agent.p_source
            if trained.settings.get("p_source", usual) == "head":
                words += ["--agent-option", f"head={models / 'head.safetensors'}"]
        return words

    def world_model(self) -> Iterator[str]:
        name = self.job.recipe.world_model
        if name is None:
            return
        if name in self.job.needs:
            folder = self.models(name) / "wm"
            if self.is_lora:
                yield from ("--world-model", self.model()[1], "--world-model-adapter", "wm")
                yield from ("--adapter", f"wm={folder}")
            else:
                yield from ("--world-model", str(folder))
        elif name == "policy":
            policy = self.policy()
            yield from ("--world-model", policy[policy.index("--model") + 1])
        else:
            yield from ("--world-model", name)
            if name == "retrieval" and self.job.policy is not None:  # of what its training played
                file = self.models(self.job.policy) / "retrieval.jsonl"
                yield from ("--world-model-option", f"path={file}")
            return
        style = self.plan.scale.kinds.get("play", {}).get("world_model", {})
        for option, value in style.items():
            if option in ("prompts", "state_text"):
                yield from (f"--world-model-{option.replace('_', '-')}", str(value))
            else:
                yield from ("--world-model-option", f"{option}={json.dumps(value)}")


@dataclass(slots=True)
class Estimate:
    """The expected cost of jobs of one kind."""

    kind: str
    jobs: int = 0
    unknown: int = 0
    """jobs whose cost is not known"""
    hours: float = 0.0
    gpu_hours: float = 0.0
    basis: dict[str, None] = field(default_factory=dict)
    """where the numbers come from"""


def estimate(plan: Plan, jobs: Iterable[Job]) -> list[Estimate]:
    found: dict[str, Estimate] = {}
    for job in jobs:
        kind, name = job.recipe.kind, job.recipe.name
        env = "" if job.setup is None else job.setup.env
        one = found.setdefault(kind, Estimate(kind))
        one.jobs += 1
        keys = (f"{name} {env}", name, f"{kind} {env}", kind)
        cost = next((plan.scale.cost[key] for key in keys if key in plan.scale.cost), None)
        if cost is None:
            one.unknown += kind != "told"
            continue
        hours, reference = float(cost["hours"]), cost.get("parameters")
        if reference and job.backbone is not None:
            hours *= job.backbone.parameters / float(reference)
        one.hours += hours
        one.gpu_hours += hours * float(cost.get("gpus", 0))
        one.basis[str(cost["basis"])] = None
    return [found[kind] for kind in sorted(found)]
