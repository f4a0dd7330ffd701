"""What an engine is, and which there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from ...errors import OptionError, suggest
from ...facts import Fact
from .engine import NativeEngine
from .game import Game
from .textworld_engine import TextWorldEngine

__all__ = ["ENGINES", "Engine", "make_engine"]

ENGINES = ("native", "textworld")
"""The names of the engines."""


class Engine(Protocol):
    """What plays one game: text in, text out, and what is true for those who check."""

    name: str
    game: Game

    def start(self) -> str:
        """Go to the start of the game and return its first text."""

    def act(self, command: str) -> tuple[str, bool]:
        """Take one command and return the answer and whether it was a command at all."""

    def admissible(self) -> tuple[str, ...]:
        """Return all commands that do something now, sorted as text."""

    def won(self) -> bool:
        """Return whether the goal is true now."""

    def conditions(self) -> tuple[int, int]:
        """Return how many goal conditions are met and how many there are: `Goal.conditions`."""

    def facts(self) -> frozenset[Fact]:
        """Return everything that is true now, as the engine knows it."""

    def facts_text(self) -> list[str]:
        """Return the true facts as TextWorld prints them, sorted."""

    def negative_facts_text(self) -> list[str]:
        """Return the facts that TextWorld says are not true any more, as it prints them, sorted."""

    def save(self) -> dict[str, Any]:
        """Return the state of the game in a picklable form that later commands do not change."""

    def load(self, saved: dict[str, Any]) -> None:
        """Go to a state that `save` returned, or raise `SnapshotError`."""

    def close(self) -> None:
        """Let go of what the engine holds; closing twice is fine."""


def make_engine(name: str, game: Game, path: Path | None = None) -> Engine:
    """Return an engine for `game`.

    Args:
        name: ``"native"`` or ``"textworld"``.
        game: The game to play.
        path: Its file, which TextWorld reads for itself; None for a game that is only in memory.

    Raises:
        OptionError: There is no such engine, or it cannot play this game.
        MissingExtra: The engine is not installed.

    Example:
        >>> from comap.envs.alfworld.generate import generate
        >>> engine = make_engine("native", Game(generate("train", 0).problem))
        >>> engine.won()
        False
    """
    if name == "native":
        return NativeEngine(game)
    if name != "textworld":
        raise OptionError(f"there is no engine {name!r}; {suggest(name, ENGINES)}")
    if path is None:
        raise OptionError(
            "engine='textworld' plays files, found a game that is only in memory; write it first "
            "with comap.envs.alfworld.generate.write_game, or use engine='native'"
        )
    return TextWorldEngine(path, game)
