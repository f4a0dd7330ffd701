"""The models that comap ships as the default of `comap run`, and how they are asked."""

from __future__ import annotations

import argparse
from typing import Any

from ..agents.create import agent_options
from ..errors import DataNotFound
from ..lm.shipped import SHIPPED, check_packages, full_name, shipped

__all__ = ["agent_defaults", "with_shipped", "world_model_defaults"]

_AGENT, _WORLD = "shipped:agent", "shipped:wm"
_AGENTS = ("comap", "comap-selective")
_PROMPTS = ("prompts", "state_text", "history_turns")


def with_shipped(options: argparse.Namespace) -> argparse.Namespace:
    """Return parsed arguments in which the models that comap ships stand where none were named.

    They are the default where they were made for the environment and the agent asks a language model:
    then a line says so. CoMap's agent gets the world model that ships with its policy.

    Args:
        options: The parsed arguments; they stay as they are.

    Raises:
        MissingExtra: The packages are missing that shipped models run on.
        DataCorrupt: A file of the shipped models is damaged.

    Example:
        >>> words = {"agent": "random", "model": None, "base_url": None, "world_model": "shipped"}
        >>> with_shipped(argparse.Namespace(**words)).world_model
        'shipped:wm'
    """
    chosen = argparse.Namespace(**vars(options))
    if options.world_model == "shipped":
        chosen.world_model = _WORLD
    if options.base_url is not None:
        return chosen  # the server may have a model of this name
    if options.model is not None:
        chosen.model = full_name(options.model) or options.model
    elif agent_options(options.agent) is not None and _are_there(options.env):
        check_packages()
        chosen.model = _AGENT
        print(
            f"model: the small one that comap ships ({shipped().parameters / 1e6:.1f} M parameters, "
            "trained on generated tasks; --model for yours)",
            flush=True,
        )
    if chosen.model == _AGENT and options.agent in _AGENTS and options.world_model is None:
        chosen.world_model = _WORLD
    return chosen


def agent_defaults(options: argparse.Namespace) -> dict[str, Any]:
    """Return the agent's options that a shipped policy was trained with; none of other models.

    CoMap's agent gets all of them, and the refinement head as ``head="shipped"``; other agents get
    those that say what prompts look like.

    Args:
        options: What `with_shipped` returned.

    Raises:
        DataNotFound: comap was built without the models that it ships.
        DataCorrupt: Their settings cannot be read.

    Example:
        >>> agent_defaults(argparse.Namespace(agent="react", model="tiny"))
        {}
    """
    if options.model != _AGENT:
        return {}
    told = shipped().settings["agent"]
    if options.agent in _AGENTS:
        return {**told, "head": "shipped"}
    asks = agent_options(options.agent) is not None and options.agent != "paw"
    return {name: told[name] for name in _PROMPTS if asks and name in told}


def world_model_defaults(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that a shipped world model was trained with; none of other models.

    Args:
        options: What `with_shipped` returned.

    Raises:
        DataNotFound: comap was built without the models that it ships.
        DataCorrupt: Their settings cannot be read.

    Example:
        >>> world_model_defaults(argparse.Namespace(world_model="oracle"))
        {}
    """
    return dict(shipped().settings["world_model"]) if options.world_model == _WORLD else {}


def _are_there(env_id: str) -> bool:
    """Return whether comap ships models for an environment, and has them here."""
    if env_id not in SHIPPED:
        return False
    try:
        shipped(SHIPPED[env_id])
    except DataNotFound:
        return False
    return True
