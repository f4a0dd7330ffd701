"""WKM: knowledge from an expert's and failed episodes, and two models that use it (Qiao et al., 2024).

Task knowledge is written by a language model that sees an expert's episode and a failed one; the
knowledge model learns to write it from the task alone. State knowledge is one summary of each state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
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
from ..results import Fit
from ..run_folder import StageFolder
from ..samples import Sample
from ..sft import BaselineRun, sample_of, shown_steps
from ..stages import Work
from .config import WKMTraining

KNOWLEDGE = "knowledge.jsonl"
"""The knowledge base, in the training's folder."""

_ROLLOUTS = "rollouts"
_TASKS = "task-knowledge"
_STATES = "state-knowledge"
_LEFT_OUT = "[...]"  # stands for turns that do not fit


def comparison(
    expert: Trajectory, failed: Trajectory | None, config: WKMConfig, count: Callable[[str], int]
) -> Generate:
    """Return the question for task knowledge to a model that reads one or both episodes."""
    briefing = text_env_of(expert.env_id).briefing.replaced(expert.env_id, config.prompt_folder)
    episodes = {"expert": expert}
    if failed is not None:
        episodes["failed"] = failed
    prompt = partial(
        fill_template,
        __package__ or "",
        config.prompts,
        "wkm_expert" if failed is None else "wkm_compare",
        prompt_folder=config.prompt_folder,
        instructions=briefing.told(),
        goal=cut_text(expert.goal, config.max_length // 8, count),
    )

    # The episodes share the room that the prompt without them leaves.
    bare_messages = prompt(**dict.fromkeys(episodes, ""))
    room = config.max_length - config.task_tokens
    room -= sum(count(message.content) + OVERHEAD for message in bare_messages)
    budget = max(room // len(episodes), 64)  # a few turns, whatever the instructions take
    transcripts = {name: transcript(episode, budget, count) for name, episode in episodes.items()}
    messages = prompt(**transcripts)

    purpose = "task knowledge from episodes"
    first_view, _, _ = next(views_of(expert))
    sampling = config.sampling(
        config.task_tokens,
        seed=seed_for(config, first_view, purpose),
        temperature=config.knowledge_temperature,
        top_p=1.0,
    )
    return Generate(messages, sampling, adapter=config.knowledge_adapter, purpose=purpose)


def knowledge_samples(
    demos: Iterable[Trajectory],
    knowledge_of_task: Mapping[str, str],
    states: Mapping[str, Sequence[str]],
    config: WKMConfig,
    count: Callable[[str], int],
) -> Iterator[Sample]:
    """Yield what the knowledge model learns: task knowledge at the beginning, then state knowledge."""
    for demonstration in demos:
        views = [view for view, _, _ in views_of(demonstration, count)]
        task_text = knowledge_of_task.get(demonstration.task, "").strip()
        if task_text and views:
            messages = task_request(views[0], config).messages
            yield sample_of("task_knowledge", messages, task_text, views[0])

        state_texts = states.get(demonstration.task, ())
        for view, state_text in zip(views, state_texts, strict=False):
            text = state_text.strip()
            if text:
                messages = state_request(view, config).messages
                yield sample_of("state_knowledge", messages, text, view)


def transcript(episode: Trajectory, budget: int, count: Callable[[str], int]) -> str:
    """Return an episode as text: its first observation, then the newest turns that fit."""
    # The first observation names the places and the goal: the turns after it get what it leaves.
    first_observation = cut_text(episode.observation, budget // 2, count)
    turns = [Turn(step.action, step.observation) for step in episode.steps]
    room = budget - count(first_observation) - count(_LEFT_OUT)
    newest_turns = recent_turns(turns, room, count)

    lines = [first_observation]
    if len(newest_turns) < len(turns):
        lines.append(_LEFT_OUT)
    for turn in newest_turns:
        lines += [f"> {turn.action}", turn.observation]
    return "\n".join(lines)


class WKMRun(BaselineRun):
    """The training of WKM in a folder: `run` does it, or resumes it."""

    config: WKMTraining

    def learning(self) -> list[tuple[str, Work]]:
        """Return the stages in which something is learned."""
        config = self.config
        epochs = config.epochs
        rate = config.learning_rate
        plan: list[tuple[str, Work]] = []
        if config.agent.encoder is not None:  # what is missing shows now, not hours later
            TransformerEncoder(config.agent.encoder).encode([], "query")

        # Task knowledge is what an expert's episode has and a failed one of the same task has not.
        if config.agent.task_knowledge:
            if self.sampler == "explorer":
                plan.append(
                    ("warmup-explorer", lambda stage: self.imitate(stage, "explorer", epochs, rate))
                )
            plan.append((_ROLLOUTS, self.roll_out))
            plan.append((_TASKS, self.write_tasks))
        plan.append((_STATES, self.write_states))
        if config.trains_knowledge:
            plan.append(("knowledge-model", self.train_knowledge))
            self.saved = ("agent", "knowledge")
        plan.append(("agent-model", self.train_agent))
        return plan

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
        """Play demonstrated tasks with the policy, for episodes that fail."""
        demos = self.demonstrated(self.config.compared, _ROLLOUTS)
        tasks = [demonstration.task for demonstration in demos]
        episodes = self.play(
            stage.path / "episodes",
            self.config.train_split,
            self.drafting(adapter=self.sampler),
            tasks,
            lm=self.language_model(),
            seed=self.seed(stage.name),
        )
        success_count = sum(episode.success for episode in episodes)
        return {"episodes": len(episodes), "success": success_count / max(len(episodes), 1)}

    def write_tasks(self, stage: StageFolder) -> Mapping[str, Any]:
        """Write task knowledge for each demonstrated task."""
        settings = self.settings()
        count = self.counting.count_tokens
        # An episode that a fault ended says nothing about the policy.
        failed_episodes = {
            episode.task: episode
            for episode in self.episodes(_ROLLOUTS)
            if episode.steps and not episode.success and episode.error is None
        }

        requests = {}
        for demonstration in self._demos_to_learn():
            failed = failed_episodes.get(demonstration.task)
            requests[demonstration.task] = [comparison(demonstration, failed, settings, count)]
        texts = self.ask_each(stage, requests)
        compared = sum(task in failed_episodes for task in requests)
        return {"tasks": len(requests), "compared": compared, "faults": len(requests) - len(texts)}

    def write_states(self, stage: StageFolder) -> Mapping[str, Any]:
        """Put each of the expert's states into words, and make the knowledge base of them."""
        demos = self._demos_to_learn()
        encoder = self.config.agent.encoder
        faults = 0
        if self.config.agent.state_knowledge == "lm":
            self._ask_for_states(stage, demos)
            states = self._texts(_STATES)
            faults = len(demos) - len(states)
            base = _knowledge_base(demos, states, encoder)
        else:
            base = KnowledgeBase.from_trajectories(demos, encoder)

        if is_first():
            with writing(stage.path):
                base.save(stage.path / KNOWLEDGE)
        wait()
        return {"entries": len(base), "tasks": len(demos) - faults, "faults": faults}

    def _ask_for_states(self, stage: StageFolder, demos: Sequence[Trajectory]) -> None:
        """Ask the model to put each state of demonstrations into words."""
        settings = self.settings()
        requests = {}
        for demonstration in demos:
            views = views_of(demonstration, self.counting.count_tokens)
            requests[demonstration.task] = [state_request(view, settings) for view, _, _ in views]
        self.ask_each(stage, requests)

    def train_knowledge(self, stage: StageFolder) -> Fit:
        """Train the knowledge model to write both kinds of knowledge."""
        config = self.config
        states = self._texts(_STATES) if config.agent.state_knowledge == "lm" else {}
        samples = knowledge_samples(
            self._demos_to_learn(),
            self._task_knowledge(),
            states,
            self.settings(),
            self.counting.count_tokens,
        )
        return self.learn(stage, "knowledge", list(samples), config.epochs, config.learning_rate)

    def train_agent(self, stage: StageFolder) -> Fit:
        """Train the agent on the expert's replies, with task knowledge in the prompt.

        State knowledge is not in it, as it is not where the agent acts.
        """
        config = self.config
        settings = self.settings()
        knowledge_of_task = self._task_knowledge()
        samples = []
        for demonstration in self._demos_to_learn():
            knowledge = knowledge_of_task.get(demonstration.task, "")
            steps = shown_steps(demonstration, self.counting.count_tokens)
            for view, replies, _, reply in steps:
                messages = acting_prompt(view, settings, replies, knowledge)
                samples.append(sample_of("expert_action", messages, reply, view))
        return self.learn(stage, "agent", samples, config.epochs, config.learning_rate)

    def _demos_to_learn(self) -> list[Trajectory]:
        return self.demonstrated(None, "knowledge")

    def _task_knowledge(self) -> dict[str, str]:
        """Return the knowledge of each task; none in the ablation without it."""
        if not self.config.agent.task_knowledge:
            return {}
        return {task: texts[0] for task, texts in self._texts(_TASKS).items()}

    def _texts(self, name: str) -> dict[str, list[str]]:
        """Return the texts that a stage wrote, by task."""
        tasks = [demonstration.task for demonstration in self._demos_to_learn()]
        records = self.written(name, tasks)
        return {task: record["texts"] for task, record in records.items()}


def _knowledge_base(
    demos: Sequence[Trajectory], states: Mapping[str, Sequence[str]], encoder: str | None
) -> KnowledgeBase:
    """Return the knowledge base of states in words: each with the actions before and after it."""
    base = KnowledgeBase(encoder=encoder)
    for demonstration in demos:
        previous_action = ""
        texts = states.get(demonstration.task, ())
        for step, text in zip(demonstration.steps, texts, strict=False):
            base.add(Knowledge(text.strip(), previous_action, step.action))
            previous_action = step.action
    return base
