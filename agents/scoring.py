"""Delta-F1 of world models on transitions of an environment."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import gymnasium

from ..envs.panel import evenly
from ..errors import OptionError, check_number
from ..facts import State
from ..metrics import DeltaF1Report, delta_f1_report
from ..worldmodel import (
    Prediction,
    Query,
    Transition,
    WorldModel,
    ask,
    create_world_model,
    transitions_of,
)
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
        WorldModelError: There is no such model.
        OptionError: `n` is below 2, no agent can act, or no text of the environment has facts.

    Example:
        >>> import gymnasium as gym, comap
        >>> env = gym.make("comap/ALFWorld-v0", source="generated")
        >>> report = score_world_model(env, "null", n=100)
        >>> report.n, report.mean == report.no_op_share
        (100, True)
    """
    if isinstance(model, str | Mapping):
        world_model = create_world_model(model)
    else:
        world_model = checked(model)
    update = text_env(env).canonicalizer.update
    transitions, tasks = drawn_transitions(env, n, seed)

    # A grounded model foresees from a real episode, which a recorded transition has no more.
    if is_grounded(world_model):
        world_model = InEpisodes(world_model, env, tasks, seed)
    predictions = ask(world_model, [query for query, _ in transitions])

    # Both texts are read by the same canonicalizer, so what it overlooks counts against no model.
    beliefs: list[tuple[State, State, State]] = []
    for (query, observation), prediction in zip(transitions, predictions, strict=True):
        predicted = update(query.state, query.action, prediction.observation)
        observed = update(query.state, query.action, observation)
        beliefs.append((query.state, predicted, observed))
    report = delta_f1_report(beliefs)
    if not report.n:
        raise OptionError(
            "expected an environment whose canonicalizer reads facts from its texts, found that it reads "
            "none; Delta-F1 needs one: see comap.integrations.adapter.adapt"
        )
    return report


class InEpisodes:
    """A grounded world model for recorded transitions: it is grounded on their episodes, begun again.

    Args:
        model: A `Grounded` world model.
        env: The environment of the transitions.
        tasks: The task of each transition's query.
        seed: The seed of their episodes.
    """

    def __init__(
        self, model: Any, env: gymnasium.Env[str, str], tasks: Mapping[Query, str], seed: int
    ):
        self._model = model
        self._env = env
        self._tasks = tasks
        self._seed = seed

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return the model's predictions; the query's history leads it to the transition."""
        predictions: list[Prediction] = []
        for query in queries:
            self._env.reset(seed=self._seed, options={"task": self._tasks[query]})
            self._model.ground(self._env)
            predictions += ask(self._model, [query])
        return predictions


def drawn_transitions(
    env: gymnasium.Env[str, str], n: int, seed: int = 0
) -> tuple[list[Transition], dict[Query, str]]:
    """Return transitions of an environment's split, and the tasks of their queries.

    Half of the transitions are an expert's and half a random agent's.
    """
    check_number("n", n, 2)
    ids = env.get_wrapper_attr("tasks").ids
    tasks: dict[Query, str] = {}
    by_agent: list[list[Transition]] = []
    for agent in (ExpertAgent(), RandomAgent(seed=seed, mixed=_MIXED)):
        transitions: list[Transition] = []
        for task in evenly(ids, max(n // 4, 2)):
            episode = list(transitions_of(run_episode(env, agent, task=task, seed=seed)))
            tasks |= {query: task for query, _ in episode}
            transitions += episode
            if len(transitions) >= 2 * n:  # enough to draw from: slow engines play no more
                break
        if transitions:  # not every environment has an expert
            by_agent.append(transitions)
    if not by_agent:
        raise OptionError(
            "expected agents that can act in the environment, found none to draw from"
        )

    sizes = (n - n // 2, n // 2) if len(by_agent) == 2 else (n,)
    sample: list[Transition] = []
    for transitions, size in zip(by_agent, sizes, strict=True):
        sample += drawn(transitions, size, seed)
    return sample, tasks


def drawn(items: Sequence[Item], n: int, seed: int) -> list[Item]:
    """Return some items drawn at random, in their order; all if there are fewer."""
    indices = random.Random(seed).sample(range(len(items)), min(n, len(items)))
    return [items[index] for index in sorted(indices)]
