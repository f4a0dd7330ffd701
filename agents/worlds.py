"""Making the world model of a run from a short text: for the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from ..errors import CoMapError, OptionError
from ..lm import LanguageModel
from ..worldmodel import RetrievalWorldModel, WorldModel, transitions_of
from ..worldmodel.create import WORLD_MODELS
from .expert import ExpertAgent
from .needs import check_adapter
from .random import RandomAgent
from .runner import run_episodes

__all__ = ["NAMED", "choose_world_model", "fit_retrieval"]

NAMED = tuple(name for name in WORLD_MODELS if name not in ("cached", "language"))
"""The world models that a command line may name: not those that are made around another model."""

_RECORD = ".jsonl"


def choose_world_model(
    spec: str,
    *,
    language_model: Callable[[str], LanguageModel],
    retrieval: Callable[[], RetrievalWorldModel],
    noisy: Mapping[str, Any] | None = None,
    language: Mapping[str, Any] | None = None,
    further: Mapping[str, Any] | None = None,
) -> WorldModel | str | Mapping[str, Any]:
    """Return the world model that `spec` describes, or the config that makes one.

    Args:
        spec: One of `NAMED`, the file of a saved retrieval model (``.jsonl``), or what
            `create_language_model` makes a language model from.
        language_model: Makes a language model.
        retrieval: Makes the retrieval model where no file is given.
        noisy: Options of `NoisyWorldModel`.
        language: Options of `LanguageWorldModel`.
        further: Options of any other model that is made from options alone.

    Raises:
        CoMapError: There is no such model, or it cannot be made.

    Example:
        >>> choose_world_model("oracle", language_model=None, retrieval=None)
        'oracle'
    """
    if spec in ("oracle", "null"):
        return spec
    if spec == "noisy":
        return {"id": "noisy", **(noisy or {})}
    if spec == "retrieval":
        return retrieval()
    if spec in NAMED:
        return {"id": spec, **(further or {})}
    if spec.endswith(_RECORD):
        return RetrievalWorldModel(spec)
    from ..worldmodel.language import LanguageWorldModel

    lm, options = language_model(spec), dict(language or {})
    try:
        model = LanguageWorldModel(lm, **options)
    except CoMapError:
        raise
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"expected options of a language world model, found {options!r:.200}: {error}"
        ) from error
    check_adapter(lm, model.adapter)
    return model


def fit_retrieval(
    path: Path, make_env: Callable[[], gymnasium.Env[str, str]], tasks: Sequence[str], seed: int = 0
) -> RetrievalWorldModel:
    """Return a retrieval world model fitted on an expert's and a random agent's episodes.

    It is saved, and the next call with the same file loads it.

    Args:
        path: The file.
        make_env: Makes an environment of the tasks to learn from.
        tasks: Those tasks.
        seed: Seed of the random agent.

    Raises:
        OptionError: There are no tasks to learn from.

    Example:
        >>> import tempfile, gymnasium as gym, comap
        >>> make_env = lambda: gym.make("comap/ALFWorld-v0", source="generated")
        >>> tasks = make_env().unwrapped.tasks.ids[:1]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(fit_retrieval(Path(folder, "model.jsonl"), make_env, tasks)) > 50
        True
    """
    if path.exists():
        return RetrievalWorldModel(path)
    if not tasks:
        raise OptionError("the retrieval world model needs at least 1 task to learn from, found 0")
    model = RetrievalWorldModel()
    for agent in (ExpertAgent(), RandomAgent(seed, mixed=0.1)):
        for trajectory in run_episodes(make_env, agent, tasks, live=1):
            model.fit(transitions_of(trajectory))
    model.save(path)
    return model
