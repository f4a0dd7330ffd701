"""What has to be run for experiments at a scale: jobs, each of them once, their commands and their cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from ...errors import OptionError
from ...trainers.baselines.config import WKMTraining, baseline_preset
from ...trainers.comap.config import preset
from ...trainers.paw.config import preset as paw_preset
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
    for experiment in experiments:
        # What is the same for every seed is measured with the first one alone.
        used_seeds = seeds if experiment.seeds else seeds[:1]
        for method in experiment.methods:
            slots = _slots(experiment, method, scale)
            envs = _envs(experiment, method)
            method_seeds = _seeds(method, used_seeds, scale)
            for slot, env, seed in product(slots, envs, method_seeds):
                backbone = scale.backbone(experiment.paper, slot)
                why = _why_not_run(method, slot, backbone, env, scale)
                job = None
                if why is None and method.recipe is not None:
                    job = _job(scale, jobs, recipe(method.recipe), backbone, env, seed).id
                cells.append(PlannedCell(experiment.id, method, backbone, env, seed, job, why))

    if not cells:
        names = ", ".join(experiment.id for experiment in experiments)
        raise OptionError(
            f"expected seeds that {names} is planned for, found {list(seeds)}; give others, or leave "
            "--seeds out"
        )
    return Plan(scale=scale, jobs=jobs, cells=tuple(cells))


def _slots(experiment: Experiment, method: Method, scale: Scale) -> tuple[str, ...]:
    """Return the slots of language models that a method is run in; ``""`` alone where it needs none."""
    slots = experiment.backbones if method.backbones is None else method.backbones
    if not slots:
        return ("",)
    run_slots = scale.slots.get(experiment.id, scale.slots.get("*", slots))
    return tuple(slot for slot in slots if slot in run_slots or slot == "")


def _seeds(method: Method, seeds: Sequence[int], scale: Scale) -> list[int]:
    """Return the seeds to run a method with: all but the scale's seeds after its ``first_seeds``."""
    left_out = () if method.first_seeds is None else scale.seeds[method.first_seeds :]
    return [seed for seed in seeds if seed not in left_out]


def _envs(experiment: Experiment, method: Method) -> tuple[str | None, ...]:
    """Return the environments that a method is run in; None stands for a job without one."""
    if method.envs is not None:
        return method.envs
    return tuple(dict.fromkeys(column.env for column in experiment.columns if not column.average))


def _why_not_run(
    method: Method, slot: str, backbone: Backbone | None, env: str | None, scale: Scale
) -> str | None:
    """Return why a cell has no job at a scale; None where it has one."""
    if method.recipe is None:
        return "cited only"
    if slot and backbone is None:
        return f"the scale {scale.name} has no model in the slot {slot}"
    if env is not None and env not in scale.environments:
        return f"the scale {scale.name} leaves {env} out"
    return None


