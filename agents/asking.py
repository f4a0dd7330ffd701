"""Asking about the present: a question on top of the conversation, with room for its reply."""

from __future__ import annotations

from collections.abc import Mapping

from ..lm import Message
from ..lm.prompts import OVERHEAD
from .base import View
from .config import AgentConfig
from .prompting import ask_on, converse

__all__ = ["ask_about"]


def ask_about(
    view: View,
    config: AgentConfig,
    question: str,
    reply_tokens: int,
    replies: Mapping[int, str] | None = None,
) -> tuple[Message, ...]:
    r"""Return the conversation so far with a question joined to what the user said last.

    It is the conversation that a draft is asked with, from which as many more of the oldest turns are
    left out as the question and its reply need room for.

    Args:
        view: What the agent sees.
        config: Style, state text and sizes.
        question: The question; who makes it sees to its length.
        reply_tokens: The most tokens of the reply, and of what it may be continued with.
        replies: What the agent wrote at each step: see `converse`.

    Example:
        >>> from comap.facts import State
        >>> from comap.trajectory import Turn
        >>> view = View("id", "task", "Wait.", (Turn(None, "Hm."),), State(), None, 0, lambda: None)
        >>> ask_about(view, AgentConfig(prompts="brief"), "imagine: wait", 8)[-1].content
        'Hm.\nWait.\n\nimagine: wait'
    """
    reserve = view.count_tokens(question) + OVERHEAD + reply_tokens - config.draft_tokens
    return ask_on(converse(view, config, replies, reserve=reserve), question)
