"""ReAct: think, act, observe (Yao et al., 2023)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from .base import Decision, Reply, Request, View
from .config import AgentConfig
from .prompting import converse, draft_action


@dataclass(frozen=True, kw_only=True)
class ReActConfig(AgentConfig):
    """ReAct has no settings of its own."""


def replies_in(view: View) -> dict[int, str]:
    """Return the agent's memory of its own replies in this trial, by step; empty at its start."""
    # Memory lasts through all trials of a task: without this the second trial would show the replies of
    # the first.
    if view.step == 0:
        view.memory["replies"] = {}
    replies: dict[int, str] = view.memory.setdefault("replies", {})
    return replies


class ReActAgent:
    """One call a step: a thought and an action, in the conversation so far.

    With a model that was trained on demonstrations this is the row "ReAct+SFT". Deviations: of a
    reply that cannot be read, after one reminder, the environment gets the first 200 characters, to
    refuse them; masked and scored decoding, and the belief as state text, are ours.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> ReActAgent(ReActConfig(decoding="scored")).config.decoding
        'scored'
    """

    name = "react"
    asks_world_model = False

    def __init__(self, config: AgentConfig | None = None):
        self.config = config or ReActConfig()

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Ask for a thought and an action."""
        replies = replies_in(view)
        messages = converse(view, self.config, replies)
        draft = yield from draft_action(view, self.config, messages)
        replies[view.step] = draft.shown
        return Decision(draft.action, notes=draft.notes())
