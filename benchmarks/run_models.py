"""From the words of a command line to a run's models: language models and the world model."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ..agents.corpus import tiny_folder
from ..agents.worlds import NAMED, choose_world_model
from ..errors import OptionError
from ..lm import LanguageModel
from ..lm.create import create_language_model, kind_of
from ..worldmodel import CachedWorldModel, RetrievalWorldModel, WorldModel
from .options import pairs
from .run_shipped import world_model_defaults

__all__ = ["AnyWorldModel", "Models", "hush", "kind_of_world", "world_model_of"]

AnyWorldModel: TypeAlias = "WorldModel | str | Mapping[str, Any] | None"
"""A world model, its id or its config; None for none."""

_OWN = ("tiny", "shipped", "shipped:agent", "shipped:wm")
_WORLDS = (*NAMED, *_OWN)
_LANGUAGE = {
    "prompts": "world_model_prompts",
    "state_text": "world_model_state_text",
    "adapter": "world_model_adapter",
}


class Models:
    """The language models of a run, each loaded once: agent and world model may share one.

    The options of models (``--base-url``, ``--device``, ``--model-option``, ...) are those of
    ``--model``. A world model's own language model takes part in them where it is of the same kind:
    a server's timeout means nothing to a model in this process.

    Args:
        options: The parsed arguments.
        out: The run's folder: a tiny model is built there.

    Example:
        >>> Models(argparse.Namespace(model="tny", base_url=None), Path("run"))("tny")
        Traceback (most recent call last):
        comap.errors.OptionError: there is no model 'tny'; did you mean 'tiny'? (a folder of this \
name: ./tny)
    """

    def __init__(self, options: argparse.Namespace, out: Path):
        self._options, self._out = options, out
        self._made: dict[str, LanguageModel] = {}

    def __call__(self, spec: str) -> LanguageModel:
        """Return the language model of this name.

        Raises:
            CoMapError: There is no such model, or it cannot be loaded.
        """
        if spec not in self._made:
            self._made[spec] = self._make(spec)
        return self._made[spec]

    def _make(self, spec: str) -> LanguageModel:
        options = self._options
        base_url = options.base_url if self._is_main(spec) or _is_bare(spec) else None
        if base_url is None:
            _check_name(spec, _OWN, "model")
            if _is_bare(spec):
                print(f"loading {spec} from the hub, where it is not on this machine", flush=True)
        hush()
        return create_language_model(
            spec,
            base_url=base_url,
            build_tiny=self._tiny,
            adapters=self._adapters(spec) or None,
            **self._settings(spec, base_url),
        )

    def _is_main(self, spec: str) -> bool:
        """Return whether this is the model that the options of models are about."""
        return self._options.model in (None, spec)

    def _settings(self, spec: str, base_url: str | None) -> dict[str, Any]:
        options = self._options
        own = not self._is_main(spec)
        if own and kind_of(spec, base_url) != kind_of(options.model, options.base_url):
            return {}
        settings = {"device": options.device, "dtype": options.dtype}
        return settings | pairs(options.model_option, "--model-option")

    def _adapters(self, spec: str) -> dict[str, str]:
        """Return the adapters that a model is to have: the world model's own goes to its own."""
        options = self._options
        given: dict[str, str] = pairs(options.adapter, "--adapter", plain=True)
        own = options.world_model_adapter
        if options.model is None or options.world_model in (None, options.model):
            return given
        if self._is_main(spec):
            return {name: place for name, place in given.items() if name != own}
        return {name: place for name, place in given.items() if name == own}

    def _tiny(self) -> Path:
        options = self._options
        size, seed = options.tiny_parameters, options.seed
        return tiny_folder(self._out / "model", options.env, parameters=size, seed=seed)


def world_model_of(
    options: argparse.Namespace, models: Models, retrieval: Callable[[], RetrievalWorldModel]
) -> AnyWorldModel:
    """Return the world model that parsed arguments ask for, or the config that makes one.

    Args:
        options: The parsed arguments.
        models: Makes its language model, if it is one.
        retrieval: Makes the retrieval model that is fitted for this run.

    Raises:
        CoMapError: There is no such model, or it cannot be made.
    """
    if options.world_model is None:
        if options.imagined:
            raise OptionError("--imagined needs a world model to imagine with; add --world-model")
        return None
    if options.base_url is None:
        _check_name(options.world_model, _WORLDS, "world model")
    further = pairs(options.world_model_option, "--world-model-option")
    named = {name: getattr(options, field) for name, field in _LANGUAGE.items()}
    chosen = {name: value for name, value in named.items() if value is not None} | further
    made = choose_world_model(
        options.world_model,
        language_model=models,
        retrieval=retrieval,
        noisy={"error_rate": options.error_rate, "seed": options.seed, **further},
        language=world_model_defaults(options) | chosen,
        further=further,
    )
    key = options.world_model_cache
    if key is None:
        return made
    if not isinstance(made, str | Mapping):
        return CachedWorldModel(made, key=key)
    return {"id": "cached", "model": made, "key": key}


def kind_of_world(options: argparse.Namespace) -> str | None:
    """Return which world model was asked for; what it is made of is recorded elsewhere.

    Example:
        >>> kind_of_world(argparse.Namespace(world_model="/home/me/model"))
        'given'
    """
    spec: str | None = options.world_model
    if spec == "retrieval":
        return f"retrieval, fitted on {options.fit_tasks} tasks of train, seed {options.seed}"
    return spec if spec is None or spec in _WORLDS else "given"


def _is_bare(spec: str) -> bool:
    """Return whether a text is nothing but a name, which the server of ``--base-url`` may know."""
    return spec not in _OWN and kind_of(spec) == "local" and not Path(spec).expanduser().is_dir()


def _check_name(spec: str, known: tuple[str, ...], what: str) -> None:
    """Refuse what looks like a misspelled name before it is looked for on the hub."""
    if spec in known or Path(spec).exists():
        return
    close = difflib.get_close_matches(spec, known, n=1, cutoff=0.75)
    if close:
        raise OptionError(
            f"there is no {what} {spec!r}; did you mean {close[0]!r}? (a folder of this name: "
            f"./{spec})"
        )


def hush() -> None:
    """Keep the progress bars and the warnings of libraries from the terminal.

    Example:
        >>> hush()  # doctest: +SKIP
    """
    try:
        import huggingface_hub.utils
        from transformers.utils import logging
    except ImportError:
        return
    hub: Any = huggingface_hub.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub.set_verbosity_error()
