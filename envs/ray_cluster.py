"""The connection to Ray: an own one on this machine, or a cluster that is there."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import CoMapError, EngineError, MissingExtra, OptionError

__all__ = ["LOST", "cause_of", "check_lost", "connected", "import_ray"]

LOST = ("retry", "record")
"""What may be done about an episode whose worker was lost: play it again, or record it as failed."""

_NETWORK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # whatever its name says, it counts everywhere


def import_ray(loopback: bool = False) -> Any:
    """Return the module ``ray``, told to report to nobody; what the user's environment says goes first.

    Args:
        loopback: Whether a Ray that is started here shall listen on the loopback address alone, which
            Ray would replace by the network's. A cluster of several machines cannot be joined then.

    Raises:
        MissingExtra: It is not installed.

    Example:
        >>> import_ray().__name__  # doctest: +SKIP
        'ray'
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if loopback and _NETWORK not in os.environ:
        os.environ[_NETWORK] = "0"  # read when ray is imported, and by the processes that it starts
        constants = sys.modules.get("ray._private.ray_constants")
        if constants is not None:
            constants.ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]
    try:
        import ray
    except ImportError as error:
        raise MissingExtra.of("ray", "playing on Ray") from error
    return ray


@contextmanager
def connected(address: str | None = None, cpus: float | None = None) -> Iterator[Any]:
    """Give ``ray``, connected; what was not connected before is disconnected afterwards.

    Args:
        address: Of a cluster: ``HOST:PORT``, or ``"auto"`` for the one that this machine is part of;
            None for the one that this process is connected to, or else for one of its own.
        cpus: How many cores an own one may hand out.

    Raises:
        MissingExtra: Ray is not installed.
        OptionError: There is no cluster at this address.
        EngineError: An own one does not start.
    """
    ray = import_ray(loopback=address is None)
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {
            "num_cpus": cpus and math.ceil(cpus),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    else:
        options["address"] = address
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        told = f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        if address is None:
            raise EngineError(
                f"expected Ray to start on this machine, it does not {told}"
            ) from error
        raise OptionError(
            f"expected a Ray cluster at {address!r:.120}, found none {told}; start one with 'ray start "
            "--head', or leave the address out"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_lost(lost: str) -> None:
    """Do nothing, if this may be done about lost episodes.

    Raises:
        OptionError: It is none of `LOST`.

    Example:
        >>> check_lost("retry")
    """
    if lost not in LOST:
        raise OptionError(f"lost must be one of {', '.join(LOST)}, not {lost!r:.80}")


def cause_of(error: BaseException) -> BaseException | None:
    """Return what a worker raised, or None where the worker itself was lost.

    Args:
        error: What Ray raised here.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, CoMapError):
        return cause
    from ray.exceptions import RayTaskError

    return error if isinstance(error, RayTaskError) else None
