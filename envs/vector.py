"""Vector environments of texts, where a process that dies costs its episode and no more."""

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
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import _async_worker
from gymnasium.vector.utils import CloudpickleWrapper, clear_mpi_env_vars, write_to_shared_memory

from ..errors import CoMapError, EngineError, OptionError
from ..facts import Delta, State
from ..spaces import Unicode

Maker = Callable[[], gymnasium.Env[str, str]]


def text_vector(
    env_id: str,
    num_envs: int,
    *,
    asynchronous: bool = True,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    max_concurrency: int | None = None,
    context: str | None = None,
    **kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """Return `num_envs` environments of one kind as one.

    Args:
        env_id: A registered id.
        num_envs: How many.
        asynchronous: One process each; False steps them in turn in this process, which is faster
            where a step costs less than the way to another process (ALFWorld's native engine).
        autoreset_mode: Gymnasium's: when a finished environment starts anew.
        max_concurrency: How many processes may work at the same time; None for all.
        context: Way to start processes: ``"fork"``, ``"spawn"`` or ``"forkserver"``; None for
            Python's own choice.
        **kwargs: Passed to ``gym.make``.

    Example:
        >>> import gymnasium as gym, comap
        >>> envs = gym.make_vec("comap/ALFWorld-v0", num_envs=2, asynchronous=False)
        >>> observations, infos = envs.reset(seed=[7, 7])
        >>> observations[0] == observations[1]
        True
    """
    makers = [partial(_make, env_id, index, num_envs, kwargs) for index in range(num_envs)]
    if not asynchronous:
        return SyncVectorEnv(makers, autoreset_mode=autoreset_mode)
    how: dict[str, Any] = {"max_concurrency": max_concurrency, "context": context}
    return TextVectorEnv(makers, autoreset_mode=autoreset_mode, **how)


def vector_of(env_id: str) -> Callable[..., VectorEnv[Any, Any, Any]]:
    """Return what ``gym.make_vec`` calls for an environment: `text_vector` of its id."""
    return partial(text_vector, env_id)


def _make(env_id: str, index: int, count: int, kwargs: dict[str, Any]) -> gymnasium.Env[str, str]:
    # Gymnasium's passive checker fails at the first step if the first reset had raised.
    kwargs = {"disable_env_checker": True} | kwargs
    return _Member(gymnasium.make(env_id, **kwargs), index, count)


class _Member(gymnasium.Wrapper[str, str, str, str]):
    """One environment of a vector: picks its task and turns a failed reset into an episode."""

    def __init__(self, env: gymnasium.Env[str, str], index: int, count: int):
        super().__init__(env)
        self._index, self._count = index, count
        self._space: Unicode = env.observation_space  # type: ignore[assignment]
        self._failed: dict[str, Any] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        options = self._own(options)
        self._failed = None
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except OptionError:
            raise
        except CoMapError as error:
            task = str((options or {}).get("task", ""))
            self._failed = failed_info(task, f"{type(error).__name__}: {error}")
            return "", dict(self._failed)
        if len(observation) <= self._space.max_length:
            return observation, info
        self._failed = self._too_long(observation, info)
        return "", dict(self._failed)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._failed is not None:
            return "", 0.0, False, True, self._failed | {"step": self._failed["step"] + 1}
        observation, reward, terminated, truncated, info = self.env.step(action)
        if len(observation) <= self._space.max_length:
            return observation, float(reward), terminated, truncated, info
        return "", 0.0, False, True, self._too_long(observation, info)

    def _too_long(self, observation: str, info: dict[str, Any]) -> dict[str, Any]:
        """Return the info of an episode that fails because its text does not fit the space."""
        error = self._space.too_long(observation)
        return info | {"error": f"{type(error).__name__}: {error}"}

    def _own(self, options: dict[str, Any] | None) -> dict[str, Any] | None:
        if not options or "tasks" not in options:
            return options
        tasks: Sequence[str] = options["tasks"]
        if isinstance(tasks, str) or len(tasks) != self._count:
            raise OptionError(
                f"options['tasks'] must list {self._count} task ids, one for each environment, "
                f"found {tasks!r:.120}"
            )
        rest = {name: value for name, value in options.items() if name != "tasks"}
        return rest | {"task": tasks[self._index]}


def failed_info(task: str, error: str) -> dict[str, Any]:
    """Return the `Info` of an episode that could not start."""
    flags = dict.fromkeys(("success", "invalid_action", "imagined"), False)
    texts = {"task": task, "split": "", "goal": "", "admissible_actions": None, "error": error}
    return texts | flags | {"facts": State(), "delta": Delta(), "score": 0.0, "step": 0}


class TextVectorEnv(AsyncVectorEnv):
    """Gymnasium's `AsyncVectorEnv` of texts, with processes that are replaced when they die."""

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
            _Pipe(self, index, pipe) for index, pipe in enumerate(self.parent_pipes)
        ]

    def replace(self, index: int, working: bool) -> tuple[Connection, str]:
        """Start a new process for a member whose own has ended."""
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
        code = old.exitcode or 0
        return here, (
            f"signal {-code}, {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        )

    @property
    def _buffer(self) -> Any:
        texts: Any = self.observations
        return texts.buffer

    def blank(self, index: int) -> None:
        """Make a member's observation the empty text."""
        space: Any = self.single_observation_space
        empty: Any = ""
        write_to_shared_memory(space, index, empty, self._buffer)


class _Pipe:
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
        if command != "reset":  # the episode which ran is gone: the next step tells
            self._lost, self._fresh = not self._over, self._over
            self._last = self._last | {"error": error}
        return ((None, {}), True) if command == "reset-noop" else self._again(command, data)

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
        self._envs.blank(self._index)
        last = {name: value for name, value in self._last.items() if not name.startswith("final_")}
        ended = {"delta": Delta(), "invalid_action": False, "step": last.get("step", 0) + 1}
        info = failed_info("", error) | last | ended | {"error": error}
        self._over, self._fresh = False, self._envs.autoreset_mode == AutoresetMode.NEXT_STEP
        if self._envs.autoreset_mode != AutoresetMode.SAME_STEP:
            return (None, 0.0, False, True, info), True
        command, data = self._beginning()
        (_, begun), done = self._again(command, data)
        return (None, 0.0, False, True, {"final_info": info, "final_obs": "", **begun}), done


def _work(permits: Any, *arguments: Any) -> None:
    work: Any = _async_worker
    work(*arguments[:-1], permits)
