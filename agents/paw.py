"""PaW's agent: a reply in tags to a summary, or in a conversation that goes on (METHODS.md 2.8, 3)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ..errors import OptionError
from ..lm import Completion, Generate
from .acting import seed_for
from .base import Decision, Reply, Request, View
from .config import AgentConfig
from .paw_context import Conversation
from .paw_prompt import tagged_prompt
from .tags import read_tags

__all__ = ["Context", "PaWAgent", "PaWConfig"]

Context: TypeAlias = Literal["summary", "concat"]
"""What a prompt is: made anew at each step, with the last steps in it; or all that was said so far."""

_ONLY: dict[str, tuple[Any, str]] = {
    "decoding": ("free", "training needs a reply as the model wrote it, and its action is in tags"),
    "state_text": ("history", "its prompts tell the last steps as they were"),
    "prompts": ("standard", "its prompts are its own, with the form of the reply in them"),
    "form": ("asked", "the model writes all tags itself"),
    "examples": (0, "its prompts have no worked examples"),
}


@dataclass(frozen=True, kw_only=True)
class PaWConfig(AgentConfig):
    """How PaW's agent asks. The defaults are those of its rollouts in ALFWorld.

    Its prompts and replies have one form: of ``decoding``, ``state_text``, ``prompts``, ``form`` and
    ``examples`` only the defaults are allowed. `ReActAgent` has the others.

    Raises:
        OptionError: A value is none of those allowed, or out of range.

    Example:
        >>> PaWConfig(temperature=0.4).history_turns
        2
        >>> PaWConfig(decoding="masked")
        Traceback (most recent call last):
        comap.errors.OptionError: expected decoding='free' for the agent 'paw', found 'masked': \
training needs a reply as the model wrote it, and its action is in tags; use the agent 'react'
    """

    context: Context = "summary"
    """summary (each prompt is made anew, with the last steps), or concat (the conversation goes on: its
    own replies token for token, and the observations after them, as in Search-R1)."""
    observation_tokens: int = 1024
    """With context=concat: the most tokens of an observation (METHODS.md 2.7); the rest is cut off."""
    history_turns: int | None = 2
    """The last so many steps; None for all that fit (METHODS.md 2.7). Not in search QA."""
    memory_turns: int | None = 4
    """In search QA: the last so many searches; None for all that fit (METHODS.md 2.7: all of 4)."""
    max_length: int = 2560
    """Prompt and reply together have at most so many tokens. METHODS.md 2.7: 2048 and 512 in ALFWorld;
    4096 and 512, thus 4608, in WebShop and search QA. Old steps go first."""
    draft_tokens: int = 512
    """Most tokens of a reply (METHODS.md 2.7)."""
    temperature: float = 1.0
    """Temperature of rollouts; evaluation is at 0.4, in search QA at 0 (METHODS.md 2.7)."""
    top_p: float = 1.0
    """Nucleus: all of it, since training needs the probabilities that were sampled from [D]."""
    examples: int = 0
    """None: the prompts say the form (METHODS.md 2.8)."""

    def __post_init__(self) -> None:
        for name, (value, why) in _ONLY.items():
            found = getattr(self, name)
            if found != value:
                raise OptionError(
                    f"expected {name}={value!r} for the agent 'paw', found {found!r}: {why}; use the "
                    "agent 'react'"
                )
        super().__post_init__()
        turns = self.memory_turns
        if turns is not None and (type(turns) is not int or turns < 0):
            raise OptionError(
                f"memory_turns must be None or a whole number of at least 0, not {turns!r}"
            )
        if type(self.observation_tokens) is not int or self.observation_tokens < 1:
            raise OptionError(
                "observation_tokens must be a whole number of at least 1, not "
                f"{self.observation_tokens!r}"
            )
        if self.max_length <= self.draft_tokens:
            raise OptionError(
                f"max_length must be greater than draft_tokens, not {self.max_length} with "
                f"{self.draft_tokens}: prompt and reply share it"
            )


class PaWAgent:
    """One call a step: one user message with the last steps, one reply in tags (METHODS.md 2.8, 2.6).

    The message tells task, recent steps, the present and what can be done; at the first step, and
    where no step fits or a WebShop prompt has more than 13,000 characters, a template without
    history. The reply holds ``<think>`` and ``<action>``; in search QA ``<think>`` and ``<search>`` or
    ``<answer>``. `read_tags` says which replies are valid: the note ``valid``. It asks once: replies of
    another form go to the environment as they are, and training has a penalty for them.

    With ``context="concat"`` that message is the first of a conversation, in which replies and
    observations follow. Nothing of it goes: an observation is cut where there is no room for all of
    it, and where there is hardly any, the agent gives the episode up (our choice: Search-R1 drops the
    beginning).

    Deviations: the wording is ours; actions keep their case; a prompt that is too long loses its
    oldest steps, then the end of its observation and of its list of actions; environments that PaW
    does not play have a general template.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> PaWAgent(PaWConfig(history_turns=3)).name
        'paw'
    """

    name = "paw"

    def __init__(self, config: PaWConfig | None = None):
        self.config = config or PaWConfig()

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Ask for a reply in tags, and read it."""
        config = self.config
        sampling = config.sampling(config.draft_tokens, (), seed_for(config, view, "act"))
        if config.context == "summary":
            talk: Conversation | None = Conversation(tagged_prompt(view, config))
        else:
            talk = Conversation.at(view, config)
        if talk is None:
            return Decision(None)
        said: Completion = yield Generate(
            talk.messages,
            sampling,
            adapter=config.adapter,
            purpose="act",
            reply_ids=talk.reply_ids,
        )
        reply = read_tags(view.env_id, said.text)
        notes: dict[str, Any] = {"valid": reply.valid, "format": "tags"}
        if config.context == "concat":
            talk.heard(view, said)
            notes["context"] = "concat"
        return Decision(reply.action, notes=notes)
