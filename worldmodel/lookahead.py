"""`imagine`: a one-step look-ahead that leaves the episode as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from ..envs import TextEnv
from ..errors import InvalidAction, WorldModelError
from ..facts import Delta, State, diff
from .base import Grounded, Prediction, Query, WorldModel, ask, checked
from .create import create_world_model
from .imagined import ImaginedEnv
from .oracle import OracleWorldModel

__all__ = ["Imagined", "imagine"]


@dataclass(frozen=True, slots=True)
class Imagined:
    """What a world model expects of an action.

    Attributes:
        observation: The predicted text.
        facts: The belief that it leads to.
        delta: What it changes.
        goal_reached: Whether the task would be solved, by those facts; None where facts cannot tell.
        prediction: The whole prediction.
    """

    observation: str
    facts: State
    delta: Delta
    goal_reached: bool | None
    prediction: Prediction


def imagine(
    env: gymnasium.Env[str, str],
    action: str,
    world_model: WorldModel | str | Mapping[str, Any] | None = None,
) -> Imagined:
    """Return what would follow `action` now; nothing is done.

    Args:
        env: An environment of comap, real or imagined, in an episode.
        action: The action in question.
        world_model: A world model, its id or its config; None for the imagined environment's own,
            or else the oracle.

    Raises:
        WorldModelError: The model or the environment cannot be used here.
        InvalidAction: `action` is not a ``str``.
        NoEpisode: There was no ``env.reset()`` yet.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ALFWorld-v0")
        >>> observation, info = env.reset(seed=0)
        >>> imagine(env, "inventory").observation
        'You are not carrying anything.'
    """
    inner = env.unwrapped
    if not isinstance(inner, TextEnv):
        raise WorldModelError(
            f"imagine() needs an environment of comap, found {type(inner).__name__}"
        )
    if not isinstance(action, str):
        raise InvalidAction(
            f"an action is text (str), found {type(action).__name__}: {action!r:.80}"
        )
    layer = _imagined_layer(env)
    if world_model is None:
        model: WorldModel = OracleWorldModel() if layer is None else layer.world_model
    elif isinstance(world_model, str | Mapping):
        model = create_world_model(world_model)
    else:
        model = checked(world_model)
    query = _query_of(inner, action) if layer is None else layer.query(action)
    if isinstance(model, Grounded) and (layer is None or model is not layer.world_model):
        model.ground(env)
    (prediction,) = ask(model, [query])
    facts = inner.canonicalizer.update(query.state, action, prediction.observation)
    reached = inner.goal_reached(facts)
    return Imagined(prediction.observation, facts, diff(query.state, facts), reached, prediction)


def _query_of(env: TextEnv, action: str) -> Query:
    """Return the question about `action` in the present of a real environment."""
    env.snapshot()  # refuses where there is no episode
    return Query(
        env.env_id,
        env.goal,
        env.history(),
        env.state_facts(),
        action,
        env.admissible_actions,
    )


def _imagined_layer(env: gymnasium.Env[Any, Any]) -> ImaginedEnv | None:
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, ImaginedEnv):
            return layer
        layer = layer.env
    return None
