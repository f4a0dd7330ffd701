"""What the policy learns from drafts and reflections: of suffix rollouts, and of its own episodes.

Both give samples of the reflect mode (METHODS.md 1.6 and 1.8). The authors' code learns from further
samples of the same episodes; these are here too, and off unless `PolicyOptions` gives them a weight.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..agents.acting import Draft
from ..agents.base import estimate_tokens
from ..agents.comap import CoMapConfig
from ..errors import OptionError
from ..trajectory import Trajectory
from .decided import Decided
from .policy_options import PolicyOptions
from .policy_writer import Judged, SampleWriter
from .reflect_reply import on_one_line
from .replayed import views_of
from .samples import Sample
from .suffix_label import SuffixLabel

__all__ = ["OutcomeKey", "is_held_out", "label_samples", "rollout_samples"]

OutcomeKey: TypeAlias = tuple[str, "int | None", int]
"""A step that suffix rollouts judged: the task, the episode's seed, the actions taken before it."""


def label_samples(
    labels: Iterable[SuffixLabel],
    trajectories: Iterable[Trajectory],
    config: CoMapConfig,
    options: PolicyOptions | None = None,
    *,
    analyses: Mapping[tuple[str, int], str] | None = None,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> list[Sample]:
    """Return a sample of the reflect mode for each label of suffix rollouts (METHODS.md 1.6).

    A sample's kind is its label's: ``expert_draft`` where the draft means the expert's action, else
    ``revise_positive`` or ``keep_draft``. A label whose target is not on one line gives no sample.

    Args:
        labels: What suffix rollouts found.
        trajectories: The episodes in which the drafts were asked for.
        config: How the policy is asked.
        options: Of them `beta` and `form_loss` count here; None for the defaults. Alpha weighs later
            reflections beside anchors.
        analyses: The policy's own reflection on a draft, by task and number of actions before; a
            sample without one has no such line.
        count_tokens: Counts the tokens of a text as the policy's model does.

    Raises:
        OptionError: A label is of a state that is in no episode.

    Example:
        >>> label_samples([], [], CoMapConfig())
        []
    """
    writer = SampleWriter(config, replace(options or PolicyOptions(), alpha=1.0))
    wanted: dict[tuple[str, tuple[str, ...]], list[tuple[int, SuffixLabel]]] = {}
    for number, label in enumerate(labels):
        if not on_one_line(label.target):
            continue
        wanted.setdefault((label.task, tuple(label.prefix)), []).append((number, label))
    found: dict[int, Sample] = {}
    for trajectory in trajectories:
        actions = tuple(step.action for step in trajectory.steps)
        for view, replies, _ in views_of(trajectory, count_tokens):
            for number, label in wanted.pop((trajectory.task, actions[: view.step]), ()):
                drafted = Draft(label.draft_response, label.draft_action, True, config.decoding)
                analysis = (analyses or {}).get((view.task, view.step), "")
                judged = Judged(drafted, label.future, bool(label.y), label.target, analysis)
                found[number] = writer.reflection(label.kind, view, replies, judged)
    if wanted:
        task, prefix = next(iter(wanted))
        raise OptionError(
            f"expected an episode of task {task!r:.80} with the {len(prefix)} actions before a "
            "label's draft, found none; give the trajectories that the labels are from"
        )
    return [found[number] for number in sorted(found)]


def is_held_out(trajectory: Trajectory, share: float) -> bool:
    """Return whether an episode is among those that are not learned from.

    That depends on its task, seed and trial alone: by a hash, so that it is the same everywhere.

    Args:
        trajectory: The episode.
        share: The share of episodes that is held out, 0 to 1.

    Example:
        >>> from comap.facts import State
        >>> episode = Trajectory("id", "task", "train", "goal", "comap", "Hello.", State())
        >>> is_held_out(episode, 0.0), is_held_out(episode, 1.0)
        (False, True)
    """
    told = f"{trajectory.task}\n{trajectory.seed}\n{trajectory.trial}"
    digest = hashlib.sha256(told.encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:6], "big") < share * 2**48


def rollout_samples(
    trajectories: Sequence[Trajectory],
    config: CoMapConfig,
    options: PolicyOptions | None = None,
    *,
    outcomes: Mapping[OutcomeKey, int] | None = None,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> Iterator[Sample]:
    """Yield the samples of a round's episodes (METHODS.md 1.8).

    A step whose draft and reflection can both be read gives one sample of the reflect mode. Its label
    is whether the gate opened on another action (with the outcome filter ``suffix``: what the suffix
    rollouts found of the two), its target the reflected action or the draft. Its kind is
    ``revise_positive``, or ``hq_reflect`` where the episode succeeded too, or ``keep_draft``.
    Actions that are not on one line are no targets. In the ablation "w/o Action Gate" the label is
    whether the reflection means another action than the draft.

    Args:
        trajectories: The round's episodes, of an agent that notes its decisions as `CoMapAgent`.
        config: How the policy is asked.
        options: Which samples, and how much each counts; None for the preset ``paper``.
        outcomes: With the outcome filter ``suffix``: 1 where the reflected action did better than the
            draft, else 0. A step that is not in it gives no sample, unless both actions are the same.
        count_tokens: Counts the tokens of a text as the policy's model does.

    Raises:
        OptionError: `outcomes` are given without the filter that reads them, or lacking for it.
        DataCorrupt: A step's notes are not what the agent notes.

    Example:
        >>> list(rollout_samples([], CoMapConfig()))
        []
    """
    options = options or PolicyOptions()
    if (outcomes is not None) != (options.outcome_filter == "suffix"):
        raise OptionError(
            "expected outcomes exactly where outcome_filter is 'suffix', found "
            f"outcome_filter={options.outcome_filter!r} with{'out' * (outcomes is None)} outcomes"
        )
    writer = SampleWriter(config, options)
    for trajectory in _used(trajectories, options):
        for view, replies, step in views_of(trajectory, count_tokens):
            decided = None if step.imagined else Decided.of(trajectory, step)
            if decided is None or not decided.draft.parsed:
                continue
            label = _label(decided, options, outcomes, (view.task, trajectory.seed, view.step))
            if label is not None and options.alpha > 0:
                yield from writer.of_episode(view, replies, decided, label, trajectory.success)
            yield from writer.further(view, replies, decided, step.action)


def _used(trajectories: Sequence[Trajectory], options: PolicyOptions) -> list[Trajectory]:
    """Return the episodes that are learned from."""
    kept = [t for t in trajectories if not is_held_out(t, options.held_out)]
    good = [t for t in kept if t.success]
    if options.outcome_filter == "episode_success":
        return good
    return good if good and options.episode_filter == "successful_or_all" else kept


def _label(
    decided: Decided,
    options: PolicyOptions,
    outcomes: Mapping[OutcomeKey, int] | None,
    key: OutcomeKey,
) -> int | None:
    """Return y; None where the step is no sample of the reflect mode."""
    if not decided.reflected:
        return None
    if not decided.changed:
        return 0
    if outcomes is None or options.outcome_filter != "suffix":
        return int(decided.gate)
    return outcomes.get(key)
