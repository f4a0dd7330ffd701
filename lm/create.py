"""Making language models from a short text, and the small models that comap ships."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ..errors import DataNotFound, MissingExtra, OptionError, suggest
from .base import LanguageModel
from .engine_choice import check_engine, is_for_vllm, resolved_engine
from .hf import HFLanguageModel
from .openai import OpenAILanguageModel
from .replay import ReplayLanguageModel
from .vllm import VLLMLanguageModel
from .vllm_transports import is_url

SHIPPED: Mapping[str, str] = {"comap/ALFWorld-v0": "alfworld"}
"""The name of the shipped models for each environment's id that has some."""

_REPLAY = "replay:"
_URLS = ("http://", "https://")
_WEIGHTS = "model.safetensors"


def create_language_model(
    spec: str,
    *,
    engine: str = "hf",
    engine_memory: float | None = None,
    base_url: str | None = None,
    build_tiny: Callable[[], Path] | None = None,
    **options: Any,
) -> LanguageModel:
    """Return the language model that `spec` describes.

    ============================  ==================================================================
    ``tiny``                      an untrained tiny model, from the folder that `build_tiny` returns
    ``shipped``                   the small policy that comap ships for ALFWorld; ``shipped:wm`` is its
                                  world model (see `shipped_models`)
    ``replay:FILE``               what a `ReplayLanguageModel` recorded
    ``http://HOST:PORT/v1#NAME``  the model of this name on a server; also NAME with a `base_url`
    a folder, or a hub's name     a Hugging Face model, run by the `engine`
    ============================  ==================================================================

    Args:
        spec: One of those.
        engine: What runs a Hugging Face model; all others have one of their own. ``hf`` is the
            transformers library (`HFLanguageModel`), ``vllm`` is vLLM in this process
            (`VLLMLanguageModel`), ``http://HOST:PORT`` or ``http://HOST:PORT#NAME`` a server that
            ``vllm serve`` started, and ``auto`` what `resolved_engine` takes.
        engine_memory: Share of the GPU's memory for vLLM in this process; None for its own choice.
        base_url: The address of a server that speaks OpenAI's chat completions.
        build_tiny: Builds the tiny model where it is missing.
        **options: Options of `HFLanguageModel`, `VLLMLanguageModel` or `OpenAILanguageModel`; those
            that are None are as if not given.

    Raises:
        OptionError: `spec` is none of those, or an option is not for such a model.
        DataNotFound: comap was built without the models that it ships.
        LanguageModelError: The model cannot be loaded.
        MissingExtra: A package is missing.

    Example:
        >>> create_language_model("http://127.0.0.1:8000/v1#Qwen/Qwen3-8B").name
        'Qwen/Qwen3-8B'
    """
    chosen_options = {name: value for name, value in options.items() if value is not None}
    spec = str(spec or "").strip()
    kind = kind_of(spec, base_url)
    check_engine_of(spec, base_url, engine)

    if kind == "remote":
        model = spec
        if base_url is None:
            base_url, _, model = spec.partition("#")
        elif spec.startswith(_URLS):
            raise OptionError("give the server's address once: in the model or as base_url")
        if not model:
            raise OptionError(
                f"expected a server's model (http://HOST:PORT/v1#NAME), found {spec!r}"
            )
        return _create(OpenAILanguageModel, spec, (model, base_url), chosen_options)

    if kind == "replay":
        path = Path(spec.removeprefix(_REPLAY))
        if not path.is_file():
            raise OptionError(f"expected a record of a language model at {path}, found no file")
        return _create(ReplayLanguageModel, spec, (path,), chosen_options)

    # These two have the names that the user wrote, for records: a folder's would be one of a machine.
    if spec == "tiny":
        if build_tiny is None:
            raise OptionError("the tiny model must be built first; give its folder instead")
        return _create(HFLanguageModel, spec, (build_tiny(),), {"name": "tiny", **chosen_options})
    shipped = full_name(spec)
    if shipped is not None:
        check_packages()
        options_with_name = {"name": shipped, **chosen_options}
        return _create(HFLanguageModel, spec, (folder_of(shipped),), options_with_name)

    if resolved_engine(engine, chosen_options).name == "hf":
        return _create(HFLanguageModel, spec, (spec,), chosen_options)
    return _in_vllm(spec, engine, engine_memory, chosen_options)


