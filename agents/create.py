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
    made, config = agent_class(name), agent_options(name)
    settings = {part.name for part in fields(config)} if config is not None else set()
    further = set(inspect.signature(made).parameters) - {"config"}
    for key in options:
        if key not in settings | further:
            known = sorted(settings | further)
            hint = suggest(key, known) if known else "it has no options"
            raise OptionError(f"the agent {name!r} has no option {key!r}; {hint}")
    arguments = {key: value for key, value in options.items() if key in further}
    try:
        if config is not None:
            chosen = {key: value for key, value in options.items() if key in settings}
            arguments["config"] = config(**chosen)
        agent: Agent = made(**arguments)
    except CoMapError:
        raise
    except Exception as error:  # of a class of the user's own
        raise OptionError(
            f"expected options of the agent {name!r}, found {options!r:.200}: {error}; give others (on "
            "the command line: --agent-option NAME=VALUE), or mend its class"
        ) from error
    if not (
        callable(getattr(agent, "decide", None)) and isinstance(getattr(agent, "name", 0), str)
    ):
        raise OptionError(
            f"expected an agent, with 'name' and 'decide', found {made.__name__}; add them"
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
    made = agent_class(name)
    takes_config = "config" in inspect.signature(made).parameters
    for cls in made.__mro__ if takes_config else ():  # an agent may extend one that has settings
        settings = cls.__name__.removesuffix("Agent") + "Config"
        config: type[AgentConfig] | None = getattr(import_module(cls.__module__), settings, None)
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
    return own_class(path)


_MARK = "tiny.json"
_SOME, _FEW, _MANY = 32, 6, 248  # tasks; few of slow ones, many where names differ
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
    env = gymnasium.make(env_id, split="train", **cls.generated_options, **cls.listed_actions())
    inner = env.unwrapped
    assert isinstance(inner, TextEnv)
    ids = inner.tasks.ids
    count = min(episodes, len(ids))
    prompts = [Path(__file__).parents[1] / part / "prompts" for part in ("agents", "worldmodel")]
    texts = [path.read_text("utf-8") for folder in prompts for path in folder.rglob("*.txt")]
    texts += _told_in(inner.briefing)
    for number in range(count):
        for agent in (ExpertAgent(), RandomAgent()):
            episode = run_episode(env, agent, task=ids[number * len(ids) // count])
            texts += _text_of(episode, inner)
    env.close()
    return tuple(texts)


def played_for_words(env_id: str) -> int:
    """Return how many tasks a tiny model's words come from, unless one says otherwise."""
    cls = env_class(env_id)
    return _FEW if cls.slow else _MANY if cls.quotes_names else _SOME


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
    """Return the folder of an untrained tiny model for a benchmark; it is built where it is missing."""
    from ..lm.tiny import Tokens, build_tiny

    with needs_extra("train", "building a tiny language model"):
        from safetensors import SafetensorError
    folder = Path(directory)
    episodes = played_for_words(env_id) if episodes is None else episodes
    wanted: dict[str, Any] = {"for": purpose} if purpose else {}
    wanted |= {"env": env_id, "parameters": parameters, "seed": seed, "episodes": episodes}
    mark = folder / _MARK
    written = json.dumps(wanted) + "\n"
    if mark.is_file():
        found = mark.read_text("utf-8")
        if found == written:
            return folder
        raise OptionError(
            f"expected the tiny model {written.strip()} in {folder}, found {found.strip():.200}; "
            "choose another folder, or remove this one"
        )
    text = [*corpus(env_id, episodes), *words]
    try:
        tokens: Tokens = "names" if env_class(env_id).quotes_names else "entities"
        most = 3072 if tokens == "names" else 1024
        build_tiny(folder, text, parameters=parameters, seed=seed, tokens=tokens, vocabulary=most)
        with replacing_file(mark) as file:  # last: what is there then is whole
            file.write(written.encode())
    except (OSError, SafetensorError) as error:
        raise OptionError(f"cannot write the tiny model into {folder}: {error}") from error
    return folder


def _told_in(briefing: Briefing) -> list[str]:
    """Return the texts of a briefing, which standard prompts are mostly made of."""
    texts = [briefing.instructions, briefing.observation_form]
    texts += [text for _, text in briefing.example]
    for transition in briefing.transitions:
        texts += transition
    return texts


def _text_of(episode: Trajectory, env: TextEnv) -> list[str]:
    texts = [episode.goal, episode.observation]
    history = [Turn(None, episode.observation)]
    for before, step in episode.transitions():
        texts.append(state_text(episode.env_id, episode.goal, history, before))
        texts.append(state_text(episode.env_id, episode.goal, history, before, step.action))
        if step.t % _EVERY == 1:
            texts += [f"Action: {action}" for action in env.admissible_of(before) or ()]
        texts += [f"Action: {step.action}", f"> {step.action}", step.observation]
        history.append(Turn(step.action, step.observation))
    return texts
