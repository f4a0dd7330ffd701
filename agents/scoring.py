"""Delta-F1 of world models on transitions of an environment."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import gymnasium

from ..envs.panel import evenly
from ..errors import OptionError, WorldModelError, check_number
from ..metrics import DeltaF1Report, delta_f1_report
from ..worldmodel import Transition, WorldModel, ask, create_world_model, transitions_of
from ..worldmodel.base import checked, text_env
from .requests import is_grounded
from .runner import run_episode
from .scripted import ExpertAgent, RandomAgent

Item = TypeVar("Item")

_MIXED = 0.1  # share of mixtures of actions among the random agent's, most of which are refused


def score_world_model(
    env: gymnasium.Env[str, str],
    model: WorldModel | str | Mapping[str, Any],
    n: int = 200,
    *,
    seed: int = 0,
) -> DeltaF1Report:
    """Return the Delta-F1 of a world model on real transitions of an environment.

    Args:
        env: An environment of comap; its episode, if one is running, ends.
        model: A world model, its id or its config.
        n: How many transitions: half an expert's, if the environment has one, and a random agent's.
        seed: Of the draw.

    Raises:
        WorldModelError: There is no such model, or it tries actions out in a live episode.
        OptionError: `n` is below 2, no agent can act, or no text of the environment has facts.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ALFWorld-v0", source="generated")
        >>> report = score_world_model(env, "null", n=100)
        >>> report.n, report.mean == report.no_op_share
        (100, True)
    """
    made = create_world_model(model) if isinstance(model, str | Mapping) else checked(model)
    if is_grounded(made):
        raise WorldModelError(
            f"{type(made).__name__} tries actions out in a live episode, and recorded transitions have "
            "none; score another world model"
        )
    update = text_env(env).canonicalizer.update
    transitions = drawn_transitions(env, n, seed)
    predictions = ask(made, [query for query, _ in transitions])
    report = delta_f1_report(
        (q.state, update(q.state, q.action, said.observation), update(q.state, q.action, observed))
        for (q, observed), said in zip(transitions, predictions, strict=True)
    )
    if not report.n:
        raise OptionError(
            "expected an environment whose canonicalizer reads facts from its texts, found that it reads "
            "none; Delta-F1 needs one: see comap.integrations.adapter.adapt"
        )
    return report


def drawn_transitions(env: gymnasium.Env[str, str], n: int, seed: int = 0) -> list[Transition]:
    """Return transitions of an environment's split, half an expert's and half a random agent's."""
    check_number("n", n, 2)
    tasks = env.get_wrapper_attr("tasks").ids
    found: list[list[Transition]] = []
    for agent in (ExpertAgent(), RandomAgent(seed=seed, mixed=_MIXED)):
        steps: list[Transition] = []
        for task in evenly(tasks, max(n // 4, 2)):
            steps += transitions_of(run_episode(env, agent, task=task, seed=seed))
            if len(steps) >= 2 * n:
                break
        found += [steps] if steps else []
    if not found:
        raise OptionError(
            "expected agents that can act in the environment, found none to draw from"
        )
    sizes = (n - n // 2, n // 2) if len(found) == 2 else (n,)
    return [
        one for steps, size in zip(found, sizes, strict=True) for one in drawn(steps, size, seed)
    ]


def drawn(items: Sequence[Item], n: int, seed: int) -> list[Item]:
    """Return some items drawn at random, in their order; all if there are fewer."""
    picked = random.Random(seed).sample(range(len(items)), min(n, len(items)))
    return [items[index] for index in sorted(picked)]
