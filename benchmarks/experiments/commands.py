"""From a job to the commands of comap that run it: what a user could type."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import OptionError
from ..training_play import env_words
from .jobs import Job, Plan
from .scale import Place

__all__ = ["VERDICTS", "Places", "commands", "folder_of", "models_of", "option_words"]

VERDICTS = "judged.json"
"""How the name of a split's scores by a judge ends."""

_WORKING = "out"


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are on this machine: no job's result depends on it.

    Attributes:
        out: The folder of the experiments.
        data: Folders of official data, by environment.
        demos: Files of demonstrations, by environment.
        device: ``auto`` or ``cpu``, ``cuda``, ``cuda:N``.
        named: Whether a place that is not given is named by a word, as where commands are only shown.

    Example:
        >>> Places(Path("runs")).device
        'auto'
    """

    out: Path
    data: Mapping[str, str] = field(default_factory=dict)
    demos: Mapping[str, str] = field(default_factory=dict)
    device: str = "auto"
    named: bool = False


def folder_of(places: Places, job: str) -> Path:
    """Return where a job's commands write.

    Example:
        >>> folder_of(Places(Path("runs")), "sft-0").as_posix()
        'runs/jobs/sft-0/out'
    """
    return places.out / "jobs" / job / _WORKING


def commands(plan: Plan, job: Job, places: Places) -> list[list[str]]:
    """Return the commands of a job, in their order, each without the word ``comap``.

    Args:
        plan: The plan that the job is of.
        job: The job.
        places: Where things are.

    Raises:
        OptionError: Official data or demonstrations are needed, and no place is given.

    Example:
        >>> from comap.benchmarks.experiments.definition import experiment
        >>> from comap.benchmarks.experiments.jobs import plan
        >>> from comap.benchmarks.experiments.scale import scale_named
        >>> found = plan([experiment("comap-t2")], scale_named("tiny"))
        >>> job = next(iter(found.jobs.values()))
        >>> commands(found, job, Places(Path("runs")))[0][:4]
        ['train', 'comap', '--preset', 'tiny']
    """
    made: Mapping[str, Callable[[Plan, Job, Places], list[list[str]]]] = {
        "comap": _comap,
        "baseline": _baseline,
        "paw": _paw,
        "play": _play,
        "predict": _predict,
        "noise": _noise,
        "overhead": _overhead,
        "told": lambda plan, job, places: [],
    }
    return made[job.recipe.kind](plan, job, places)


def option_words(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as the words of a command line.

    Example:
        >>> option_words({"paw": False, "rounds": 2, "evaluation_splits": ["dev", "test"], "lr": None})
        ['--no-paw', '--rounds', '2', '--evaluation-splits', 'dev', 'test', '--lr', 'none']
    """
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


def models_of(plan: Plan, name: str, job: Job, places: Places) -> Path:
    """Return the folder of the models that a job of a recipe that this job needs has trained."""
    return folder_of(places, job.needs[name]) / "models"


# -- trainings -----------------------------------------------------------------------------------


def _comap(plan: Plan, job: Job, places: Places) -> list[list[str]]:
    words = ["train", "comap", "--preset", job.preset, *_model(job), *_where(job, places)]
    words += ["--evaluation-splits", *_place(job).splits]
    if job.recipe.start is not None:
        models = models_of(plan, job.recipe.start, job, places)
        words += ["--warmed-up", "--policy", str(models / "agent")]
        words += ["--world-model", str(models / "wm")]
    words += [*option_words(job.settings), "--seed", str(job.seed)]
    return [[*words, "--out", str(folder_of(places, job.id))]]


def _baseline(plan: Plan, job: Job, places: Places) -> list[list[str]]:
    assert job.recipe.method is not None
    words = ["train", job.recipe.method, "--preset", job.preset, *_model(job)]
    words += _where(job, places)
    if job.recipe.start is not None:
        models = models_of(plan, job.recipe.start, job, places)
        words += ["--world-model", str(models / "wm")]
    words += [*option_words(job.settings), "--seed", str(job.seed)]
    return [[*words, "--out", str(folder_of(places, job.id))]]


