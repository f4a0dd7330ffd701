"""Making agents from plain data: for the command line and for experiments."""

from __future__ import annotations

import inspect
from dataclasses import fields
from importlib import import_module
from typing import Any

from ..errors import CoMapError, OptionError, suggest
from .base import Agent
from .config import AgentConfig

__all__ = ["AGENTS", "agent_options", "create_agent"]

AGENTS = {
    "comap": "comap.agents.comap:CoMapAgent",
    "comap-selective": "comap.agents.selective:SelectiveCoMapAgent",
    "expert": "comap.agents.expert:ExpertAgent",
    "imagine-and-act": "comap.agents.imagine_and_act:ImagineAndActAgent",
    "itp": "comap.agents.itp:ITPAgent",
    "iwm": "comap.agents.iwm:IWMAgent",
    "paw": "comap.agents.paw:PaWAgent",
    "random": "comap.agents.random:RandomAgent",
    "rap": "comap.agents.rap:RAPAgent",
    "react": "comap.agents.react:ReActAgent",
    "reflexion": "comap.agents.reflexion:ReflexionAgent",
    "webevolver": "comap.agents.webevolver:WebEvolverAgent",
    "wkm": "comap.agents.wkm:WKMAgent",
}
"""The ids that `create_agent` knows, and where their classes are. The settings of ``SomeAgent`` are
``SomeConfig`` in the same module, if it has any."""


def create_agent(name: str, **options: Any) -> Agent:
    """Return an agent.

    Args:
        name: One of `AGENTS`.
        **options: Fields of its settings (see `agent_options`), and what else its class takes.

    Raises:
        OptionError: There is no such agent, it has no such option, or a value is wrong.

    Example:
        >>> create_agent("react", decoding="scored").config.decoding
        'scored'
        >>> create_agent("random", seed=3).seed
        3
    """
    made, config = _class_of(name), agent_options(name)
    settings = {part.name for part in fields(config)} if config is not None else set()
    further = [key for key in inspect.signature(made).parameters if key != "config"]
    for key in options:
        if key not in settings and key not in further:
            known = sorted([*settings, *further])
            hint = suggest(key, known) if known else "it has no options"
            raise OptionError(f"the agent {name!r} has no option {key!r}; {hint}")
    arguments = {key: options[key] for key in options if key in further}
    try:
        if config is not None:
            chosen = {key: options[key] for key in options if key in settings}
            arguments["config"] = config(**chosen)
        agent: Agent = made(**arguments)
    except CoMapError:
        raise
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"expected options of the agent {name!r}, found {options!r:.200}: {error}"
        ) from error
    return agent


def agent_options(name: str) -> type[AgentConfig] | None:
    """Return the class of an agent's settings; None for agents that ask no language model.

    Args:
        name: One of `AGENTS`.

    Raises:
        OptionError: There is no such agent.

    Example:
        >>> agent_options("comap").__name__, agent_options("expert")
        ('CoMapConfig', None)
    """
    made = _class_of(name)
    if "config" not in inspect.signature(made).parameters:
        return None
    module = import_module(made.__module__)
    config: type[AgentConfig] = getattr(module, made.__name__.removesuffix("Agent") + "Config")
    return config


def _class_of(name: str) -> type:
    place = AGENTS.get(name) if isinstance(name, str) else None
    if place is None:
        raise OptionError(f"there is no agent {name!r}; {suggest(str(name), AGENTS)}")
    module, _, attribute = place.partition(":")
    found: type = getattr(import_module(module), attribute)
    return found
