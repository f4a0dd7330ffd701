"""What the world model learns from: real transitions (METHODS.md 1.5 and 1.7)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from ..agents.convert_rows import text_of, value_of
from ..errors import OptionError
from ..facts import State
from ..trajectory import Step, Trajectory
from ..worldmodel import Query, transitions_of
from ..worldmodel.language import LanguageWorldModel
from .privileged import privileged_prompt
from .samples import Sample

__all__ = [
    "Target",
    "TeacherPrompt",
    "reading_samples",
    "transition_sample",
    "world_model_samples",
]

Target: TypeAlias = Literal["observation", "full_state"]
"""What the world model shall answer: the next observation, or all facts after it (METHODS.md 1.5)."""

TeacherPrompt: TypeAlias = Literal["privileged", "plain"]
"""What the teacher is asked: with the real answer in the prompt, or the student's own prompt."""


def world_model_samples(
    trajectories: Iterable[Trajectory],
    model: LanguageWorldModel,
    *,
    distill_weight: float = 0.0,
    real_weight: float = 1.0,
    teacher: TeacherPrompt = "privileged",
    target: Target = "observation",
    kind: str = "world_model",
    include_probes: bool = False,
) -> Iterator[Sample]:
    """Yield a sample for each real transition: the model's own prompt, and what was observed.

    An observation without text is one too: then only the end of the reply is learned.

    Args:
        trajectories: What was played; imagined steps are left out.
        model: The world model: says how its prompts look.
        distill_weight: eta, the weight of WMSD (METHODS.md 1.7); 0 leaves the teacher out, as warm-up
            does.
        real_weight: Weight of the likelihood of what was observed; 0 is the ablation "w/o Real CE".
        teacher: What the teacher is asked; ``plain`` is the authors' code's.
        target: What is to be answered.
        kind: The samples' kind; ``"warmup"`` for those of the warm-up.
        include_probes: Whether the draft that was only tried, where another action was taken, counts
            as well (METHODS.md 1.2, step 7).

    Raises:
        OptionError: An option has no such value, or ``full_state`` is asked of probes, of which no
            facts are kept.
        DataCorrupt: The note of a probe is not what a training rollout notes.

    Example:
        >>> list(world_model_samples([], None, teacher="oracle"))
        Traceback (most recent call last):
        comap.errors.OptionError: teacher must be one of 'privileged', 'plain', not 'oracle'
    """
    _check(teacher, get_args(TeacherPrompt), "teacher")
    _check(target, get_args(Target), "target")
    if include_probes and target == "full_state":
        raise OptionError(
            "of probes no facts are kept: use target='observation' with include_probes=True"
        )
    for trajectory, query, text in _told(trajectories, target, include_probes):
        yield transition_sample(
            query,
            text,
            model,
            distill_weight=distill_weight,
            real_weight=real_weight,
            teacher=teacher,
            kind=kind,
            task=trajectory.task,
        )


def transition_sample(
    query: Query,
    text: str,
    model: LanguageWorldModel,
    *,
    distill_weight: float = 0.0,
    real_weight: float = 1.0,
    teacher: TeacherPrompt = "privileged",
    kind: str = "world_model",
    task: str = "",
) -> Sample:
    """Return the sample of one transition; see `world_model_samples`.

    Args:
        query: The state and the action.
        text: What is to be answered.
        model: The world model: says how its prompts look.
        distill_weight: eta; 0 leaves the teacher out.
        real_weight: Weight of the likelihood of `text`.
        teacher: What the teacher is asked.
        kind: The sample's kind.
        task: The task that it is of.
    """
    prompt = model.prompt(query)
    asked = prompt
    if distill_weight > 0 and teacher == "privileged":
        asked = privileged_prompt(model, query, text)
    return Sample(
        kind=kind,
        messages=prompt,
        reply=((text, True),),
        weight=real_weight,
        teacher=asked if distill_weight > 0 else (),
        distill_weight=distill_weight,
        task=task,
        step=len(query.history) - 1,
    )


def reading_samples(
    trajectories: Iterable[Trajectory],
    model: LanguageWorldModel,
    *,
    share: float,
    seed: int = 0,
    target: Target = "observation",
    weight: float = 1.0,
    others: Sequence[str] = (),
) -> Iterator[Sample]:
    """Yield samples that teach a small model to read the teacher's prompt [D].

    A small model that never saw the teacher's prompt cannot use it. So for a share of the transitions
    that prompt is the sample's own, and what was observed is the reply. With `others`, half of these
    tell, and answer, another text instead: one that only reading can find, not knowledge of the world.
    The preset ``paper`` has none.

    Args:
        trajectories: What was played.
        model: The world model: says how its prompts look.
        share: Which share of the transitions, 0 to 1; each is drawn by itself, by its place alone.
        seed: Seed of the draw.
        target: What is to be answered.
        weight: Weight of the likelihood.
        others: Texts to draw from.

    Raises:
        OptionError: `share` is none, or there is no such target.

    Example:
        >>> list(reading_samples([], None, share=1.5))
        Traceback (most recent call last):
        comap.errors.OptionError: share must be a number from 0 to 1, not 1.5
    """
    _check(target, get_args(Target), "target")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise OptionError(f"share must be a number from 0 to 1, not {share!r}")
    for trajectory, query, text in _told(trajectories, target, False):
        step = len(query.history) - 1
        episode = f"{trajectory.task}\n{trajectory.seed}\n{trajectory.trial}"
        rng = random.Random(f"{seed}\nreading\n{episode}\n{step}".encode("utf-8", "replace"))
        if rng.random() < share:
            if others and rng.random() < 0.5:
                text = others[rng.randrange(len(others))]
            yield Sample(
                kind="reading",
                messages=privileged_prompt(model, query, text),
                reply=((text, True),),
                weight=weight,
                task=trajectory.task,
                step=step,
            )


def _told(
    trajectories: Iterable[Trajectory], target: Target, probes: bool
) -> Iterator[tuple[Trajectory, Query, str]]:
    """Yield each real transition with its target, and after it that of its probe."""
    for trajectory in trajectories:
        for query, observation in transitions_of(trajectory):
            step = trajectory.steps[len(query.history) - 1]
            after: State = step.facts
            yield trajectory, query, observation if target == "observation" else after.to_text()
            found = _probe(trajectory, step) if probes else None
            if found is not None:
                action, seen = found
                yield trajectory, replace(query, action=action), seen


def _probe(trajectory: Trajectory, step: Step) -> tuple[str, str] | None:
    """Return the draft that was tried and what was observed, where another action was taken."""
    where = f"task {trajectory.task!r:.80}, step {step.t}"
    seen = value_of(step.notes, "env_next_of_draft", where, dict, None)
    if seen is None:
        return None
    draft = text_of(step.notes, "draft_action", where)
    if draft == step.action:
        return None
    return draft, text_of(seen, "observation", where)


def _check(value: object, allowed: tuple[str, ...], name: str) -> None:
    if value not in allowed:
        listed = ", ".join(repr(option) for option in allowed)
        raise OptionError(f"{name} must be one of {listed}, not {value!r}")
