"""How many processes train together, and waiting for each other; one process needs nothing of it."""

from __future__ import annotations

import atexit
import functools
import os
from typing import Any

__all__ = ["gathered", "is_first", "part_at_exit", "rank", "wait", "world_size"]


def world_size() -> int:
    """Return how many processes train together (`torchrun` and `accelerate launch` tell).

    Example:
        >>> world_size()
        1
    """
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return which of them this one is, from 0.

    Example:
        >>> rank()
        0
    """
    return int(os.environ.get("RANK", "0"))


def is_first() -> bool:
    """Return whether this is the process that writes what all share.

    Example:
        >>> is_first()
        True
    """
    return rank() == 0


def wait() -> None:
    """Wait until all processes are here.

    Example:
        >>> wait()
    """
    if world_size() > 1:
        _state().wait_for_everyone()


def gathered(items: list[Any]) -> list[Any]:
    """Return the items of all processes, in the order of their ranks; all of them must ask.

    Example:
        >>> gathered([1, 2])
        [1, 2]
    """
    if world_size() == 1:
        return items
    from accelerate.utils import gather_object

    _state()
    found: list[Any] = gather_object(items)
    return found


@functools.cache
def part_at_exit() -> None:
    """Take this process out of its group before the interpreter ends; once, however often asked.

    A process that ends while its group stands can be aborted (SIGABRT) by a thread of gloo that still
    holds tensors when Python is gone, and its launcher then reports a failure of a training that
    succeeded (https://github.com/pytorch/pytorch/pull/179291).

    Example:
        >>> part_at_exit()
    """
    if world_size() > 1:
        atexit.register(_part)


def _part() -> None:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _state() -> Any:
    from accelerate import PartialState

    part_at_exit()
    return PartialState()
