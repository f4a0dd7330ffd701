"""Samples in tokens: what a trainer's losses are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LanguageModelError, OptionError
from ..lm import Generate
from ..lm.chat import ChatTokenizer
from .samples import Sample

__all__ = ["Example", "encode_samples", "scored_places"]

_DECISIONS = (" REVISE", " KEEP")
_LABEL = "Decision:"


@dataclass(frozen=True, slots=True)
class Example:
    """A sample in tokens.

    Its length is that of prompt and answer.

    Attributes:
        prompt: The tokens that are given.
        answer: The tokens that follow, the end token included unless they were cut.
        scored: Which of them carry loss.
        weight: Weight of the mean negative log-likelihood of those.
        label: The label of the refinement probability, 0 or 1, or None.
        label_weight: Weight of its cross-entropy.
        decision: Where the label is read from two words: the place in `answer` of the token that
            tells them apart, and the tokens of REVISE and of KEEP there. None where the reply has no
            decision, or was cut before it.
        teacher: The tokens of the teacher's prompt, where the sample is distilled.
        distill_weight: Weight of the distillation.

    Example:
        >>> len(Example((1, 2), (3,), (True,)))
        3
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    scored: tuple[bool, ...]
    weight: float = 1.0
    label: float | None = None
    label_weight: float = 0.0
    decision: tuple[int, int, int] | None = None
    teacher: tuple[int, ...] = ()
    distill_weight: float = 0.0

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def encode_samples(
    tokenizer: Any, samples: Sequence[Sample], max_length: int = 2048
) -> list[Example]:
    """Return samples in tokens.

    The prompt is the chat template's, with the beginning of the assistant's message. Each segment of
    the reply is tokenised by itself, so that a token belongs to one segment; the end token follows,
    and carries loss if the last segment does. A reply for which there is no room is cut at its end,
    and then has no end token.

    Args:
        tokenizer: A tokenizer with a chat template.
        samples: The samples.
        max_length: The most tokens of prompt and reply.

    Raises:
        LanguageModelError: A sample's messages are no conversation that the template takes.
        OptionError: A prompt leaves no room for a reply.

    Example:
        >>> from comap.lm import Message
        >>> from comap.lm.tiny import tokenizer_of
        >>> tokenizer = tokenizer_of(["look go"] * 2, 320)
        >>> asked = (Message("user", "It is dark."),)
        >>> sample = Sample(kind="warmup", messages=asked, reply=(("Action:", False), (" look", True)))
        >>> row = encode_samples(tokenizer, [sample])[0]
        >>> tokenizer.decode([token for token, flag in zip(row.answer, row.scored) if flag])
        ' look<|end|>'
    """
    chat = ChatTokenizer(tokenizer)
    prompts = _prompts(chat, [sample.messages for sample in samples])
    distilled = [number for number, sample in enumerate(samples) if sample.teacher]
    teachers = _prompts(chat, [samples[number].teacher for number in distilled])
    teacher_of = dict(zip(distilled, teachers, strict=True))
    texts = [text for sample in samples for text, _ in sample.reply]
    pieces = iter(chat.tokens(texts))
    words = [chat.tokens([word])[0] for word in _DECISIONS]
    found = []
    for number, (sample, prompt) in enumerate(zip(samples, prompts, strict=True)):
        parts = [next(pieces) for _ in sample.reply]
        room = max_length - max(len(prompt), len(teacher_of.get(number, ())))
        if room < 1:
            raise OptionError(
                f"expected prompts of less than {max_length} tokens, found one of "
                f"{max_length - room} ({sample.kind}, task {sample.task!r:.80}); raise max_length"
            )
        found.append(
            _example(sample, prompt, parts, chat.end, room, words, teacher_of.get(number, ()))
        )
    return found


def _example(
    sample: Sample,
    prompt: tuple[int, ...],
    parts: Sequence[Sequence[int]],
    end: int,
    room: int,
    words: Sequence[Sequence[int]],
    teacher: tuple[int, ...],
) -> Example:
    """Return one sample in tokens."""
    answer: list[int] = []
    scored: list[bool] = []
    decision = None
    said = ""
    for (text, flag), tokens in zip(sample.reply, parts, strict=True):
        if sample.label is not None and said.endswith(_LABEL) and text in _DECISIONS:
            decision = _decision(len(answer), words)
        answer += tokens
        scored += [flag] * len(tokens)
        said += text
    answer.append(end)
    scored.append(bool(sample.reply) and sample.reply[-1][1])
    answer, scored = answer[:room], scored[:room]
    if decision is not None and decision[0] >= len(answer):
        decision = None
    return Example(
        prompt,
        tuple(answer),
        tuple(scored),
        sample.weight,
        sample.label,
        sample.label_weight,
        decision,
        teacher,
        sample.distill_weight,
    )


def _decision(start: int, words: Sequence[Sequence[int]]) -> tuple[int, int, int] | None:
    """Return where two words in tokens first differ, and their tokens there."""
    for place, (one, other) in enumerate(zip(*words, strict=False)):
        if one != other:
            return start + place, one, other
    return None


def _prompts(chat: ChatTokenizer, conversations: Sequence[Any]) -> list[tuple[int, ...]]:
    found = []
    for prompt in chat.prompts([Generate(messages) for messages in conversations]):
        if isinstance(prompt, LanguageModelError):
            raise prompt
        found.append(tuple(prompt))
    return found


def scored_places(rows: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Return of each scored token its row's number, the position that it is predicted at, and itself.

    Args:
        rows: Examples, or what else has their prompts, answers and flags.

    Example:
        >>> scored_places([Example((1, 2), (3, 4), (False, True))])
        [(0, 2, 4)]
    """
    return [
        (number, len(row.prompt) - 1 + place, token)
        for number, row in enumerate(rows)
        for place, (token, flag) in enumerate(zip(row.answer, row.scored, strict=True))
        if flag
    ]
