"""Text of a benchmark, from its embedded tasks: what a tiny language model's words come from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import gymnasium

from ..envs import TextEnv, state_text
from ..envs.registered import embedded_tasks, is_slow, listed_actions
from ..errors import MissingExtra, OptionError
from ..trajectory import Trajectory, Turn
from .expert import ExpertAgent
from .random import RandomAgent
from .runner import run_episode

__all__ = ["corpus", "played_for_words", "tiny_folder"]

_MARK = "tiny.json"
_SOME, _FEW = 32, 6  # tasks; few where an episode takes seconds
_EVERY = 8  # steps between two lists of all actions, which would else outweigh everything


def corpus(env_id: str = "comap/ALFWorld-v0", episodes: int | None = None) -> list[str]:
    r"""Return text of a benchmark: prompts, goals, observations, actions and beliefs in words.

    It is taken from an expert's and a random agent's episodes of embedded tasks, and from the prompt
    templates of agents and world models. The same arguments give the same text on every machine.

    Args:
        env_id: The environment.
        episodes: How many tasks to play; None for 32, or 6 where an episode takes seconds.

    Raises:
        OptionError: `episodes` is negative, or the environment is none of comap's.

    Example:
        >>> text = "\n".join(corpus(episodes=1))
        >>> "You are in the middle of a room" in text, "Thought:" in text
        (True, True)
    """
    if episodes is not None and episodes < 0:
        raise OptionError(f"episodes must be at least 0, not {episodes}")
    env = _embedded(env_id)
    inner = env.unwrapped
    assert isinstance(inner, TextEnv)
    episodes = played_for_words(env_id) if episodes is None else episodes
    ids = inner.tasks.ids
    count = min(episodes, len(ids))
    texts = _templates()
    for number in range(count):
        for agent in (ExpertAgent(), RandomAgent()):
            episode = run_episode(env, agent, task=ids[number * len(ids) // count])
            texts += _text_of(episode, inner)
    env.close()
    return texts


def played_for_words(env_id: str) -> int:
    """Return how many tasks a tiny model's words come from, unless one says otherwise.

    Example:
        >>> import comap
        >>> played_for_words("comap/ALFWorld-v0"), played_for_words("comap/ScienceWorld-v0")
        (32, 6)
    """
    return _FEW if is_slow(env_id) else _SOME


def tiny_folder(
    directory: str | Path,
    env_id: str = "comap/ALFWorld-v0",
    *,
    parameters: int = 500_000,
    seed: int = 0,
    episodes: int | None = None,
) -> Path:
    """Return the folder of an untrained tiny model for a benchmark; it is built where it is missing.

    Args:
        directory: The folder.
        env_id: The benchmark that its words come from.
        parameters: Its size.
        seed: Seed of its weights.
        episodes: See `corpus`.

    Raises:
        OptionError: Something else is in the folder, or it cannot be written.
        MissingExtra: The extra ``train`` is not installed.
    """
    from ..lm.tiny import build_tiny

    try:
        from safetensors import SafetensorError
    except ImportError as error:
        raise MissingExtra.of("train", "building a tiny language model") from error
    folder = Path(directory)
    episodes = played_for_words(env_id) if episodes is None else episodes
    wanted = {"env": env_id, "parameters": parameters, "seed": seed, "episodes": episodes}
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
    text = corpus(env_id, episodes)
    try:
        build_tiny(folder, text, parameters=parameters, seed=seed)
        draft = mark.with_name(mark.name + ".part")
        draft.write_text(written, "utf-8")
        draft.replace(mark)  # last: what is there then is whole
    except (OSError, SafetensorError) as error:
        raise OptionError(f"cannot write the tiny model into {folder}: {error}") from error
    return folder


def _embedded(env_id: str) -> gymnasium.Env[str, str]:
    """Return an environment on its embedded tasks, whatever data is on this machine."""
    env = gymnasium.make(env_id, split="train", **embedded_tasks(env_id), **listed_actions(env_id))
    if not isinstance(env.unwrapped, TextEnv):
        raise OptionError(f"expected an environment of comap, found {env_id!r}")
    return env


def _text_of(episode: Trajectory, env: TextEnv) -> list[str]:
    """Return the texts of an episode, those of prompts among them."""
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


def _templates() -> list[str]:
    """Return all prompt templates, in the order of their names."""
    package = (__package__ or "").rpartition(".")[0]
    return [
        text
        for part in ("agents", "worldmodel")
        for text in _texts_under(files(package) / part / "prompts")
    ]


def _texts_under(folder: Any) -> Iterator[str]:
    for entry in sorted(folder.iterdir(), key=lambda entry: str(entry.name)):
        if entry.is_dir():
            yield from _texts_under(entry)
        elif entry.name.endswith(".txt"):
            yield entry.read_text(encoding="utf-8")
