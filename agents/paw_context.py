"""The conversation of PaW's agent where all of it goes on, as in Search-R1 (METHODS.md 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..lm import Completion, Message
from ..lm.prompts import OVERHEAD, cut_text
from .base import View
from .paw_prompt import page_text, tagged_prompt
from .tags import env_name

if TYPE_CHECKING:
    from .paw import PaWConfig

__all__ = ["Conversation"]

_KEY = "paw conversation"  # in a view's memory
_LEAST = 16  # tokens of an observation: what has less room ends the episode


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said so far: the first message, and then replies and observations in turn.

    Attributes:
        messages: The conversation.
        reply_ids: The tokens of each reply in it, as they were sampled; none where the language model
            does not tell.
        size: How many tokens it has with the reply after it; 0 before that.
        step: The step that the next observation comes of.
        trial: The trial at the task.

    Example:
        >>> from comap.agents.paw import PaWConfig
        >>> from comap.facts import State
        >>> from comap.trajectory import Turn
        >>> view = View("id", "t", "Wait.", (Turn(None, "Dark."),), State(), None, 0, lambda: None)
        >>> talk = Conversation.at(view, PaWConfig(context="concat"))
        >>> [message.role for message in talk.messages], talk.reply_ids
        (['user'], ())
    """

    messages: tuple[Message, ...]
    reply_ids: tuple[tuple[int, ...], ...] = ()
    size: int = 0
    step: int = 0
    trial: int = 1

    @classmethod
    def at(cls, view: View, config: PaWConfig) -> Conversation | None:
        """Return the conversation that asks for the next action; None where it has become too long.

        It goes on from what `heard` left in the view's memory. Where the agent did not act at the
        step before, it begins here, with the message that a prompt with a summary would be.

        Args:
            view: What the agent sees.
            config: The sizes.
        """
        known = view.memory.get(_KEY)
        if not isinstance(known, cls) or (known.step, known.trial) != (view.step, view.trial):
            return cls(tagged_prompt(view, config), step=view.step, trial=view.trial)
        room = config.max_length - config.draft_tokens - known.size - 2 * OVERHEAD
        count = view.count_tokens
        seen = cut_text(_seen(view), config.observation_tokens, count)
        if count(seen) > room:
            if room < _LEAST:
                return None
            seen = cut_text(seen, room, count)
        messages = (*known.messages, Message("user", seen))
        return cls(messages, known.reply_ids, step=view.step, trial=view.trial)

    def heard(self, view: View, said: Completion) -> None:
        """Take down a reply, for the next step.

        Args:
            view: What the agent saw; its memory keeps the conversation.
            said: The reply.
        """
        told = said.prompt_tokens + said.completion_tokens
        texts = [*(message.content for message in self.messages), said.text]
        size = told or sum(view.count_tokens(text) + OVERHEAD for text in texts)
        messages = (*self.messages, Message("assistant", said.text))
        ids = (*self.reply_ids, tuple(said.token_ids or ()))
        view.memory[_KEY] = Conversation(messages, ids, size, view.step + 1, view.trial)


def _seen(view: View) -> str:
    """Return the last observation as it is told."""
    text = view.history[-1].observation
    return page_text(view.goal, text) if env_name(view.env_id) == "webshop" else text
