"""Running episodes: an agent, an environment, a trajectory."""

from __future__ import annotations

from typing import Any

import gymnasium

from ..envs import TextEnv
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

    Example:
        >>> import gymnasium as gym, comap
        >>> from comap.agents import ExpertAgent
        >>> trajectory = run_episode(gym.make("comap/ALFWorld-v0"), ExpertAgent(), seed=0)
        >>> trajectory.success, trajectory.error
        (True, None)
    """
    inner = env.unwrapped
    assert isinstance(inner, TextEnv), "run_episode needs an environment of comap"
    observation, info = env.reset(seed=seed, options=None if task is None else {"task": task})
    first, facts = observation, info["facts"]
    steps: list[Step] = []
    error: str | None = None
    history = [Turn(None, observation)]
    while True:
        view = _view(env, inner, tuple(history), info)
        try:
            decision = _decide(env, agent, view, world_model)
        except Exception as fault:
            error = f"{type(fault).__name__}: {fault}"
            break
        if decision.action is None:
            break
        answer = env.step(decision.action)
        info = answer[4]
        steps.append(Step.of(decision.action, answer, _predicted(decision.imagined)))
        history.append(Turn(decision.action, answer[0]))
        error = info.get("error")
        if answer[2] or answer[3]:
            break
    model = _model_name(env)
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
        inner.settings(),
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
) -> Decision:
    """Run one decision, answering its requests as they come."""
    thinking = agent.decide(view)
    reply: Any = None
    while True:
        try:
            request = thinking.send(reply)
        except StopIteration as stop:
            decision: Decision = stop.value
            return decision
        if isinstance(request, Imagine):
            reply = imagine(env, request.action, world_model)
        else:
            reply = [imagine(env, part.action, world_model) for part in request]


def _predicted(imagined: Imagined | None) -> Predicted | None:
    if imagined is None:
        return None
    said = imagined.prediction
    return Predicted(
        imagined.observation, imagined.facts, imagined.delta, said.source, said.confidence
    )


def _model_name(env: gymnasium.Env[Any, Any]) -> str | None:
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, ImaginedEnv):
            return type(layer.world_model).__name__
        layer = layer.env
    return None
