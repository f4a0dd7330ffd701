"""What small models learn from: demonstrations and side steps in ALFWorld, as rows of text."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace

import gymnasium

from ..agents import Decision, RandomAgent, Reply, Request, View, run_episode
from ..agents.config import AgentConfig
from ..agents.prompting import converse
from ..lm.sft import Row
from ..trainers.policy_samples import ASIDE, is_shown
from ..trajectory import Trajectory, Turn
from ..worldmodel import transitions_of
from ..worldmodel.language import LanguageWorldModel

__all__ = ["policy_rows", "side_steps", "world_model_rows"]


class _Wanderer:
    """An expert that now and then does something else, as random agents do."""

    name = "side steps"

    def __init__(self, seed: int, share: float):
        self._seed, self._share = seed, share
        self._random = RandomAgent(seed, mixed=0.6)

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        rng = random.Random(f"{self._seed}\n{view.task}\n{view.step}\nside".encode())
        planned = view.expert_action()
        if planned is None or rng.random() < self._share:
            aside = yield from self._random.decide(view)
            return replace(aside, notes={**aside.notes, ASIDE: True})
        return Decision(planned)


def side_steps(
    env: gymnasium.Env[str, str], tasks: Iterable[str], seed: int, share: float = 0.5
) -> Iterator[Trajectory]:
    """Play tasks with an expert that takes random actions for a share of the time, noted as aside."""
    agent = _Wanderer(seed, share)
    for task in tasks:
        yield run_episode(env, agent, task=task)


def policy_rows(trajectories: Iterable[Trajectory], config: AgentConfig) -> Iterator[Row]:
    """Yield a row for each step that is shown: the prompt of an agent with `config`, and the action.

    Steps aside are only told in prompts.
    """
    for trajectory in trajectories:
        turns = [Turn(None, trajectory.observation)]
        for facts, step in trajectory.transitions():
            view = View(
                trajectory.env_id,
                trajectory.task,
                trajectory.goal,
                tuple(turns),
                facts,
                None,
                step.t - 1,
                lambda: None,
            )
            if is_shown(step):
                yield Row(converse(view, config), f"Action: {step.action}")
            turns.append(Turn(step.action, step.observation))


def world_model_rows(
    trajectories: Iterable[Trajectory], model: LanguageWorldModel
) -> Iterator[Row]:
    """Yield a row for each real transition: the model's own prompt, and what was observed."""
    for trajectory in trajectories:
        for query, observation in transitions_of(trajectory):
            yield Row(model.prompt(query), observation)
