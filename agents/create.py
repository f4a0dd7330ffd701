"""Agents and tiny language models made from names and plain data."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium

from ..envs import Briefing, TextEnv, state_text
from ..envs.registry import env_class, own_class
from ..errors import CoMapError, OptionError, needs_extra, suggest
from ..jsonl import replacing_file
from ..trajectory import Trajectory, Turn
from .base import Agent
from .config import AgentConfig, check_settings
from .runner import run_episode
from .scripted import ExpertAgent, RandomAgent

AGENTS = {
    "comap": "comap.agents.comap:CoMapAgent",
    "expert": "comap.agents.scripted:ExpertAgent",
    "imagine-and-act": "comap.agents.imagine_and_act:ImagineAndActAgent",
    "itp": "comap.agents.itp:ITPAgent",
    "iwm": "comap.agents.iwm:IWMAgent",
    "paw": "comap.agents.paw:PaWAgent",
    "random": "comap.agents.scripted:RandomAgent",
    "rap": "comap.agents.rap:RAPAgent",
    "react": "comap.agents.react:ReActAgent",
    "redraft": "comap.agents.redraft:RedraftAgent",
    "reflexion": "comap.agents.reflexion:ReflexionAgent",
    "webevolver": "comap.agents.webevolver:WebEvolverAgent",
    "wkm": "comap.agents.wkm:WKMAgent",
}
"""The ids that `create_agent` knows, and where their classes are. The settings of ``SomeAgent``, if its
constructor takes a ``config``, are ``SomeConfig`` in the same module."""


def create_agent(name: str, **options: Any) -> Agent:
    """Return an agent.

    Args:
        name: One of `AGENTS`, or ``package.module:Class`` for your own class, which is imported.
        **options: Fields of its settings (see `agent_options`), and what else its class takes.

    Raises:
        OptionError: There is no such agent, it has no such option, or a value is wrong.

    Example:
        >>> create_agent("react", decoding="scored").config.decoding
        'scored'
        >>> create_agent("random", seed=3).seed
        3
    """
    cls = agent_class(name)
    config_class = agent_options(name)
    parameter_names = set(inspect.signature(cls).parameters) - {"config"}
    setting_names: set[str] = set()
    if config_class is not None:
        setting_names = {setting.name for setting in fields(config_class)}

    option_names = sorted(setting_names | parameter_names)
    for key in options:
        if key not in option_names:
            hint = suggest(key, option_names) if option_names else "it has no options"
            raise OptionError(f"the agent {name!r} has no option {key!r}; {hint}")

    # Options that both know, such as a seed, go to both.
    arguments = {key: value for key, value in options.items() if key in parameter_names}
    settings = {key: value for key, value in options.items() if key in setting_names}
    try:
        if config_class is not None:
            arguments["config"] = config_class(**settings)
        agent: Agent = cls(**arguments)
    except CoMapError:
        raise
    except Exception as error:  # of a class of the user's own
        raise OptionError(
            f"expected options of the agent {name!r}, found {options!r:.200}: {error}; give others (on "
            "the command line: --agent-option NAME=VALUE), or mend its class"
        ) from error

    # A class of the user's own may be anything.
    can_decide = callable(getattr(agent, "decide", None))
    has_name = isinstance(getattr(agent, "name", None), str)
    if not (can_decide and has_name):
        raise OptionError(
            f"expected an agent, with 'name' and 'decide', found {cls.__name__}; add them"
        )
    check_settings(agent)
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
    agent = agent_class(name)
    if "config" not in inspect.signature(agent).parameters:
        return None

    for cls in agent.__mro__:  # an agent may extend one that has settings
        config_name = cls.__name__.removesuffix("Agent") + "Config"
        config: type[AgentConfig] | None = getattr(import_module(cls.__module__), config_name, None)
        if config is not None:
            return config
    return None


def agent_class(name: str) -> type[Any]:
    """Return the class of an agent; ``module:Class`` imports the module."""
    path = AGENTS.get(name, str(name))
    if ":" not in path:
        raise OptionError(
            f"there is no agent {name!r}; {suggest(path, AGENTS)} (your own: 'package.module:Class')"
        )
    cls = own_class(path)

    # Before one is made: a file for --config may name any class, and making it may do anything.
    if not callable(getattr(cls, "decide", None)):
        raise OptionError(
            f"expected an agent, with 'name' and 'decide', found {cls.__name__}; add them"
        )
    return cls


_MARK = "tiny.json"
_TASKS = 32
_TASKS_OF_SLOW = 6
_TASKS_OF_NAMES = 248  # where tasks quote names, of which each task has others
_EVERY = 8  # steps between two lists of all actions, which would else outweigh everything


def corpus(env_id: str = "comap/ALFWorld-v0", episodes: int | None = None) -> list[str]:
    r"""Return text of a benchmark: prompts, goals, observations, actions and beliefs in words."""
    episodes = played_for_words(env_id) if episodes is None else episodes
    cls: Any = env_class(env_id)  # mypy reads a class's __hash__ as that of its instances
    return list(_corpus(env_id, cls, episodes))


@cache
def _corpus(env_id: str, cls: type[TextEnv], episodes: int) -> tuple[str, ...]:
    """Return the texts of `corpus`, which a process that builds several models plays once.

    The class is an argument, as another one may be registered under the same id.
    """
    # Generated tasks always: the model's words do not depend on which data this machine has.
    env = gymnasium.make(env_id, split="train", **cls.generated_options, **cls.listed_actions())
    inner = env.unwrapped
    assert isinstance(inner, TextEnv)

    texts: list[str] = []
    for package in ("agents", "worldmodel"):
        folder = Path(__file__).parents[1] / package / "prompts"
        texts += [path.read_text("utf-8") for path in folder.rglob("*.txt")]
    texts += _texts_of_briefing(inner.briefing)

    # An expert sees what solves a task, a random agent the rest: refusals, and where nothing happens.
    ids = inner.tasks.ids
    count = min(episodes, len(ids))
    for number in range(count):
        for agent in (ExpertAgent(), RandomAgent()):
            episode = run_episode(env, agent, task=ids[number * len(ids) // count])
            texts += _texts_of_episode(episode, inner)
    env.close()
    return tuple(texts)


def played_for_words(env_id: str) -> int:
    """Return how many tasks a tiny model's words come from, unless one says otherwise."""
    cls = env_class(env_id)
    if cls.slow:
        return _TASKS_OF_SLOW
    return _TASKS_OF_NAMES if cls.quotes_names else _TASKS


