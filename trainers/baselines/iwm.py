"""IWM: early experience first, then the expert ("Agent Learning via Early Experience", arXiv 2510.08558).

In an expert's states other actions are tried as well; the policy learns what follows them all, and then
imitates the expert.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...agents import Agent, IWMConfig
from ...agents.base import View
from ...agents.iwm import IWMAgent, explore, sample_alternatives
from ...agents.requests import EnvPool, EnvSlot, RequestBatcher
from ...agents.runner import EpisodeGenerator, Player, drive, error_text, play_rounds
from ...trajectory import Trajectory
from ...worldmodel import Transition
from ..config import recast
from ..evaluation import transition_from_json, transition_json
from ..run_folder import Done, StageFolder, each_once
from ..sft import BaselineRun, transition_sample
from ..stages import Work, telling_work
from .config import IWMTraining

_EXPLORATION = "exploration"

Explored = tuple[str, list[Transition]]
"""A task and its transitions: the expert's, and in each state those of the alternatives."""


def explored_counts(found: Iterable[Explored], faults: Mapping[str, str]) -> dict[str, int]:
    """Return how much was explored: tasks, the expert's states, alternatives, and what they did."""
    names = ("tasks", "states", "alternatives", "as_the_expert", "distinct_outcomes")
    counts = dict.fromkeys(names, 0)
    for _, transitions in found:
        counts["tasks"] += 1
        states: dict[int, list[Transition]] = {}
        for one in transitions:
            states.setdefault(len(one.query.history), []).append(one)
        for expert, *others in states.values():
            counts["states"] += 1
            counts["alternatives"] += len(others)
            counts["as_the_expert"] += sum(one.observation == expert.observation for one in others)
            counts["distinct_outcomes"] += len({one.observation for one in others})
    return {**counts, "faults": len(faults)}


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
        """Return what a stage explored, and the faults by task; what is not done yet is done."""
        of_task = {one.task: one for one in self.demonstrated(self.config.explored, _EXPLORATION)}
        found = each_once(
            stage.path / "explored",
            list(of_task),
            lambda tasks: self._outcomes([of_task[task] for task in tasks]),
        )
        faults = {task: str(told["error"]) for task, told in found.items() if "error" in told}
        return [
            (task, [transition_from_json(row) for row in told["transitions"]])
            for task, told in found.items()
            if task not in faults
        ], faults

    def _outcomes(self, shown: Sequence[Trajectory]) -> Iterator[Done]:
        """Explore demonstrations, many at once, and yield what came of each as it ends."""
        config = recast(self.agent, IWMConfig, adapter=self.explorer)
        lm, done = self.language_model(), [0, 0]
        player = Player(IWMAgent(config), lm)

        def propose(view: View) -> Any:
            return sample_alternatives(replace(view, count_tokens=lm.count_tokens), config)

        def play(slot: EnvSlot, one: Trajectory) -> EpisodeGenerator[dict[str, Any]]:
            plan, most = [step.action for step in one.steps], config.alternatives
            tried = explore(slot.env, plan, propose, most, task=one.task, seed=one.seed)
            try:
                found = yield from drive(player, slot, tried, [])
            except Exception as fault:
                return {"error": error_text(fault)}
            return {"transitions": [transition_json(transition) for transition in found]}

        pool = EnvPool(partial(self.make_env, self.config.train_split))
        batcher = RequestBatcher(lm, telling_work(self.tell))
        rounds = play_rounds(pool, batcher, shown, self.config.concurrency, play)
        for number, told in rounds:
            done[0] += 1
            done[1] += "error" not in told
            self.tell({"event": "episode", "done": done[0], "of": len(shown), "won": done[1]})
            yield shown[number].task, told

    def player(self, temperature: float | None = None) -> Agent:
        """Return IWM's agent, which acts as ReAct does."""
        return IWMAgent(recast(self.evaluated_agent(temperature), IWMConfig))
