"""From the words of a command line to a run: environment, tasks, agent, models."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ..agents import Agent
from ..agents.calls import checked_keep
from ..agents.corpus import tiny_folder
from ..agents.create import agent_options, create_agent
from ..agents.run import Run
from ..agents.worlds import choose_world_model, fit_retrieval
from ..envs import TextEnv
from ..errors import CoMapError, DataNotFound, OptionError
from ..lm import LanguageModel
from ..lm.create import create_language_model
from ..worldmodel import ImaginedEnv, RetrievalWorldModel, WorldModel
from .options import pairs

__all__ = ["PACKAGES", "setup"]

PACKAGES = ("gymnasium", "numpy", "rapidfuzz", "torch", "transformers", "openai")
"""The packages whose versions a run's record names."""

MakeEnv = Callable[[], gymnasium.Env[str, str]]
AnyWorldModel = WorldModel | str | Mapping[str, Any] | None


def setup(options: argparse.Namespace, out: Path) -> Run:
    """Return the run that parsed arguments of `comap run` describe.

    Args:
        options: The arguments, as `comap.cli_run.add_parser` declares them.
        out: The run's folder: what is built for the run goes there.

    Raises:
        CoMapError: Something is not right; the message says what and how to mend it.
    """
    keep = checked_keep(options.keep)
    for name in ("live", "episodes", "fit_tasks"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OptionError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    agent, agent_config = _agent(options)
    env_options = _env_options(options)
    make_env: MakeEnv = partial(_make_env, options.env, options.split, env_options)
    tasks = _tasks(options, make_env)
    models = _Models(options, out)
    lm = None if options.model is None else models(options.model)
    world_model = _world_model(options, models, out, env_options)
    if options.imagined:
        make_env = _imagined(options, make_env, world_model)
    return Run(
        make_env=make_env,
        agent=agent,
        tasks=tasks,
        lm=lm,
        world_model=None if options.imagined else world_model,
        seed=options.seed,
        keep=keep,
        config={
            "env": options.env,
            "split": options.split,
            "env_options": {key: env_options[key] for key in env_options if key != "data_dir"},
            "agent": agent_config,
            "world_model": None if world_model is None else _kind(options),
        },
    )


def _agent(options: argparse.Namespace) -> tuple[Agent, dict[str, Any]]:
    """Return the agent, and what it was told."""
    given = vars(options)
    chosen = {field: given[name] for name, field in options.fields.items() if name in given}
    chosen |= pairs(options.agent_option, "--agent-option")
    if agent_options(options.agent) is not None or options.agent == "random":
        chosen.setdefault("seed", options.seed)
    return create_agent(options.agent, **chosen), chosen


def _env_options(options: argparse.Namespace) -> dict[str, Any]:
    chosen = pairs(options.env_option, "--env-option")
    return chosen if options.data_dir is None else chosen | {"data_dir": options.data_dir}


def _make_env(env_id: str, split: str, options: Mapping[str, Any]) -> gymnasium.Env[str, str]:
    """Return an environment of comap, or say that it is none."""
    try:
        env = gymnasium.make(env_id, split=split, **options)
    except (CoMapError, gymnasium.error.Error):
        raise
    except (ImportError, TypeError, ValueError) as error:
        raise OptionError(f"expected an environment of comap, found {env_id!r} ({error})") from None
    if not isinstance(env.unwrapped, TextEnv):
        raise OptionError(f"expected an environment of comap, found {env_id!r}")
    return env


def _panel(env: gymnasium.Env[str, str]) -> tuple[str, ...]:
    ids: tuple[str, ...] = env.get_wrapper_attr("tasks").ids
    return ids


def _tasks(options: argparse.Namespace, make_env: MakeEnv) -> list[str]:
    """Return the tasks to play; those that were named are looked up."""
    env = make_env()
    if options.tasks is None:
        return _spread(_panel(env), options.episodes)
    tasks = list(options.tasks)
    if len(tasks) == 1 and Path(tasks[0]).is_file():
        lines = Path(tasks[0]).read_text("utf-8").splitlines()
        tasks = [line.strip() for line in lines if line.strip()]
        if not tasks:
            raise DataNotFound(f"expected a task on each line of {options.tasks[0]}, found none")
    known = set(_panel(env))
    for task in tasks:
        if task not in known:
            env.reset(options={"task": task})  # says what is wrong with it
    env.close()
    return _spread(tasks, options.episodes)


def _spread(items: Sequence[str], number: int | None) -> list[str]:
    """Return so many items, evenly spread over all; all of them for None."""
    if number is None or number >= len(items):
        return list(items)
    return [items[place * len(items) // number] for place in range(number)]


class _Models:
    """The language models of a run, each loaded once: agent and world model may share one."""

    def __init__(self, options: argparse.Namespace, out: Path):
        self._options, self._out = options, out
        self._made: dict[str, LanguageModel] = {}

    def __call__(self, spec: str) -> LanguageModel:
        """Return the language model of this name."""
        if spec not in self._made:
            self._made[spec] = self._make(spec)
        return self._made[spec]

    def _make(self, spec: str) -> LanguageModel:
        options = self._options
        _hush()
        return create_language_model(
            spec,
            base_url=options.base_url,
            build_tiny=self._tiny,
            adapters=pairs(options.adapter, "--adapter", plain=True) or None,
            device=options.device,
            dtype=options.dtype,
            **pairs(options.model_option, "--model-option"),
        )

    def _tiny(self) -> Path:
        size, seed = self._options.tiny_parameters, self._options.seed
        return tiny_folder(self._out / "model", self._options.env, parameters=size, seed=seed)


def _hush() -> None:
    """Keep the progress bars of transformers from the terminal, where they mean nothing here."""
    try:
        from transformers.utils import logging
    except ImportError:
        return
    logging.disable_progress_bar()


def _world_model(
    options: argparse.Namespace, models: _Models, out: Path, env_options: Mapping[str, Any]
) -> AnyWorldModel:
    if options.world_model is None:
        if options.imagined:
            raise OptionError("--imagined needs a world model to imagine with; add --world-model")
        return None
    language = {
        "prompts": options.world_model_prompts,
        "state_text": options.world_model_state_text,
        "adapter": options.world_model_adapter,
    }
    return choose_world_model(
        options.world_model,
        language_model=models,
        retrieval=partial(_retrieval, options, out, env_options),
        noisy={"error_rate": options.error_rate, "seed": options.seed},
        language={name: value for name, value in language.items() if value is not None},
    )


def _retrieval(
    options: argparse.Namespace, out: Path, env_options: Mapping[str, Any]
) -> RetrievalWorldModel:
    """Return a retrieval model that learnt from the training split."""
    make_env: MakeEnv = partial(_make_env, options.env, "train", env_options)
    tasks = _spread(_panel(make_env()), options.fit_tasks)
    return fit_retrieval(out / "retrieval.jsonl", make_env, tasks, options.seed)


def _imagined(
    options: argparse.Namespace, make_env: MakeEnv, world_model: AnyWorldModel
) -> MakeEnv:
    assert world_model is not None
    limits = {"horizon": options.horizon, "real_every": options.real_every}
    return lambda: ImaginedEnv(make_env(), world_model, **limits)


def _kind(options: argparse.Namespace) -> str:
    """Return which kind of world model was asked for; what it is made of is recorded elsewhere."""
    spec: str = options.world_model
    if spec == "retrieval":
        return f"retrieval, fitted on {options.fit_tasks} tasks of train, seed {options.seed}"
    return spec if spec in ("oracle", "noisy", "null", "tiny") else "given"