def takes_engine(spec: str, base_url: str | None = None) -> bool:
    """Return whether `spec` is a Hugging Face model, which an engine runs that the user chooses."""
    return kind_of(spec, base_url) == "local" and spec != "tiny" and full_name(spec) is None


def check_engine_of(spec: str, base_url: str | None, engine: str) -> None:
    """Refuse an unknown engine, and vLLM by name for a model that never runs there."""
    check_engine(engine)
    if engine not in ("auto", "hf") and not takes_engine(spec, base_url):
        raise OptionError(
            f"the engine {_engine_in_words(engine)} runs a Hugging Face model (a folder, or a name on "
            f"the hub), not {spec!r:.80}; name such a model, or leave the engine out"
        )


def _in_vllm(
    spec: str, engine: str, engine_memory: float | None, options: Mapping[str, Any]
) -> LanguageModel:
    """Return a Hugging Face model that vLLM runs, in this process or at a server."""
    settings = dict(options)

    # vLLM takes the first GPU that it sees; what other device there may be, `hf` alone can choose.
    device = settings.pop("device", "auto")
    is_server = is_url(engine)
    if is_server or not is_for_vllm("device", device):
        name = next((name for name in ("device", "dtype") if name in options), None)
        if name is not None:
            raise OptionError(
                f"the engine {_engine_in_words(engine)} takes no {name}, found {options[name]!r:.40}; "
                "leave it out, or use the engine hf"
            )

    if is_server:
        settings = {"tokenizer": spec, **settings}
        return _create(VLLMLanguageModel, spec, (engine,), settings)
    if engine_memory is not None:
        if not 0 < engine_memory <= 1:
            raise OptionError(
                f"engine_memory is a share of the GPU's memory, above 0 and at most 1, not {engine_memory}"
            )
        settings = {"memory_share": engine_memory, **settings}
    return _create(VLLMLanguageModel, spec, (spec,), settings)


def _engine_in_words(engine: str) -> str:
    return "at a server" if is_url(engine) else repr(engine)


def kind_of(spec: str, base_url: str | None = None) -> Literal["local", "remote", "replay"]:
    """Return which kind of model `spec` describes: options of one kind mean nothing to another."""
    spec = spec.strip()
    if not spec:
        raise OptionError("expected the name of a language model, found none or an empty text")
    if base_url is not None or spec.startswith(_URLS):
        return "remote"
    return "replay" if spec.startswith(_REPLAY) else "local"


_OF_AGENTS = ("temperature", "top_p", "draft_tokens")
"""Settings of replies, which the agent has and not the model."""


