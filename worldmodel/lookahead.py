"""`imagine`: a look-ahead that leaves the episode as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from ..errors import InvalidAction
from ..facts import Delta, State, diff
from ..trajectory import Turn
from .base import Grounded, Prediction, Query, WorldModel, ask, checked, text_env
from .create import create_world_model
from .imagined import ImaginedEnv
from .oracle import OracleWorldModel


@dataclass(frozen=True, slots=True)
class Imagined:
    """What a world model expects of an action.

    Attributes:
        observation: The predicted text.
        facts: The belief that it leads to.
        delta: What it changes.
        goal_reached: Whether the task would be solved, by those facts; None where facts cannot say.
        prediction: The whole prediction.
        action: The action in question.
        admissible_actions: The actions that would do something then, or None.
    """

    observation: str
    facts: State
    delta: Delta
    goal_reached: bool | None
    prediction: Prediction
    action: str = ""
    admissible_actions: tuple[str, ...] | None = None


def imagine(
    env: gymnasium.Env[str, str],
    action: str,
    world_model: WorldModel | str | Mapping[str, Any] | None = None,
    after: Sequence[Imagined] = (),
) -> Imagined:
    """Return what would follow `action` now; nothing is done.

    Args:
        env: An environment of comap, real or imagined, in an episode.
        action: The action in question.
        world_model: A world model, its id or its config; None for the imagined environment's own,
            or else the oracle.
        after: What was imagined before, from the present on; the action is taken after it.

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
    query = query_about(env, action, after)
    model = asked_model(env, world_model)

    # The imagined environment grounds its own model after each step.
    layer = imagined_layer(env)
    if isinstance(model, Grounded) and (layer is None or model is not layer.world_model):
        model.ground(env)

    (prediction,) = ask(model, [query])
    return imagined_of(env, query, prediction)


def query_about(env: gymnasium.Env[str, str], action: str, after: Sequence[Imagined] = ()) -> Query:
    """Return the question that `imagine` asks about `action`, for asking many at once.

    Raises:
        WorldModelError: `env` is not one of comap's.
        InvalidAction: `action` is not a ``str``.
        NoEpisode: There was no ``env.reset()`` yet.
    """
    inner = text_env(env)
    if not isinstance(action, str):
        raise InvalidAction(
            f"an action is text (str), found {type(action).__name__}: {action!r:.80}"
        )

    layer = imagined_layer(env)
    if layer is not None:
        query = layer.query(action)
    else:
        inner.require_episode()
        query = Query(
            inner.env_id,
            inner.goal,
            inner.history(),
            inner.state_facts(),
            action,
            inner.admissible_actions,
            inner.briefing,
        )
    if not after:
        return query

    # A step further into imagination the present is imagined too: its turns, belief and actions.
    turns = tuple(Turn(step.action, step.observation) for step in after)
    return replace(
        query,
        history=query.history + turns,
        state=after[-1].facts,
        admissible_actions=after[-1].admissible_actions,
    )


def asked_model(
    env: gymnasium.Env[str, str], world_model: WorldModel | str | Mapping[str, Any] | None = None
) -> WorldModel:
    """Return the model that `imagine` asks: the given one, the imagined environment's, the oracle.

    Raises:
        WorldModelError: There is no such model.
    """
    if world_model is None:
        # An imagined environment looks ahead with the model that it steps with; for a real one the
        # oracle needs nothing that is not there.
        layer = imagined_layer(env)
        if layer is not None:
            return layer.world_model
        return OracleWorldModel()
    if isinstance(world_model, str | Mapping):
        return create_world_model(world_model)
    return checked(world_model)


def imagined_of(env: gymnasium.Env[str, str], query: Query, prediction: Prediction) -> Imagined:
    """Return what a prediction means in `env`: the belief it leads to, and what follows from that."""
    inner = text_env(env)
    facts = inner.canonicalizer.update(query.state, query.action, prediction.observation)

    # What the model knows (the oracle does) stands in for what the facts say.
    info = prediction.info or {}
    admissible = info.get("admissible_actions", inner.admissible_of(facts))

    return Imagined(
        observation=prediction.observation,
        facts=facts,
        delta=diff(query.state, facts),
        goal_reached=inner.goal_reached(facts),
        prediction=prediction,
        action=query.action,
        admissible_actions=None if admissible is None else tuple(admissible),
    )


def imagined_layer(env: gymnasium.Env[Any, Any]) -> ImaginedEnv | None:
    """Return the imagined environment among an environment's wrappers; None where all is real."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, ImaginedEnv):
            return layer
        layer = layer.env
    return None
