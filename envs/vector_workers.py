"""Environments in processes of their own, where a process that dies costs its episode and no more."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import _async_worker
from gymnasium.vector.utils import (
    CloudpickleWrapper,
    clear_mpi_env_vars,
    write_to_shared_memory,
)

from ..errors import EngineError
from ..facts import Delta, State

__all__ = ["TextVectorEnv", "failed_info"]

Maker = Callable[[], gymnasium.Env[str, str]]


def failed_info(task: str, error: str) -> dict[str, Any]:
    """Return the `Info` of an episode that could not start.

    Args:
        task: The task's id; empty where none was chosen.
        error: The fault's type and message.

    Example:
        >>> failed_info("a/1", "EngineError: no memory")["error"]
        'EngineError: no memory'
    """
    return {
        "task": task,
        "split": "",
        "goal": "",
        "admissible_actions": None,
        "facts": State(),
        "delta": Delta(),
        "score": 0.0,
        "success": False,
        "invalid_action": False,
        "step": 0,
        "imagined": False,
        "error": error,
    }


class TextVectorEnv(AsyncVectorEnv):
    """Gymnasium's `AsyncVectorEnv` of texts, with processes that are replaced when they die.

    An environment whose process was killed ends its episode with ``truncated`` and ``info["error"]``;
    the others go on, and it begins its next episode in a new process, as after any other end. Where a
    seed was given, what the new process draws follows from it and from how many were lost.

    Args:
        makers: Makes each environment.
        autoreset_mode: Gymnasium's.
        max_concurrency: How many processes may work at the same time; None for all.
        context: Way to start processes; None for Python's own choice.

    Example:
        >>> import gymnasium as gym, comap
        >>> envs = gym.make_vec("comap/ALFWorld-v0", num_envs=2)
        >>> type(envs).__name__
        'TextVectorEnv'
        >>> envs.close()
    """

    def __init__(
        self,
        makers: Sequence[Maker],
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        context: str | None = None,
    ):
        self._processes_of: Any = multiprocessing.get_context(context)
        # Gymnasium's own semaphore is bounded and out of reach: a killed process would keep its permit.
        limit: Any = max_concurrency
        limited = isinstance(limit, int) and limit > 0
        self._permits = self._processes_of.Semaphore(limit) if limited else None
        # With shared_memory=False, Gymnasium 1.4 forgets to clear a worker's autoreset at an explicit
        # reset: the first action of the new episode would be lost, and another task begun.
        super().__init__(
            makers,
            shared_memory=True,
            autoreset_mode=autoreset_mode,
            max_concurrency=max_concurrency,
            context=context,
            worker=partial(_work, self._permits),
        )
        self.parent_pipes: list[Any] = [
            _Member(self, index, pipe) for index, pipe in enumerate(self.parent_pipes)
        ]

    def replace(self, index: int, working: bool) -> tuple[Connection, str]:
        """Start a new process for a member whose own has ended.

        Args:
            index: The member.
            working: Whether it was asked for something that needs a permit.

        Returns:
            The pipe to the new process, and how the old one ended.
        """
        old = self.processes[index]
        old.join()
        if self._permits is not None and working:
            self._permits.release()  # it had it, most likely; one too many lets one more work
        here, there = self._processes_of.Pipe()
        arguments = (
            index,
            CloudpickleWrapper(self.env_fns[index]),
            there,
            here,
            self._buffer,
            self.error_queue,
            self.autoreset_mode,
            self._permits,
        )
        with clear_mpi_env_vars():
            process = self._processes_of.Process(
                target=_async_worker, name=old.name, args=arguments, daemon=self.daemon
            )
            process.start()
        there.close()
        self.processes[index] = process
        return here, _ending(old.exitcode)

    @property
    def _buffer(self) -> Any:
        """The memory that observations are written to."""
        texts: Any = self.observations
        return texts.buffer

    def blank(self, index: int) -> None:
        """Make a member's observation the empty text."""
        space: Any = self.single_observation_space
        empty: Any = ""
        write_to_shared_memory(space, index, empty, self._buffer)


