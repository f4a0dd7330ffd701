"""What an environment's answer says of an action, in words, for a teacher that may see it.

It is the feedback text of the authors' code (METHODS.md 1.8 [C]), in our own words, for training only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..agents import AgentConfig
from ..agents.asking import ask_about
from ..agents.base import View
from ..agents.convert_rows import number_of, text_of, value_of
from ..lm import Message
from ..lm.prompts import cut_text, fill_template

__all__ = ["feedback_prompt", "feedback_text", "outcome_tags"]

_UNPRODUCTIVE = ("nothing happens", "can't", "cannot", "not found", "no known action")
_CHANGES = ("you pick up", "you take", "you put", "you move", "you open")


def outcome_tags(answer: Mapping[str, Any], where: str = "an answer") -> tuple[str, ...]:
    """Return what is to be said of an action's outcome, by simple signs in the answer.

    Args:
        answer: ``observation``, ``terminated``, ``truncated`` and ``success``, as training rollouts
            note them.
        where: How to call the answer in a message.

    Raises:
        DataCorrupt: A part of it is of another kind.

    Example:
        >>> outcome_tags({"observation": "Nothing happens."})
        ('invalid or unproductive',)
        >>> outcome_tags({"observation": "You open the safe 1.", "terminated": True, "success": True})
        ('terminal success', 'state changed')
    """
    text = (
        text_of(answer, "observation", where)
        .lower()
        .replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    )
    ended = any(value_of(answer, name, where, bool, False) for name in ("terminated", "truncated"))
    tags = []
    if value_of(answer, "success", where, bool, False):
        tags.append("terminal success")
    elif ended:
        tags.append("terminal failure")
    if any(phrase in text for phrase in _UNPRODUCTIVE):
        tags.append("invalid or unproductive")
    if any(phrase in text for phrase in _CHANGES):
        tags.append("state changed")
    return tuple(tags)


def feedback_text(
    answer: Mapping[str, Any],
    style: str = "standard",
    *,
    room: int = 512,
    count_tokens: Callable[[str], int] = len,
    where: str = "an answer",
) -> str:
    r"""Return the feedback on an action: its outcome, the next observation and the reward.

    Args:
        answer: ``observation``, ``reward``, ``terminated``, ``truncated`` and ``success``.
        style: ``standard`` or ``brief``.
        room: The most tokens of the observation.
        count_tokens: Counts them; without it characters count.
        where: How to call the answer in a message.

    Raises:
        DataCorrupt: A part of the answer is of another kind.
        OptionError: There is no such style.

    Example:
        >>> feedback_text({"observation": "Nothing happens."}, "brief")
        'outcome: invalid or unproductive\nafter: Nothing happens.\nreward: 0'
    """
    tags = outcome_tags(answer, where)
    (message,) = fill_template(
        __package__ or "",
        style,
        "feedback",
        outcome=", ".join(tags) or "the episode goes on",
        observation=cut_text(text_of(answer, "observation", where), room, count_tokens),
        reward=f"{number_of(answer, 'reward', where):g}",
    )
    return message.content


def feedback_prompt(
    view: View,
    config: AgentConfig,
    replies: Mapping[int, str],
    answer: Mapping[str, Any],
    where: str = "an answer",
) -> tuple[Message, ...]:
    """Return the draft's prompt with feedback added: what the policy's teacher is asked.

    The oldest turns are left out where the feedback needs their room.

    Args:
        view: What the agent saw.
        config: How the policy is asked.
        replies: What the agent wrote at each step.
        answer: What the environment answered to the draft.
        where: How to call the answer in a message.

    Raises:
        DataCorrupt: A part of the answer is of another kind.
    """
    text = feedback_text(
        answer,
        config.prompts,
        room=config.max_length // 4,
        count_tokens=view.count_tokens,
        where=where,
    )
    return ask_about(view, config, text, config.draft_tokens, replies)
