"""What is learned: samples, the same in tokens, and in which order and batches they pass.

A sample is a conversation and the reply that a model shall give, in segments of which some carry loss.
Its rows in tokens are built once; masks come from the tokens' ids. The order and the updates of a whole
stage are fixed before training begins, so that a killed stage resumes to the bit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

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
    """One thing to learn: a reply, perhaps its label, and perhaps the prompt of a teacher to imitate."""

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
        """The whole reply."""
        return "".join(text for text, _ in self.reply)

    @property
    def scored(self) -> str:
        """The parts of the reply that carry loss, one after the other."""
        return "".join(text for text, has_loss in self.reply if has_loss)

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

    The tokenizer may be a `ChatTokenizer`, which has variables for the template.

    Raises:
        OptionError: A prompt leaves no room for a reply.
    """
    chat = ChatTokenizer.around(tokenizer)
    prompts = prompt_tokens(chat, [Generate(sample.messages) for sample in samples])
    distilled = [sample for sample in samples if sample.teacher]
    teachers = iter(prompt_tokens(chat, [Generate(sample.teacher) for sample in distilled]))

    # Each segment by itself, so that a token belongs to one segment and its mask is exact.
    texts = []
    for sample in samples:
        texts += [text for text, _ in sample.reply]
    segments = iter(chat.tokens(texts))

    decision = _first_difference(*chat.tokens(_DECISIONS))
    examples = []
    for sample, prompt in zip(samples, prompts, strict=True):
        teacher = next(teachers) if sample.teacher else ()

        # Student and teacher read the same reply: the longer prompt decides.
        room = max_length - max(len(prompt), len(teacher))
        if room < 1:
            raise OptionError(
                f"expected prompts of less than {max_length} tokens, found one of "
                f"{max_length - room} ({sample.kind}, task {sample.task!r:.80}); raise max_length"
            )

        tokens_of_segments = [next(segments) for _ in sample.reply]
        answer, scored, decision_start = _reply(sample, tokens_of_segments, chat.end)

        # A decision that was cut off has no token to learn.
        labeled_decision = None
        if decision_start is not None and decision is not None:
            offset, revise_id, keep_id = decision
            if decision_start + offset < room:
                labeled_decision = (decision_start + offset, revise_id, keep_id)

        examples.append(
            Example(
                prompt,
                tuple(answer[:room]),
                tuple(scored[:room]),
                sample.weight,
                sample.label,
                labeled_decision,
                teacher,
                sample.kind == ANCHOR,
            )
        )
    return examples


def _first_difference(
    revise_ids: Sequence[int], keep_ids: Sequence[int]
) -> tuple[int, int, int] | None:
    """Return the index where REVISE's and KEEP's tokens first differ, and both tokens there."""
    for index, (revise_id, keep_id) in enumerate(zip(revise_ids, keep_ids, strict=False)):
        if revise_id != keep_id:
            return index, revise_id, keep_id
    return None


