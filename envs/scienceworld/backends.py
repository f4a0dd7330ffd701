"""The two ways of running the simulator, and the simulators that wait for their next use."""

from __future__ import annotations

from ...errors import OptionError, suggest
from .gateway import Py4JSimulator
from .java import find_java
from .jvm import JPypeSimulator
from .simulator import Simulator

__all__ = ["BACKENDS", "check_backend", "hand_back", "keep_idle", "make_simulator"]

BACKENDS = {"py4j": Py4JSimulator, "jpype": JPypeSimulator}
"""Backends by name."""

_idle: list[tuple[tuple[str, str | None], Simulator]] = []
_kept = 0


def check_backend(name: str) -> str:
    """Return the name of a backend, if it is one.

    Raises:
        OptionError: It is not.

    Example:
        >>> check_backend("jpipe")
        Traceback (most recent call last):
        ...
        comap.errors.OptionError: backend cannot be 'jpipe'; did you mean 'jpype'?
    """
    if name not in BACKENDS:
        raise OptionError(f"backend cannot be {name!r}; {suggest(str(name), BACKENDS)}")
    return name


def make_simulator(backend: str, java: str | None = None) -> Simulator:
    """Return a simulator: one that waits, or else a new one.

    Args:
        backend: One of `BACKENDS`.
        java: As for `find_java`.

    Raises:
        EngineError, MissingExtra, OptionError: There is none to be had.
    """
    for place, (kind, simulator) in enumerate(_idle):
        if kind == (backend, java) and simulator.usable:
            del _idle[place]
            return simulator
    return BACKENDS[backend](find_java(java))


def hand_back(simulator: Simulator, backend: str, java: str | None) -> None:
    """Close a simulator, or let it wait for its next use, if `keep_idle` says so."""
    _idle.append(((backend, java), simulator))
    _shrink()


def keep_idle(number: int) -> int:
    """Let so many simulators of closed environments wait for the next ones; none by default.

    A JVM takes 1.4 CPU seconds to start and is slow at first. Programs that make many environments,
    one after the other, save that. What is kept ends with the process.

    Args:
        number: How many, in this process.

    Returns:
        How many it were before.

    Raises:
        OptionError: It is negative or no whole number.

    Example:
        >>> before = keep_idle(2)
        >>> keep_idle(before)
        2
    """
    global _kept
    if type(number) is not int or number < 0:
        raise OptionError(f"expected a number of simulators, 0 or more, found {number!r}")
    before, _kept = _kept, number
    _shrink()
    return before


def _shrink() -> None:
    """Close what is too much, and what cannot be used: the oldest first."""
    usable = [it for it in _idle if it[1].usable]
    extra = usable[: max(0, len(usable) - _kept)]
    for place in reversed(range(len(_idle))):
        if _idle[place] in extra or _idle[place] not in usable:
            _idle.pop(place)[1].close()
