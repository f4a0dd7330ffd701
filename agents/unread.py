"""Replies in which no action can be read: how many a run has, and a warning where it has no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ..lm import LanguageModel
from ..trajectory import Step, Trajectory
from .base import Agent
from .comap import GatePath

UNREAD = "unread_replies"
"""The member of a summary that counts the replies in which no action could be read."""

MOST_UNREAD = 20
"""After so many such replies in a row a run warns."""

Fault: TypeAlias = Literal["without_action", "out_of_form", "without_decision"]
"""What is wrong with a reply: it has no action, not the tags that it is to have (PaW), or, where it is
a reflection, no decision (CoMap)."""

_PARSED = ("draft_parsed", "proposal_parsed")  # notes of agents that read a reply for their action
_EXAMPLES = 3
_SHOWN = 80  # characters of an example


def fault_of(step: Step) -> tuple[Fault, bool] | None:
    """Return which fault the reply behind a step may have, and whether it has it; None without a reply."""
    notes = step.notes
    if isinstance(notes.get("valid"), bool):  # PaW
        fault: Fault = "out_of_form" if notes.get("format") == "tags" else "without_action"
        return fault, not notes["valid"]

    parsed = next((notes[name] for name in _PARSED if isinstance(notes.get(name), bool)), None)
    return None if parsed is None else ("without_action", not parsed)


def _reply_behind(step: Step) -> str:
    """Return what the model wrote last for a step."""
    replies = (call.prefix + call.text for call in reversed(step.calls) if call.kind == "generate")
    return next(replies, step.action)


def _short(text: str) -> str:
    """Return the beginning of a text, on one line."""
    line = " ".join(text[: 10 * _SHOWN].split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


@dataclass
class UnreadReplies:
    """Counts the replies of a run in which no action could be read, by what is wrong with them."""

    read: Counter[Fault] = field(default_factory=Counter)
    unread: Counter[Fault] = field(default_factory=Counter)
    examples: dict[Fault, list[str]] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Count the reply behind a step."""
        possible_fault = fault_of(step)
        if possible_fault is not None:
            fault, has_it = possible_fault
            self._count(fault, has_it, _reply_behind(step))

        if step.notes.get("path") == GatePath.REFLECTED:
            reflection = str(step.notes.get("reflect_response") or "")
            self._count("without_decision", step.notes.get("decision") is None, reflection)

    def _count(self, fault: Fault, has_it: bool, text: str) -> None:
        self.read[fault] += 1
        if not has_it:
            return

        self.unread[fault] += 1
        examples = self.examples.setdefault(fault, [])
        example = _short(text)
        if len(examples) < _EXAMPLES and example not in examples:
            examples.append(example)

    def summary(self) -> dict[str, Any]:
        """Return for each fault how many replies have it, of how many, and some of them."""
        return {
            fault: {
                "all": self.unread[fault],
                "of": self.read[fault],
                "examples": self.examples.get(fault, []),
            }
            for fault in sorted(self.read)
        }


class UnreadStreak:
    """Says once what to try where a run has many replies in a row in which no action can be read.

    Args:
        agent: Who acts.
        lm: Its language model.
        tell: Called with the warning.
    """

    def __init__(self, agent: Agent, lm: LanguageModel | None, tell: Callable[[str], object]):
        self._advice = advice(agent, lm)
        self._tell = tell
        self._length = 0
        self._has_warned = False

    def add(self, step: Step) -> None:
        """Count the reply behind a step, and warn where it is the last of a long streak."""
        possible_fault = fault_of(step)
        if possible_fault is None or self._has_warned:
            return

        fault, is_unread = possible_fault
        self._length = self._length + 1 if is_unread else 0
        if self._length < MOST_UNREAD:
            return

        self._has_warned = True
        missing_part = "an action that can be read"
        if fault == "out_of_form":
            missing_part = "the form asked for"
        example = _short(_reply_behind(step))
        self._tell(
            f"{MOST_UNREAD} replies in a row were without {missing_part}, such as {example!r}; "
            f"{self._advice}"
        )

    def add_all(self, trials: Iterable[Trajectory]) -> None:
        """Count the replies behind all steps of some trials."""
        for trial in trials:
            for step in trial.steps:
                self.add(step)


def advice(agent: Agent, lm: LanguageModel | None) -> str:
    """Return what to try with a model whose replies cannot be read."""
    prompts = "see in 'comap view' what it was asked, and in which chat template"
    if agent.name == "paw":
        return f"play it with --agent react, which reads other forms; {prompts}"

    decoding = getattr(getattr(agent, "config", None), "decoding", None)
    if decoding == "free" and lm is not None and "choices" in lm.capabilities:
        return (
            "try --decoding masked, with which the model only chooses among the admissible actions "
            f"(where the environment lists them), or a larger model; {prompts}"
        )
    return (
        f"try a larger instruct model; {prompts}. Hugging Face models, in this process or in vLLM "
        "(--engine), can be held to the admissible actions with --decoding masked"
    )