def _job(
    scale: Scale,
    jobs: dict[str, Job],
    job_recipe: Recipe,
    backbone: Backbone | None,
    env: str | None,
    seed: int,
) -> Job:
    """Return the job of a recipe, and plan those that it needs before it."""
    policy = scale.policy_of(job_recipe, env)
    trained_world_model = job_recipe.world_model if job_recipe.world_model in recipes() else None
    needs = {}
    for name in (job_recipe.start, policy, trained_world_model):
        if name:
            needs[name] = _job(scale, jobs, recipe(name), backbone, env, seed).id

    # A world model as it was published has no transitions of its own: those of the small model's
    # training are the same for all of them.
    if job_recipe.kind == "predict" and job_recipe.start is None:
        small = scale.backbone("CoMap", "small")
        needs["sft"] = _job(scale, jobs, recipe("sft"), small, env, seed).id

    settings = {
        **scale.settings(job_recipe.kind, env, job_recipe.name),
        **scale.limited(job_recipe.name, job_recipe.settings),
    }
    env_options = settings.pop("env_options", None)
    splits = settings.pop("splits", None)
    setup = None
    if env is not None:
        setup = _setup(scale.environments[env], env_options, splits)

    preset_name = scale.preset(job_recipe.kind, env, job_recipe.name)

    # All that results depend on, and no path on this machine: a job of the same digest is done already.
    # Another key, or another order in a list, would run every job again.
    config = {
        "recipe": job_recipe.name,
        "kind": job_recipe.kind,
        "uses": [
            job_recipe.agent,
            job_recipe.method,
            policy,
            job_recipe.world_model,
            job_recipe.fact,
            # Appended where it is, so that all other jobs keep their digests.
            *(["warmed up only"] if job_recipe.warmed_up_only else ()),
        ],
        "backbone": None if backbone is None else [backbone.model, backbone.parameters],
        "env": None if setup is None else _identity(setup),
        "seed": seed,
        "preset": preset_name,
        "settings": settings,
        "needs": {name: jobs[job].config_hash for name, job in needs.items()},
    }
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]

    job_id = _job_id(job_recipe, env, backbone, seed, digest)
    job = Job(
        id=job_id,
        recipe=job_recipe,
        policy=policy,
        backbone=backbone,
        setup=setup,
        seed=seed,
        preset=preset_name,
        settings=settings,
        needs=needs,
        config_hash=digest,
    )
    return jobs.setdefault(job_id, job)


def _setup(
    setup: EnvSetup, options: Mapping[str, Any] | None, splits: Sequence[str] | None
) -> EnvSetup:
    """Return a scale's environment with the options and splits that a recipe sets for it."""
    if options:
        setup = replace(setup, options={**setup.options, **options})
    if splits:
        setup = replace(setup, splits=tuple(splits))
    return setup


def _identity(setup: EnvSetup) -> list[Any]:
    """Return what results depend on in an environment."""
    identity: list[Any] = [setup.env, setup.options, setup.splits, setup.data]
    # Named only where there is one: a None here would change the digest of every other job.
    if setup.judge is not None:
        identity.append(setup.judge)
    return identity


def _job_id(
    job_recipe: Recipe, env: str | None, backbone: Backbone | None, seed: int, digest: str
) -> str:
    """Return the name of a job's folder, such as ``comap-alfworld-Qwen3-4B-0-1a2b3c``."""
    parts = [job_recipe.name]
    if env is not None:
        parts.append(env.rpartition("/")[2].rpartition("-v")[0].lower())
    if backbone is not None:
        parts.append(backbone.name)
    parts += [str(seed), digest[:6]]
    name = "-".join(parts)
    return "".join(letter if letter.isalnum() or letter in "-_.+" else "_" for letter in name)


@dataclass(frozen=True, slots=True)
class Paths:
    """Where things are on this machine: no job's result depends on it."""

    out: Path
    data: Mapping[str, str] = field(default_factory=dict)
    demos: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    """folders of language models that are not to be had by the name that the scale gives them"""
    device: str = "auto"
    dry_run: bool = False
    """whether DATA and DEMOS stand for what was not given"""

    def of(self, job: str) -> Path:
        """Return the folder that a job's commands write."""
        return self.out / "jobs" / job / "out"

    def model(self, backbone: Backbone) -> str:
        """Return a language model as ``--model`` takes it here: its folder, or the name on the Hub."""
        return self.models.get(backbone.name, backbone.model)

    def given(self, kind: str, env: str, description: str) -> str:
        """Return the path that was given for an environment: ``data`` or ``demos``."""
        paths: Mapping[str, str] = getattr(self, kind)
        if env in paths:
            return paths[env]
        if self.dry_run:
            return kind.upper()
        raise OptionError(
            f"expected {description} for {env} at this scale, found none; add "
            f"--{'data-dir' if kind == 'data' else kind} {env}=PLACE"
        )


