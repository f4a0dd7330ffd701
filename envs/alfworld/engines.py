"""The engines: the native one, and TextWorld with alfworld's demangler, without its side effects.

What was found about upstream (textworld 1.7.0, alfworld 0.4.2), and what this module does about it:

* Each ``PddlEnv`` loads its own copy of a C++ library, about 2 MB that are never given back. The
  game's state lives in that copy: any number of games may be open at once, and an environment that
  nobody uses any more gets the next game.
* The PDDL translator overwrites ``sys.argv``, swaps ``sys.stdout`` and keeps its options in
  globals, and the grammar's parser is one object for all: upstream code runs under one lock, and
  what it overwrites is put back.
* ``import alfworld`` makes ``~/.cache/alfworld`` and sets ``ALFWORLD_DATA``: only the submodule
  with the demangler is imported, without the package's own ``__init__``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import json
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from ...errors import DataNotFound, EngineError, OptionError, SnapshotError, needs_extra, suggest
from ...facts import Fact
from .engine import NativeEngine
from .game import Game

ENGINES = ("native", "textworld")
Engine: TypeAlias = "NativeEngine | TextWorldEngine"


def make_engine(name: str, game: Game, path: Path | None = None) -> Engine:
    """Return an engine at the start of a game; TextWorld reads the game from its file."""
    if name == "native":
        return NativeEngine(game)
    if name != "textworld":
        raise OptionError(f"there is no engine {name!r}; {suggest(name, ENGINES)}")
    if path is None:
        raise OptionError(
            "engine='textworld' plays files, found a game that is only in memory; write it first "
            "with comap.envs.alfworld.write_game, or use engine='native'"
        )
    return TextWorldEngine(path, game)


_DEMANGLER = "alfworld.agents.environment.alfred_tw_env"
_LOCK = threading.RLock()
_idle: list[Any] = []
"""Upstream's environments that no engine uses any more; the next engine plays in one of them."""


@contextmanager
def guarded() -> Iterator[None]:
    """Run upstream code: one thread at a time, with what it overwrites put back."""
    with _LOCK:
        argv = sys.argv
        stdout = sys.stdout
        try:
            yield
        finally:
            sys.argv = argv
            sys.stdout = stdout


def new_environment() -> Any:
    """Return upstream's environment: ``PddlEnv`` in alfworld's demangler."""
    with needs_extra("alfworld", "engine='textworld'"):
        import textworld
        from textworld.envs.pddl import PddlEnv

        demangler = _import_demangler()
        infos = textworld.EnvInfos(feedback=True, admissible_commands=True, facts=True, won=True)
        return demangler(PddlEnv(infos), shuffle=False)


@functools.cache
def _import_demangler() -> Any:
    """Import alfworld's demangler without running ``alfworld/__init__.py``."""
    if "alfworld" in sys.modules:
        return importlib.import_module(_DEMANGLER).AlfredDemangler

    # An empty package of that name stands in while the submodule is imported, and is taken away
    # again: a later `import alfworld` of the user's gets the real one.
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


class TextWorldEngine:
    """Plays one game on TextWorld."""

    name = "textworld"

    def __init__(self, path: Path, game: Game):
        if game.dialect != "move":
            raise OptionError(
                f"engine='textworld' speaks the dialect 'move' only, found {game.dialect!r}; "
                "use engine='native' for older texts"
            )
        self.game = game
        self._mirror = NativeEngine(game)
        self._state: Any = None
        self._facts: frozenset[Fact] | None = None
        self._commands: list[str] = []
        self._answers = hashlib.sha256()

        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise DataNotFound(
                f"expected a game at {path}, found no file; run: comap data verify alfworld"
            ) from None

        with guarded():
            self._env = _idle.pop() if _idle else new_environment()
            # An engine that nobody refers to any more gives its environment back, too.
            self._give_back = weakref.finalize(self, _idle.append, self._env)
            self._give_back.atexit = False
            try:
                self._env.load(content)
            except Exception as error:
                raise EngineError(f"TextWorld cannot load {path}: {error!r}") from error

    def start(self) -> str:
        """Go to the start of the game and return its first text."""
        if self._env is None:
            raise EngineError("expected an open TextWorld engine, found one that was closed")
        with guarded():
            self._state = self._env.reset()
        self._commands = []
        self._answers = hashlib.sha256()
        return self._answer()

    def act(self, command: str) -> tuple[str, bool]:
        """Take one command and return the answer and whether it was a command at all."""
        valid = command.strip() in self._now()["_valid_commands"]
        with guarded():
            self._state = self._env.step(command)[0]

        if not valid:
            self._facts = None
            return str(self._state["feedback"]), False

        self._commands.append(command)
        return self._answer(), True

    def admissible(self) -> tuple[str, ...]:
        return tuple(self._now()["admissible_commands"])

    def won(self) -> bool:
        """Return whether the goal is true now, as TextWorld checks it."""
        return bool(self._now()["won"])

    def conditions(self) -> tuple[int, int]:
        return self.native().conditions()

    def native(self) -> NativeEngine:
        """Return a native engine in this one's state."""
        self._mirror.adopt(self.facts())
        return self._mirror

    def facts(self) -> frozenset[Fact]:
        """Return everything that is true now, as the engine knows it."""
        if self._facts is None:
            # Upstream adds a negated fact for what is deleted, and names without a number end in a
            # blank.
            self._facts = frozenset(
                (fact.name, *(argument.name.rstrip() for argument in fact.arguments))
                for fact in self._now()["facts"]
                if not fact.name.startswith("not_")
            )
        return self._facts

    def save(self) -> dict[str, Any]:
        """Return the commands so far (TextWorld can copy no state) and a hash of their answers."""
        self._now()
        return {
            "game": self.game.problem.sha256,
            "commands": tuple(self._commands),
            "answers": self._answers.hexdigest(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Go to a state that `save` returned, by playing its commands from the start."""
        if not isinstance(saved, dict) or saved.get("game") != self.game.problem.sha256:
            raise SnapshotError(
                "the game file is not the one that the snapshot was taken in (SHA-256 differs); "
                "use the same data"
            )

        if "commands" not in saved:
            raise SnapshotError(
                "expected a snapshot of engine='textworld', found one of another engine; make the "
                "environment with the engine that the snapshot was taken with"
            )

        self.start()
        for command in saved["commands"]:
            self.act(command)
        if self._answers.hexdigest() != saved["answers"]:
            raise SnapshotError(
                f"expected the answers of the snapshot when its {len(saved['commands'])} commands "
                "are played again, found others; use the versions of textworld and alfworld that "
                "it was taken with"
            )

    def close(self) -> None:
        """Let go of the TextWorld environment; the next engine will use it."""
        self._give_back()
        self._env = None
        self._state = None

    def _answer(self) -> str:
        self._facts = None
        answer = str(self._state["feedback"])
        self._answers.update(answer.encode() + b"\0")
        return answer

    def _now(self) -> Any:
        """Return the state that TextWorld is in; start the game if nobody has."""
        if self._state is None:
            self.start()
        return self._state