class _Member:
    """The pipe to a member's process: it answers in place of one that died."""

    def __init__(self, envs: TextVectorEnv, index: int, pipe: Connection):
        self._envs, self._index, self._pipe = envs, index, pipe
        self._asked: tuple[str, Any] = ("", None)
        self._lost = False  # the last reset failed: the next step ends its episode
        self._over = False  # the episode has ended: the next step begins another
        self._fresh = False  # the process is new: the next step begins an episode
        self._seed: int | None = None
        self._deaths = 0
        self._last: dict[str, Any] = {}

    @property
    def closed(self) -> bool:
        return self._pipe.closed

    def close(self) -> None:
        self._pipe.close()

    def poll(self, timeout: float = 0.0) -> bool:
        return (self._lost and self._asked[0] == "step") or self._pipe.poll(timeout)

    def send(self, message: tuple[str, Any]) -> None:
        self._asked = message
        if message[0] == "reset":
            self._lost = self._fresh = self._over = False
            seed = message[1]["seed"]
            self._seed = self._seed if seed is None else seed
        elif message[0] == "step" and self._lost:
            return
        elif message[0] == "step" and self._fresh:
            message = self._beginning()
        with suppress(OSError):  # recv tells that the process is dead
            self._pipe.send(message)

    def recv(self) -> Any:
        command = self._asked[0]
        if command == "step" and self._lost:
            self._lost = False
            return self._end(str(self._last.get("error", "")))
        try:
            answer, done = self._pipe.recv()
        except (EOFError, OSError):
            return self._instead()
        if not done or command not in ("reset", "step"):
            return answer, done
        if command == "step" and self._fresh:
            answer = (answer[0], 0.0, False, False, answer[1])
        if command == "step":
            over = bool(answer[2] or answer[3])
            self._over = over and self._envs.autoreset_mode == AutoresetMode.NEXT_STEP
        self._fresh, self._last = False, answer[-1]
        return answer, done

    def _beginning(self) -> tuple[str, Any]:
        """Return the request for an episode in a new process."""
        seed = None
        if self._seed is not None:
            drawn = np.random.SeedSequence([self._seed, self._deaths]).generate_state(1)
            seed = int(drawn[0])
        return "reset", {"seed": seed, "options": None}

    def _instead(self) -> Any:
        """Answer for a process that died, and start another."""
        command, data = self._asked
        if command == "close":
            return None, True
        error = self._replace(command in ("reset", "step"))
        if command == "step" and not self._over:
            return self._end(error)
        if command == "step":  # it died between two episodes: none is lost
            self._over, self._fresh = False, True
            with suppress(OSError):
                self._pipe.send(self._beginning())
            return self.recv()
        if command != "reset":
            self._lose(error)
        return ((None, {}), True) if command == "reset-noop" else self._again(command, data)

    def _lose(self, error: str) -> None:
        """Note that the episode which ran is gone: the next step tells."""
        self._lost, self._fresh = not self._over, self._over
        self._last = self._last | {"error": error}

    def _again(self, command: str, data: Any) -> Any:
        """Ask the new process what the old one was asked; a second death is an answer."""
        try:
            self._pipe.send((command, data))
            answer = self._pipe.recv()
        except (EOFError, OSError):
            error = self._replace(command == "reset")
            if command != "reset":  # as Gymnasium tells of calls that fail
                value = error.removeprefix("EngineError: ")
                self._envs.error_queue.put((self._index, EngineError, value, error))
                return None, False
            options = data.get("options") or {}
            task = options["tasks"][self._index] if "tasks" in options else options.get("task")
            self._last, self._lost = failed_info(task or "", error), True
            self._envs.blank(self._index)
            return (None, dict(self._last)), True
        if command == "reset" and answer[1]:
            self._last = answer[0][1]
        return answer

    def _replace(self, working: bool) -> str:
        """Start a new process and return the error of the old one."""
        self._pipe.close()
        self._pipe, how = self._envs.replace(self._index, working)
        self._deaths += 1
        return (
            f"EngineError: expected the process of environment {self._index} to answer, found that it "
            f"had ended ({how}); the next episode begins in a new one"
        )

    def _end(self, error: str) -> Any:
        """Return the step that ends a lost episode."""
        self._envs.blank(self._index)
        last = {name: value for name, value in self._last.items() if not name.startswith("final_")}
        told = {"delta": Delta(), "invalid_action": False, "step": last.get("step", 0) + 1}
        info = failed_info("", error) | last | told | {"error": error}
        self._over, self._fresh = False, self._envs.autoreset_mode == AutoresetMode.NEXT_STEP
        if self._envs.autoreset_mode != AutoresetMode.SAME_STEP:
            return (None, 0.0, False, True, info), True
        command, data = self._beginning()
        (_, begun), done = self._again(command, data)
        return (None, 0.0, False, True, {"final_info": info, "final_obs": "", **begun}), done


def _work(permits: Any, *arguments: Any) -> None:
    """Do a worker's work, with a semaphore of ours."""
    work: Any = _async_worker
    work(*arguments[:-1], permits)


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit status {code}"
    return f"signal {-code}, {signal.Signals(-code).name}"
