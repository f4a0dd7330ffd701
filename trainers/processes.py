"""Several processes that train together: their number, and how they wait for each other."""

from __future__ import annotations

import atexit
import functools
import os
from typing import Any


def world_size() -> int:
    """Return how many processes train together: `torchrun` and `accelerate launch` set it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return which of them this one is, from 0."""
    return int(os.environ.get("RANK", "0"))


def is_first() -> bool:
    """Return whether this is the process that writes what all share."""
    return rank() == 0


def own_device() -> str:
    """Return where this process computes: each of several has a GPU of its own."""
    if world_size() == 1:
        return "auto"
    import torch

    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def wait() -> None:
    """Wait until all processes have come here; a single one goes on at once."""
    if world_size() > 1:
        _state().wait_for_everyone()


def gathered(items: list[Any]) -> list[Any]:
    """Return the items of all processes, in the order of their ranks; all of them must ask."""
    if world_size() == 1:
        return items
    from accelerate.utils import gather_object

    _state()
    items_of_all: list[Any] = gather_object(items)
    return items_of_all


@functools.cache
def part_at_exit() -> None:
    """Take this process out of its group before the interpreter ends; registered once."""

    def part() -> None:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()

    if world_size() > 1:
        atexit.register(part)


def _state() -> Any:
    import torch
    from accelerate import PartialState

    # Without a word on it accelerate takes several processes without GPUs for single ones.
    part_at_exit()
    return PartialState(cpu=not torch.accelerator.is_available())
