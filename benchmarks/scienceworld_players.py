"""Who plays in ScienceWorld's speed benchmark: our environment in four ways, and upstream's."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import gymnasium

from ..errors import MissingExtra

__all__ = ["OURS", "OurPlayer", "Player", "Spent", "UpstreamPlayer", "cpu_seconds", "spent_by"]

OURS = {
    "jpype_full": ("jpype", True),
    "jpype_lazy": ("jpype", False),
    "py4j_full": ("py4j", True),
    "py4j_lazy": ("py4j", False),
}
"""Our ways by name: the backend, and whether all that upstream tells is fetched at each step."""


class Spent(NamedTuple):
    """Seconds that something took: by the wall's clock, and of all processors."""

    wall: float
    cpu: float


class Player(Protocol):
    """Plays actions and tells texts and scores."""

    def start(self, name: str, variation: int) -> object:
        """Start a task."""

    def step(self, action: str) -> tuple[str, int]:
        """Take an action; return the observation and the score, 0 to 100."""

    def jvm(self) -> int | None:
        """Return the process of the JVM, or None where it is this one."""

    def close(self) -> object:
        """Let go of the simulator."""


class OurPlayer:
    """Our environment, as ``gym.make`` makes it.

    Args:
        backend: As for the environment.
        full: Whether each step also fetches the look, the inventory and the valid actions, as each
            of upstream's does.

    Example:
        >>> player = OurPlayer("py4j", full=True)
        >>> player.jvm() is None
        True
    """

    def __init__(self, backend: str, full: bool):
        self._full = full
        self.env: gymnasium.Env[str, str] = gymnasium.make(
            "comap/ScienceWorld-v0",
            split="test",
            backend=backend,
            admissible_actions=full,
            task_limits=False,
        )

    def start(self, name: str, variation: int) -> object:
        """See `Player.start`."""
        return self.env.reset(options={"task": f"{name}/{variation}"})

    def step(self, action: str) -> tuple[str, int]:
        """See `Player.step`."""
        observation, _, _, _, info = self.env.step(action)
        if self._full:
            engine = self.env.get_wrapper_attr("engine")
            engine.look()
            engine.inventory()
        return observation, round(100 * info["score"])

    def jvm(self) -> int | None:
        """See `Player.jvm`."""
        found: int | None = self.env.get_wrapper_attr("engine").jvm
        return found

    def close(self) -> None:
        """See `Player.close`."""
        self.env.close()


class UpstreamPlayer:
    """Upstream's ``ScienceWorldEnv`` as its users have it, with Java's default flags.

    Raises:
        MissingExtra: It is not installed.

    Example:
        >>> player = UpstreamPlayer()  # doctest: +SKIP
        >>> player.start("boil", 21)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        try:
            from scienceworld import ScienceWorldEnv
        except ImportError:
            raise MissingExtra.of("scienceworld", "the peer 'upstream'") from None
        self._env: Any = ScienceWorldEnv("", envStepLimit=1_000_000)

    def start(self, name: str, variation: int) -> object:
        """See `Player.start`."""
        self._env.load(name, variation, "easy")
        return self._env.reset()

    def step(self, action: str) -> tuple[str, int]:
        """See `Player.step`."""
        observation, _, _, info = self._env.step(action)
        return observation, max(0, info["score"])

    def jvm(self) -> int | None:
        """See `Player.jvm`."""
        pid: int = self._env._gateway.java_process.pid
        return pid

    def close(self) -> None:
        """See `Player.close`."""
        self._env.close()


def cpu_seconds(pid: int | None) -> float:
    """Return the CPU seconds of this process and, if given, of another one.

    Example:
        >>> cpu_seconds(None) >= 0
        True
    """
    import psutil

    spent = time.process_time()
    if pid is not None:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            spent += times.user + times.system
    return spent


def spent_by(player: Player, call: Callable[[], object]) -> Spent:
    """Return what a call of a player costs; psutil is needed.

    Example:
        >>> spent_by(OurPlayer("py4j", full=False), lambda: None).cpu >= 0
        True
    """
    wall, cpu = time.perf_counter(), cpu_seconds(player.jvm())
    call()
    return Spent(time.perf_counter() - wall, cpu_seconds(player.jvm()) - cpu)
