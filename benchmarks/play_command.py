"""The `comap run` with which the models of a training play."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..agents.create import agent_options
from ..trainers.baselines.config import ITPTraining, WKMTraining
from ..trainers.baselines.itp import DEPTH_HEAD
from ..trainers.baselines.wkm import KNOWLEDGE
from ..trainers.comap.config import CoMapTraining
from ..trainers.config import SharedTraining
from ..trainers.paw.config import PaWTraining

_RUN_OPTIONS = ("adapter", "seed")  # settings of agents whose names are options of every run


def env_words(env_id: str, options: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that name an environment."""
    words = ["--env", env_id]
    for name, value in options.items():
        if name == "data_dir":
            words += ["--data-dir", str(value)]
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            words += ["--env-option", f"{name}={text}"]
    return words


def play_command(
    config: SharedTraining | PaWTraining,
    models: Path,
    env_id: str,
    env_options: Mapping[str, Any],
    base: str | Path | None = None,
) -> list[str]:
    """Return the words of a command line: the agent acts as in the training's evaluations.

    `models` holds a model or an adapter for each role; `base` is the model that adapters belong to.
    """
    agent = "paw" if isinstance(config, PaWTraining) else getattr(config, "method", "comap")
    agent = "react" if agent == "sft" else agent
    words = ["comap", "run", "--agent", agent, *env_words(env_id, env_options)]
    words += ["--split", config.evaluation_splits[-1], *_model_words(config, models, base)]
    if isinstance(config, SharedTraining) and config.exact:
        words += ["--dtype", "float64"]
    words += _agent_words(agent, config)
    if isinstance(config, WKMTraining):
        words += ["--agent-option", f"knowledge={models.parent / KNOWLEDGE}"]
    elif isinstance(config, ITPTraining):
        words += ["--agent-option", f"k_head={models / DEPTH_HEAD}"]
    elif isinstance(config, CoMapTraining) and config.agent.p_source == "head":
        words += ["--agent-option", f"head={models / 'head.safetensors'}"]
    return words


def _model_words(
    config: SharedTraining | PaWTraining, models: Path, base: str | Path | None
) -> Iterator[str]:
    imagines = isinstance(config, CoMapTraining | ITPTraining)
    full = config.weights == "full"
    yield from ("--model", str(models / "agent" if full else base))
    if imagines:
        yield from ("--world-model", str(models / "wm" if full else base))
    if not full:
        knows = isinstance(config, WKMTraining) and config.trains_knowledge
        for role in ("agent", *(["knowledge"] if knows else []), *(["wm"] if imagines else [])):
            yield from ("--adapter", f"{role}={models / role}")
    if isinstance(config, CoMapTraining | ITPTraining):
        if not full:
            yield from ("--world-model-adapter", "wm")
        yield from ("--world-model-prompts", config.agent.prompts)
        yield from ("--world-model-state-text", config.agent.state_text)
        yield from ("--world-model-option", f"max_length={config.agent.max_length}")
        yield from ("--world-model-option", f"max_new_tokens={config.predict_tokens}")


def _agent_words(agent: str, config: SharedTraining | PaWTraining) -> Iterator[str]:
    options = agent_options(agent)
    assert options is not None
    settings = config.agent.describe()
    settings |= {"seed": config.seed, "temperature": config.evaluation_temperature}
    settings["adapter"] = "agent" if config.weights == "lora" else None
    if isinstance(config, WKMTraining):
        settings["knowledge_adapter"] = "knowledge" if config.trains_knowledge else None
    usual = options().describe()
    for name, value in settings.items():
        option = f"{'agent-' if name in _RUN_OPTIONS else ''}{name.replace('_', '-')}"
        if value == usual[name]:
            continue
        if value is None:
            yield from ("--agent-option", f"{name}=null")
        elif isinstance(value, bool):
            yield f"--{option}" if value else f"--no-{option}"
        else:
            yield from (f"--{option}", str(value))
