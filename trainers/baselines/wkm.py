"""WKM: knowledge from an expert's and failed episodes, and two models that use it (Qiao et al., 2024).

Task knowledge is written by a language model that sees an expert's episode and a failed one; the
knowledge model learns to write it from the task alone. State knowledge is one summary of each state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from ...agents import Agent, WKMAgent, WKMConfig
from ...agents.convert import views_of
from ...agents.prompting import seed_for
from ...agents.run import writing
from ...agents.wkm import Knowledge, KnowledgeBase, acting_prompt, state_request, task_request
from ...envs.registry import text_env_of
from ...lm import Generate
from ...lm.encoder import TransformerEncoder
from ...lm.prompts import OVERHEAD, cut_text, fill_template, recent_turns
from ...trajectory import Trajectory, Turn
from ..config import recast
from ..processes import is_first, wait
from ..run_folder import StageFolder
from ..samples import Sample
from ..sft import BaselineRun, sample_of, shown_steps
from ..stages import Work
from .config import WKMTraining

KNOWLEDGE = "knowledge.jsonl"
"""The knowledge base, in the training's folder."""

_ROLLOUTS, _TASKS, _STATES = "rollouts", "task-knowledge", "state-knowledge"
_LEFT_OUT = "[...]"


def comparison(
    expert: Trajectory, failed: Trajectory | None, config: WKMConfig, count: Callable[[str], int]
) -> Generate:
    """Return the question for task knowledge to a model that sees how it went."""
    briefing = text_env_of(expert.env_id).briefing.replaced(expert.env_id, config.prompt_folder)
    shown = {"expert": expert} if failed is None else {"expert": expert, "failed": failed}
    prompt = partial(
        fill_template,
        __package__ or "",
        config.prompts,
        "wkm_expert" if failed is None else "wkm_compare",
        prompt_folder=config.prompt_folder,
        instructions=briefing.told(),
        goal=cut_text(expert.goal, config.max_length // 8, count),
    )
    bare = prompt(**dict.fromkeys(shown, ""))
    room = config.max_length - config.task_tokens
    room -= sum(count(message.content) + OVERHEAD for message in bare)
    each = max(room // len(shown), 64)
    messages = prompt(**{key: transcript(one, each, count) for key, one in shown.items()})
    heat, purpose = config.knowledge_temperature, "task knowledge from episodes"
    seed = seed_for(config, next(views_of(expert))[0], purpose)
    sampling = config.sampling(config.task_tokens, seed=seed, temperature=heat, top_p=1.0)
    return Generate(messages, sampling, adapter=config.knowledge_adapter, purpose=purpose)


def knowledge_samples(
    demos: Iterable[Trajectory],
    known: Mapping[str, str],
    states: Mapping[str, Sequence[str]],
    config: WKMConfig,
    count: Callable[[str], int],
) -> Iterator[Sample]:
    """Yield what the knowledge model learns: task knowledge at the beginning, then state knowledge."""
    for shown in demos:
        views = [view for view, _, _ in views_of(shown, count)]
        kinds = chain(
            [("task_knowledge", task_request)], repeat(("state_knowledge", state_request))
        )
        texts = (known.get(shown.task, ""), *states.get(shown.task, ()))
        for (kind, request), view, text in zip(kinds, (*views[:1], *views), texts, strict=False):
            if text.strip():
                yield sample_of(kind, request(view, config).messages, text.strip(), view)


def transcript(shown: Trajectory, budget: int, count: Callable[[str], int]) -> str:
    """Return an episode as text: its first observation, then the newest turns that fit."""
    first = cut_text(shown.observation, budget // 2, count)
    turns = [Turn(step.action, step.observation) for step in shown.steps]
    kept = recent_turns(turns, budget - count(first) - count(_LEFT_OUT), count)
    lines = [first, _LEFT_OUT] if len(kept) < len(turns) else [first]
    for turn in kept:
        lines += [f"> {turn.action}", turn.observation]
    return "\n".join(lines)


class WKMRun(BaselineRun):
    """The training of WKM in a folder: `run` does it, or resumes it."""

    config: WKMTraining

    def learning(self) -> list[tuple[str, Work]]:
        """Return the stages in which something is learned."""
        config, plan = self.config, list[tuple[str, Work]]()
        epochs, rate = config.epochs, config.learning_rate
        if config.agent.encoder is not None:  # what is missing shows now, not hours later
            TransformerEncoder(config.agent.encoder).encode([], "query")
        if config.agent.task_knowledge:
            if self.sampler == "explorer":
                plan = [("warmup-explorer", lambda s: self.imitate(s, "explorer", epochs, rate))]
            plan += [(_ROLLOUTS, self.roll_out), (_TASKS, self.write_tasks)]
        plan.append((_STATES, self.write_states))
        if config.trains_knowledge:
            plan.append(("knowledge-model", self.train_knowledge))
            self.saved = ("agent", "knowledge")
        return [*plan, ("agent-model", self.train_agent)]

    @property
    def sampler(self) -> str:
        """The role that plays the episodes that may fail."""
        return "explorer" if "explorer" in self.config.roles(self.begun) else "agent"

    def settings(self, **changed: Any) -> WKMConfig:
        """Return how the agent asks."""
        adapter = "knowledge" if self.config.trains_knowledge else None
        return recast(self.agent, WKMConfig, knowledge_adapter=adapter, **changed)

    def player(self, temperature: float | None = None) -> Agent:
        """Return WKM's agent with its knowledge base."""
        settings = self.settings(temperature=self.evaluated_agent(temperature).temperature)
        return WKMAgent(settings, self.knowledge)

    def save(self, out: Path) -> None:
        """Write the knowledge base."""
        self.knowledge.save(out / KNOWLEDGE)

    @cached_property
    def knowledge(self) -> KnowledgeBase:
        """The knowledge base, as the stage of state knowledge wrote it."""
        return KnowledgeBase.load(self.folders[_STATES].path / KNOWLEDGE, self.config.agent.encoder)

    def roll_out(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy play demonstrated tasks, for episodes that fail."""
        tasks = [shown.task for shown in self.demonstrated(self.config.compared, _ROLLOUTS)]
        found = self.play(
            stage.path / "episodes",
            self.config.train_split,
            self.drafting(adapter=self.sampler),
            tasks,
            lm=self.language_model(),
            seed=self.seed(stage.name),
        )
        won = sum(one.success for one in found)
        return {"episodes": len(found), "success": won / max(len(found), 1)}

    def write_tasks(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the model write what is to be known of each task."""
        settings = self.settings()
        failed = {
            one.task: one
            for one in self.episodes(_ROLLOUTS)
            if one.steps and not one.success and one.error is None
        }
        count = self.counting.count_tokens
        asked = {
            shown.task: [comparison(shown, failed.get(shown.task), settings, count)]
            for shown in self._shown()
        }
        found = self.ask_each(stage, asked)
        compared = sum(task in failed for task in asked)
        return {"tasks": len(asked), "compared": compared, "faults": len(asked) - len(found)}

    def write_states(self, stage: StageFolder) -> Mapping[str, Any]:
        """Put each of the expert's states into words, and make the knowledge base of them."""
        shown, encoder, faults = self._shown(), self.config.agent.encoder, 0
        base = KnowledgeBase.from_trajectories(shown, encoder)
        if self.config.agent.state_knowledge == "lm":
            settings, count = self.settings(), self.counting.count_tokens
            asked = {
                one.task: [state_request(view, settings) for view, _, _ in views_of(one, count)]
                for one in shown
            }
            self.ask_each(stage, asked)
            states = self._texts(_STATES)
            faults = len(shown) - len(states)
            base = KnowledgeBase(encoder=encoder)
            for one in shown:
                before = ""
                for step, state in zip(one.steps, states.get(one.task, ()), strict=False):
                    base.add(Knowledge(state.strip(), before, step.action))
                    before = step.action
        if is_first():
            with writing(stage.path):
                base.save(stage.path / KNOWLEDGE)
        wait()
        return {"entries": len(base), "tasks": len(shown) - faults, "faults": faults}

    def train_knowledge(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the knowledge model learn to write both kinds of knowledge."""
        config, count = self.config, self.counting.count_tokens
        states = self._texts(_STATES) if config.agent.state_knowledge == "lm" else {}
        shown, known = self._shown(), self._tasks()
        samples = list(knowledge_samples(shown, known, states, self.settings(), count))
        return self.learn(stage, "knowledge", samples, config.epochs, config.learning_rate)

    def train_agent(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the agent learn the expert's replies, with task knowledge in the prompt.

        State knowledge is not in it, as it is not where the agent acts.
        """
        config, settings, known = self.config, self.settings(), self._tasks()
        samples = [
            sample_of("expert_action", acting_prompt(view, settings, replies, text), reply, view)
            for shown in self._shown()
            for text in (known.get(shown.task, ""),)
            for view, replies, _, reply in shown_steps(shown, self.counting.count_tokens)
        ]
        return self.learn(stage, "agent", samples, config.epochs, config.learning_rate)

    def _shown(self) -> list[Trajectory]:
        return self.demonstrated(None, "knowledge")

    def _tasks(self) -> dict[str, str]:
        if not self.config.agent.task_knowledge:
            return {}
        return {task: texts[0] for task, texts in self._texts(_TASKS).items()}

    def _texts(self, name: str) -> dict[str, list[str]]:
        found = self.written(name, [shown.task for shown in self._shown()])
        return {task: record["texts"] for task, record in found.items()}
