"""The options of a language model behind a server, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath

from ..errors import OptionError
from .openai_failures import Failure, backoff

__all__ = ["Patience", "check_one_of", "check_texts", "public_name"]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often to try.

    Attributes:
        concurrency: The most requests under way at once.
        timeout: The most seconds for one try.
        max_retries: How often a request is sent again.
        backoff: Seconds to wait after a first failure.
        max_wait: The most seconds to wait between two tries.

    Raises:
        OptionError: A value is out of its range.

    Example:
        >>> Patience(max_retries=2).timeout
        60
    """

    concurrency: int = 16
    timeout: float = 60
    max_retries: int = 5
    backoff: float = 0.5
    max_wait: float = 60

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("max_retries", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise OptionError(
                    f"{name} must be a whole number of at least {least}, not {value!r:.40}"
                )
        for name in ("timeout", "backoff", "max_wait"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not (math.isfinite(value) and value > 0):
                raise OptionError(f"{name} must be a number of seconds above 0, not {value!r:.40}")

    def wait(self, failure: Failure, tries: int) -> float | None:
        """Return for how long to wait after so many failed tries, or None to give up."""
        if not failure.again or tries > self.max_retries:
            return None
        if failure.wait is not None:
            return failure.wait if failure.wait <= self.max_wait else None
        return backoff(tries, self.backoff, self.max_wait)


def public_name(model: str) -> str:
    """Return a model's name, of a path on some machine only the last part.

    Example:
        >>> public_name("/home/me/models/tiny"), public_name("Qwen/Qwen3-8B")
        ('tiny', 'Qwen/Qwen3-8B')
    """
    if model.startswith(("/", ".", "~")):
        return PurePosixPath(model).name or "model"
    windows = PureWindowsPath(model)
    return windows.name or "model" if windows.drive or "\\" in model else model


def check_texts(
    model: object, variable: object, name: object, adapters: Mapping[str, str] | None
) -> None:
    """Check the options that are text.

    Raises:
        OptionError: One is not text, or empty.

    Example:
        >>> check_texts("Qwen/Qwen3-8B", "OPENAI_API_KEY", None, {"wm": "wm-lora"})
    """
    texts = [("model", model), ("api_key_env", variable)]
    if name is not None:
        texts.append(("name", name))
    if adapters is not None and not isinstance(adapters, Mapping):
        raise OptionError(f"adapters must be a mapping of names, not {adapters!r:.80}")
    texts += [("adapters", text) for pair in (adapters or {}).items() for text in pair]
    for option, text in texts:
        if not isinstance(text, str) or not text.strip():
            raise OptionError(f"{option} must be text that is not empty, not {text!r:.80}")


def check_one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    """Check an option that has few values.

    Raises:
        OptionError: It has another one.

    Example:
        >>> check_one_of("prefix_mode", "ask", ("ask", "continue"))
    """
    if value not in known:
        raise OptionError(f"{option} must be one of {known}, not {value!r:.80}")
