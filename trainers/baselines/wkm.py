"""WKM: knowledge from an expert's and failed episodes, and two models that use it (Qiao et al., 2024).

Task knowledge is written by a language model that sees an expert's episode and a failed one; the
knowledge model learns to write it from the task alone. State knowledge is one summary of each state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...agents import Agent, WKMAgent, WKMConfig
from ...agents.base import estimate_tokens
from ...agents.convert import views_of
from ...agents.prompting import instructions, seed_for
from ...agents.wkm import Knowledge, KnowledgeBase, acting_prompt, state_request, task_request
from ...errors import LanguageModelError
from ...lm import Generate, LMRequest, Message, answer
from ...lm.prompts import OVERHEAD, cut_text, fill_template, recent_turns
from ...trajectory import Trajectory, Turn
from ..config import recast
from ..run_folder import Done, StageFolder
from ..samples import Sample
from ..sft import BaselineRun, sample_of, shown_steps
from ..stages import Work
from .config import WKMTraining

KNOWLEDGE = "knowledge.jsonl"
"""The knowledge base, in the training's folder."""

_ROLLOUTS, _TASKS, _STATES = "rollouts", "task-knowledge", "state-knowledge"
_LEFT_OUT = "[...]"


def comparison(
    expert: Trajectory,
    failed: Trajectory | None,
    config: WKMConfig,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Generate:
    """Return the question for task knowledge to a model that sees how it went."""
    name = "wkm_expert" if failed is None else "wkm_compare"
    slots = {
        "instructions": instructions(expert.env_id),
        "goal": cut_text(expert.goal, config.max_length // 8, count_tokens),
    }
    told = {"expert": expert} if failed is None else {"expert": expert, "failed": failed}
    bare = _fill(config, name, slots | dict.fromkeys(told, ""))
    room = config.max_length - config.task_tokens
    room -= sum(count_tokens(message.content) + OVERHEAD for message in bare)
    each = max(room // len(told), 64)
    slots |= {key: _transcript(one, each, count_tokens) for key, one in told.items()}
    heat = config.knowledge_temperature
    seed = seed_for(config, next(views_of(expert))[0], "task knowledge from episodes")
    sampling = config.sampling(config.task_tokens, ("\n---",), seed, temperature=heat, top_p=1.0)
    return Generate(
        _fill(config, name, slots),
        sampling,
        adapter=config.knowledge_adapter,
        purpose="task knowledge from episodes",
    )


def task_samples(
    demos: Iterable[Trajectory],
    known: Mapping[str, str],
    config: WKMConfig,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Iterator[Sample]:
    """Yield what the knowledge model learns at an episode's beginning: task knowledge."""
    for shown in demos:
        text = known.get(shown.task, "").strip()
        if text and shown.steps:
            view = next(views_of(shown, count_tokens))[0]
            yield sample_of("task_knowledge", task_request(view, config).messages, text, view)


def state_samples(
    demos: Iterable[Trajectory],
    states: Mapping[str, Sequence[str]],
    config: WKMConfig,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Iterator[Sample]:
    """Yield what the knowledge model learns in each state: state knowledge."""
    for shown in demos:
        if shown.task not in states:
            continue
        views = views_of(shown, count_tokens)
        for (view, _, _), text in zip(views, states[shown.task], strict=True):
            if text.strip():
                asked = state_request(view, config).messages
                yield sample_of("state_knowledge", asked, text.strip(), view)


def agent_samples(
    demos: Iterable[Trajectory],
    known: Mapping[str, str],
    config: WKMConfig,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Iterator[Sample]:
    """Yield what the agent learns: the expert's replies, with task knowledge in the prompt.

    State knowledge is not in it, as it is not where the agent acts.
    """
    for shown in demos:
        knowledge = known.get(shown.task, "") if config.task_knowledge else ""
        for view, replies, _, reply in shown_steps(shown, count_tokens):
            asked = acting_prompt(view, config, replies, knowledge)
            yield sample_of("expert_action", asked, reply, view)


def _fill(config: WKMConfig, name: str, slots: Mapping[str, str]) -> tuple[Message, ...]:
    return fill_template(__package__ or "", config.prompts, name, **slots)


def _transcript(shown: Trajectory, budget: int, count: Callable[[str], int]) -> str:
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
        config = self.config
        plan: list[tuple[str, Work]] = []
        if config.agent.task_knowledge:
            if self.sampler == "explorer":
                epochs, rate = config.epochs, config.learning_rate
                plan.append(
                    ("warmup-explorer", lambda s: self.imitate(s, "explorer", epochs, rate))
                )
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

    def settings(self, temperature: float | None = None) -> WKMConfig:
        """Return how the agent asks."""
        return recast(
            self.agent,
            WKMConfig,
            temperature=self.agent.temperature if temperature is None else temperature,
            knowledge_adapter="knowledge" if self.config.trains_knowledge else None,
        )

    def player(self, temperature: float | None = None) -> Agent:
        """Return WKM's agent with its knowledge base."""
        settings = self.settings(self.evaluated_agent(temperature).temperature)
        return WKMAgent(settings, self.knowledge())

    def save(self, out: Path) -> None:
        """Write the knowledge base."""
        self.knowledge().save(out / KNOWLEDGE)

    def knowledge(self) -> KnowledgeBase:
        """Return the knowledge base."""
        states, entries = self._states(), list[Knowledge]()
        for shown in self._shown():
            before = ""
            for step, state in zip(shown.steps, states.get(shown.task, ()), strict=False):
                entries.append(Knowledge(state.strip(), before, step.action))
                before = step.action
        return KnowledgeBase(entries)

    def roll_out(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the policy play demonstrated tasks, for episodes that fail."""
        tasks = [shown.task for shown in self.demonstrated(self.config.compared, _ROLLOUTS)]
        agent = self.drafting(adapter=self.sampler)
        found = self.play(
            stage.path / "episodes",
            self.config.train_split,
            agent,
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
        found = self._written(stage, asked)
        compared = sum(task in failed for task in asked)
        return {"tasks": len(asked), "compared": compared, "faults": len(asked) - len(found)}

    def write_states(self, stage: StageFolder) -> Mapping[str, Any]:
        """Put each of the expert's states into words."""
        shown = {one.task: one for one in self._shown()}
        if self.config.agent.state_knowledge == "lm":
            settings, count = self.settings(), self.counting.count_tokens
            asked = {
                task: [state_request(view, settings) for view, _, _ in views_of(one, count)]
                for task, one in shown.items()
            }
            found = self._written(stage, asked)
        else:  # the belief facts, as text

            def work(tasks: Sequence[str]) -> Iterator[Done]:
                for task in tasks:
                    base = KnowledgeBase.from_trajectories([shown[task]])
                    yield task, {"texts": [entry.knowledge for entry in base]}

            found = self.write_each(stage, [*shown], len(shown) or 1, work)
        faults = len(shown) - len(found)
        return {"entries": len(self.knowledge()), "tasks": len(found), "faults": faults}

    def _written(
        self, stage: StageFolder, asked: Mapping[str, Sequence[LMRequest]]
    ) -> dict[str, Any]:
        """Return the answers to each task's questions; a task whose questions fail has none."""
        lm = self.language_model()

        def work(tasks: Sequence[str]) -> Iterator[Done]:
            replies = iter(answer(lm, [request for task in tasks for request in asked[task]]))
            for task in tasks:
                said = [next(replies) for _ in asked[task]]
                faults = [one for one in said if isinstance(one, LanguageModelError)]
                if faults:
                    yield task, {"error": f"{type(faults[0]).__name__}: {faults[0]}"}
                else:
                    yield task, {"texts": [one.text for one in said]}

        return self.write_each(stage, list(asked), self.config.concurrency, work)

    def train_knowledge(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the knowledge model learn to write both kinds of knowledge."""
        config, settings = self.config, self.settings()
        count, shown = self.counting.count_tokens, self._shown()
        samples: list[Sample] = []
        if config.agent.task_knowledge:
            samples += task_samples(shown, self._tasks(), settings, count)
        if config.agent.state_knowledge == "lm":
            samples += state_samples(shown, self._states(), settings, count)
        return self.learn(stage, "knowledge", samples, config.epochs, config.learning_rate)

    def train_agent(self, stage: StageFolder) -> Mapping[str, Any]:
        """Let the agent learn the expert's actions, told what is to be known of the task."""
        config = self.config
        known = self._tasks() if config.agent.task_knowledge else {}
        count = self.counting.count_tokens
        samples = list(agent_samples(self._shown(), known, self.settings(), count))
        return self.learn(stage, "agent", samples, config.epochs, config.learning_rate)

    def _shown(self) -> list[Trajectory]:
        return self.demonstrated(None, "knowledge")

    def _tasks(self) -> dict[str, str]:
        return {task: texts[0] for task, texts in self._texts(_TASKS).items()}

    def _states(self) -> dict[str, list[str]]:
        return self._texts(_STATES)

    def _texts(self, name: str) -> dict[str, list[str]]:
        found = self.written(name, [shown.task for shown in self._shown()])
        return {task: record["texts"] for task, record in found.items()}
