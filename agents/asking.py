"""Asking about the present, with room for the reply: in the conversation, or apart from it."""

from __future__ import annotations

from collections.abc import Mapping

from ..lm import Message
from ..lm.prompts import OVERHEAD
from .base import View
from .config import AgentConfig
from .prompting import ask_on, converse, fill, situation

__all__ = ["ask_about", "ask_apart"]


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


def ask_apart(
    view: View, config: AgentConfig, name: str, reply_tokens: int, **slots: str
) -> tuple[Message, ...]:
    r"""Return a prompt of its own that tells the present in its slot ``situation``.

    Args:
        view: What the agent sees.
        config: Style, state text and sizes.
        name: The prompt's name.
        reply_tokens: The most tokens of the reply, with what it is given to begin with.
        **slots: The other slots; who fills them sees to their length.

    Example:
        >>> from comap.facts import State
        >>> from comap.trajectory import Turn
        >>> view = View("id", "task", "Wait.", (Turn(None, "Hm."),), State(), None, 0, lambda: None)
        >>> ask_apart(view, AgentConfig(prompts="brief"), "wkm_state", 8)[-1].content
        'Hm.\nWait.\nstate:'
    """
    bare = fill(config.prompts, name, situation="", **slots)
    reserve = reply_tokens + sum(view.count_tokens(part.content) + OVERHEAD for part in bare)
    told = situation(view, config, reserve=reserve)
    return fill(config.prompts, name, situation=told, **slots)
