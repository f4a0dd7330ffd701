"""`Simulator`: what both ways of running ScienceWorld's simulator have in common."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from typing import Any

from ...errors import EngineError

__all__ = ["Simulator"]


class Simulator(ABC):
    """One simulator: the object ``PythonInterface`` of ScienceWorld's jar, in some JVM.

    `call` and `texts` are all that a backend has to offer. A simulator that failed once is not to
    be asked again: `alive` tells.

    Attributes:
        alive: Whether it can be asked.
        process: The process that made it; a forked child cannot use it.
    """

    alive: bool
    process: int

    @abstractmethod
    def call(self, method: str, *arguments: str | int | bool) -> Any:
        """Return what a method of the simulator returns: a text, a number, a truth value or None.

        Raises:
            EngineError: The simulator or its JVM failed.
        """

    @abstractmethod
    def texts(self, method: str) -> tuple[str, ...]:
        """Return what a method that returns a list of texts returns.

        Raises:
            EngineError: The simulator or its JVM failed.
        """

    @abstractmethod
    def draw(self, *, aside: bool) -> None:
        """Have the simulator draw random numbers from a fresh source, or again from the world's.

        Raises:
            EngineError: The simulator or its JVM failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of everything that belongs to this simulator alone; any number of times."""

    @property
    def usable(self) -> bool:
        """Whether it runs, and belongs to this process."""
        return self.alive and self.process == os.getpid()

    def load(self, task: str, variation: int, simplification: str, gold: bool = False) -> None:
        """Load a task; with `gold`, work out a path that solves it first (up to half a minute)."""
        told = self.call("load", task, variation, simplification, gold)
        if told:
            raise EngineError(f"expected the task {task}/{variation} to load, found {told!r:.300}")

    def valid(self) -> tuple[str, ...]:
        """Return the actions that can be carried out now, sorted.

        To name things, the simulator draws from the random numbers that its animals and plants draw
        from, too. Here it draws aside: the list is the same whenever the world is, and asking for it
        changes nothing.
        """
        self.draw(aside=True)
        listed = self.texts("getValidActionObjectCombinations")
        self.draw(aside=False)
        return tuple(sorted(set(listed)))

    def tree(self) -> dict[str, Any]:
        """Return all objects of the world, nested as they contain each other."""
        told: dict[str, Any] = json.loads(self.call("getObjectTree", ""))
        return told

    def check(self) -> None:
        """Do nothing, if this simulator can be asked.

        Raises:
            EngineError: It failed, was closed, or belongs to the parent of this process.
        """
        if self.process != os.getpid():
            raise EngineError(
                "expected a simulator of this process, found one of the process that this one was "
                "forked from; call env.reset(), or make the environment in this process"
            )
        if not self.alive:
            raise EngineError(
                "expected a running simulator, found one that ended; call env.reset()"
            )