def prompt_tokens(chat: ChatTokenizer, requests: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the tokens of each request's prompt.

    Raises:
        LanguageModelError: A prompt cannot be made.
    """
    prompts = []
    for prompt in chat.prompts(requests):
        if isinstance(prompt, LanguageModelError):
            raise prompt
        prompts.append(tuple(prompt))
    return prompts


def _reply(
    sample: Sample, tokens_of_segments: Sequence[Sequence[int]], end: int
) -> tuple[list[int], list[bool], int | None]:
    """Return a reply's tokens, which of them carry loss, and where its labeled decision begins."""
    answer: list[int] = []
    scored: list[bool] = []
    decision_start = None
    text_before = ""
    for (text, has_loss), tokens in zip(sample.reply, tokens_of_segments, strict=True):
        if sample.label is not None and text_before.endswith(_LABEL) and text in _DECISIONS:
            decision_start = len(answer)
        answer += tokens
        scored += [has_loss] * len(tokens)
        text_before += text

    # The end token belongs to the last segment.
    _, last_has_loss = sample.reply[-1]
    return [*answer, end], [*scored, last_has_loss], decision_start


class ScoredToken(NamedTuple):
    """A token that carries loss, and where its row's sequence predicts it."""

    row_index: int
    position: int
    token_id: int


def scored_positions(rows: Sequence[Any]) -> list[ScoredToken]:
    """Return the scored tokens of rows, in order."""
    scored_tokens = []
    for row_index, row in enumerate(rows):
        prompt_end = len(row.prompt) - 1
        for offset, (token_id, is_scored) in enumerate(zip(row.answer, row.scored, strict=True)):
            if is_scored:
                scored_tokens.append(ScoredToken(row_index, prompt_end + offset, token_id))
    return scored_tokens


@dataclass(frozen=True, slots=True)
class Update:
    """The rows of one step of the optimizer, over all processes.

    Attributes:
        epoch: Whose rows they are.
        batches: The rows in micro-batches of `batch_tokens`; else all in one, which `dealt` cuts.
    """

    epoch: int
    batches: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """All rows, by their indices in the epoch."""
        return tuple(chain.from_iterable(self.batches))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of an update that pass through the model together, in one process."""

    epoch: int
    rows: tuple[int, ...]


def plan_updates(
    lengths: Sequence[Sequence[int]], optimization: Optimization, seed: int = 0
) -> list[Update]:
    """Return all updates of a training in their order; none mixes epochs, whose rows may differ."""
    plan = []
    for epoch, lengths_of_epoch in enumerate(lengths):
        # Each epoch has a generator of its own: its order does not depend on those before it.
        rng = random.Random(f"{seed}\n{epoch}".encode())
        row_indices = list(range(len(lengths_of_epoch)))
        rng.shuffle(row_indices)

        updates: list[tuple[tuple[int, ...], ...]] = []
        accumulate = optimization.accumulate
        if optimization.batch_rows is not None:
            size = optimization.batch_rows * accumulate
            for start in range(0, len(row_indices), size):
                updates.append((tuple(row_indices[start : start + size]),))
        else:
            assert optimization.batch_tokens is not None
            batches = _batches(row_indices, lengths_of_epoch, optimization.batch_tokens)
            rng.shuffle(batches)  # else short rows would always be learned before long ones
            for start in range(0, len(batches), accumulate):
                updates.append(tuple(batches[start : start + accumulate]))

        # An epoch's last update has what is left.
        plan += [Update(epoch, batches_of_update) for batches_of_update in updates]
    return plan


def _batches(
    row_indices: Sequence[int], lengths: Sequence[int] | Mapping[int, int], max_tokens: int
) -> list[tuple[int, ...]]:
    """Return rows, given their lengths, in batches of at most so many tokens, padding included.

    Rows of like lengths share a batch, so that little is padding; a longer row is a batch by itself.
    """
    by_length = sorted(row_indices, key=lambda index: lengths[index])  # equal lengths stay in order
    batches: list[tuple[int, ...]] = []
    batch: list[int] = []
    for row_index in by_length:
        # The row is the longest so far: all others are padded to its length.
        padded_tokens = lengths[row_index] * (len(batch) + 1)
        if batch and padded_tokens > max_tokens:
            batches.append(tuple(batch))
            batch = []
        batch.append(row_index)
    if batch:
        batches.append(tuple(batch))
    return batches


def dealt(
    update: Update, lengths: Mapping[int, int], max_tokens: int | None, processes: int = 1
) -> list[list[MicroBatch]]:
    """Return an update's micro-batches for each process.

    Args:
        update: The rows.
        lengths: Of each row, the tokens that are read for it; not needed without `max_tokens`.
        max_tokens: Most tokens of a micro-batch, padding included; None where the update has them already.
        processes: How many share the update. Only where one has fewer micro-batches than another it has
            empty ones: they exchange gradients.
    """
    shares: list[list[tuple[int, ...]]]
    if max_tokens is None:
        shares = [list(update.batches[rank::processes]) for rank in range(processes)]
    else:
        # In turns by length, so that each process has rows of all lengths. What needs most memory is first.
        by_length = sorted(update.rows, key=lambda row_index: lengths[row_index])
        shares = [
            _batches(by_length[rank::processes], lengths, max_tokens)[::-1]
            for rank in range(processes)
        ]

    count = max(1, *map(len, shares))
    micro_batches = []
    for batches in shares:
        batches += [()] * (count - len(batches))
        micro_batches.append([MicroBatch(update.epoch, batch) for batch in batches])
    return micro_batches
