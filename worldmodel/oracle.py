"""The oracle: the real engine as a world model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import gymnasium

from ..envs import Snapshot, TextEnv
from ..errors import WorldModelError
from .base import Prediction, Query, text_env

_REMEMBERED = 256


class OracleWorldModel:
    """Predicts by really doing it, from a snapshot, and going back.

    It belongs to one environment at a time; `ground` gives it that environment. The actions
    that a query's history has beyond that moment are replayed (the moments on the way are kept, so
    that a rollout costs one step a prediction). The real episode is left as it was. After its true end
    it repeats the last observation and says that the episode is over; it knows no step limit.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ALFWorld-v0")
        >>> observation, info = env.reset(seed=3)
        >>> model = OracleWorldModel()
        >>> model.ground(env)
        >>> query = Query("comap/ALFWorld-v0", info["goal"], env.unwrapped.history(), info["facts"],
        ...               "inventory")
        >>> model.predict([query])[0].observation
        'You are not carrying anything.'
    """

    name = "oracle"

    def __init__(self) -> None:
        self._env: TextEnv | None = None
        self._moments: OrderedDict[tuple[str, ...], Snapshot] = OrderedDict()

    def ground(self, env: gymnasium.Env[str, str]) -> None:
        """Take note that the real episode is where `env` is now.

        Raises:
            WorldModelError: `env` is not one of comap's.
        """
        self._env = text_env(env)
        moment = self._env.snapshot()
        path = tuple(turn.action or "" for turn in moment.history[1:])
        self._moments.clear()
        self._moments[path] = moment

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return what really would be observed.

        Raises:
            WorldModelError: No environment was grounded, or a query is of another episode.
        """
        if self._env is None:
            raise WorldModelError(
                "the oracle does not know the real episode; ask it through ImaginedEnv or imagine(), "
                "or call ground(env) after env.reset()"
            )
        present = self._env.snapshot()
        try:
            return [self._answer(self._env, query) for query in queries]
        finally:
            self._env.restore(present)

    def config(self) -> dict[str, Any]:
        """Return what makes an equal model."""
        return {"id": "oracle"}

    def _answer(self, env: TextEnv, query: Query) -> Prediction:
        start = next(iter(self._moments.values())).history[:1]
        if query.history and query.history[:1] != start:
            raise _other_episode()
        path = tuple(turn.action or "" for turn in query.history[1:])
        moment = self._go(env, path)
        ended = moment.outcome.terminated
        if not ended:
            moment = self._step(env, moment, (*path, query.action))
        outcome = moment.outcome
        info = {
            "admissible_actions": outcome.admissible,
            "score": outcome.score,
            "success": outcome.success,
            "invalid_action": ended or outcome.invalid,
        }
        reward = 0.0 if ended else float(outcome.reward)
        return Prediction(outcome.observation, 1.0, reward, outcome.terminated, "oracle", info)

    def _go(self, env: TextEnv, path: tuple[str, ...]) -> Snapshot:
        """Bring the environment to the moment that these actions lead to, and return it."""
        length = next((n for n in range(len(path), -1, -1) if path[:n] in self._moments), None)
        if length is None:
            raise _other_episode()
        moment = self._moments[path[:length]]
        for n in range(length, len(path)):
            if moment.outcome.terminated:
                break
            moment = self._step(env, moment, path[: n + 1])
        return moment

    def _step(self, env: TextEnv, moment: Snapshot, path: tuple[str, ...]) -> Snapshot:
        """Take the last action of `path` at the moment before it, and return the one after it."""
        env.restore(moment)
        env._running = True  # also where the step limit ended the episode
        info = env.step(path[-1])[4]
        if "error" in info:
            raise WorldModelError(f"the engine broke while the oracle asked it: {info['error']}")
        after = env.snapshot()
        self._keep(path, after)
        return after

    def _keep(self, path: tuple[str, ...], moment: Snapshot) -> None:
        self._moments[path] = moment
        if len(self._moments) > _REMEMBERED:
            first = next(iter(self._moments))  # the grounded moment itself is never dropped
            self._moments.move_to_end(first)
            self._moments.popitem(last=False)
            self._moments.move_to_end(first, last=False)


def _other_episode() -> WorldModelError:
    return WorldModelError(
        "the query's history does not go on from the real episode that the oracle was told; "
        "call ground(env) after each reset and real step, and give each ImaginedEnv an oracle of "
        "its own"
    )
