"""TextWorld as a peer to measure against: alfworld's own stack, nothing of ours around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from ..envs.alfworld.upstream import borrow, guarded, hand_back

__all__ = ["TextWorldPeer", "Told"]

Told: TypeAlias = tuple[str, tuple[str, ...], bool]
"""What is compared: the observation, the admissible commands, and whether the game is won."""

_RESETS = 2


class TextWorldPeer:
    """TextWorld's ``PddlEnv`` with alfworld's demangler, one object for all games.

    Admissible commands, facts and ``won`` are requested, as the comparison asks.

    Args:
        path_of: Returns the file of a task.

    Raises:
        MissingExtra: textworld or alfworld is not installed.

    Example:
        >>> peer = TextWorldPeer(lambda task: Path(task, "game.tw-pddl"))  # doctest: +SKIP
        >>> peer.time_game("json_2.1.1/valid_seen/...", ["look"])  # doctest: +SKIP
        ({'next_reset': 2.1, 'same_reset': 1.0, 'step': 0.12}, [...])
    """

    def __init__(self, path_of: Callable[[str], Path]):
        self._path_of = path_of
        with guarded():
            self._env = borrow()

    def time_game(self, task: str, script: Sequence[str]) -> tuple[dict[str, float], list[Told]]:
        """Return CPU seconds as in `GameTimes`, and what was told after the start and each command.

        ``next_reset`` is ``load`` and ``reset``: what alfworld does to go to another game.
        """
        path = str(self._path_of(task))
        env = self._env
        with guarded():
            begin = time.process_time()
            env.load(path)
            env.reset()
            times = {"next_reset": time.process_time() - begin}
            begin = time.process_time()
            for _ in range(_RESETS):
                states = [env.reset()]
            times["same_reset"] = (time.process_time() - begin) / _RESETS
            begin = time.process_time()
            for command in script:
                states.append(env.step(command)[0])
            times["step"] = (time.process_time() - begin) / len(script)
            times["step_seen"] = times["step"]  # TextWorld remembers no texts
        told = [
            (str(state["feedback"]), tuple(state["admissible_commands"]), bool(state["won"]))
            for state in states
        ]
        return times, told

    def close(self) -> None:
        """Let go of TextWorld's environment."""
        hand_back(self._env)
