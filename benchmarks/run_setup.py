"""From the words of a command line to a run: environment, tasks, agent, models."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from ..agents import Agent
from ..agents.calls import checked_keep
from ..agents.create import agent_options, create_agent
from ..agents.needs import check_needs
from ..agents.run import Run
from ..agents.worlds import fit_retrieval
from ..envs import TextEnv
from ..envs.panel import evenly
from ..envs.registered import evaluated_splits
from ..errors import CoMapError, DataNotFound, OptionError
from ..lm.shipped import shipped
from ..worldmodel import ImaginedEnv, RetrievalWorldModel
from .options import pairs
from .run_models import AnyWorldModel, Models, kind_of_world, world_model_of
from .run_shipped import agent_defaults, with_shipped

__all__ = ["PACKAGES", "check_place", "setup"]

PACKAGES = ("gymnasium", "numpy", "rapidfuzz", "torch", "transformers", "openai")
"""The packages whose versions a run's record names."""

MakeEnv = Callable[[], gymnasium.Env[str, str]]

_ENV_OPTIONS = {"split": "--split", "data_dir": "--data-dir", "id": "--env"}


def setup(options: argparse.Namespace, out: Path) -> Run:
    """Return the run that parsed arguments of `comap run` describe.

    Args:
        options: The arguments, as `comap.cli_run.add_parser` declares them.
        out: The run's folder: what is built for the run goes there.

    Raises:
        CoMapError: Something is not right; the message says what and how to mend it.
    """
    keep = checked_keep(options.keep)
    _check_numbers(options)
    options = with_shipped(options)
    agent, agent_config = _agent(options)
    asks = agent_options(options.agent) is not None
    if options.model is None:
        check_needs(agent, None)
    env_options = _env_options(options)
    if options.split is None:
        options.split = next(reversed(evaluated_splits(options.env)), None)
    make_env: MakeEnv = partial(_make_env, options.env, options.split, env_options)
    tasks = _tasks(options, make_env)
    check_place(out)
    models = Models(options, out)
    lm = None if options.model is None or not asks else models(options.model)
    check_needs(agent, lm)
    retrieval = partial(_retrieval, options, out, env_options)
    world_model = world_model_of(options, models, retrieval)
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
            "world_model": kind_of_world(options),
        },
    )


def check_place(out: Path) -> None:
    """Refuse a folder that cannot be written, before models are loaded.

    Raises:
        OptionError: It is a file, or it may not be written.

    Example:
        >>> check_place(Path(__file__))
        Traceback (most recent call last):
        comap.errors.OptionError: expected a folder for the run at ..., found a file; give another \
--out
    """
    there = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
    if not there.is_dir():
        raise OptionError(
            f"expected a folder for the run at {there}, found a file; give another --out"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise OptionError(f"expected to write into {there}, may not; give another --out")


def _check_numbers(options: argparse.Namespace) -> None:
    least = {"live": 1, "episodes": 1, "fit_tasks": 1, "horizon": 1, "real_every": 1, "seed": 0}
    for name, least_value in least.items():
        value, option = getattr(options, name), f"--{name.replace('_', '-')}"
        if value is not None and value < least_value:
            raise OptionError(f"{option} must be at least {least_value}, not {value}")
        if name in ("horizon", "real_every") and value is not None and not options.imagined:
            raise OptionError(f"{option} is about imagined episodes; add --imagined")


def _agent(options: argparse.Namespace) -> tuple[Agent, dict[str, Any]]:
    """Return the agent, and what it was told."""
    given = vars(options)
    chosen = agent_defaults(options)
    chosen |= {field: given[name] for name, field in options.fields.items() if name in given}
    chosen |= pairs(options.agent_option, "--agent-option")
    if agent_options(options.agent) is not None or options.agent == "random":
        chosen.setdefault("seed", options.seed)
    made = dict(chosen)
    if made.get("head") == "shipped":
        made["head"] = shipped().head
    return create_agent(options.agent, **made), chosen


def _env_options(options: argparse.Namespace) -> dict[str, Any]:
    chosen = pairs(options.env_option, "--env-option")
    for name, option in _ENV_OPTIONS.items():
        if name in chosen:
            raise OptionError(f"give {name} as {option}, not as an --env-option")
    return chosen if options.data_dir is None else chosen | {"data_dir": options.data_dir}


def _make_env(
    env_id: str, split: str | None, options: Mapping[str, Any]
) -> gymnasium.Env[str, str]:
    """Return an environment of comap, or say that it is none."""
    try:
        chosen = options if split is None else {"split": split, **options}
        env = gymnasium.make(env_id, **chosen)
    except (CoMapError, gymnasium.error.Error):
        raise
    except (ImportError, TypeError, ValueError) as error:
        given = f" with {dict(options)}" if options else ""
        raise OptionError(f"cannot make the environment {env_id!r}{given}: {error}") from None
    if not isinstance(env.unwrapped, TextEnv):
        raise OptionError(f"expected an environment of comap, found {env_id!r}")
    return env


def _panel(env: gymnasium.Env[str, str]) -> tuple[str, ...]:
    ids: tuple[str, ...] = env.get_wrapper_attr("tasks").ids
    return ids


def _tasks(options: argparse.Namespace, make_env: MakeEnv) -> list[str]:
    """Return the tasks to play; those that were named are looked up."""
    with closing(make_env()) as env:
        known = _panel(env)
        if options.tasks is None:
            return evenly(known, options.episodes)
        tasks = list(options.tasks)
        if len(tasks) == 1 and Path(tasks[0]).is_file():
            lines = Path(tasks[0]).read_text("utf-8", errors="replace").splitlines()
            tasks = [line.strip() for line in lines if line.strip()]
            if not tasks:
                raise DataNotFound(
                    f"expected a task on each line of {options.tasks[0]}, found none"
                )
        for task in sorted(set(tasks) - set(known)):
            env.reset(options={"task": task})  # says what is wrong with it
    return evenly(tasks, options.episodes)


def _retrieval(
    options: argparse.Namespace, out: Path, env_options: Mapping[str, Any]
) -> RetrievalWorldModel:
    """Return a retrieval model that learnt from the training split."""
    make_env: MakeEnv = partial(_make_env, options.env, "train", env_options)
    with closing(make_env()) as env:
        tasks = evenly(_panel(env), options.fit_tasks)
    return fit_retrieval(out / "retrieval.jsonl", make_env, tasks, options.seed)


def _imagined(
    options: argparse.Namespace, make_env: MakeEnv, world_model: AnyWorldModel
) -> MakeEnv:
    assert world_model is not None
    limits = {"horizon": options.horizon, "real_every": options.real_every}
    return lambda: ImaginedEnv(make_env(), world_model, **limits)
