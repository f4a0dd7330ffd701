"""Making language models from a short text: for the command line and for configs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ..errors import OptionError
from .base import LanguageModel
from .shipped import check_packages, folder_of, full_name

__all__ = ["create_language_model", "kind_of"]

_REPLAY = "replay:"
_URLS = ("http://", "https://")
_LOCAL = ("device", "dtype", "batch_tokens", "batch_rows", "max_length", "revision")
_PATIENCE = ("concurrency", "timeout", "max_retries", "backoff", "max_wait")
_REMOTE = ("api_key_env", "prefix_mode", "choices_mode", "extra_body", "prices", "logprobs")
_BOTH = ("adapters", "name")


def kind_of(spec: str, base_url: str | None = None) -> Literal["local", "remote", "replay"]:
    """Return which kind of model `spec` describes: options of one kind mean nothing to another.

    Args:
        spec: See `create_language_model`.
        base_url: The same.

    Example:
        >>> kind_of("tiny"), kind_of("http://127.0.0.1:8000/v1#m"), kind_of("replay:calls.jsonl")
        ('local', 'remote', 'replay')
    """
    spec = spec.strip()
    if base_url is not None or spec.startswith(_URLS):
        return "remote"
    return "replay" if spec.startswith(_REPLAY) else "local"


def create_language_model(
    spec: str,
    *,
    base_url: str | None = None,
    build_tiny: Callable[[], Path] | None = None,
    **options: Any,
) -> LanguageModel:
    """Return the language model that `spec` describes.

    ============================  ==================================================================
    ``tiny``                      an untrained tiny model, from the folder that `build_tiny` returns
    ``shipped``                   the small policy that comap ships for ALFWorld; ``shipped:wm`` is its
                                  world model (see `comap.lm.shipped`)
    ``replay:FILE``               what a `ReplayLanguageModel` recorded
    ``http://HOST:PORT/v1#NAME``  the model of this name on a server; also NAME with a `base_url`
    a folder, or a hub's name     a Hugging Face model in this process
    ============================  ==================================================================

    Args:
        spec: One of those.
        base_url: The address of a server that speaks OpenAI's chat completions.
        build_tiny: Builds the tiny model where it is missing.
        **options: Options of `HFLanguageModel` or `OpenAILanguageModel`; those that are None are as
            if not given.

    Raises:
        OptionError: `spec` is none of those, or an option is not for such a model.
        DataNotFound: comap was built without the models that it ships.
        LanguageModelError: The model cannot be loaded.
        MissingExtra: A package is missing.

    Example:
        >>> create_language_model("http://127.0.0.1:8000/v1#Qwen/Qwen3-8B").name
        'Qwen/Qwen3-8B'
    """
    given = {name: value for name, value in options.items() if value is not None}
    spec = spec.strip()
    if not spec:
        raise OptionError("expected the name of a language model, found an empty text")
    kind = kind_of(spec, base_url)
    if kind == "remote":
        return _remote(spec, base_url, given)
    if kind == "replay":
        return _replayed(spec.removeprefix(_REPLAY), given)
    from .hf import HFLanguageModel

    _check(given, (*_LOCAL, *_BOTH), spec)
    if spec == "tiny":
        if build_tiny is None:
            raise OptionError(
                "the tiny model must be built first; give the folder it was built into"
            )
        return HFLanguageModel(build_tiny(), **{"name": "tiny", **given})
    if (shipped := full_name(spec)) is not None:
        check_packages()
        return HFLanguageModel(folder_of(shipped), **{"name": shipped, **given})
    return HFLanguageModel(spec, **given)


def _remote(spec: str, base_url: str | None, options: dict[str, Any]) -> LanguageModel:
    from .openai import OpenAILanguageModel

    model = spec
    if spec.startswith(_URLS):
        if base_url is not None:
            raise OptionError("give the server's address once: in the model or as base_url")
        base_url, _, model = spec.partition("#")
    if not model:
        raise OptionError(
            f"expected a server's address and a model's name (http://HOST:PORT/v1#NAME), found "
            f"{spec!r:.120}"
        )
    _check(options, (*_REMOTE, *_PATIENCE, *_BOTH), spec)
    return OpenAILanguageModel(model, base_url, **options)


def _replayed(path: str, options: dict[str, Any]) -> LanguageModel:
    from .replay import ReplayLanguageModel

    _check(options, ("name",), _REPLAY)
    if not Path(path).is_file():
        raise OptionError(f"expected a record of a language model at {path!r}, found no such file")
    return ReplayLanguageModel(path, **options)


def _check(options: dict[str, Any], known: tuple[str, ...], spec: str) -> None:
    wrong = [name for name in options if name not in known]
    if wrong:
        raise OptionError(
            f"the language model {spec!r:.80} has no option {wrong[0]!r}; it has {', '.join(known)}"
        )
