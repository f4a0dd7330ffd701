"""Imagine-and-Act: propose an action, imagine what follows it, choose."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass

from ..lm import Completion, Generate
from ..lm.prompts import cut_text
from .acting import Draft, draft_action, seed_for
from .asking import ask_about
from .base import Decision, Reply, Request, View
from .checks import require_whole
from .config import AgentConfig
from .prompting import converse, fill
from .react import replies_in

__all__ = ["ImagineAndActAgent", "ImagineAndActConfig", "imagined_text", "imagining"]

_STOP = ("\nThought:", "\nAction:", "\nTask:", "\n---")
_LABEL = re.compile(r"^(?:next observation|observation)[ \t]*:", re.IGNORECASE)
_NOTHING = "Unknown."


@dataclass(frozen=True, kw_only=True)
class ImagineAndActConfig(AgentConfig):
    """Settings of Imagine-and-Act (METHODS.md 3)."""

    imagine_tokens: int = 192
    """Most tokens of what is imagined (CoMap, Table 5: the world model's budget)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole(self, 1, "imagine_tokens")


def imagining(
    view: View,
    config: ImagineAndActConfig,
    action: str,
    replies: Mapping[int, str] | None = None,
) -> Generate:
    """Return the request with which the agent asks its own model what would follow an action.

    Args:
        view: What the agent sees.
        config: How it asks.
        action: The action in question.
        replies: What the agent wrote at each step.
    """
    shown = cut_text(action, config.max_length // 8, view.count_tokens)
    (question,) = fill(config.prompts, "imagine", action=shown)
    messages = ask_about(view, config, question.content, config.imagine_tokens, replies)
    sampling = config.sampling(config.imagine_tokens, _STOP, seed_for(config, view, "imagine"))
    return Generate(messages, sampling, adapter=config.adapter, purpose="imagine")


def imagined_text(said: Completion) -> str:
    """Return what was imagined, without a label before it; empty where nothing was written.

    Example:
        >>> imagined_text(Completion("Observation: It is dark."))
        'It is dark.'
    """
    return _LABEL.sub("", said.text.strip()).strip()


class ImagineAndActAgent:
    """Three calls a step, all to one language model, and neither a world model nor a gate.

    The model proposes an action, imagines what would be observed right after it, and chooses the
    action to take with that in sight (a baseline of CoMap, arXiv 2606.02372, as METHODS.md 3 states
    it). With a model that was trained on demonstrations this is the row "Imagine-and-Act+SFT".

    Deviations: no source gives the prompts, so they are ours. A proposal that cannot be read, after
    one reminder, goes to the environment as it is, with no further call, as in every agent here
    (METHODS.md 1.1); where the choice cannot be read, after one reminder, the proposal is kept. What
    is imagined is sampled as all else is, and its length is that of a world model's prediction.
    Masked and scored decoding, and the belief as state text, are ours.

    Args:
        config: Settings; None for the defaults.

    Example:
        >>> ImagineAndActAgent().config.imagine_tokens
        192
    """

    name = "imagine-and-act"

    def __init__(self, config: ImagineAndActConfig | None = None):
        self.config = config or ImagineAndActConfig()

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Propose, imagine, choose; the notes tell each and whether it could be read."""
        replies = replies_in(view)
        proposal = yield from draft_action(
            view, self.config, converse(view, self.config, replies), "propose"
        )
        notes = {
            "proposal": proposal.action,
            "proposal_parsed": proposal.parsed,
            "imagined": None,
            "choice": None,
            "choice_parsed": None,
            "changed": False,
            "decoding": proposal.decoding,
        }
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
        replies[view.step] = final.text
        return Decision(final.action, notes=notes)

    def _imagine(
        self, view: View, proposal: Draft, replies: dict[int, str]
    ) -> Generator[Request, Reply, str]:
        """Return what the model imagines, without labels; empty where it wrote nothing."""
        said: Completion = yield imagining(view, self.config, proposal.action, replies)
        return imagined_text(said)

    def _choose(
        self, view: View, proposal: Draft, imagined: str, replies: dict[int, str]
    ) -> Generator[Request, Reply, Draft]:
        config = self.config
        room = config.max_length // 8
        (question,) = fill(
            config.prompts,
            "choose",
            proposal=cut_text(proposal.text, room, view.count_tokens),
            action=cut_text(proposal.action, room, view.count_tokens),
            imagined=cut_text(imagined or _NOTHING, 2 * room, view.count_tokens),
        )
        messages = ask_about(view, config, question.content, config.draft_tokens, replies)
        return (yield from draft_action(view, config, messages, "choose"))
