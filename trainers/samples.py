"""What is learned: samples, the same in tokens, and in which order and batches they pass.

A sample is a conversation and the reply that a model shall give, in segments of which some carry loss.
Its rows in tokens are built once; masks come from the tokens' ids. The order and the micro-batches of
a whole stage are fixed before training begins, so that a killed stage resumes to the bit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..errors import LanguageModelError, OptionError
from ..lm import Generate, Message
from ..lm.chat import ChatTokenizer
from .config import Optimization

Segment: TypeAlias = tuple[str, bool]
"""A part of a reply, and whether its tokens carry loss."""

ANCHOR = "anchor"
"""The kind of samples that are demonstrations beside reflections."""

_DECISIONS = (" REVISE", " KEEP")
_LABEL = "Decision:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One thing to learn: a reply, perhaps a label of it, and perhaps a teacher to imitate."""

    kind: str
    messages: tuple[Message, ...]
    reply: tuple[Segment, ...]
    weight: float = 1.0
    label: float | None = None
    teacher: tuple[Message, ...] = ()
    task: str = ""
    step: int = 0

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.reply)

    @property
    def scored(self) -> str:
        """The parts of the reply that carry loss, one after the other."""
        return "".join(text for text, flag in self.reply if flag)

    def scaled(self, factor: float) -> Sample:
        return replace(self, weight=self.weight * factor)


def count_samples(samples: Iterable[Sample]) -> dict[str, int]:
    """Return the number of samples of each kind that occurs, by the kinds' names in order."""
    return dict(sorted(Counter(sample.kind for sample in samples).items()))


@dataclass(frozen=True, slots=True)
class Example:
    """A sample in tokens: a row of a training.

    Attributes:
        decision: The index in the answer of the labeled word's token, and REVISE's and KEEP's token.
        expert: Whether it is a demonstration beside reflections (CoMap, eq. 8).
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    scored: tuple[bool, ...]
    weight: float = 1.0
    label: float | None = None
    decision: tuple[int, int, int] | None = None
    teacher: tuple[int, ...] = ()
    expert: bool = False

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def encode_samples(
    tokenizer: Any, samples: Sequence[Sample], max_length: int = 2048
) -> list[Example]:
    """Return samples in tokens; replies are cut to the room that their prompts leave.

    The tokenizer may be a `ChatTokenizer`, which knows variables for the template.
    """
    chat = ChatTokenizer.around(tokenizer)
    prompts = prompt_tokens(chat, [Generate(sample.messages) for sample in samples])
    distilled = [sample for sample in samples if sample.teacher]
    teachers = iter(prompt_tokens(chat, [Generate(sample.teacher) for sample in distilled]))
    pieces = iter(chat.tokens([text for sample in samples for text, _ in sample.reply]))
    words = (chat.tokens([word])[0] for word in _DECISIONS)
    # where REVISE and KEEP first differ, and their tokens there
    pairs = enumerate(zip(*words, strict=False))
    decision = next(((index, one, other) for index, (one, other) in pairs if one != other), None)
    found = []
    for sample, prompt in zip(samples, prompts, strict=True):
        teacher = next(teachers) if sample.teacher else ()
        room = max_length - max(len(prompt), len(teacher))
        if room < 1:
            raise OptionError(
                f"expected prompts of less than {max_length} tokens, found one of "
                f"{max_length - room} ({sample.kind}, task {sample.task!r:.80}); raise max_length"
            )
        answer, scored, at = _reply(sample, [next(pieces) for _ in sample.reply], chat.end)
        labeled = None
        if at is not None and decision is not None and at + decision[0] < room:
            labeled = (at + decision[0], *decision[1:])
        found.append(
            Example(
                prompt,
                tuple(answer[:room]),
                tuple(scored[:room]),
                sample.weight,
                sample.label,
                labeled,
                teacher,
                sample.kind == ANCHOR,
            )
        )
    return found


def prompt_tokens(chat: ChatTokenizer, requests: Sequence[Any]) -> list[tuple[int, ...]]:
    found = []
    for prompt in chat.prompts(requests):
        if isinstance(prompt, LanguageModelError):
            raise prompt
        found.append(tuple(prompt))
    return found


def _reply(
    sample: Sample, parts: Sequence[Sequence[int]], end: int
) -> tuple[list[int], list[bool], int | None]:
    """Return a reply's tokens, which of them carry loss, and where its labeled decision begins."""
    answer: list[int] = []
    scored: list[bool] = []
    decision, so_far = None, ""
    for (text, flag), tokens in zip(sample.reply, parts, strict=True):
        if sample.label is not None and so_far.endswith(_LABEL) and text in _DECISIONS:
            decision = len(answer)
        answer += tokens
        scored += [flag] * len(tokens)
        so_far += text
    return [*answer, end], [*scored, sample.reply[-1][1]], decision


def scored_positions(rows: Sequence[Any]) -> list[tuple[int, int, int]]:
    return [
        (number, len(row.prompt) - 1 + place, token)
        for number, row in enumerate(rows)
        for place, (token, flag) in enumerate(zip(row.answer, row.scored, strict=True))
        if flag
    ]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that pass through the model together."""

    epoch: int
    rows: tuple[int, ...]


def plan_updates(
    lengths: Sequence[Sequence[int]], optimization: Optimization, seed: int = 0
) -> list[MicroBatch]:
    """Return all micro-batches of a training in their order, those of whole updates."""
    plan = []
    for epoch, rows in enumerate(lengths):
        batches = _batches(rows, optimization, random.Random(f"{seed}\n{epoch}".encode()))
        missing = -len(batches) % optimization.accumulate
        plan += [MicroBatch(epoch, batch) for batch in (*batches, *[()] * missing)]
    return plan


def _batches(
    lengths: Sequence[int], optimization: Optimization, rng: random.Random
) -> list[tuple[int, ...]]:
    order = list(range(len(lengths)))
    rng.shuffle(order)
    if optimization.batch_rows is not None:
        size = optimization.batch_rows
        return [tuple(order[at : at + size]) for at in range(0, len(order), size)]
    assert optimization.batch_tokens is not None
    order.sort(key=lambda row: lengths[row])  # keeps the random order of equal lengths
    batches: list[tuple[int, ...]] = []
    batch: list[int] = []
    for row in order:
        if batch and lengths[row] * (len(batch) + 1) > optimization.batch_tokens:
            batches.append(tuple(batch))
            batch = []
        batch.append(row)
    if batch:
        batches.append(tuple(batch))
    rng.shuffle(batches)
    return batches
