"""Redraft: draws drafts until the world model foresees that one changes something."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from ..settings import PositiveInt
from ..worldmodel import Imagined
from .base import Decision, Imagine, Reply, Request, View
from .config import AgentConfig
from .prompting import Draft, converse, draft_action
from .react import replies_in


@dataclass(frozen=True, kw_only=True)
class RedraftConfig(AgentConfig):
    """Settings of Redraft."""

    drafts: PositiveInt = 4
    """Most drafts of a step. At temperature 0 all would be the same."""


class RedraftAgent:
    """Takes the first of some drafts that changes a fact, as the world model foresees it (ours).

    A control of CoMap: the same world model filters what the policy draws anyway, and nothing is
    reflected on. Where no draft changes anything, the first is taken. Deviations: none, no paper has it.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> RedraftAgent().config.drafts
        4
    """

    name = "redraft"
    asks_world_model = True

    def __init__(self, config: RedraftConfig | None = None):
        self.config = config or RedraftConfig()

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Draft and imagine, again and again; the notes record which draft was taken."""
        replies, config = replies_in(view), self.config
        messages = converse(view, config, replies)
        known, drafts = dict[str, Imagined](), list[Draft]()
        while len(drafts) < config.drafts:
            purpose = f"draft {len(drafts) + 1}" if drafts else "draft"
            draft = yield from draft_action(view, config, messages, purpose)
            drafts.append(draft)
            if draft.action not in known:
                known[draft.action] = yield Imagine(draft.action)
            if known[draft.action].delta:
                break
        foreseen = bool(known[draft.action].delta)
        chosen = drafts[-1] if foreseen else drafts[0]
        replies[view.step] = chosen.shown
        notes = {**chosen.notes(), "drafts": len(drafts), "foreseen": foreseen}
        return Decision(chosen.action, known[chosen.action], notes)
