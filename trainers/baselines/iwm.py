"""IWM: early experience first, then the expert ("Agent Learning via Early Experience", arXiv 2510.08558).

In an expert's states other actions are tried as well; the policy learns what follows them all, and then
imitates the expert.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...agents import Agent, IWMConfig
from ...agents.base import View
from ...agents.iwm import IWMAgent, explore, sample_alternatives
from ...agents.requests import EnvPool, EnvSlot, RequestBatcher
from ...agents.runner import EpisodeGenerator, Player, drive, error_text, play_rounds
from ...lm import LanguageModel
from ...trajectory import Trajectory
from ...worldmodel import Transition
from ..evaluation import transition_from_json, transition_json
from ..run_folder import Done, StageFolder, each_once
from ..sft import BaselineRun, transition_sample
from ..stages import StagedTraining, Work
from .config import IWMTraining

_EXPLORATION = "exploration"

Explored = tuple[str, list[Transition]]
"""A task and its transitions: the expert's, and in each state those of the alternatives."""


def explore_demonstrations(
    training: StagedTraining, folder: Path, shown: Sequence[Trajectory], config: IWMConfig
) -> tuple[list[Explored], dict[str, str]]:
    """Try other actions in an expert's states, and return all transitions; as they come they are kept."""
    of_task = {one.task: one for one in shown}
    found = each_once(
        folder,
        list(of_task),
        lambda tasks: _outcomes(training, [of_task[t] for t in tasks], config),
    )
    faults = {task: str(told["error"]) for task, told in found.items() if "error" in told}
    return [
        (task, [transition_from_json(row) for row in told["transitions"]])
        for task, told in found.items()
        if task not in faults
    ], faults


def explored_counts(found: Iterable[Explored], faults: Mapping[str, str]) -> dict[str, int]:
    """Return how much was explored: tasks, the expert's states, alternatives, and what they did."""
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


def _outcomes(
    training: StagedTraining, shown: Sequence[Trajectory], config: IWMConfig
) -> Iterator[Done]:
    """Explore demonstrations, many at once, and yield what came of each as it ends."""
    lm = training.language_model()
    make_env = partial(training.make_env, training.config.train_split)
    player = Player(IWMAgent(config), lm)
    done = [0, 0]

    def play(slot: EnvSlot, demonstration: Trajectory) -> EpisodeGenerator[dict[str, Any]]:
        try:
            found = yield from drive(player, slot, _exploring(slot, demonstration, config, lm), [])
        except Exception as fault:
            return {"error": error_text(fault)}
        return {"transitions": [transition_json(one) for one in found]}

    for number, told in play_rounds(
        EnvPool(make_env), RequestBatcher(lm), shown, training.config.concurrency, play
    ):
        done[0] += 1
        done[1] += "error" not in told
        training.tell({"event": "episode", "done": done[0], "of": len(shown), "won": done[1]})
        yield shown[number].task, told


def _exploring(
    slot: EnvSlot, demonstration: Trajectory, config: IWMConfig, lm: LanguageModel
) -> Any:
    """Return the generator that follows a demonstration and tries alternatives."""
    plan = [step.action for step in demonstration.steps]

    def propose(view: View) -> Any:
        return sample_alternatives(replace(view, count_tokens=lm.count_tokens), config)

    seed = demonstration.seed
    return explore(slot.env, plan, propose, config.alternatives, task=demonstration.task, seed=seed)


class IWMRun(BaselineRun):
    """The training of IWM in a folder: `run` does it, or resumes it."""

    config: IWMTraining

    def learning(self) -> list[tuple[str, Work]]:
        """Return the stages in which something is learned."""
        config = self.config
        epochs, rate = config.epochs, config.learning_rate
        plan: list[tuple[str, Work]] = []
        if self.explorer == "explorer":
            plan.append(("warmup-explorer", lambda s: self.imitate(s, "explorer", epochs, rate)))
        return [
            *plan,
            (_EXPLORATION, self.explore),
            ("world-modelling", self.learn_outcomes),
            ("imitation", lambda stage: self.imitate(stage, "agent", epochs, rate)),
        ]

    @property
    def explorer(self) -> str:
        """The role that proposes alternatives."""
        return self.config.roles(self.begun)[-1]

    def explore(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy propose actions in the expert's states, and see what follows each."""
        found, faults = self._explored(stage)
        return {"counts": explored_counts(found, faults), "explored_faults": faults}

    def learn_outcomes(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy learn what follows actions."""
        found, _ = self._explored(self.folders[_EXPLORATION])
        model = self.world_model(self.counting)
        samples = [
            transition_sample(query, text, model, kind="early_experience", task=task)
            for task, transitions in found
            for query, text in transitions
        ]
        config = self.config
        return self.learn(stage, "agent", samples, config.world_epochs, config.learning_rate)

    def _explored(self, stage: StageFolder) -> tuple[list[Explored], dict[str, str]]:
        shown = self.demonstrated(self.config.explored, _EXPLORATION)
        config = replace(self.agent, adapter=self.explorer)
        assert isinstance(config, IWMConfig)
        return explore_demonstrations(self, stage.path / "explored", shown, config)

    def player(self, temperature: float | None = None) -> Agent:
        """Return IWM's agent, which acts as ReAct does."""
        config = self.evaluated_agent(temperature)
        assert isinstance(config, IWMConfig)
        return IWMAgent(config)
