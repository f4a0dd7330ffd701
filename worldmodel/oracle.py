"""The oracle: the real engine as a world model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import gymnasium

from ..envs import Snapshot, TextEnv
from ..errors import WorldModelError
from ..trajectory import Turn
from .base import Prediction, Query, text_env

_MOST_MOMENTS = 256
"""Moments of imagined rollouts that are kept, beside the grounded one."""


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
        self._moments.clear()
        self._moments[_actions_of(moment.history)] = moment

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
        # Whatever happens, the real episode goes on from where it was.
        present = self._env.snapshot()
        try:
            return [self._answer(self._env, query) for query in queries]
        finally:
            self._env.restore(present)

    def config(self) -> dict[str, Any]:
        """Return what makes an equal model."""
        return {"id": "oracle"}

    def _answer(self, env: TextEnv, query: Query) -> Prediction:
        """Return what really follows; after the true end, the last observation again."""
        # Another first observation is another episode, and the actions would be played in the wrong one.
        # A question for an episode's first observation has no history to compare.
        grounded = next(iter(self._moments.values()))
        if query.history and query.history[:1] != grounded.history[:1]:
            raise _other_episode()

        path = _actions_of(query.history)
        moment = self._moment_after(env, path)
        was_over = moment.outcome.terminated
        if not was_over:
            moment = self._step(env, moment, (*path, query.action))

        outcome = moment.outcome
        info = {
            "admissible_actions": outcome.admissible,
            "score": outcome.score,
            "success": outcome.success,
            "invalid_action": was_over or outcome.invalid,
        }
        return Prediction(
            outcome.observation,
            confidence=1.0,
            reward=0.0 if was_over else float(outcome.reward),
            terminated=outcome.terminated,
            source="oracle",
            info=info,
        )

    def _moment_after(self, env: TextEnv, path: tuple[str, ...]) -> Snapshot:
        """Return the moment that these actions lead to, or the true end on the way there.

        What is not kept is played on the environment, which is left anywhere.
        """
        # Replay from the latest moment on the way that is kept; the grounded one is the last resort.
        length = len(path)
        while path[:length] not in self._moments:
            if length == 0:
                raise _other_episode()
            length -= 1

        moment = self._moments[path[:length]]
        while length < len(path) and not moment.outcome.terminated:
            length += 1
            moment = self._step(env, moment, path[:length])
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
        """Keep a moment, and drop the oldest of too many."""
        self._moments[path] = moment
        if len(self._moments) > _MOST_MOMENTS:
            # The grounded moment is the first and stays so: without it nothing could be replayed.
            first = next(iter(self._moments))
            self._moments.move_to_end(first)
            self._moments.popitem(last=False)
            self._moments.move_to_end(first, last=False)


def _actions_of(history: Sequence[Turn]) -> tuple[str, ...]:
    """Return the actions of a history, whose first turn has none."""
    return tuple(turn.action or "" for turn in history[1:])


def _other_episode() -> WorldModelError:
    return WorldModelError(
        "the query's history does not go on from the real episode that the oracle was told; "
        "call ground(env) after each reset and real step, and give each ImaginedEnv an oracle of "
        "its own"
    )
