"""Supervised fine-tuning: the policy imitates an expert, a world model what followed.

Its samples are also CoMap's warm-up (CoMap, eq. 4 and 5), and its stages those that all trained
baselines of CoMap's Table 1 share.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..agents import Agent, AgentConfig, ReActAgent, ReActConfig
from ..agents.base import View, estimate_tokens
from ..agents.convert import text_of, views_of
from ..agents.parsing import first_line
from ..agents.prompting import converse
from ..errors import DataCorrupt, LanguageModelError, OptionError
from ..lm import LMRequest, Message, answer
from ..settings import PositiveFloat, PositiveInt
from ..trajectory import Step, Trajectory
from ..worldmodel import Query, WorldModel, transitions_of
from ..worldmodel.language import LanguageWorldModel
from .config import SharedTraining, recast
from .results import Fit
from .run_folder import Done, StageFolder, each_once
from .samples import Sample
from .stages import StagedTraining, Work, some_of

ASIDE = "aside"
"""The note of a step that is not to be copied: the demonstration shows how to go on after it."""

EVALUATION = "evaluation"
"""The stage in which the agent plays as it is to play in the end."""

WRITTEN = "written"
"""The folder, in a stage's own, of what the stage did once for each task."""


def is_shown(step: Step) -> bool:
    """Return whether a step of a demonstration is to be copied: real, and not noted `ASIDE`."""
    return not step.imagined and not step.notes.get(ASIDE)


def shown_steps(
    demonstration: Trajectory, count_tokens: Callable[[str], int] = estimate_tokens
) -> Iterator[tuple[View, dict[int, str], Step, str]]:
    """Yield what an expert saw before each step, the replies until then, the step, and its reply."""
    # Thoughts are put back into the replies: `views_of` has the actions alone, as of experts without any.
    thoughts: dict[int, str] = {}
    for view, replies, step in views_of(demonstration, count_tokens):
        place = f"task {demonstration.task!r:.80}, step {step.t}"
        thought = first_line(text_of(step.notes, "thought", place, ""))
        reply = f"Action: {step.action}"
        if thought:
            reply = f"Thought: {thought}\n{reply}"
        yield view, {**replies, **thoughts}, step, reply
        if "thought" in step.notes:
            thoughts[view.step] = reply


def imitation_samples(
    demonstrations: Iterable[Trajectory],
    config: AgentConfig,
    *,
    count_tokens: Callable[[str], int] = estimate_tokens,
    kind: str = "warmup",
    often: Mapping[tuple[int, int], int] | None = None,
) -> Iterator[Sample]:
    """Yield a sample for each step of demonstrations: the draft prompt, and the expert's reply.

    All of the reply carries loss: ``Action:`` and the action, after ``Thought:`` where a step's notes
    have a ``thought`` (CoMap, eq. 4). Later prompts show the thoughts too. `often` says how often the
    step at (index of the episode, of the step) is yielded, 0 times where it is missing; None for once each.
    """
    # Building prompts is what takes long: episodes none of whose steps are drawn are left out.
    episodes_in_use: set[int] = set()
    if often is not None:
        episodes_in_use = {index for (index, _), repeats in often.items() if repeats}

    for episode_index, demonstration in enumerate(demonstrations):
        if often is not None and episode_index not in episodes_in_use:
            continue
        steps = shown_steps(demonstration, count_tokens)
        for step_index, (view, replies, step, reply) in enumerate(steps):
            repeats = 1 if often is None else often.get((episode_index, step_index), 0)
            if repeats and is_shown(step):
                messages = converse(view, config, replies)
                yield from [sample_of(kind, messages, reply, view)] * repeats


def sample_of(
    kind: str, messages: tuple[Message, ...], text: str, view: View, weight: float = 1.0
) -> Sample:
    """Return the sample of a reply that carries loss in all its parts."""
    reply = ((text, True),)
    return Sample(
        kind=kind, messages=messages, reply=reply, weight=weight, task=view.task, step=view.step
    )


def transition_sample(
    query: Query, text: str, model: LanguageWorldModel, *, kind: str, task: str
) -> Sample:
    """Return the sample of one transition: the model's own prompt, and the real observation."""
    return Sample(
        kind=kind,
        messages=model.prompt(query),
        reply=((text, True),),
        task=task,
        step=len(query.history) - 1,
    )


