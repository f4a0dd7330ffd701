"""Log-probabilities of those tokens alone that a loss is about.

Importing this module imports torch and trl.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trl.trainer import utils

__all__ = ["scored_alone"]

_CHOICE = "_use_triton"


@contextmanager
def scored_alone() -> Iterator[None]:
    """Let TRL compute logits at the scored positions only, on a CPU too.

    TRL 1.16 does so on GPUs; elsewhere it computes the logits of whole prompts and throws them away,
    which takes two thirds of an update of a small model. What is computed is the same but for
    rounding. Where TRL's own choice cannot be found, it stays.

    Example:
        >>> with scored_alone():
        ...     pass
    """
    before: Any = getattr(utils, _CHOICE, None)
    if before is None:
        yield
        return
    setattr(utils, _CHOICE, lambda device: device.type == "cpu" or before(device))
    try:
        yield
    finally:
        setattr(utils, _CHOICE, before)
