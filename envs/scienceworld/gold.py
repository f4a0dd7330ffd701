"""The simulator's own solutions of tasks, worked out when they are first asked for, and remembered."""

from __future__ import annotations

from collections import OrderedDict

from .engine import ScienceWorldEngine

__all__ = ["gold_path"]

_REMEMBERED = 4096
_paths: OrderedDict[tuple[str, int, str], tuple[str, ...]] = OrderedDict()


def gold_path(engine: ScienceWorldEngine) -> tuple[str, ...]:
    """Return actions that solve the engine's task from its start; empty if none are known.

    What the simulator offers is played once to see that it reaches the full score. That takes a
    second or so, up to half a minute for the tasks on genetics; this process does it once a task.

    Raises:
        EngineError: The simulator failed.
    """
    name, variation = engine.playing
    key = (name, variation, engine.simplification)
    if key not in _paths:
        _paths[key] = engine.gold_path()
        if len(_paths) > _REMEMBERED:
            _paths.popitem(last=False)
    return _paths[key]
