"""The chain of backends that options ask for."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import OptionError
from ..storage import comap_home
from .backends import Backend
from .cache import ResponseCache

__all__ = ["CACHE_FOLDER", "BackendOptions", "open_chain"]

CACHE_FOLDER = "tool_response_cache"
"""What the official cache's folder is called."""


@dataclass(frozen=True)
class BackendOptions:
    """Which backends are wanted beside what lies on the disk.

    Attributes:
        live_url: A ``/virtual`` server, or None.
        simulator: A language model, its name, or None.
        overlay: A file for what these answer, or None for one in ``COMAP_HOME``.
        timeout: Seconds for one try.
        retries: How often each is asked again.

    Raises:
        OptionError: A value is not allowed.
    """

    live_url: str | None = None
    simulator: Any = None
    overlay: str | os.PathLike[str] | None = None
    timeout: float = 10.0
    retries: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float):
            raise OptionError(f"timeout must be a number of seconds, not {self.timeout!r}")
        if not (math.isfinite(self.timeout) and 0 < self.timeout <= 3600):
            raise OptionError(f"timeout must be more than 0 and at most 3600, not {self.timeout!r}")
        if type(self.retries) is not int or not 0 <= self.retries <= 10:
            raise OptionError(f"retries must be a whole number, 0 to 10, not {self.retries!r}")


def open_chain(folder: Path | None, options: BackendOptions) -> list[Backend]:
    """Return the backends in the order in which they are asked: cache, overlay, live, simulator.

    Args:
        folder: Folder with the official files; None where there are none.
        options: What else is wanted.

    Raises:
        OptionError: A URL or a model's name is none.
        MissingExtra: The simulator needs a package that is not installed.

    Example:
        >>> open_chain(None, BackendOptions())
        []
    """
    backends: list[Backend] = []
    if folder is not None and (folder / CACHE_FOLDER).is_dir():
        backends.append(ResponseCache(folder / CACHE_FOLDER))
    if options.live_url is None and options.simulator is None and options.overlay is None:
        return backends
    from .overlay import Overlay, Recording

    home = comap_home() / "stabletoolbench-overlay.jsonl"
    overlay = Overlay(home if options.overlay is None else options.overlay)
    backends.append(overlay)
    if options.live_url is not None:
        from .live import LiveServer

        live = LiveServer(options.live_url, timeout=options.timeout, retries=options.retries)
        backends.append(Recording(live, overlay))
    if options.simulator is not None:
        from .simulator import Simulator, simulator_model

        model = simulator_model(options.simulator, options.timeout, options.retries)
        backends.append(Recording(Simulator(model), overlay))
    return backends
