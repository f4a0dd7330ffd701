"""Samples: what a model shall say after which prompt, and what each part of it counts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..errors import DataCorrupt, OptionError
from ..lm import Message
from ..lm.base import ROLES

__all__ = ["Sample", "Segment"]

Segment: TypeAlias = tuple[str, bool]
"""A part of a reply, and whether its tokens carry loss."""

_KIND = re.compile(r"[a-z][a-z_]{0,39}")
_WEIGHTS = ("weight", "label_weight", "distill_weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    r"""One thing to learn (METHODS.md 1.0.1, WMExample and PolicySample).

    Its loss is a sum of three terms, each with a weight of its own: ``weight`` times the mean negative
    log-likelihood of the scored tokens, ``label_weight`` times the binary cross-entropy of the
    refinement probability and the label, and ``distill_weight`` times the divergence from the teacher.

    Attributes:
        kind: Where it is from, in lower case: ``"warmup"``, ``"anchor"``, ``"expert_draft"``,
            ``"revise_positive"``, ``"keep_draft"``, ``"hq_reflect"``, ``"draft_distill"``,
            ``"own_anchor"``, ``"fallback"``, ``"self_distill"``, ``"world_model"``, ``"reading"``.
        messages: The prompt.
        reply: What follows it, in segments; the end token always follows, and carries loss if the last
            segment does.
        weight: Weight of the likelihood; 0 leaves it out.
        label: y, what the refinement probability should be, 0 to 1; None where it is not learned.
        label_weight: beta, times what the sample counts.
        teacher: The teacher's prompt, where the sample is distilled; nothing else ever sees it.
        distill_weight: eta, times what the sample counts.
        task: The task that it is from.
        step: The number of actions that were taken before it.

    Raises:
        OptionError: A field is not what it should be.

    Example:
        >>> asked = (Message("user", "It is dark."),)
        >>> sample = Sample(kind="warmup", messages=asked, reply=(("Action:", False), (" look", True)))
        >>> sample.text, sample.weight
        ('Action: look', 1.0)
        >>> Sample.from_json(sample.to_json()) == sample
        True
    """

    kind: str
    messages: tuple[Message, ...]
    reply: tuple[Segment, ...]
    weight: float = 1.0
    label: float | None = None
    label_weight: float = 0.0
    teacher: tuple[Message, ...] = ()
    distill_weight: float = 0.0
    task: str = ""
    step: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or not _KIND.fullmatch(self.kind):
            raise _wrong("a kind of lower-case letters", self.kind)
        if not _is_conversation(self.messages):
            raise _wrong("messages that end with the user's", self.messages)
        if self.teacher != () and not _is_conversation(self.teacher):
            raise _wrong("a teacher's prompt that ends with the user's message", self.teacher)
        if not _is_reply(self.reply):
            raise _wrong("a reply of segments (text, whether it carries loss)", self.reply)
        for name in _WEIGHTS:
            value = getattr(self, name)
            if not _is_number(value) or value < 0:
                raise _wrong(f"a {name} of at least 0", value)
        if self.label is not None and not (_is_number(self.label) and 0 <= self.label <= 1):
            raise _wrong("a label from 0 to 1, or None", self.label)
        if self.label is None and self.label_weight > 0:
            raise _wrong("a label where label_weight is above 0", self.label)
        if self.distill_weight > 0 and not self.teacher:
            raise _wrong("a teacher's prompt where distill_weight is above 0", self.teacher)
        if not isinstance(self.task, str):
            raise _wrong("a task's id", self.task)
        if type(self.step) is not int or self.step < 0:
            raise _wrong("a step of at least 0", self.step)

    @property
    def text(self) -> str:
        """The whole reply."""
        return "".join(text for text, _ in self.reply)

    @property
    def scored(self) -> str:
        """The parts of the reply that carry loss, one after the other."""
        return "".join(text for text, flag in self.reply if flag)

    def scaled(self, factor: float) -> Sample:
        """Return the sample with all three weights multiplied.

        Args:
            factor: At least 0.

        Example:
            >>> Sample(kind="anchor", messages=(Message("user", "?"),), reply=(("!", True),),
            ...        weight=0.5).scaled(3).weight
            1.5
        """
        return replace(self, **{name: getattr(self, name) * factor for name in _WEIGHTS})

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {
            "messages": [message._asdict() for message in self.messages],
            "teacher": [message._asdict() for message in self.teacher],
            "reply": [list(segment) for segment in self.reply],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Sample:
        """Read what `to_json` returned.

        Raises:
            DataCorrupt: It is no sample, or lacks a part.
        """
        try:
            read = {
                "messages": tuple(Message(**message) for message in data["messages"]),
                "teacher": tuple(Message(**message) for message in data.get("teacher", ())),
                "reply": tuple((text, flag) for text, flag in data["reply"]),
            }
            return cls(**{**data, **read})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataCorrupt(
                f"expected a sample, found {data!r:.120} ({type(error).__name__}: {error})"
            ) from error


def _wrong(expected: str, found: object) -> OptionError:
    return OptionError(f"expected {expected}, found {found!r:.120}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_conversation(messages: object) -> bool:
    return (
        isinstance(messages, tuple)
        and bool(messages)
        and all(
            isinstance(m, Message) and m.role in ROLES and isinstance(m.content, str)
            for m in messages
        )
        and messages[-1].role == "user"
    )


def _is_reply(reply: object) -> bool:
    return (
        isinstance(reply, tuple)
        and bool(reply)
        and all(
            isinstance(segment, tuple)
            and len(segment) == 2
            and isinstance(segment[0], str)
            and isinstance(segment[1], bool)
            for segment in reply
        )
    )
