"""Vector environments of texts, where a fault costs its episode and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from ..errors import CoMapError, OptionError
from ..facts import Delta, State
from ..spaces import Unicode


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

    # With shared_memory=False, Gymnasium 1.4 forgets to clear a worker's autoreset at an explicit
    # reset: the first action of the new episode would be lost, and another task begun.
    return AsyncVectorEnv(
        makers,
        shared_memory=True,
        autoreset_mode=autoreset_mode,
        max_concurrency=max_concurrency,
        context=context,
    )


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
        self._index = index
        self._count = count
        self._space: Unicode = env.observation_space  # type: ignore[assignment]
        self._failed: dict[str, Any] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        options = self._own_options(options)
        self._failed = None

        # An OptionError is the caller's mistake; any other error costs this environment's episode.
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

    def _own_options(self, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the options of this member: of ``tasks``, which lists one for each, its own."""
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
    return {
        "task": task,
        "split": "",
        "goal": "",
        "admissible_actions": None,
        "error": error,
        "success": False,
        "invalid_action": False,
        "imagined": False,
        "facts": State(),
        "delta": Delta(),
        "score": 0.0,
        "step": 0,
    }
