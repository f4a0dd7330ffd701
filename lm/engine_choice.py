"""Which engine runs a Hugging Face model: the transformers library, or vLLM."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, get_args

from ..errors import MissingExtra, check_choice, install_command
from .vllm import DType, VLLMLanguageModel
from .vllm_transports import is_url

ENGINES = ("auto", "hf", "vllm")
"""What runs a Hugging Face model, beside the address of a server."""
VLLM_VERSIONS = "0.22 to 0.30"
"""The versions of vLLM that go with comap's other packages."""
VLLM_TESTED = "0.30.0"
"""The version that comap's tests run with."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """Which engine runs a Hugging Face model, and why; what `resolved_engine` returns.

    Attributes:
        name: ``hf`` or ``vllm``.
        why: The reason, in words; no address and no path.

    Example:
        >>> print(EngineChoice("hf", "vLLM is not installed"))
        hf (vLLM is not installed)
    """

    name: Literal["hf", "vllm"]
    why: str

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


def resolved_engine(engine: str = "auto", options: Mapping[str, Any] | None = None) -> EngineChoice:
    """Return which engine runs a Hugging Face model on this machine, and why.

    Args:
        engine: ``hf``, ``vllm``, the address of a server, or ``auto``: vLLM in this process where it is
            installed and there is a CUDA GPU, else ``hf``.
        options: Options of the model. With ``auto``, one that only `HFLanguageModel` has decides for it.

    Raises:
        OptionError: There is no such engine.
        MissingExtra: vLLM is named and is not installed.

    Example:
        >>> resolved_engine("hf")
        EngineChoice(name='hf', why='named')
        >>> resolved_engine("auto", {"device": "cpu"}).name
        'hf'
    """
    check_engine(engine)
    if is_url(engine):
        return EngineChoice("vllm", "at a server")
    is_installed = has_vllm()
    if engine == "vllm" and not is_installed:
        raise MissingExtra(
            f"vLLM in this process is not installed; {install_command('vllm')} (it takes "
            f"{VLLM_VERSIONS}), give the address of a 'vllm serve', or use the engine hf"
        )
    if engine in ("hf", "vllm"):
        return EngineChoice("hf" if engine == "hf" else "vllm", "named")

    if not is_installed:
        return EngineChoice("hf", "vLLM is not installed")
    for name, value in (options or {}).items():
        if value is not None and not is_for_vllm(name, value):
            return EngineChoice("hf", f"vLLM has no {name} {value!r:.40}")

    import torch  # takes seconds: not at the top

    if not torch.cuda.is_available():
        return EngineChoice("hf", "there is no CUDA GPU")
    return EngineChoice("vllm", "it is installed and there is a CUDA GPU")


def has_vllm() -> bool:
    """Return whether vLLM is installed, without importing it."""
    package = find_spec("vllm")
    return package is not None and package.origin is not None  # else a mere folder of that name


def check_engine(engine: str) -> None:
    """Refuse what is neither the name of an engine nor the address of a server."""
    if not is_url(engine):
        check_choice("engine", engine, (*ENGINES, "http://HOST:PORT"))


def is_for_vllm(name: str, value: Any) -> bool:
    """Return whether vLLM in this process can have an option of a Hugging Face model."""
    if name == "device":
        return value in ("auto", "cuda", "cuda:0")
    if name == "dtype":
        return value in get_args(DType)
    return name in inspect.signature(VLLMLanguageModel).parameters