def _paw(plan: Plan, job: Job, places: Places) -> list[list[str]]:
    settings = dict(job.settings)
    own = settings.pop("model", None)
    limit = _place(job).options.get("max_episode_steps")
    if limit is not None:  # a setting of this training, which its preset has too
        settings.setdefault("max_episode_steps", limit)
    words = ["train", "paw", "--preset", job.preset]
    if job.policy is not None:
        words += ["--model", str(models_of(plan, job.policy, job, places) / "agent")]
    else:
        words += _model(job) if own is None else ["--model", str(own)]
    words += _where(job, places, demos=False, without=("max_episode_steps",))
    words += ["--evaluation-splits", *_place(job).splits]
    words += [*option_words(settings), "--seed", str(job.seed)]
    return [[*words, "--out", str(folder_of(places, job.id))]]


# -- what is measured with models ----------------------------------------------------------------


def _play(plan: Plan, job: Job, places: Places) -> list[list[str]]:
    """Return one run for each split."""
    settings = dict(job.settings)
    episodes = settings.pop("episodes", None)
    live = settings.pop("live", None)
    assert job.recipe.agent is not None
    found = []
    for split in _place(job).splits:
        words = ["run", "--agent", job.recipe.agent, *_where(job, places, demos=False)]
        words += ["--split", split, *_policy(plan, job, places), *_world(plan, job, places)]
        words += [] if episodes is None else ["--episodes", str(episodes)]
        words += [] if live is None else ["--live", str(live)]
        words += [*option_words(settings), "--seed", str(job.seed)]
        words += [] if _served(job) else ["--device", places.device]
        found.append([*words, "--out", str(folder_of(places, job.id) / split)])
    if _place(job).judge is not None:
        found += [_judged(job, places, split) for split in _place(job).splits]
    return found


def _judged(job: Job, places: Places, split: str) -> list[str]:
    """Return the judging of a split's answers, which says what success is."""
    place = _place(job)
    folder = folder_of(places, job.id)
    words = ["score", "tools", str(folder / split), "--judge", str(place.judge)]
    words += ["--data-dir", _given(places, "data", place.env, "official data")]
    return [*words, "--out", str(folder / f"{split}-{VERDICTS}")]


def _served(job: Job) -> bool:
    """Return whether a job's models are all behind a server, which has devices of its own."""
    return job.backbone is not None and job.backbone.api and not job.needs


def _policy(plan: Plan, job: Job, places: Places) -> list[str]:
    """Return the words that name the model that acts, and what belongs to it."""
    name = job.policy
    if name is None:
        return _model(job, "--tiny-parameters")
    models = models_of(plan, name, job, places)
    words = _trained(plan, job, models / "agent", "agent")
    extras = {
        "wkm": ("knowledge", models.parent / "knowledge.jsonl"),
        "itp": ("k_head", models / "k_head.safetensors"),
    }
    if name in extras:
        option, place = extras[name]
        words += ["--agent-option", f"{option}={place}"]
    if (
        job.recipe.agent == "comap"
        and plan.jobs[job.needs[name]].settings.get("p_source", _p_source(plan, job)) == "head"
    ):
        words += ["--agent-option", f"head={models / 'head.safetensors'}"]
    return words


def _p_source(plan: Plan, job: Job) -> str:
    """Return where CoMap's p comes from in the preset that trained it."""
    from ...trainers.config import preset

    return preset(plan.scale.preset("comap", _place(job).env)).p_source


def _world(plan: Plan, job: Job, places: Places) -> list[str]:
    """Return the words that name the world model."""
    name = job.recipe.world_model
    if name is None:
        return []
    style = dict(plan.scale.kinds.get("play", {}).get("world_model", {}))
    if name in job.needs:
        place = models_of(plan, name, job, places) / "wm"
        if _lora(plan, job):
            words = ["--world-model", _model(job)[1], "--world-model-adapter", "wm"]
            return [*words, "--adapter", f"wm={place}", *_world_options(style)]
        return ["--world-model", str(place), *_world_options(style)]
    if name == "policy":
        policy = _policy(plan, job, places)
        return ["--world-model", policy[policy.index("--model") + 1], *_world_options(style)]
    return ["--world-model", name]


def _world_options(style: dict[str, Any]) -> Iterator[str]:
    for name, value in style.items():
        if name in ("prompts", "state_text"):
            yield from (f"--world-model-{name.replace('_', '-')}", str(value))
        else:
            yield from ("--world-model-option", f"{name}={json.dumps(value)}")


