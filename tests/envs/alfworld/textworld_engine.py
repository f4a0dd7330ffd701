"""TextWorld with alfworld's demangler, as the native engine is asked."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

_DEMANGLER = "alfworld.agents.environment.alfred_tw_env"


@cache
def _demangler() -> Any:
    """Import alfworld's demangler without ``alfworld/__init__.py``, which makes a folder at home."""
    spec = importlib.util.find_spec("alfworld")
    assert spec is not None and spec.submodule_search_locations is not None
    package = types.ModuleType("alfworld")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["alfworld"] = package
    try:
        return importlib.import_module(_DEMANGLER).AlfredDemangler
    finally:
        for name in [key for key in sys.modules if key.partition(".")[0] == "alfworld"]:
            del sys.modules[name]


class TextWorldEngine:
    """Plays one game."""

    def __init__(self, path: Path):
        argv, stdout = sys.argv, sys.stdout  # which its PDDL translator overwrites
        try:
            import textworld
            from textworld.envs.pddl import PddlEnv

            wanted = textworld.EnvInfos(
                feedback=True, admissible_commands=True, facts=True, won=True
            )
            self._env = _demangler()(PddlEnv(wanted), shuffle=False)
            self._env.load(json.loads(path.read_bytes()))
            self._state = self._env.reset()
        finally:
            sys.argv, sys.stdout = argv, stdout

    def start(self) -> str:
        self._state = self._env.reset()
        return str(self._state["feedback"])

    def act(self, command: str) -> tuple[str, bool]:
        valid = command.strip() in self._state["_valid_commands"]
        self._state = self._env.step(command)[0]
        return str(self._state["feedback"]), valid

    def admissible(self) -> tuple[str, ...]:
        return tuple(self._state["admissible_commands"])

    def won(self) -> bool:
        return bool(self._state["won"])

    def facts(self) -> frozenset[tuple[str, ...]]:
        return frozenset(
            (fact.name, *(argument.name.rstrip() for argument in fact.arguments))
            for fact in self._state["facts"]
            if not fact.name.startswith("not_")
        )
