"""Early experience in a training: many demonstrations explored at once (METHODS.md 3, IWM)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...agents.answers import Answers
from ...agents.base import View
from ...agents.episode import told_of
from ...agents.exploration import explore, sample_alternatives
from ...agents.iwm import IWMAgent, IWMConfig
from ...agents.rounds import play_rounds
from ...agents.stage import Stage
from ...agents.theatre import Theatre
from ...agents.thinking import Player, Playing, think
from ...lm import LanguageModel
from ...trajectory import Trajectory
from ...worldmodel import Transition
from ..frozen_sets import transition_from_json, transition_json
from ..session import Session
from .once import Found, each_once

__all__ = ["Explored", "explore_demonstrations", "explored_counts"]

Explored = tuple[str, list[Transition]]
"""A task and its transitions: the expert's, and in each state those of the alternatives."""


def explore_demonstrations(
    session: Session, folder: Path, shown: Sequence[Trajectory], config: IWMConfig
) -> tuple[list[Explored], dict[str, str]]:
    """Try other actions in an expert's states, and return all transitions; as they come they are kept.

    Args:
        session: The training: its environments of the training split, and its language model.
        folder: Where what was found is written down.
        shown: Demonstrations, one of a task.
        config: How the policy proposes; its adapter says who does.

    Returns:
        The task and the transitions of each demonstration, and of those that failed the reason.

    Example:
        >>> explore_demonstrations(None, Path("explored"), (), IWMConfig())
        ([], {})
    """
    of_task = {one.task: one for one in shown}
    found = each_once(
        folder, list(of_task), lambda tasks: _explored(session, [of_task[t] for t in tasks], config)
    )
    faults = {task: str(told["error"]) for task, told in found.items() if "error" in told}
    return [
        (task, [transition_from_json(row) for row in told["transitions"]])
        for task, told in found.items()
        if task not in faults
    ], faults


def explored_counts(found: Iterable[Explored], faults: Mapping[str, str]) -> dict[str, int]:
    """Return how much was explored: tasks, the expert's states, alternatives, and what they did.

    ``as_the_expert`` counts alternatives after which the same was observed as after the expert's
    action, ``distinct_outcomes`` the different texts that followed the alternatives of a state.

    Args:
        found: What `explore_demonstrations` returned.
        faults: The demonstrations that failed.

    Example:
        >>> explored_counts([], {})["alternatives"]
        0
    """
    counts: Counter[str] = Counter()
    for _, transitions in found:
        counts["tasks"] += 1
        states: dict[int, list[Transition]] = {}
        for one in transitions:
            states.setdefault(len(one.query.history), []).append(one)
        for expert, *others in states.values():
            texts = Counter(one.observation for one in others)
            counts["states"] += 1
            counts["alternatives"] += len(others)
            counts["as_the_expert"] += sum(one.observation == expert.observation for one in others)
            counts["distinct_outcomes"] += len(texts)
    names = ("tasks", "states", "alternatives", "as_the_expert", "distinct_outcomes")
    return {**{name: counts[name] for name in names}, "faults": len(faults)}


def _explored(session: Session, shown: Sequence[Trajectory], config: IWMConfig) -> Iterator[Found]:
    """Explore demonstrations, many at once, and yield what came of each as it ends."""
    lm = session.language_model()
    make_env = partial(session.make_env, session.config.train_split)
    player = Player(IWMAgent(config), lm)
    done = [0, 0]

    def play(stage: Stage, demonstration: Trajectory) -> Playing[dict[str, Any]]:
        try:
            found = yield from think(
                player, stage, _exploring(stage, demonstration, config, lm), []
            )
        except Exception as fault:
            return {"error": told_of(fault)}
        return {"transitions": [transition_json(one) for one in found]}

    for number, told in play_rounds(
        Theatre(make_env), Answers(lm), shown, session.config.live, play
    ):
        done[0] += 1
        done[1] += "error" not in told
        session.tell({"event": "episode", "done": done[0], "of": len(shown), "won": done[1]})
        yield shown[number].task, told


def _exploring(
    stage: Stage, demonstration: Trajectory, config: IWMConfig, lm: LanguageModel
) -> Any:
    """Return the generator that follows a demonstration and tries alternatives."""
    plan = [step.action for step in demonstration.steps]

    def propose(view: View) -> Any:
        return sample_alternatives(replace(view, count_tokens=lm.count_tokens), config)

    seed = demonstration.seed
    return explore(
        stage.env, plan, propose, config.alternatives, task=demonstration.task, seed=seed
    )
