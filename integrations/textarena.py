"""TextArena's games for one player as Gymnasium environments, for `adapt`."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import gymnasium

from ..errors import InvalidAction, MissingExtra, NoEpisode, OptionError
from ..spaces import Unicode

__all__ = ["TextArenaGame"]

_T = TypeVar("_T")
_RANDOM = threading.Lock()


class TextArenaGame(gymnasium.Env[str, str]):
    """One game of TextArena for one player.

    Observations are what the game says new: at `reset` the rules and the board, then what followed the
    action, without the action itself. The reward comes at the end. TextArena draws from Python's global
    random numbers; here each game has a stream of its own, and the global one is left as it was. Some
    games fetch lists of words from the network when they are made.

    Args:
        game: Its id, ``"TowerOfHanoi-v0"`` for one.
        max_text_length: The longest text, in characters.
        **options: Of the game.

    Raises:
        MissingExtra: The package ``textarena`` is not installed.
        OptionError: There is no such game.
    """

    def __init__(self, game: str, *, max_text_length: int = 32_768, **options: Any):
        try:
            import textarena
        except ImportError as error:
            raise MissingExtra.of("textarena", "TextArena") from error
        make: Any = textarena.make
        self._make: Callable[[], Any] = lambda: make(game, **options)
        try:
            self._game: Any = self._make()
        except ValueError as error:
            raise OptionError(f"expected a game of TextArena, found {game!r} ({error})") from error
        self.observation_space = Unicode(max_text_length)
        self.action_space = Unicode(max_text_length)
        self._stream: Any = random.Random(0).getstate()
        self._running = self._used = False
        self._seen = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the game anew."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31))
        if self._used:  # its wrappers keep what earlier games said
            self._game = self._alone(self._make)
        self._used = True
        self._alone(lambda: self._game.reset(num_players=1, seed=drawn))
        self._running, self._seen = True, ""
        return self._new(""), {"reason": "", "invalid_move": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make a move."""
        if not isinstance(action, str):
            raise InvalidAction(f"expected a move (text), found {type(action).__name__}")
        if not self._running:
            raise NoEpisode("expected a running game, found none; call env.reset() first")
        done, _ = self._alone(lambda: self._game.step(action=action))
        if not done:
            return self._new(action), 0.0, False, False, {"reason": "", "invalid_move": False}
        self._running = False
        text = self._new(action)
        rewards, told = self._game.close()
        about = (told or {}).get(0, {})
        reason, invalid = str(about.get("reason", "")), bool(about.get("invalid_move"))
        text = text if reason in text else f"{text}\n{reason}".strip()
        worth = float((rewards or {}).get(0, 0.0))
        return text, worth, True, False, {"reason": reason, "invalid_move": invalid}

    def _new(self, action: str) -> str:
        """Return what the game says that it did not say before."""
        _, text = self._alone(self._game.get_observation)
        text = str(text)
        new = text[len(self._seen) :] if text.startswith(self._seen) else text
        self._seen = text
        lines = [line.removeprefix("[GAME] ") for line in new.strip("\n").splitlines()]
        said = lines[0].removeprefix("[Player] ") if action and lines else ""
        own = said.strip("[]") == action.strip().strip("[]") and bool(said)
        return "\n".join(lines[1:] if own else lines).strip("\n")

    def _alone(self, work: Callable[[], _T]) -> _T:
        """Do work with this game's own random numbers as the global ones."""
        with _RANDOM:
            before = random.getstate()
            random.setstate(self._stream)
            try:
                return work()
            finally:
                self._stream = random.getstate()
                random.setstate(before)
