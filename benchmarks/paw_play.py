"""The `comap run` that lets the policy of a PaW training play."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..agents.create import agent_options
from ..trainers.paw.config import PaWTraining
from .training_play import env_words, option_words

__all__ = ["paw_play_command"]


def paw_play_command(
    policy: Path,
    config: PaWTraining,
    env_id: str,
    env_options: Mapping[str, Any],
    base: str | Path | None = None,
) -> list[str]:
    """Return the words of a command line: the agent acts as it did in the training's evaluations.

    Args:
        policy: The folder of the trained policy, or of its adapter.
        config: The training's settings.
        env_id: Where.
        env_options: The environment's options.
        base: The model that an adapter belongs to.

    Example:
        >>> config = PaWTraining(prompts="brief", evaluation_temperature=0.0)
        >>> words = paw_play_command(Path("out/models/agent"), config, "comap/ALFWorld-v0", {})
        >>> " ".join(words[:8])
        'comap run --agent react --env comap/ALFWorld-v0 --split valid_unseen'
    """
    words = ["comap", "run", "--agent", config.agent, *env_words(env_id, env_options)]
    words += ["--split", config.evaluation_splits[-1]]
    if config.weights == "lora":
        words += ["--model", str(base), "--adapter", f"agent={policy}", "--agent-adapter", "agent"]
    else:
        words += ["--model", str(policy)]
    return [*words, *_agent_words(config)]


def _agent_words(config: PaWTraining) -> Iterator[str]:
    """Yield the agent's settings that are not its defaults."""
    made = agent_options(config.agent)
    assert made is not None
    usual = made().describe()
    for name, value in config.agent_settings(config.evaluation_temperature).items():
        if value == usual[name]:
            continue
        if value is None:
            yield from ("--agent-option", f"{name}=null")
        else:
            yield from option_words(name, value)
