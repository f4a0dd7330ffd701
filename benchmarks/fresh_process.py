"""Measuring in a process that has done nothing else, so that nothing of earlier work is in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from .. import errors

__all__ = ["in_fresh_process"]

_PROGRAM = """
import importlib, json, sys
from comap.errors import CoMapError
module = importlib.import_module(sys.argv[1])
try:
    told = getattr(module, sys.argv[2])(*json.loads(sys.argv[3]))
except CoMapError as error:
    told = {"refused": type(error).__name__, "because": str(error)}
print(json.dumps(told))
"""


def in_fresh_process(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return what a function of a module returns in a process that has done nothing else.

    Args:
        measure: The function; what it takes and returns is JSON.
        arguments: What to call it with.

    Raises:
        CoMapError: As there.
        subprocess.CalledProcessError: It fails otherwise; its traceback is on stderr.

    Example:
        >>> from comap.benchmarks.many_environments import measure_environments
        >>> in_fresh_process(measure_environments, "comap/WebShop-v0", {}, 1)["resident_bytes"] > 0
        True
    """
    words = measure.__module__, measure.__name__, json.dumps(arguments)
    command = [sys.executable, "-c", _PROGRAM, *words]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    result: dict[str, Any] = json.loads(told)
    if "refused" in result:
        raise getattr(errors, result["refused"])(result["because"])
    return result
