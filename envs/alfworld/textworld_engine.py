"""The upstream engine: the same games played by TextWorld, as alfworld itself plays them.

It is here for comparison; `NativeEngine` answers the same, more than a thousand times faster.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

from ...errors import DataNotFound, EngineError, OptionError, SnapshotError
from ...facts import Fact
from .game import Game
from .upstream import borrow, guarded, hand_back

__all__ = ["TextWorldEngine"]


class TextWorldEngine:
    """Plays one game on TextWorld.

    Args:
        path: The game's file.
        game: The same game, read: `conditions` needs its goal.

    Raises:
        OptionError: The game's dialect is ``"put"``, which TextWorld's own texts do not have.
        MissingExtra: textworld or alfworld is not installed.
        DataNotFound: There is no file at `path`.
        EngineError: TextWorld cannot load the file.

    Example:
        >>> from comap.envs.alfworld.problem import read_game
        >>> path = Path("json_2.1.1/valid_seen/.../game.tw-pddl")
        >>> engine = TextWorldEngine(path, Game(read_game(path)))  # doctest: +SKIP
        >>> engine.start().splitlines()[0]  # doctest: +SKIP
        '-= Welcome to TextWorld, ALFRED! =-'
    """

    name = "textworld"

    def __init__(self, path: Path, game: Game):
        if game.dialect != "move":
            raise OptionError(
                f"engine='textworld' speaks the dialect 'move' only, found {game.dialect!r}; "
                "use engine='native' for older texts"
            )
        self.game = game
        self._state: Any = None
        self._facts: frozenset[Fact] | None = None
        self._commands: list[str] = []
        self._answers = hashlib.sha256()
        data = _read(path)
        with guarded():
            self._env = borrow()
            self._give_back = weakref.finalize(self, hand_back, self._env)
            self._give_back.atexit = False
            try:
                self._env.load(data)
            except Exception as error:
                raise EngineError(f"TextWorld cannot load {path}: {error!r}") from error

    def start(self) -> str:
        """Go to the start of the game and return its first text."""
        with guarded():
            self._state = self._open().reset()
        self._commands, self._answers = [], hashlib.sha256()
        return self._answer()

    def act(self, command: str) -> tuple[str, bool]:
        """Take one command and return the answer and whether it was a command at all."""
        valid = command.strip() in self._now()["_valid_commands"]
        with guarded():
            self._state = self._open().step(command)[0]
        if not valid:
            self._facts = None
            return str(self._state["feedback"]), False
        self._commands.append(command)
        return self._answer(), True

    def admissible(self) -> tuple[str, ...]:
        """Return all commands that do something now, sorted as text."""
        return tuple(self._now()["admissible_commands"])

    def won(self) -> bool:
        """Return whether the goal is true now, as TextWorld checks it."""
        return bool(self._now()["won"])

    def conditions(self) -> tuple[int, int]:
        """Return how many goal conditions are met and how many there are: `Goal.conditions`."""
        facts, game = self.facts(), self.game
        goal, wanted = game.goal, game.wanted
        inside = [fact[1:] for fact in facts if fact[0] == "inreceptacle"]
        if goal.lamp:
            lit = {fact[1] for fact in facts if fact[0] == "istoggled"} & game.lamps
            places = {fact[2] for fact in facts if fact[0] == "atlocation"}
            here = {name for place in places for name in game.here.get(place, ())}
            held = any(fact[0] == "holds" and fact[2] in wanted for fact in facts)
            return held + any(lamp in lit and place in here for lamp, place in inside), 2
        placed = [(o, place) for o, place in inside if o in wanted and place in game.targets]
        if goal.count == 2:
            counts = Counter(place for _, place in placed)
            return min(2, max(counts.values(), default=0)), 2
        if goal.state is None:
            return int(bool(placed)), 1
        ready = {fact[1] for fact in facts if fact[0] == f"is{goal.state}"}
        both = any(thing in ready for thing, _ in placed)
        return bool(placed) + (not ready.isdisjoint(wanted)) + both, 3

    def facts(self) -> frozenset[Fact]:
        """Return everything that is true now, as the engine knows it."""
        if self._facts is None:
            self._facts = frozenset(
                (fact.name, *(argument.name.rstrip() for argument in fact.arguments))
                for fact in self._now()["facts"]
                if not _is_negative(fact)
            )
        return self._facts

    def facts_text(self) -> list[str]:
        """Return the true facts as TextWorld prints them, sorted."""
        return sorted(str(fact) for fact in self._now()["facts"] if not _is_negative(fact))

    def negative_facts_text(self) -> list[str]:
        """Return the facts that TextWorld says are not true any more, as it prints them, sorted."""
        return sorted(str(fact) for fact in self._now()["facts"] if _is_negative(fact))

    def save(self) -> dict[str, Any]:
        """Return the commands so far (TextWorld can copy no state) and a hash of their answers.

        Commands that were refused are left out: they change nothing.
        """
        self._now()
        return {
            "game": self.game.problem.sha256,
            "commands": tuple(self._commands),
            "answers": self._answers.hexdigest(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Go to a state that `save` returned, by playing its commands from the start.

        Raises:
            SnapshotError: It is of another game, or the answers are not those of the first time.
        """
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
        self._env = self._state = None

    def _answer(self) -> str:
        """Return what TextWorld answers now, and note it for `save`."""
        self._facts = None
        answer = str(self._state["feedback"])
        self._answers.update(answer.encode() + b"\0")
        return answer

    def _open(self) -> Any:
        """Return the TextWorld environment."""
        if self._env is None:
            raise EngineError("expected an open TextWorld engine, found one that was closed")
        return self._env

    def _now(self) -> Any:
        """Return the state that TextWorld is in; start the game if nobody has."""
        if self._state is None:
            self.start()
        return self._state


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a game file."""
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataNotFound(
            f"expected a game at {path}, found no file; run: comap data verify alfworld"
        ) from None
    return data


def _is_negative(fact: Any) -> bool:
    """Return whether TextWorld says that this is not true any more."""
    return bool(fact.name.startswith("not_"))
