"""What the policy learns from demonstrations: warm-up, and the anchors beside reflections.

Behaviour cloning on expert steps (METHODS.md 1.5), the same steps drawn anew for each epoch of the
policy's evolution, and the weights that put both sums of its loss on one scale (METHODS.md 1.8).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..agents import AgentConfig
from ..agents.base import View, estimate_tokens
from ..agents.convert_rows import text_of
from ..agents.parsing import first_line
from ..agents.prompting import converse
from ..errors import OptionError
from ..trajectory import Step, Trajectory
from .replayed import views_of
from .samples import Sample

__all__ = [
    "ASIDE",
    "anchor_samples",
    "balance_weights",
    "balanced",
    "is_shown",
    "shown_steps",
    "warmup_samples",
]

ASIDE = "aside"
"""The note of a step in a demonstration that shows how to go on after it, and is not to be copied."""


def is_shown(step: Step) -> bool:
    """Return whether a step of a demonstration is to be copied: real, and not noted `ASIDE`.

    Example:
        >>> from comap.facts import Delta, State
        >>> step = Step(1, "look", "A room.", 0.0, False, False, False, State(), Delta())
        >>> is_shown(step)
        True
    """
    return not step.imagined and not step.notes.get(ASIDE)


def warmup_samples(
    demonstrations: Iterable[Trajectory],
    config: AgentConfig,
    *,
    count_tokens: Callable[[str], int] = estimate_tokens,
    kind: str = "warmup",
    weight: float = 1.0,
) -> Iterator[Sample]:
    """Yield a sample for each step of demonstrations: the draft prompt, and the expert's reply.

    All of the reply carries loss: ``Action:`` and the action, after ``Thought:`` where a step's notes
    have a ``thought`` (METHODS.md 1.5, equation 4). Later prompts show the thoughts too.

    Args:
        demonstrations: What an expert did; steps that are not `is_shown` are only told in prompts.
        config: How the policy is asked.
        count_tokens: Counts the tokens of a text as the policy's model does, so that prompts are cut
            as they are where it plays.
        kind: The samples' kind.
        weight: Weight of each.

    Raises:
        DataCorrupt: The note of a thought is no text.

    Example:
        >>> list(warmup_samples([], AgentConfig()))
        []
    """
    for demonstration in demonstrations:
        yield from _cloned(demonstration, config, count_tokens, kind, weight, None)


def anchor_samples(
    demonstrations: Sequence[Trajectory],
    config: AgentConfig,
    number: int,
    seed: int,
    *,
    count_tokens: Callable[[str], int] = estimate_tokens,
    weight: float = 1.0,
) -> list[Sample]:
    """Return samples of steps of demonstrations drawn at random, of the kind ``anchor``.

    Steps are drawn without putting back. Where more are wanted than there are, each is there equally
    often, but for one. They come in the order of the demonstrations.

    Args:
        demonstrations: What an expert did.
        config: How the policy is asked.
        number: How many; as many as there are reflections is a good choice.
        seed: Seed of the draw: another one for each epoch (METHODS.md 1.9, step 4).
        count_tokens: Counts the tokens of a text as the policy's model does.
        weight: Weight of each.

    Raises:
        OptionError: `number` is no number of samples, or there is no step to draw.

    Example:
        >>> anchor_samples([], AgentConfig(), 0, seed=0)
        []
    """
    if type(number) is not int or number < 0:
        raise OptionError(f"number must be a whole number of at least 0, not {number!r}")
    places = [
        (episode, place)
        for episode, demonstration in enumerate(demonstrations)
        for place, step in enumerate(demonstration.steps)
        if is_shown(step)
    ]
    if number and not places:
        raise OptionError("expected demonstrations to draw anchors from, found no step in them")
    rng = random.Random(f"{seed}\nanchors".encode())
    often, rest = divmod(number, len(places)) if places else (0, 0)
    drawn = Counter(rng.sample(places, rest))
    found: list[Sample] = []
    for episode, demonstration in enumerate(demonstrations):
        wanted = {place: often + drawn[episode, place] for place in range(len(demonstration.steps))}
        if any(wanted.values()):
            found += _cloned(demonstration, config, count_tokens, "anchor", weight, wanted)
    return found


def balance_weights(anchors: Sequence[Sample], reflections: Sequence[Sample]) -> list[Sample]:
    """Return all samples, weighted so that their mean is the sum of two means (METHODS.md 1.8).

    Each of A anchors is multiplied by (A + R) / A and each of R reflections by (A + R) / R. Then the
    mean loss of rows drawn evenly from all is an estimate of ``E_anchors[loss] + E_reflections[loss]``,
    however many there are of each; alpha and beta are in the reflections' own weights. Where one of
    the two is empty the other stays as it is.

    Args:
        anchors: Samples of demonstrations.
        reflections: Samples of reflections.

    Example:
        >>> from comap.lm import Message
        >>> def make(kind):
        ...     return Sample(kind=kind, messages=(Message("user", "?"),), reply=(("!", True),))
        >>> both = balance_weights([make("anchor")], [make("keep_draft")] * 3)
        >>> [round(sample.weight, 3) for sample in both]
        [4.0, 1.333, 1.333, 1.333]
    """
    total = len(anchors) + len(reflections)
    return [
        sample.scaled(total / len(group)) for group in (anchors, reflections) for sample in group
    ]


def _cloned(
    demonstration: Trajectory,
    config: AgentConfig,
    count_tokens: Callable[[str], int],
    kind: str,
    weight: float,
    wanted: dict[int, int] | None,
) -> Iterator[Sample]:
    """Yield the samples of a demonstration, each step as often as wanted; None is once each."""
    steps = shown_steps(demonstration, count_tokens)
    for place, (view, replies, step, reply) in enumerate(steps):
        often = 1 if wanted is None else wanted.get(place, 0)
        if often and is_shown(step):
            sample = Sample(
                kind=kind,
                messages=converse(view, config, replies),
                reply=((reply, True),),
                weight=weight,
                task=view.task,
                step=view.step,
            )
            yield from [sample] * often


def shown_steps(
    demonstration: Trajectory, count_tokens: Callable[[str], int] = estimate_tokens
) -> Iterator[tuple[View, dict[int, str], Step, str]]:
    """Yield what an expert saw before each step, the replies until then, the step, and its reply.

    Args:
        demonstration: What an expert did.
        count_tokens: Counts the tokens of a text as the policy's model does.

    Raises:
        DataCorrupt: The note of a thought is no text.

    Example:
        >>> from comap.facts import State
        >>> list(shown_steps(Trajectory("id", "task", "train", "Wait.", "agent", "Hello.", State())))
        []
    """
    thoughts: dict[int, str] = {}
    for view, replies, step in views_of(demonstration, count_tokens):
        reply = _reply(demonstration, step)
        yield view, {**replies, **thoughts}, step, reply
        if "thought" in step.notes:
            thoughts[view.step] = reply


def _reply(demonstration: Trajectory, step: Step) -> str:
    where = f"task {demonstration.task!r:.80}, step {step.t}"
    thought = first_line(text_of(step.notes, "thought", where, ""))
    lead = f"Thought: {thought}\n" if thought else ""
    return f"{lead}Action: {step.action}"


def balanced(samples: Sequence[Sample], ratio: float, seed: int) -> list[Sample]:
    """Return a round's samples with at most so many kept drafts for each revision [D].

    The policy's own gate makes the labels (METHODS.md 1.8). Where it opens rarely, nearly all are kept
    drafts, and a small model learns to keep everything. Samples of other kinds stay; the order does
    too. Without a revision nothing is dropped.

    Args:
        samples: The samples, as `rollout_samples` yields them.
        ratio: The most samples of the kind ``keep_draft`` for each with a revision.
        seed: Seed of the draw.

    Example:
        >>> from comap.lm import Message
        >>> kinds = ["keep_draft"] * 5 + ["hq_reflect"]
        >>> asked, said = (Message("user", "?"),), (("!", True),)
        >>> rows = [Sample(kind=kind, messages=asked, reply=said) for kind in kinds]
        >>> [row.kind for row in balanced(rows, 2, seed=0)]
        ['keep_draft', 'keep_draft', 'hq_reflect']
    """
    kept = [number for number, one in enumerate(samples) if one.kind == "keep_draft"]
    revised = sum(one.kind in ("revise_positive", "hq_reflect") for one in samples)
    if not revised or len(kept) <= ratio * revised:
        return list(samples)
    rng = random.Random(f"{seed}\nbalance".encode())
    chosen = set(rng.sample(kept, int(ratio * revised)))
    dropped = set(kept) - chosen
    return [one for number, one in enumerate(samples) if number not in dropped]