def _create(
    model_class: Any, spec: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> LanguageModel:
    """Return a model of this class; raise where an option has no such name or type.

    Args:
        model_class: The class.
        spec: What the user wrote, for messages.
        arguments: The constructor's first arguments.
        options: Its keyword arguments, which come from outside.
    """
    # The constructor's own list: an option that is new there is one here, without a second list.
    parameters = inspect.signature(model_class).parameters.values()
    option_names = [
        parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    ]
    unknown_names = [name for name in options if name not in option_names]
    if unknown_names:
        name = unknown_names[0]
        hint = suggest(name, option_names)

        # The commonest mistake: the agent chooses the sampling of each request.
        if name in _OF_AGENTS:
            flag = name.replace("_", "-")
            hint = f"it is the agent's: --{flag} on the command line, {name}=... in Python"
        raise OptionError(f"the language model {spec!r:.80} has no option {name!r}; {hint}")

    try:
        model: LanguageModel = model_class(*arguments, **options)
    except TypeError as error:
        raise OptionError(f"an option of {spec!r:.80} has another type: {error}") from error
    return model


def hush() -> None:
    """Keep the progress bars and the warnings of libraries from the terminal."""
    try:
        import huggingface_hub.utils
        from transformers.utils import logging
    except ImportError:
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # read where vLLM is imported
    hub: Any = huggingface_hub.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub.set_verbosity_error()


@dataclass(frozen=True, slots=True)
class ShippedModels:
    """The small models of one benchmark that come with comap.

    Attributes:
        folder: Where they are.
        agent: The folder of the policy, for ``shipped:agent``.
        world_model: The folder of the world model, for ``shipped:wm``.
        settings: The settings of agent and world model that they were made for.
    """

    folder: Path
    agent: Path
    world_model: Path
    settings: Mapping[str, Any]

    @property
    def parameters(self) -> int:
        """Number of the policy's parameters."""
        return parameters_in(self.agent / _WEIGHTS)


def shipped_models(name: str = "alfworld", root: Path | None = None) -> ShippedModels:
    """Return where the small models are that come with comap, and the settings to ask them with.

    Args:
        name: Of the benchmark.
        root: Where models are; None for those of the package.

    Raises:
        DataNotFound: There are none of this name, or comap was built without them.

    Example:
        >>> models = shipped_models()
        >>> sorted(models.settings)[:2], models.parameters < 1_200_000
        (['agent', 'env'], True)
    """
    folder = model_folder(name, root)
    agent = folder / "agent"
    world_model = folder / "wm"
    settings = folder / "settings.json"

    # All of them: a build may have left out some of the data files.
    for file in (settings, agent / _WEIGHTS, world_model / _WEIGHTS):
        if not file.is_file():
            raise DataNotFound(
                f"expected the models that comap ships in {folder}, found no "
                f"{file.relative_to(folder).as_posix()}; this comap was built without them: give a "
                "model of yours (--model), or make them (in a checkout: python "
                "benchmarks/measure/shipped.py)"
            )
    return ShippedModels(folder, agent, world_model, json.loads(settings.read_bytes()))


def model_folder(name: str = "alfworld", root: Path | None = None) -> Path:
    names = sorted(SHIPPED.values())
    if name not in names:
        raise DataNotFound(
            f"expected the name of models that comap ships, found {name!r:.80}; "
            f"{suggest(str(name), names)}; for another environment give a model of yours"
        )
    return (_package_folder() if root is None else root) / name


def full_name(spec: str) -> str | None:
    """Return the whole name of a shipped model, ``shipped:agent`` for short ``shipped``; else None."""
    kind, colon, role = spec.partition(":")
    if kind != "shipped":
        return None
    if colon and role not in ("agent", "wm"):
        raise OptionError(f"expected shipped:agent or shipped:wm, found {spec!r:.80}")
    return f"shipped:{role or 'agent'}"


def folder_of(spec: str) -> Path:
    """Return the folder of a shipped model, by its whole name."""
    models = shipped_models()
    return models.world_model if spec == "shipped:wm" else models.agent


def check_packages() -> None:
    """Refuse shipped models where the packages are missing that they run on; load none of those."""
    # Importing torch takes seconds: a mistake on the command line is said before.
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise MissingExtra.of("local", "the small model that comap ships")


def parameters_in(path: Path) -> int:
    """Return the number of values in a file of safe tensors, after a look at its header alone."""
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        values_size = path.stat().st_size - 8 - header_size

        # Checked before it is read: the length of a damaged file may be any number of bytes.
        if values_size < 0 or header_size > 100 * 2**20:
            raise ValueError("its header does not fit into it")
        header = json.loads(file.read(header_size))

    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    for entry in tensors:
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= values_size:
            raise ValueError("a tensor lies outside of it")
    return sum(math.prod(entry["shape"]) for entry in tensors)


def _package_folder() -> Path:
    return Path(str(files(__package__) / "models"))