def commands(plan: Plan, job: Job, paths: Paths) -> list[list[str]]:
    """Return the commands of a job, in their order, each without the word ``comap``."""
    words: list[list[str]] = getattr(_Commands(plan, job, paths), job.recipe.kind)()
    return words


def option_words(settings: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that set options."""
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
        self.plan = plan
        self.job = job
        self.paths = paths
        self.out = paths.of(job.id)
        self.settings = dict(job.settings)
        self.seed = ["--seed", str(job.seed)]

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
        """Return CoMap's training, which may begin with the models of another one."""
        words = ["train", "comap", "--preset", self.job.preset, *self.model(), *self.environment()]
        words += ["--evaluation-splits", *self.setup.splits]

        if self.job.recipe.start is not None:
            models = self.models(self.job.recipe.start)
            # A baseline has one model, which both begin as, to be warmed up.
            is_baseline = recipe(self.job.recipe.start).kind == "baseline"
            if not is_baseline:
                words.append("--warmed-up")
            words += ["--policy", str(models / "agent")]
            words += ["--world-model", str(models / ("agent" if is_baseline else "wm"))]
        return [self.training(words)]

    def baseline(self) -> list[list[str]]:
        words = ["train", str(self.job.recipe.method), "--preset", self.job.preset]
        words += [*self.model(), *self.environment()]
        if self.job.recipe.start is not None:
            words += ["--world-model", str(self.models(self.job.recipe.start) / "wm")]
        return [self.training(words)]

    def paw(self) -> list[list[str]]:
        """Return PaW's training, of the language model or of a policy that another job trained."""
        model = self.settings.pop("model", None)
        # Here the limit is a setting of the training, which its preset has too: the environment's is
        # passed as that, and not as an option.
        limit = self.setup.options.get("max_episode_steps")
        if limit is not None:
            self.settings.setdefault("max_episode_steps", limit)

        words = ["train", "paw", "--preset", self.job.preset]
        if self.job.policy is not None:
            words += ["--model", str(self.start_of(self.job))]
        elif model is not None:
            words += ["--model", str(model)]
        else:
            words += self.model()
        words += self.environment(demos=False, left_out="max_episode_steps")
        words += ["--evaluation-splits", *self.setup.splits]
        return [self.training(words)]

    def start_of(self, job: Job) -> Path:
        """Return the folder of the policy that a training of PaW begins with, which another job trained."""
        assert job.policy is not None, job.id
        start = self.paths.of(job.needs[job.policy])
        # Of another training of PaW, its warm-up is meant.
        is_warmup = recipe(job.policy).kind == "paw"
        return start / "model" if is_warmup else start / "models" / "agent"

    def training(self, words: list[str]) -> list[str]:
        """Return the words of a training with its settings, seed and folder."""
        return [*words, *option_words(self.settings), *self.seed, "--out", str(self.out)]

    def play(self) -> list[list[str]]:
        """Return one run for each split, and the judging of its answers where that says what success is."""
        # These two stand first in the commands that are recorded of each job.
        first_settings: dict[str, Any] = {}
        for name in ("episodes", "live"):
            if name in self.settings:
                first_settings[name] = self.settings.pop(name)
        # A server has a device of its own.
        is_served = self.job.backbone is not None and self.job.backbone.api and not self.job.needs
        device = [] if is_served else ["--device", self.paths.device]

        runs = []
        scores = []
        for split in self.setup.splits:
            words = ["run", "--agent", str(self.job.recipe.agent), *self.environment(demos=False)]
            words += ["--split", split, *self.policy(), *self.world_model()]
            words += [*option_words(first_settings), *option_words(self.settings)]
            words += [*self.seed, *device, "--out", str(self.out / split)]
            runs.append(words)

            if self.setup.judge is not None:
                data = self.paths.given("data", self.setup.env, "official data")
                words = ["score", "tools", str(self.out / split), "--judge", self.setup.judge]
                words += ["--data-dir", data, "--out", str(self.out / f"{split}-{VERDICTS}")]
                scores.append(words)
        return runs + scores

    def predict(self) -> list[list[str]]:
        """Return the scoring of a world model, on the frozen transitions of another job."""
        assert self.job.backbone is not None
        words = ["score", "world-model", *self.environment(demos=False)]
        words += ["--split", self.setup.splits[0]]
        start = self.job.recipe.start or "sft"
        words += ["--transitions", str(self.paths.of(self.job.needs[start]))]

        if self.job.recipe.world_model == "base":
            words += ["--world-model", self.paths.model(self.job.backbone)]
            words += self.model_options("--world-model-option")
        else:
            words += self.world_model()
        return [self.score(words)]

    def noise(self) -> list[list[str]]:
        """Return the measuring of noise in gradients, of a trained policy or of a language model."""
        backbone = self.job.backbone.model if self.job.backbone else "tiny"
        model = self.settings.pop("model", None) or backbone
        if self.job.policy is not None:
            model = self.models(self.job.policy) / "agent"
        words = ["bench", "noise-gradients", "--model", str(model)]
        return [self.score([*words, *self.environment(demos=False)])]

    def score(self, words: list[str]) -> list[str]:
        """Return the words of a score with its settings, seed and file."""
        out = str(self.out / "result.json")
        return [*words, *option_words(self.settings), *self.seed, "--out", out]

    # The words that several of them have.

    def environment(self, demos: bool = True, left_out: str = "") -> list[str]:
        """Return the words that name the environment, its options but one, its data and demonstrations."""
        setup = self.setup
        options = {name: value for name, value in setup.options.items() if name != left_out}
        if setup.data:
            folder = self.paths.given("data", setup.env, "official data")
            options |= {name: str(Path(folder, part)) for name, part in setup.folders.items()}

        words = env_words(setup.env, options)
        if demos and setup.demos:
            words += ["--demos", self.paths.given("demos", setup.env, "a file of demonstrations")]
        return words

    def model(self) -> list[str]:
        """Return the words that name the language model; none where the job needs none."""
        backbone = self.job.backbone
        if backbone is None:
            return []
        if backbone.model == "tiny":
            return ["--model", "tiny", "--tiny-parameters", str(int(backbone.parameters))]
        return ["--model", self.paths.model(backbone), *self.model_options("--model-option")]

    def model_options(self, option: str) -> list[str]:
        assert self.job.backbone is not None
        words = []
        for name, value in self.job.backbone.options.items():
            words += [option, f"{name}={value}"]
        return words

    def base_of(self, trained: Job) -> list[str]:
        """Return the words that name the model under the adapter that a job has trained."""
        if trained.recipe.kind == "paw" and trained.policy is not None:
            return ["--model", str(self.start_of(trained))]
        return self.model()

    def policy(self) -> list[str]:
        """Return the words that name the model that acts, and what belongs to it."""
        name = self.job.policy
        if name is None:
            return self.model()

        if self.job.recipe.warmed_up_only:
            return ["--model", str(self.start_of(self.job))]

        models = self.models(name)
        trained = self.plan.jobs[self.job.needs[name]]
        if _has_adapters(trained):
            words = [*self.base_of(trained), "--adapter", f"agent={models / 'agent'}"]
            words += ["--agent-adapter", "agent"]
            if name == "wkm":
                words += self.knowledge(trained, models)
        else:
            words = ["--model", str(models / "agent")]

        # What these trainings write beside the weights, and their agents read.
        if name == "wkm":
            words += ["--agent-option", f"knowledge={models.parent / 'knowledge.jsonl'}"]
        if name == "itp":
            words += ["--agent-option", f"k_head={models / 'k_head.safetensors'}"]
        if self.job.recipe.agent == "comap":
            usual_source = preset(self.plan.scale.preset("comap", self.setup.env)).agent.p_source
            if trained.settings.get("p_source", usual_source) == "head":
                words += ["--agent-option", f"head={models / 'head.safetensors'}"]
        return words

    def knowledge(self, trained: Job, models: Path) -> list[str]:
        """Return the words that name the knowledge model and the encoder of a training of WKM."""
        config = baseline_preset("wkm", trained.preset, **trained.settings)
        assert isinstance(config, WKMTraining)
        words = []
        if config.trains_knowledge:
            words += ["--adapter", f"knowledge={models / 'knowledge'}"]
            words += ["--knowledge-adapter", "knowledge"]
        if config.agent.encoder is not None:
            words += ["--encoder", config.agent.encoder]
        return words

    def world_model(self) -> list[str]:
        """Return the words that name the world model that the agent asks; none where it asks none."""
        name = self.job.recipe.world_model
        if name is None:
            return []

        if name in self.job.needs:
            return [*self.trained_world_model(name), *self.prediction_style()]
        if name == "policy":
            policy = self.policy()
            model = policy[policy.index("--model") + 1]
            return ["--world-model", model, *self.prediction_style()]

        words = ["--world-model", name]
        if name == "retrieval" and self.job.policy is not None:
            # It looks up what the training of the policy played.
            file = self.models(self.job.policy) / "retrieval.jsonl"
            words += ["--world-model-option", f"path={file}"]
        return words

    def trained_world_model(self, name: str) -> list[str]:
        """Return the words that name a world model that another job trained."""
        folder = self.models(name) / "wm"
        if not _has_adapters(self.plan.jobs[self.job.needs[name]]):
            return ["--world-model", str(folder)]
        words = ["--world-model", self.model()[1], "--world-model-adapter", "wm"]
        return [*words, "--adapter", f"wm={folder}"]

    def prediction_style(self) -> list[str]:
        """Return the words that say how a scale's world models are asked, if they are language models."""
        words = []
        style = self.plan.scale.kinds.get("play", {}).get("world_model", {})
        for option, value in style.items():
            if option in ("prompts", "state_text"):
                words += [f"--world-model-{option.replace('_', '-')}", str(value)]
            else:
                words += ["--world-model-option", f"{option}={json.dumps(value)}"]
        return words


def _has_adapters(trained: Job) -> bool:
    """Return whether the models that a job trains are adapters of another model."""
    weights = trained.settings.get("weights")
    if weights is not None:
        return bool(weights == "lora")
    kind = trained.recipe.kind
    if kind == "paw":
        return paw_preset(trained.preset).weights == "lora"
    if kind == "comap":
        return preset(trained.preset).weights == "lora"
    return baseline_preset(str(trained.recipe.method), trained.preset).weights == "lora"


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
    """Return the expected cost of jobs, by kind."""
    estimates: dict[str, Estimate] = {}
    for job in jobs:
        kind = job.recipe.kind
        kind_estimate = estimates.setdefault(kind, Estimate(kind))
        kind_estimate.jobs += 1

        cost = _expected_cost(plan.scale, job)
        if cost is None:
            if kind != "told":  # which costs nothing
                kind_estimate.unknown += 1
            continue

        # A cost was measured with one language model; others are taken to
        # cost in proportion to their size.
        hours = float(cost["hours"])
        measured_parameters = cost.get("parameters")
        if measured_parameters and job.backbone is not None:
            hours *= job.backbone.parameters / float(measured_parameters)
        kind_estimate.hours += hours
        kind_estimate.gpu_hours += hours * float(cost.get("gpus", 0))
        kind_estimate.basis[str(cost["basis"])] = None
    return [estimates[kind] for kind in sorted(estimates)]


def _expected_cost(scale: Scale, job: Job) -> Mapping[str, Any] | None:
    """Return what a scale says of a job's cost, the most specific first; None where it says nothing."""
    kind = job.recipe.kind
    name = job.recipe.name
    env = "" if job.setup is None else job.setup.env
    for key in (f"{name} {env}", name, f"{kind} {env}", kind):
        if key in scale.cost:
            return scale.cost[key]
    return None
