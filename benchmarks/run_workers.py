"""From the words of a command line to the workers that play a run."""

from __future__ import annotations

import argparse
import copy
import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from ..agents.ray_pool import RayPool
from ..errors import MissingExtra, OptionError
from .run_setup import setup

__all__ = ["workers_of"]


def workers_of(options: argparse.Namespace, out: Path) -> RayPool | None:
    """Return the workers that parsed arguments of `comap run` ask for; None for this process.

    Each worker makes the run anew from the arguments, after this process has: what is built for it is
    in the run's folder by then, and models are read from the same files.

    Args:
        options: The arguments, as they were parsed.
        out: The run's folder.

    Raises:
        OptionError: They ask for something that cannot be.
        MissingExtra: Ray is not installed.

    Example:
        >>> workers_of(argparse.Namespace(workers=None, ray_address="auto"), Path("run"))
        Traceback (most recent call last):
        comap.errors.OptionError: --ray-address is about workers on Ray; add --workers ray:N
    """
    if options.workers is None:
        if options.ray_address is not None:
            raise OptionError("--ray-address is about workers on Ray; add --workers ray:N")
        return None
    found = re.fullmatch(r"ray:([1-9]\d{0,4})", options.workers)
    if found is None:
        raise OptionError(
            f"expected --workers ray:N, with a number of at least 1, found {options.workers!r:.80}"
        )
    if options.worker_gpus < 0:
        raise OptionError(f"--worker-gpus must be at least 0, not {options.worker_gpus:g}")
    if find_spec("ray") is None:
        raise MissingExtra.of("ray", "playing on Ray")
    words = copy.copy(options)
    del words.run  # the command itself, which workers do not need
    return RayPool(
        int(found[1]),
        address=options.ray_address,
        prepare=partial(setup, words, out.absolute()),
        lost=options.lost,
        gpus=options.worker_gpus,
    )