def tiny_folder(
    directory: str | Path,
    env_id: str = "comap/ALFWorld-v0",
    *,
    parameters: int = 500_000,
    seed: int = 0,
    episodes: int | None = None,
    words: Sequence[str] = (),
    purpose: str = "",
) -> Path:
    """Return the folder of an untrained tiny model for a benchmark; it is built where it is missing.

    The `words` are more texts that its vocabulary is made of; `purpose` names them, as they are not in
    the folder's mark.
    """
    from ..lm.tiny import Tokens, build_tiny

    with needs_extra("train", "building a tiny language model"):
        from safetensors import SafetensorError

    folder = Path(directory)
    if episodes is None:
        episodes = played_for_words(env_id)

    # The mark says what the model in a folder was built from: another one is not taken for it.
    description: dict[str, Any] = {}
    if purpose:
        description["for"] = purpose
    description |= {"env": env_id, "parameters": parameters, "seed": seed, "episodes": episodes}
    mark = folder / _MARK
    mark_text = json.dumps(description) + "\n"
    if mark.is_file():
        present_text = mark.read_text("utf-8")
        if present_text == mark_text:
            return folder
        raise OptionError(
            f"expected the tiny model {mark_text.strip()} in {folder}, found "
            f"{present_text.strip():.200}; choose another folder, or remove this one"
        )

    # Tasks that quote names have many words between them. Without such names "safe 1" is one token.
    tokens: Tokens = "entities"
    vocabulary = 1024
    if env_class(env_id).quotes_names:
        tokens = "names"
        vocabulary = 3072

    texts = [*corpus(env_id, episodes), *words]
    try:
        build_tiny(
            folder,
            texts,
            parameters=parameters,
            seed=seed,
            tokens=tokens,
            vocabulary=vocabulary,
        )
        with replacing_file(mark) as file:  # last: what is there then is whole
            file.write(mark_text.encode())
    except (OSError, SafetensorError) as error:
        raise OptionError(f"cannot write the tiny model into {folder}: {error}") from error
    return folder


def _texts_of_briefing(briefing: Briefing) -> list[str]:
    """Return the texts of a briefing, which standard prompts are mostly made of."""
    texts = [briefing.instructions, briefing.observation_form]
    texts += [text for _, text in briefing.example]
    for transition in briefing.transitions:
        texts += transition
    return texts


def _texts_of_episode(episode: Trajectory, env: TextEnv) -> list[str]:
    """Return the texts of an episode in the forms in which prompts have them."""
    texts = [episode.goal, episode.observation]
    history = [Turn(None, episode.observation)]
    for before, step in episode.transitions():
        texts.append(state_text(episode.env_id, episode.goal, history, before))
        texts.append(state_text(episode.env_id, episode.goal, history, before, step.action))
        if step.t % _EVERY == 1:
            texts += [f"Action: {action}" for action in env.admissible_of(before) or ()]

        # As an agent replies, and as the history in a prompt shows it.
        texts += [f"Action: {step.action}", f"> {step.action}", step.observation]
        history.append(Turn(step.action, step.observation))
    return texts
