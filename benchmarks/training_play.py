"""The `comap run` that lets the models of a training play."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..agents.comap import CoMapConfig
from ..trainers.config import CoMapTraining

__all__ = ["env_words", "option_words", "play_command", "world_words"]

_TAKEN = ("adapter", "seed")  # settings of the agent whose names are options of every run
_WORLD_LENGTHS = {"max_length": 2048, "max_new_tokens": 192}  # as LanguageWorldModel has them


def env_words(env_id: str, options: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that say an environment.

    Args:
        env_id: Its id.
        options: Its options.

    Example:
        >>> env_words("comap/ALFWorld-v0", {"data_dir": "games", "max_episode_steps": 30})
        ['--env', 'comap/ALFWorld-v0', '--data-dir', 'games', '--env-option', 'max_episode_steps=30']
    """
    words = ["--env", env_id]
    for name, value in options.items():
        if name == "data_dir":
            words += ["--data-dir", str(value)]
        else:
            said = value if isinstance(value, str) else json.dumps(value)
            words += ["--env-option", f"{name}={said}"]
    return words


def play_command(
    models: Path,
    config: CoMapTraining,
    agent: CoMapConfig,
    env_id: str,
    env_options: Mapping[str, Any],
    base: str | Path | None = None,
) -> list[str]:
    """Return the words of a command line: the agent acts as it did in the training's evaluations.

    Args:
        models: The folder of the trained models.
        config: The training's settings.
        agent: How the agent acted.
        env_id: Where.
        env_options: The environment's options.
        base: The model that adapters belong to.

    Example:
        >>> config, agent = CoMapTraining(weights="full"), CoMapConfig(temperature=0.0)
        >>> words = play_command(Path("out/models"), config, agent, "comap/ALFWorld-v0", {})
        >>> " ".join(words[6:10])
        '--split valid_unseen --model out/models/agent'
    """
    words = ["comap", "run", "--agent", "comap", *env_words(env_id, env_options)]
    words += ["--split", config.evaluation_splits[-1]]
    if config.weights == "full":
        words += ["--model", str(models / "agent"), "--world-model", str(models / "wm")]
    else:
        words += ["--model", str(base), "--world-model", str(base)]
        for role in ("agent", "wm"):
            words += ["--adapter", f"{role}={models / role}"]
        words += ["--world-model-adapter", "wm"]
    if config.exact:
        words += ["--dtype", "float64"]
    if config.p_source == "head":
        words += ["--agent-option", f"head={models / 'head.safetensors'}"]
    return [*words, *_agent_words(agent, config), *world_words(config)]


def _agent_words(agent: CoMapConfig, config: CoMapTraining) -> Iterator[str]:
    """Yield the agent's settings that are not the defaults."""
    usual = CoMapConfig().describe()
    for name, value in agent.describe().items():
        unused = value is None or (name == "adapter" and config.weights == "full")
        if value != usual[name] and not unused:
            yield from option_words(name, value)


def option_words(name: str, value: object) -> Iterator[str]:
    """Yield the words that give an agent's setting a value, as `comap run` takes them.

    Args:
        name: The setting.
        value: Its value.

    Example:
        >>> [*option_words("action_gate", False), *option_words("seed", 3)]
        ['--no-action-gate', '--agent-seed', '3']
    """
    option = f"{'agent-' if name in _TAKEN else ''}{name.replace('_', '-')}"
    if isinstance(value, bool):
        yield f"--{option}" if value else f"--no-{option}"
    else:
        yield from (f"--{option}", str(value))


def world_words(config: CoMapTraining) -> Iterator[str]:
    """Yield how the world model is asked, where that is not the default.

    Args:
        config: The training's settings.

    Example:
        >>> list(world_words(CoMapTraining(prompts="brief")))
        ['--world-model-prompts', 'brief']
    """
    if config.prompts != "standard":
        yield from ("--world-model-prompts", config.prompts)
    if config.state_text != "history":
        yield from ("--world-model-state-text", config.state_text)
    lengths = {"max_length": config.max_length, "max_new_tokens": config.predict_tokens}
    for name, value in lengths.items():
        if value != _WORLD_LENGTHS[name]:
            yield from ("--world-model-option", f"{name}={value}")