def transition_samples(
    trajectories: Iterable[Trajectory], model: LanguageWorldModel, kind: str = "warmup"
) -> Iterator[Sample]:
    """Yield a sample for each real transition (CoMap, eq. 5)."""
    for trajectory in trajectories:
        for query, text in transitions_of(trajectory):
            yield transition_sample(query, text, model, kind=kind, task=trajectory.task)


@dataclass(frozen=True, kw_only=True)
class BaselineTraining(SharedTraining):
    """How a baseline is trained; the defaults are those of the preset ``paper``."""

    method: ClassVar[str] = ""
    """The method's name for `comap train`."""

    learning_rate: PositiveFloat = 2e-5
    """Highest learning rate."""
    epochs: PositiveInt = 3
    """Epochs of learning from demonstrations."""


@dataclass(frozen=True, kw_only=True)
class SFTTraining(BaselineTraining):
    """SFT: the policy imitates an expert; optionally a world model learns what followed.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> SFTTraining().train_world_model, SFTTraining(train_world_model=True).roles()
        (False, ('agent', 'wm'))
    """

    method: ClassVar[str] = "sft"
    replays_demonstrations: ClassVar[bool] = False

    agent: ReActConfig = field(default_factory=ReActConfig)
    """How the policy acts."""
    train_world_model: bool = False
    """Also train a world model on the expert's transitions alone: "SFT" of CoMap's Table 2."""

    def roles(self, begun: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names of the training's models."""
        return ("agent", "wm") if self.train_world_model else ("agent",)


class BaselineRun(StagedTraining):
    """The training of a baseline in a folder; some roles may have begun from a trained model."""

    def __init__(
        self, config: BaselineTraining, *parts: Any, begun: Collection[str] = (), **named: Any
    ) -> None:
        super().__init__(config, *parts, **named)
        self.begun = tuple(sorted(begun))

        # A demonstration of a test split would make the evaluation worthless.
        other_splits = {demonstration.split for demonstration in self.demos} - {config.train_split}
        if other_splits:
            raise OptionError(
                f"expected demonstrations of the split {config.train_split!r}, found some of "
                f"{', '.join(sorted(map(repr, other_splits)))}; a baseline learns from nothing else"
            )

    def described(self) -> dict[str, Any]:
        """Return what makes this training the training it is, as plain data."""
        return {"method": self.config.method, "begun": list(self.begun), **super().described()}

    def stages(self) -> list[tuple[str, Work]]:
        """Return the names of all stages and what each does, in order."""
        plan = self.learning()

        # None is all tasks: only 0 leaves the stage out.
        if self.config.evaluation_tasks != 0:
            plan = [*plan, (EVALUATION, self.evaluate)]
        return plan

    def learning(self) -> list[tuple[str, Work]]:
        """Return the stages in which something is learned."""
        raise NotImplementedError

    def player(self, temperature: float | None = None) -> Agent:
        """Return the agent that plays in evaluation."""
        return ReActAgent(recast(self.evaluated_agent(temperature), ReActConfig))

    def player_world(self) -> WorldModel | None:
        """Return the world model that the agent asks, or None."""
        return None

    def summary(self, results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Return the method, how long it took, and the results of the evaluation."""
        return {
            "method": self.config.method,
            "cpu_seconds": round(sum(result["cpu_seconds"] for result in results.values()), 3),
            "seconds": round(sum(result["seconds"] for result in results.values()), 3),
            "results": results.get(EVALUATION, {}).get("splits", {}),
        }

    def evaluate(self, stage: StageFolder) -> Mapping[str, Any]:
        """Play splits that nothing was learned from with the trained agent."""
        splits, _ = self.play_splits(
            stage,
            self.player,
            lm=self.language_model(),
            world_model=self.player_world(),
            tasks=self.config.evaluation_tasks,
        )
        return {"splits": splits}

    def imitate(self, stage: StageFolder, role: str, epochs: int, rate: float) -> Fit:
        """Fine-tune a role on the expert's replies."""
        count_tokens = self.counting.count_tokens
        samples = list(imitation_samples(self.demos, self.agent, count_tokens=count_tokens))
        return self.learn(stage, role, samples, epochs, rate)

    def model_world(self, stage: StageFolder, epochs: int, rate: float) -> Fit:
        """Fine-tune the world model on the expert's transitions alone."""
        samples = list(transition_samples(self.demos, self.world_model(self.counting)))
        return self.learn(stage, "wm", samples, epochs, rate)

    def write_each(
        self,
        stage: StageFolder,
        tasks: Sequence[str],
        size: int,
        work: Callable[[Sequence[str]], Iterable[Done]],
    ) -> dict[str, Any]:
        """Do work for each task once, so many at a time; return the results of those without an error."""

        def in_batches(missing: Sequence[str]) -> Iterator[Done]:
            for start in range(0, len(missing), size):
                yield from work(missing[start : start + size])
                done = min(start + size, len(missing))
                self.tell({"event": "task", "done": done, "of": len(missing)})

        # A batch is written when it is done: whoever is killed asks at most one of them again.
        records = each_once(stage.path / WRITTEN, tasks, in_batches)
        return {task: record for task, record in records.items() if "error" not in record}

    def ask_each(
        self, stage: StageFolder, questions: Mapping[str, Sequence[LMRequest]]
    ) -> dict[str, list[str]]:
        """Return the answers to each task's questions; a task whose questions fail has none."""
        lm = self.language_model()

        def work(tasks: Sequence[str]) -> Iterator[Done]:
            # The questions of several tasks are one batch.
            requests: list[LMRequest] = []
            for task in tasks:
                requests += questions[task]
            replies = iter(answer(lm, requests))

            for task in tasks:
                replies_of_task = [next(replies) for _ in questions[task]]
                faults = [
                    reply for reply in replies_of_task if isinstance(reply, LanguageModelError)
                ]
                if faults:
                    yield task, {"error": f"{type(faults[0]).__name__}: {faults[0]}"}
                else:
                    yield task, {"texts": [reply.text for reply in replies_of_task]}

        records = self.write_each(stage, list(questions), self.config.concurrency, work)
        return {task: record["texts"] for task, record in records.items()}

    def written(self, name: str, tasks: Sequence[str]) -> dict[str, Any]:
        """Return what a stage that has ended wrote of each task, without tasks that have an error."""

        def refuse(missing: Sequence[str]) -> Iterator[Done]:
            raise DataCorrupt(
                f"expected what the stage {name} wrote of {len(tasks)} tasks in "
                f"{self.folders[name].path}, found nothing of {len(missing)}; remove the folders of that "
                "stage and of all later ones to do them again"
            )

        return self.write_each(self.folders[name], tasks, len(tasks) or 1, refuse)

    def demonstrated(self, number: int | None, purpose: str) -> list[Trajectory]:
        """Return so many of the demonstrations all of whose steps are to be copied, one of a task."""
        # With side steps an episode is no example of the expert: what it shows are ways back.
        demo_of_task = {
            demonstration.task: demonstration
            for demonstration in self.demos
            if all(map(is_shown, demonstration.steps))
        }
        tasks = some_of(sorted(demo_of_task), number, self.seed(purpose, "demonstrations"))
        return [demo_of_task[task] for task in tasks]


class SFTRun(BaselineRun):
    """The training of SFT in a folder: `StagedTraining.run` does it, or resumes it.

    The policy learns ``E[-log pi(a* | s)]`` over the expert's steps: the stage is CoMap's warm-up,
    bit for bit where the settings are the same. The world model learns ``E[-log W(s' | s, a)]``.
    """

    can_shard = True

    @property
    def samples(self) -> bool:
        """Whether the policy plays in evaluation; it learns from demonstrations alone."""
        return bool(self.config.evaluation_tasks != 0)

    def learning(self) -> list[tuple[str, Work]]:
        """Return the stages in which something is learned."""
        epochs = self.config.epochs
        rate = self.config.learning_rate
        plan: list[tuple[str, Work]] = [
            ("warmup-policy", lambda stage: self.imitate(stage, "agent", epochs, rate))
        ]
        if self.config.train_world_model:
            plan.append(("world-model", lambda stage: self.model_world(stage, epochs, rate)))
            self.saved = ("agent", "wm")
        return plan
