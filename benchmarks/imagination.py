"""How good is a world model? Experiments on real episodes, for any environment of comap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import gymnasium

from ..agents import Agent, ReplayAgent, run_episode
from ..envs import Snapshot, TextEnv
from ..errors import OptionError
from ..facts import State
from ..metrics import Rate, delta_f1, success_rate
from ..trajectory import Trajectory
from ..worldmodel import Grounded, ImaginedEnv, Query, WorldModel, ask

__all__ = ["RolloutPoint", "predicted", "replay", "rollouts", "success"]

Advance: TypeAlias = Callable[[], object]
Triple: TypeAlias = tuple[State, State, State]
_EVERY = 4


@dataclass(frozen=True, slots=True)
class RolloutPoint:
    """How well imagined rollouts of one length agree with the real ones.

    Attributes:
        length: Number of imagined steps.
        delta_f1: Mean Delta-F1 of the change over the whole rollout.
        stderr: Its standard error.
        exact: Share of rollouts whose last observation is exactly the real one.
        n: Number of rollouts.
    """

    length: int
    delta_f1: float
    stderr: float
    exact: float
    n: int


def predicted(
    env: gymnasium.Env[str, str],
    models: Mapping[str, WorldModel],
    trajectories: Sequence[Trajectory],
    advance: Advance = lambda: None,
) -> dict[str, list[Triple]]:
    """Return the beliefs before, as predicted and after each real transition, for each model.

    The episodes are played again in `env`, so that models that need the real engine can be asked.

    Args:
        env: The environment that the trajectories are from.
        models: What to score, by name.
        trajectories: Real episodes.
        advance: Called after each episode.
    """
    found: dict[str, list[Triple]] = {name: [] for name in models}
    inner = _inner(env)
    for trajectory in trajectories:
        env.reset(options={"task": trajectory.task})
        for before, step in trajectory.transitions():
            history, admissible = inner.history(), inner.admissible_actions
            query = Query(inner.env_id, inner.goal, history, before, step.action, admissible)
            for name, model in models.items():
                if isinstance(model, Grounded):
                    model.ground(env)
                (prediction,) = ask(model, [query])
                update = inner.canonicalizer.update
                guess = update(before, step.action, prediction.observation)
                found[name].append((before, guess, step.facts))
            env.step(step.action)
        advance()
    return found


def rollouts(
    env: gymnasium.Env[str, str],
    models: Mapping[str, WorldModel],
    trajectories: Sequence[Trajectory],
    lengths: Sequence[int],
    advance: Advance = lambda: None,
) -> dict[str, list[RolloutPoint]]:
    """Return how imagined rollouts of growing length compare with the real ones.

    From every fourth moment of each trajectory its own next actions are imagined in a chain, each
    step from the belief that the last one predicted, and the change over the whole rollout is scored
    against the real one.

    Raises:
        OptionError: `lengths` is empty or has a length below 1.
    """
    if not lengths or min(lengths) < 1:
        raise OptionError(f"lengths must be whole numbers of at least 1, not {list(lengths)}")
    scores: dict[str, dict[int, list[tuple[float, bool]]]] = {
        name: {length: [] for length in lengths} for name in models
    }
    for trajectory in trajectories:
        moments = _moments(env, trajectory)
        for name, model in models.items():
            imagined = ImaginedEnv(env, model, horizon=10**9)
            for start in range(0, len(trajectory.steps), _EVERY):
                _roll(imagined, moments[start], trajectory, start, scores[name])
        advance()
    return {
        name: [_point(length, rows) for length, rows in by_length.items() if rows]
        for name, by_length in scores.items()
    }


def _roll(
    imagined: ImaginedEnv,
    moment: Snapshot,
    trajectory: Trajectory,
    start: int,
    scores: dict[int, list[tuple[float, bool]]],
) -> None:
    """Imagine the actions from one moment on, and score at each length that is asked for."""
    imagined.restore(moment)
    before = moment.facts
    ended = False
    facts, observation = before, ""
    for length, step in enumerate(trajectory.steps[start : start + max(scores)], 1):
        over = ended
        if not over:  # an imagined episode that ended stays as it was
            observation, _, terminated, truncated, info = imagined.step(step.action)
            ended, facts = terminated or truncated, info["facts"]
        if length in scores:
            score = delta_f1(before, facts, step.facts)
            scores[length].append((score, observation == step.observation and not over))


def _moments(env: gymnasium.Env[str, str], trajectory: Trajectory) -> list[Snapshot]:
    """Return snapshots of a trajectory's moments, by playing it again."""
    inner = _inner(env)
    env.reset(options={"task": trajectory.task})
    moments = [inner.snapshot()]
    for step in trajectory.steps:
        env.step(step.action)
        moments.append(inner.snapshot())
    return moments


def _point(length: int, rows: list[tuple[float, bool]]) -> RolloutPoint:
    n = len(rows)
    mean = sum(score for score, _ in rows) / n
    variance = sum((score - mean) ** 2 for score, _ in rows) / max(n - 1, 1)
    exact = sum(same for _, same in rows) / n
    return RolloutPoint(length, mean, (variance / n) ** 0.5, exact, n)


def success(
    env: gymnasium.Env[str, str],
    agent: Agent,
    tasks: Sequence[str],
    advance: Advance = lambda: None,
) -> tuple[Rate, list[Trajectory]]:
    """Return an agent's success rate over tasks in a real or imagined environment."""
    trajectories = []
    for task in tasks:
        trajectories.append(run_episode(env, agent, task=task))
        advance()
    return success_rate(t.success for t in trajectories), trajectories


def replay(
    env: gymnasium.Env[str, str], trajectory: Trajectory, model: WorldModel | None = None
) -> Trajectory:
    """Return what follows the actions of a trajectory here, with a model's predictions beside.

    Args:
        env: A real or imagined environment.
        trajectory: Whose actions to take.
        model: Asked about each step before it is taken, if given.
    """
    agent = ReplayAgent(trajectory, imagine=model is not None)
    return run_episode(env, agent, task=trajectory.task, world_model=model)


def _inner(env: gymnasium.Env[str, str]) -> TextEnv:
    inner = env.unwrapped
    if not isinstance(inner, TextEnv):
        raise OptionError(f"expected an environment of comap, found {type(inner).__name__}")
    return inner
