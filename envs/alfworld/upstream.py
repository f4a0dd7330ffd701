"""TextWorld and alfworld, imported and used so that the rest of the process does not notice.

What was found about upstream (textworld 1.7.0, alfworld 0.4.2), and what this module does about it:

* Each ``PddlEnv`` loads its own copy of a C++ library, about 2 MB that are never given back. The
  game's state lives in that copy: any number of games may be open at once (two or more, played in
  turns, answer as each alone), and an environment that nobody uses any more gets the next game.
* The PDDL translator overwrites ``sys.argv``, swaps ``sys.stdout`` and keeps its options in
  globals, and the grammar's parser is one object for all: upstream code runs under one lock, and
  what it overwrites is put back.
* ``import alfworld`` makes ``~/.cache/alfworld`` and sets ``ALFWORLD_DATA``: only the submodule
  with the demangler is imported, without the package's own ``__init__``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import MissingExtra

__all__ = ["borrow", "guarded", "hand_back", "new_environment"]

_DEMANGLER = "alfworld.agents.environment.alfred_tw_env"
_LOCK = threading.RLock()
_idle: list[Any] = []


def borrow() -> Any:
    """Return a TextWorld environment that nobody uses, a new one only where there is none.

    Raises:
        MissingExtra: textworld or alfworld is not installed.

    Example:
        >>> env = borrow()  # doctest: +SKIP
        >>> hand_back(env)  # doctest: +SKIP
    """
    with _LOCK:
        return _idle.pop() if _idle else new_environment()


def hand_back(env: Any) -> None:
    """Keep an environment for the next one who asks."""
    _idle.append(env)


@contextmanager
def guarded() -> Iterator[None]:
    """Run upstream code: one thread at a time, with what it overwrites put back."""
    with _LOCK:
        argv, stdout = sys.argv, sys.stdout
        try:
            yield
        finally:
            sys.argv, sys.stdout = argv, stdout


def new_environment() -> Any:
    """Return upstream's environment: ``PddlEnv`` in alfworld's demangler.

    Admissible commands, facts and whether the game is won are asked for.

    Raises:
        MissingExtra: textworld or alfworld is not installed.

    Example:
        >>> env = new_environment()  # doctest: +SKIP
        >>> env.load("game.tw-pddl")  # doctest: +SKIP
        >>> env.reset()["feedback"]  # doctest: +SKIP
        '-= Welcome to TextWorld, ALFRED! =-...'
    """
    try:
        import textworld
        from textworld.envs.pddl import PddlEnv

        demangler = _import_demangler()
        wanted = textworld.EnvInfos(feedback=True, admissible_commands=True, facts=True, won=True)
        return demangler(PddlEnv(wanted), shuffle=False)
    except ImportError as error:
        raise MissingExtra.of("alfworld", "engine='textworld'") from error


@functools.cache
def _import_demangler() -> Any:
    """Import alfworld's demangler without running ``alfworld/__init__.py``."""
    if "alfworld" in sys.modules:
        return importlib.import_module(_DEMANGLER).AlfredDemangler
    spec = importlib.util.find_spec("alfworld")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("No module named 'alfworld'", name="alfworld")
    package = types.ModuleType("alfworld")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["alfworld"] = package
    try:
        return importlib.import_module(_DEMANGLER).AlfredDemangler
    finally:
        for name in [key for key in sys.modules if key.partition(".")[0] == "alfworld"]:
            del sys.modules[name]
