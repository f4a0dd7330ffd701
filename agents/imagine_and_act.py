"""Imagine-and-Act: propose an action, imagine what follows it, choose."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass

from ..lm import Completion
from ..lm.prompts import cut_text
from ..lm.thoughts import without_thoughts
from ..settings import PositiveInt
from .base import Decision, Reply, Request, View
from .config import AgentConfig
from .prompting import Draft, ask_about, ask_text, converse, draft_action
from .react import replies_in

_STOP = ("\nThought:", "\nAction:", "\nTask:")
_LABEL = re.compile(r"^(?:next observation|observation)[ \t]*:", re.IGNORECASE)
_NOTHING = "Unknown."


@dataclass(frozen=True, kw_only=True)
class ImagineAndActConfig(AgentConfig):
    """Settings of Imagine-and-Act."""

    imagine_tokens: PositiveInt = 192
    """Most tokens of what is imagined (CoMap, Table 5: the world model's budget)."""


class ImagineAndActAgent:
    """Three calls a step, all to one language model, and neither a world model nor a gate.

    The model proposes an action, imagines what would be observed right after it, and chooses the
    action to take with that in sight (a baseline of CoMap, section 4.1). With a model that was trained
    on demonstrations this is the row "Imagine-and-Act+SFT".

    Deviations: no source gives the prompts, so they are ours. A proposal that cannot be read, after
    one reminder, goes to the environment as it is, with no further call, as in every agent here;
    where the choice cannot be read, after one reminder, the proposal is kept. What is imagined is sampled
    as all else is, and its length is that of a world model's prediction. Masked and scored
    decoding, and the belief as state text, are ours.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> ImagineAndActAgent().config.imagine_tokens
        192
    """

    name = "imagine-and-act"
    asks_world_model = False

    def __init__(self, config: ImagineAndActConfig | None = None):
        self.config = config or ImagineAndActConfig()

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Propose, imagine, choose; the notes record each and whether it could be read."""
        replies = replies_in(view)
        messages = converse(view, self.config, replies)
        proposal = yield from draft_action(view, self.config, messages, "propose")

        # The same keys at every step, whether the later calls were made or not.
        notes = {
            "proposal": proposal.action,
            "proposal_parsed": proposal.parsed,
            "imagined": None,
            "choice": None,
            "choice_parsed": None,
            "changed": False,
            "decoding": proposal.decoding,
        }

        # What cannot be read cannot be imagined: it goes to the environment, which refuses it.
        final = proposal
        if proposal.parsed:
            imagined = yield from self._imagine(view, proposal, replies)
            choice = yield from self._choose(view, proposal, imagined, replies)
            final = choice if choice.parsed else proposal
            notes |= {
                "imagined": imagined,
                "choice": choice.action,
                "choice_parsed": choice.parsed,
                "changed": final.action != proposal.action,
            }
        replies[view.step] = final.shown
        return Decision(final.action, notes=notes)

    def _imagine(
        self, view: View, proposal: Draft, replies: dict[int, str]
    ) -> Generator[Request, Reply, str]:
        """Return what the model imagines, without labels; empty where it wrote nothing."""
        config = self.config
        action = cut_text(proposal.action, config.max_length // 8, view.count_tokens)
        messages = ask_about(view, config, "imagine", config.imagine_tokens, replies, action=action)
        reply: Completion = yield ask_text(
            view, config, messages, "imagine", config.imagine_tokens, _STOP
        )

        # Models put a label before the observation, as the conversation's form suggests; it is none
        # of what the environment would say.
        text = without_thoughts(reply.text).strip()
        return _LABEL.sub("", text).strip()

    def _choose(
        self, view: View, proposal: Draft, imagined: str, replies: dict[int, str]
    ) -> Generator[Request, Reply, Draft]:
        """Return the action that the model chooses in sight of what it imagined."""
        config = self.config
        room = (
            config.max_length // 8
        )  # so that proposal and future leave most of the prompt to the turns
        messages = ask_about(
            view,
            config,
            "choose",
            config.draft_tokens,
            replies,
            proposal=cut_text(proposal.shown, room, view.count_tokens),
            action=cut_text(proposal.action, room, view.count_tokens),
            imagined=cut_text(imagined or _NOTHING, 2 * room, view.count_tokens),
        )
        return (yield from draft_action(view, config, messages, "choose"))
