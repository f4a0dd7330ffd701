"""WKM: knowledge from an expert's and failed episodes, and two models that use it (METHODS.md 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...agents import Agent
from ...agents.knowledge import KnowledgeBase
from ...agents.react import ReActAgent, ReActConfig
from ...agents.wkm import WKMAgent, WKMConfig
from ...errors import LanguageModelError
from ...lm import LMRequest, answer
from ...trajectory import Trajectory
from ..run_folder import StageFolder
from ..samples import Sample
from ..staged import Work
from .methods import WKMTraining
from .once import Found, each_once
from .stages import WRITTEN, BaselineStages
from .wkm_samples import (
    agent_samples,
    comparison,
    knowledge_entries,
    state_questions,
    state_samples,
    task_samples,
)

__all__ = ["KNOWLEDGE", "WKMStages"]

KNOWLEDGE = "knowledge.jsonl"
"""The knowledge base, in the training's folder."""

_ROLLOUTS, _TASKS, _STATES = "rollouts", "task-knowledge", "state-knowledge"


class WKMStages(BaselineStages[WKMTraining]):
    """The stages of WKM.

    The model, before it is trained, writes task knowledge of each demonstrated task (from the expert's
    episode, and from one of the same task that failed where there is one) and puts each of the
    expert's states into words. The knowledge model learns to write both from what is known while one
    acts; the agent learns the expert's actions with task knowledge in its prompt; the states in words,
    with the actions around them, are the knowledge base.

    Ours [D]: a task whose sampled episode succeeded, or was not sampled, has knowledge from the
    expert's episode alone; a demonstration whose knowledge could not be written is learned from
    without it.
    """

    def stages(self) -> list[tuple[str, Work]]:
        """Return the stages."""
        config = self.config
        plan: list[tuple[str, Work]] = []
        if config.task_knowledge == "lm":
            if self.sampler == "explorer":
                plan.append(("warmup-explorer", self._teach_explorer))
            plan += [(_ROLLOUTS, self.roll_out), (_TASKS, self.write_tasks)]
        plan.append((_STATES, self.write_states))
        if config.trains_knowledge:
            plan.append(("knowledge-model", self.train_knowledge))
        return [*plan, ("agent-model", self.train_agent)]

    @property
    def saved(self) -> tuple[str, ...]:  # type: ignore[override]
        """The roles that the training leaves behind."""
        return ("agent", "knowledge") if self.config.trains_knowledge else ("agent",)

    @property
    def sampler(self) -> str:
        """The role that plays the episodes that may fail."""
        own = self.config.sampler == "sft" and "agent" not in self.begun
        return "explorer" if own else "agent"

    def settings(self, **changed: Any) -> WKMConfig:
        """Return how the agent asks."""
        config = self.config
        return WKMConfig(
            **self.session.agent_settings(**changed),
            gamma=config.gamma,
            neighbours=config.neighbours,
            state_knowledge=config.state_knowledge,
            task_knowledge=config.task_knowledge == "lm",
            task_tokens=config.task_tokens,
            state_tokens=config.state_tokens,
            knowledge_temperature=config.knowledge_temperature,
            knowledge_adapter="knowledge" if config.trains_knowledge else None,
        )

    def player(self) -> Agent:
        """Return WKM's agent with its knowledge base."""
        heat = self.config.evaluation_temperature
        return WKMAgent(self.settings(temperature=heat), self.knowledge())

    def save(self, out: Path) -> None:
        """Write the knowledge base."""
        self.knowledge().save(out / KNOWLEDGE)

    def knowledge(self) -> KnowledgeBase:
        """Return the knowledge base."""
        states = self._states()
        return KnowledgeBase(
            entry
            for shown in self._shown()
            if shown.task in states
            for entry in knowledge_entries(shown, states[shown.task])
        )

    # -- knowledge -------------------------------------------------------------------------------

    def _teach_explorer(self, stage: StageFolder) -> Mapping[str, Any]:
        config = self.config
        return self.imitation(stage, "explorer", config.epochs, config.learning_rate)

    def roll_out(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy play demonstrated tasks, for episodes that fail."""
        session = self.session
        tasks = [shown.task for shown in self.demonstrated(self.config.compared, _ROLLOUTS)]
        agent = ReActAgent(ReActConfig(**session.agent_settings(adapter=self.sampler)))
        found = session.play(
            stage.path / "episodes",
            self.config.train_split,
            agent,
            tasks,
            lm=session.language_model(),
            seed=session.seed(stage.name),
        )
        won = sum(one.success for one in found)
        return {"episodes": len(found), "success": won / max(len(found), 1)}

    def write_tasks(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the model write what is to be known of each task."""
        session, settings = self.session, self.settings()
        failed = {
            one.task: one
            for one in session.episodes(_ROLLOUTS)
            if one.steps and not one.success and one.error is None
        }
        count = session.counting.count_tokens
        asked = {
            shown.task: [comparison(shown, failed.get(shown.task), settings, count)]
            for shown in self._shown()
        }
        found = self._written(stage, asked)
        compared = sum(task in failed for task in asked)
        return {"tasks": len(asked), "compared": compared, "faults": len(asked) - len(found)}

    def write_states(self, stage: StageFolder) -> Mapping[str, Any]:
        """Put each of the expert's states into words."""
        if self.config.state_knowledge == "lm":
            session, settings = self.session, self.settings()
            count = session.counting.count_tokens
            asked = {one.task: state_questions(one, settings, count) for one in self._shown()}
            found = self._written(stage, asked)
        else:
            base = {
                one.task: [entry.knowledge for entry in KnowledgeBase.from_trajectories([one])]
                for one in self._shown()
            }
            found = each_once(
                stage.path / WRITTEN,
                list(base),
                lambda tasks: [(task, {"texts": base[task]}) for task in tasks],
            )
        faults = len(self._shown()) - len(found)
        return {"entries": len(self.knowledge()), "tasks": len(found), "faults": faults}

    def _written(
        self, stage: StageFolder, asked: Mapping[str, Sequence[LMRequest]]
    ) -> dict[str, Any]:
        """Return the answers to each task's questions; a task whose questions fail has none."""
        found = each_once(stage.path / WRITTEN, list(asked), partial(self._answered, asked=asked))
        return {task: told for task, told in found.items() if "texts" in told}

    def _answered(
        self, tasks: Sequence[str], asked: Mapping[str, Sequence[LMRequest]]
    ) -> Iterator[Found]:
        lm, size = self.session.language_model(), self.session.config.live
        for start in range(0, len(tasks), size):
            some = tasks[start : start + size]
            replies = iter(answer(lm, [request for task in some for request in asked[task]]))
            for task in some:
                said = [next(replies) for _ in asked[task]]
                faults = [one for one in said if isinstance(one, LanguageModelError)]
                if faults:
                    yield task, {"error": f"{type(faults[0]).__name__}: {faults[0]}"}
                else:
                    yield task, {"texts": [one.text for one in said]}
            done = min(start + size, len(tasks))
            self.progress(done, len(tasks))

    # -- learning --------------------------------------------------------------------------------

    def train_knowledge(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the knowledge model learn to write both kinds of knowledge."""
        config, settings = self.config, self.settings()
        count, shown = self.session.counting.count_tokens, self._shown()
        samples: list[Sample] = []
        if config.task_knowledge == "lm":
            samples += task_samples(shown, self._tasks(), settings, count)
        if config.state_knowledge == "lm":
            samples += state_samples(shown, self._states(), settings, count)
        return self.learned(stage, "knowledge", samples, config.epochs, config.learning_rate)

    def train_agent(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the agent learn the expert's actions, told what is to be known of the task."""
        config = self.config
        known = self._tasks() if config.task_knowledge == "lm" else {}
        count = self.session.counting.count_tokens
        samples = list(agent_samples(self._shown(), known, self.settings(), count))
        return self.learned(stage, "agent", samples, config.epochs, config.learning_rate)

    def _shown(self) -> list[Trajectory]:
        return self.demonstrated(None, "knowledge")

    def _tasks(self) -> dict[str, str]:
        return {task: texts[0] for task, texts in self._texts(_TASKS).items()}

    def _states(self) -> dict[str, list[str]]:
        return self._texts(_STATES)

    def _texts(self, name: str) -> dict[str, list[str]]:
        """Return what a stage has written of each task."""
        found = self.written(name, [shown.task for shown in self._shown()])
        return {task: told["texts"] for task, told in found.items() if "texts" in told}
