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
from ...agents.runner import EpisodeGenerator, Player, drive, error_text, play_items
from ...lm import LanguageModel
from ...trajectory import Trajectory
from ...worldmodel import Transition
from ..config import recast
from ..evaluation import transition_from_json, transition_json
from ..results import Fit
from ..run_folder import Done, StageFolder, each_once
from ..sft import BaselineRun, transition_sample
from ..stages import Work, telling_work
from .config import IWMTraining

_EXPLORATION = "exploration"

Explored = tuple[str, list[Transition]]
"""A task and its transitions: the expert's, and in each state those of the alternatives."""


def explored_counts(explored: Iterable[Explored], faults: Mapping[str, str]) -> dict[str, int]:
    """Return how much was explored: tasks, the expert's states, alternatives, and their outcomes.

    Of the alternatives' outcomes, ``as_the_expert`` are like the expert's, and ``distinct_outcomes``
    counts those that differ from each other within a state.
    """
    names = ("tasks", "states", "alternatives", "as_the_expert", "distinct_outcomes")
    counts = dict.fromkeys(names, 0)
    for _, transitions in explored:
        counts["tasks"] += 1

        # All states lie on the expert's one path: the length of the history says which it is.
        transitions_by_state: dict[int, list[Transition]] = {}
        for transition in transitions:
            history_length = len(transition.query.history)
            transitions_by_state.setdefault(history_length, []).append(transition)

        # The first transition of each state is the expert's.
        for expert, *alternatives in transitions_by_state.values():
            outcomes = [alternative.observation for alternative in alternatives]
            counts["states"] += 1
            counts["alternatives"] += len(outcomes)
            counts["as_the_expert"] += outcomes.count(expert.observation)
            counts["distinct_outcomes"] += len(set(outcomes))
    return {**counts, "faults": len(faults)}


class IWMRun(BaselineRun):
    """The training of IWM in a folder: `run` does it, or resumes it."""

    config: IWMTraining

    def learning(self) -> list[tuple[str, Work]]:
        """Return the stages in which something is learned."""
        config = self.config
        epochs = config.epochs
        rate = config.learning_rate
        # In this order: what follows actions is learned first, and then which of them to take. An explorer
        # of its own leaves the policy as it was before it learned anything.
        plan: list[tuple[str, Work]] = []
        if self.explorer == "explorer":
            plan.append(
                ("warmup-explorer", lambda stage: self.imitate(stage, "explorer", epochs, rate))
            )
        plan.append((_EXPLORATION, self.explore))
        plan.append(("world-modelling", self.learn_outcomes))
        plan.append(("imitation", lambda stage: self.imitate(stage, "agent", epochs, rate)))
        return plan

    @property
    def explorer(self) -> str:
        """The role that proposes alternatives."""
        return self.config.roles(self.begun)[-1]

    def explore(self, stage: StageFolder) -> Mapping[str, Any]:
        """Take actions that the policy proposes in the expert's states, and record what follows each."""
        explored, faults = self._explored(stage)
        return {"counts": explored_counts(explored, faults), "explored_faults": faults}

    def learn_outcomes(self, stage: StageFolder) -> Fit:
        """Train the policy to predict what follows actions."""
        # As a world model is asked: prompt and observation, in the policy's own weights.
        explored, _ = self._explored(self.folders[_EXPLORATION])
        model = self.world_model(self.counting)
        samples = []
        for task, transitions in explored:
            for query, observation in transitions:
                samples.append(
                    transition_sample(query, observation, model, kind="early_experience", task=task)
                )

        config = self.config
        return self.learn(stage, "agent", samples, config.world_epochs, config.learning_rate)

    def _explored(self, stage: StageFolder) -> tuple[list[Explored], dict[str, str]]:
        """Return what a stage explored, and the faults by task; tasks that are missing are explored."""
        demos = self.demonstrated(self.config.explored, _EXPLORATION)
        demo_of_task = {demonstration.task: demonstration for demonstration in demos}
        lm = (
            self.language_model()
        )  # of all processes at once, also of those that have nothing to play
        records = each_once(
            stage.path / "explored",
            list(demo_of_task),
            lambda tasks: self._outcomes(lm, [demo_of_task[task] for task in tasks]),
        )

        explored: list[Explored] = []
        faults: dict[str, str] = {}
        for task, record in records.items():
            if "error" in record:
                faults[task] = str(record["error"])
            else:
                transitions = [transition_from_json(row) for row in record["transitions"]]
                explored.append((task, transitions))
        return explored, faults

    def _outcomes(self, lm: LanguageModel, demos: Sequence[Trajectory]) -> Iterator[Done]:
        """Explore demonstrations, many at once, and yield the record of each as it ends."""
        config = recast(self.agent, IWMConfig, adapter=self.explorer)
        player = Player(IWMAgent(config), lm)

        def propose(view: View) -> Any:
            return sample_alternatives(replace(view, count_tokens=lm.count_tokens), config)

        def play(slot: EnvSlot, demo: Trajectory) -> EpisodeGenerator[dict[str, Any]]:
            plan = [step.action for step in demo.steps]
            exploration = explore(
                slot.env, plan, propose, config.alternatives, task=demo.task, seed=demo.seed
            )

            # A fault costs one demonstration: it is recorded, and counted in the result.
            try:
                transitions = yield from drive(player, slot, exploration, [])
            except Exception as fault:
                return {"error": error_text(fault)}
            return {"transitions": [transition_json(transition) for transition in transitions]}

        pool = EnvPool(partial(self.make_env, self.config.train_split))
        batcher = RequestBatcher(lm, telling_work(self.tell))
        rounds = play_items(pool, batcher, demos, self.config.concurrency, play)
        success_count = 0
        for task_count, (demo_index, record) in enumerate(rounds, 1):
            success_count += "error" not in record
            self.tell(
                {"event": "episode", "done": task_count, "of": len(demos), "won": success_count}
            )
            yield demos[demo_index].task, record

    def player(self, temperature: float | None = None) -> Agent:
        """Return IWM's agent, which acts as ReAct does."""
        return IWMAgent(recast(self.evaluated_agent(temperature), IWMConfig))
