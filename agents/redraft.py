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
        config = self.config
        replies = replies_in(view)
        messages = converse(view, config, replies)

        drafts: list[Draft] = []
        imagined_by_action: dict[str, Imagined] = {}
        is_foreseen = False
        while len(drafts) < config.drafts and not is_foreseen:
            # The first has the purpose, and thus the seed, of a draft of other agents: where it is
            # taken, the step is ReAct's.
            purpose = f"draft {len(drafts) + 1}" if drafts else "draft"
            draft = yield from draft_action(view, config, messages, purpose)
            drafts.append(draft)

            # An action that is drawn again has the same future.
            if draft.action not in imagined_by_action:
                imagined_by_action[draft.action] = yield Imagine(draft.action)
            is_foreseen = bool(imagined_by_action[draft.action].delta)

        final = drafts[-1] if is_foreseen else drafts[0]
        replies[view.step] = final.shown
        notes = {**final.notes(), "drafts": len(drafts), "foreseen": is_foreseen}
        return Decision(final.action, imagined_by_action[final.action], notes)