def _trained(plan: Plan, job: Job, place: Path, role: str) -> list[str]:
    """Return the words that name a trained model: a folder, or the backbone with an adapter."""
    if not _lora(plan, job):
        return ["--model", str(place)]
    words = [*_model(job), "--adapter", f"{role}={place}", "--agent-adapter", role]
    if job.policy == "wkm" and _trains_knowledge(plan, job):
        words += ["--adapter", f"knowledge={place.parent / 'knowledge'}"]
        words += ["--knowledge-adapter", "knowledge"]
    return words


def _trains_knowledge(plan: Plan, job: Job) -> bool:
    """Return whether WKM's training leaves a knowledge model, an adapter of its own."""
    from ...trainers.baselines.methods import WKMTraining
    from ...trainers.baselines.presets import baseline_preset

    trained = plan.jobs[job.needs["wkm"]]
    config = baseline_preset("wkm", trained.preset, **trained.settings)
    return isinstance(config, WKMTraining) and config.trains_knowledge


def _lora(plan: Plan, job: Job) -> bool:
    return job.backbone is not None and job.backbone.model != "tiny"


def _predict(plan: Plan, job: Job, places: Places) -> list[list[str]]:
    """Return the scoring of a prompted world model, on the frozen transitions of the SFT job."""
    assert job.backbone is not None
    words = ["score", "world-model", *_where(job, places, demos=False)]
    words += ["--split", _place(job).splits[0]]
    words += ["--transitions", str(folder_of(places, job.needs["sft"]))]
    words += ["--world-model", job.backbone.model]
    words += [*_model_options(job, "--world-model-option"), *option_words(job.settings)]
    words += ["--seed", str(job.seed), "--result", str(folder_of(places, job.id) / "result.json")]
    return [words]


def _noise(plan: Plan, job: Job, places: Places) -> list[list[str]]:
    settings = dict(job.settings)
    model = settings.pop("model", None) or (job.backbone.model if job.backbone else "tiny")
    if job.policy is not None:
        model = str(models_of(plan, job.policy, job, places) / "agent")
    words = ["bench", "noise-gradients", "--model", str(model)]
    words += _where(job, places, demos=False)
    words += [*option_words(settings), "--seed", str(job.seed)]
    return [[*words, "--result", str(folder_of(places, job.id) / "result.json")]]


def _overhead(plan: Plan, job: Job, places: Places) -> list[list[str]]:
    words = ["bench", "paw-overhead", "--device", places.device]
    words += [*option_words(job.settings), "--seed", str(job.seed)]
    return [[*words, "--result", str(folder_of(places, job.id) / "result.json")]]


# -- words that several have ---------------------------------------------------------------------


def _model(job: Job, size: str = "--parameters") -> list[str]:
    if job.backbone is None:
        return []
    if job.backbone.model == "tiny":
        return ["--model", "tiny", size, str(int(job.backbone.parameters))]
    return ["--model", job.backbone.model, *_model_options(job, "--model-option")]


def _model_options(job: Job, option: str) -> Iterator[str]:
    assert job.backbone is not None
    for name, value in job.backbone.options.items():
        yield from (option, f"{name}={value}")


def _place(job: Job) -> Place:
    assert job.place is not None, job.id
    return job.place


def _where(job: Job, places: Places, demos: bool = True, without: Sequence[str] = ()) -> list[str]:
    """Return the words that say the environment."""
    place = _place(job)
    options = {name: value for name, value in place.options.items() if name not in without}
    if place.data:
        given = _given(places, "data", place.env, "official data")
        for name, part in place.folders.items():
            options[name] = str(Path(given, part))
    words = env_words(place.env, options)
    if demos and place.demos:
        told = _given(places, "demos", place.env, "a file of demonstrations")
        words += ["--demos", told]
    return words


def _given(places: Places, kind: str, env: str, what: str) -> str:
    known: Mapping[str, str] = getattr(places, kind)
    if env in known:
        return known[env]
    if places.named:
        return kind.upper()
    raise OptionError(
        f"expected {what} for {env} at this scale, found none; add --{kind} {env}=PLACE"
    )
