"""Running episodes: an agent, an environment, a trajectory."""

from __future__ import annotations

from typing import Any

import gymnasium

from ..envs import TextEnv
from ..errors import InvalidAction, OptionError
from ..trajectory import Predicted, Step, Trajectory, Turn
from ..worldmodel import Imagined, ImaginedEnv, WorldModel, imagine
from .base import Agent, Decision, Imagine, View

__all__ = ["run_episode"]


def run_episode(
    env: gymnasium.Env[str, str],
    agent: Agent,
    *,
    task: str | None = None,
    seed: int | None = None,
    world_model: WorldModel | None = None,
) -> Trajectory:
    """Play one episode to its end and return it.

    A fault of the agent, the engine or the world model ends the episode and is recorded in the
    trajectory; a task that cannot start raises, as ``env.reset`` does.

    Args:
        env: A real or imagined environment of comap.
        agent: Who acts.
        task: The task's id; None lets the environment draw one.
        seed: Seed for the draw.
        world_model: Answers the agent's `Imagine` requests; None for the imagined environment's own
            model or else the oracle.

    Raises:
        OptionError: `env` is not one of comap's.

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent
        >>> trajectory = run_episode(gym.make("comap/ALFWorld-v0"), ExpertAgent(), seed=0)
        >>> trajectory.success, trajectory.error
        (True, None)
    """
    inner = env.unwrapped
    if not isinstance(inner, TextEnv):
        raise OptionError(
            f"run_episode needs an environment of comap (comap.envs.TextEnv), found "
            f"{type(inner).__name__}"
        )
    observation, info = env.reset(seed=seed, options=None if task is None else {"task": task})
    first, facts = observation, info["facts"]
    steps: list[Step] = []
    error: str | None = None
    history = [Turn(None, observation)]
    while True:
        view = _view(env, inner, tuple(history), info)
        try:
            action, prediction = _decide(env, agent, view, world_model)
            if action is None:
                break
            answer = env.step(action)
        except Exception as fault:
            error = f"{type(fault).__name__}: {fault}"
            break
        info = answer[4]
        steps.append(Step.of(action, answer, prediction))
        history.append(Turn(action, answer[0]))
        error = info.get("error")
        if answer[2] or answer[3]:
            break
    asked = any(step.prediction is not None for step in steps)
    model = _model_name(env, world_model) if asked else _model_name(env)
    return Trajectory(
        inner.env_id,
        info["task"],
        info["split"],
        info["goal"],
        agent.name,
        first,
        facts,
        tuple(steps),
        model,
        seed,
        error,
        inner.fingerprint(),
    )


def _view(
    env: gymnasium.Env[str, str], inner: TextEnv, history: tuple[Turn, ...], info: dict[str, Any]
) -> View:
    return View(
        inner.env_id,
        info["task"],
        info["goal"],
        history,
        info["facts"],
        info["admissible_actions"],
        info["step"],
        env.get_wrapper_attr("expert_action"),
    )


def _decide(
    env: gymnasium.Env[str, str], agent: Agent, view: View, world_model: WorldModel | None
) -> tuple[str | None, Predicted | None]:
    """Run one decision, answering its requests as they come; return what it came to."""
    thinking = agent.decide(view)
    reply: Any = None
    while True:
        try:
            request = thinking.send(reply)
        except StopIteration as stop:
            return _checked(stop.value)
        if isinstance(request, Imagine):
            reply = imagine(env, request.action, world_model)
        else:
            reply = [imagine(env, part.action, world_model) for part in request]


def _checked(decision: object) -> tuple[str | None, Predicted | None]:
    """Return the action of a decision and what was predicted of it."""
    if not isinstance(decision, Decision):
        raise InvalidAction(f"expected a Decision from agent.decide, found {decision!r:.80}")
    if not isinstance(decision.action, str | None):
        raise InvalidAction(
            f"a decision is for an action, which is text (str), or None; found {decision.action!r:.80}"
        )
    return decision.action, _predicted(decision.imagined)


def _predicted(imagined: Imagined | None) -> Predicted | None:
    if imagined is None:
        return None
    said = imagined.prediction
    return Predicted(
        imagined.observation, imagined.facts, imagined.delta, said.source, said.confidence
    )


def _model_name(env: gymnasium.Env[Any, Any], asked: WorldModel | None = None) -> str | None:
    """Return the name of the world model that was asked, or else of the imagined environment's."""
    if asked is not None:
        return type(asked).__name__
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, ImaginedEnv):
            return type(layer.world_model).__name__
        layer = layer.env
    return None
