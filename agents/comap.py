"""CoMap's agent: draft, look ahead, reflect, and a gate that chooses (arXiv 2606.02372)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..envs import canonical_action
from ..lm import Encode, Encoding, Message
from ..lm.prompts import cut_text
from ..worldmodel import Imagined
from .acting import Draft, draft_action
from .asking import ask_about
from .base import Decision, Imagine, Reply, Request, View
from .checks import require_whole
from .comap_record import Foreseen, history_reply, step_notes
from .config import AgentConfig
from .gates import action_gate
from .prompting import converse, fill
from .ranges import require_between
from .react import replies_in
from .refinement import RefinementHead
from .reflecting import PROBABILITY_ROOM, Reflected, ask_reflection, weigh

__all__ = ["CoMapAgent", "CoMapConfig", "ConfidenceSource", "ProbabilitySource"]

ProbabilitySource: TypeAlias = Literal["head", "verbalizer", "verbal"]
"""Where p comes from: a trained head on a hidden state; the probabilities of two words; what the
model says (METHODS.md 1.3)."""

ConfidenceSource: TypeAlias = Literal["token_geo_mean", "min_token", "proxy"]
"""Where q comes from: the geometric mean of the action's token probabilities; the least of them; the
form of the reply (METHODS.md 1.3)."""

_UNKNOWN = "Unknown."
_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class CoMapConfig(AgentConfig):
    """Settings of CoMap at inference (METHODS.md 1.2, 1.3, 1.11, 1.13)."""

    tau_p: float = 0.5
    """The draft is revised only if p is above this; at it, it is kept (CoMap, Table 5)."""
    tau_q: float = 0.6
    """The draft is revised only if q is above this; at it, it is kept (CoMap, Table 5)."""
    reflect_tokens: int = 128
    """Most tokens of a reflection (CoMap, Table 5)."""
    final_tokens: int = 16
    """Most further tokens where the reflection's final action is lacking (CoMap, Table 5; used as
    METHODS.md 1.1 decided). 0 asks for none, for servers that cannot continue a reply."""
    p_source: ProbabilitySource = "head"
    """head (reconstructed; needs `Encode`), verbalizer (ours; `Words`) or verbal (the authors' code;
    any model)."""
    q_source: ConfidenceSource = "token_geo_mean"
    """token_geo_mean (reconstructed), min_token (ours), or proxy (the authors' code; any model).
    The first two need `Score`, or with free decoding a backend that tells its tokens."""
    future_state: bool = True
    """False is the ablation "w/o Future State": the reflection is told nothing of what follows."""
    action_gate: bool = True
    """False is the ablation "w/o Action Gate": a reflected action that can be read is taken."""
    reflect_when_closed: bool = True
    """False skips the reflection where p is known before it and keeps the gate closed (ours): the
    same actions for fewer tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between(self, 0, 1, "tau_p", "tau_q")
        require_whole(self, 1, "reflect_tokens")
        require_whole(self, 0, "final_tokens")

    def needs(self) -> frozenset[str]:
        """Return which of `comap.lm.CAPABILITIES` a language model must have for these settings.

        A head needs ``encode`` besides: see `CoMapAgent.needs`. What is written ``score|tokens`` is
        either of the two.

        Example:
            >>> sorted(CoMapConfig().needs())
            ['generate', 'prefix', 'prefix|tokens', 'score|tokens']
        """
        free = self.decoding == "free"
        words = {"words", "prefix"} if self.p_source == "verbalizer" else set()
        score = {"score|tokens", "prefix|tokens"} if free else {"score", "prefix"}
        prefix = {"prefix"} if free and self.final_tokens else set()
        return super().needs() | words | (set() if self.q_source == "proxy" else score) | prefix


class CoMapAgent:
    """Drafts an action, asks a world model what follows, reflects, and takes one of the two actions.

    Each step (METHODS.md 1.2, inference): draft an action; ask the world model what would be observed
    after it; ask the same language model, which now sees that, for a reflected action; take the
    reflected action if ``p > tau_p``, ``q > tau_q`` and it is another action than the draft. That is
    at most three texts a step, the world model's included, but for one reminder of a draft's form and
    one continuation of a reflection that was cut short. Masked and scored decoding write the same
    texts in parts, each going on where the one before ended. The numbers p and q may need passes over
    the prompt that write nothing.

    Not every model can do all of it. Hugging Face models in this process can. Behind a server (chat
    completions) there are neither hidden states nor log-probabilities of given texts: use
    ``p_source="verbal"``, or ``"verbalizer"`` where the server continues replies. With
    ``decoding="free"`` and a server that tells the tokens it wrote and their log-probabilities (vLLM
    and OpenAI do, ``transformers serve`` does not), q is that of the tokens that wrote the action,
    each counted whole; a reflection that was continued needs ``prefix_mode="continue"`` for that, as
    of a repeated beginning no tokens are known, or ``final_tokens=0``. With other servers, and with
    ``decoding="masked"`` (vLLM), use ``q_source="proxy"``. Runners refuse settings that a model is
    known not to serve before anything is played, and say which would do: see `needs`. That a server
    tells no tokens is known only once it answers: then that is the episode's error.

    Deviations: the formula of q and the head are reconstructed (METHODS.md 1.3); a draft that cannot
    be read goes to the environment with no further call, as in the authors' code, but never becomes
    another action, as it does there; the final action is scored as it is taken, without quotes; one
    that was cut short is continued too, not only one that is missing. With verbalizer, p is 0 where
    the model gives neither word any probability; with verbal, percentages are read. Masked and
    scored decoding ask for the analysis, then for one of the admissible actions, then (verbal) for
    the probability; with brief prompts the analysis is the decision alone. The belief as state text
    is ours, and so are the prompts.

    Args:
        config: Settings; None for the defaults.
        head: With ``p_source="head"``, what says p, or the file of `RefinementHead.save`; without one
            p is 0.5, so that at the default threshold every draft is kept.

    Example:
        >>> CoMapAgent(CoMapConfig(p_source="verbal", q_source="proxy")).config.tau_q
        0.6
    """

    name = "comap"

    def __init__(
        self, config: CoMapConfig | None = None, head: RefinementHead | str | Path | None = None
    ):
        self.config = config or CoMapConfig()
        self.head = RefinementHead.load(head) if isinstance(head, str | Path) else head

    def needs(self) -> frozenset[str]:
        """Return which of `comap.lm.CAPABILITIES` the language model must have."""
        reads = self.config.p_source == "head" and self.head is not None
        return self.config.needs() | ({"encode"} if reads else set())

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Draft, look ahead, reflect and choose; the notes tell all of it."""
        config, replies = self.config, replies_in(view)
        draft = yield from draft_action(view, config, converse(view, config, replies))
        if not draft.parsed:
            replies[view.step] = draft.text
            notes = step_notes(draft, "draft_only_fallback", draft.text)
            return Decision(draft.action, notes=notes)
        foreseen = yield from self.look_ahead(view, draft)
        messages = self.question(view, replies, draft, foreseen.text)
        reply, p, q = None, None, None
        if foreseen.reflect:
            p = yield from self._early_probability(messages)
        if foreseen.reflect and not self._skips(p):
            reply = yield from ask_reflection(view, config, messages)
            p, q = yield from weigh(config, messages, reply, p)
        verdict = self._verdict(view, draft, reply, p, q)
        action: str = verdict["exec_action"]
        shown = replies[view.step] = history_reply(draft, reply, action)
        path = "reflection_skipped" if reply is None else "reflected"
        notes = step_notes(draft, path, shown, foreseen.text, reply)
        kept = foreseen.imagined if action == draft.action else None  # it is of no other action
        return Decision(action, kept, {**notes, **foreseen.notes, **verdict})

    def look_ahead(self, view: View, draft: Draft) -> Generator[Request, Reply, Foreseen]:
        """Return what the reflection is told of the future: what the world model says of the draft.

        Args:
            view: What the agent sees.
            draft: A draft that could be read.
        """
        if not self.config.future_state:
            return Foreseen()
        imagined: Imagined = yield Imagine(draft.action)
        return Foreseen(imagined.observation, imagined)

    def question(
        self, view: View, replies: Mapping[int, str], draft: Draft, future: str
    ) -> tuple[Message, ...]:
        """Return the conversation that asks for a reflection, for acting and for training.

        Args:
            view: What the agent sees.
            replies: What the agent wrote at each step.
            draft: The drafted action.
            future: What would follow it; empty where nothing is known.
        """
        config = self.config
        room = config.max_length // 8
        (question,) = fill(
            config.prompts,
            "reflect",
            draft=cut_text(draft.text, room, view.count_tokens),
            action=cut_text(draft.action, room, view.count_tokens),
            future=cut_text(future.strip() or _UNKNOWN, 2 * room, view.count_tokens),
        )
        tokens = config.reflect_tokens + config.final_tokens
        if config.prompts == "standard" and config.p_source == "verbal":
            tokens += PROBABILITY_ROOM
        return ask_about(view, config, question.content, tokens, replies)

    def _early_probability(
        self, messages: tuple[Message, ...]
    ) -> Generator[Request, Reply, float | None]:
        """Return p if it does not depend on the reflection."""
        if self.config.p_source != "head":
            return None
        if self.head is None:
            return 0.5
        asked = Encode(messages, adapter=self.config.adapter, purpose="reflect: state")
        state: Encoding = yield asked
        return self.head.probability(state.vector)

    def _skips(self, p: float | None) -> bool:
        """Return whether no reflection could change the action."""
        config = self.config
        closed = p is not None and p <= config.tau_p
        return closed and config.action_gate and not config.reflect_when_closed

    def _verdict(
        self, view: View, draft: Draft, reply: Reflected | None, p: float | None, q: float | None
    ) -> dict[str, Any]:
        """Return which action is taken and what each part of the gate says, as notes."""
        config = self.config
        revised = None if reply is None else reply.said.action
        same = revised is None or canonical_action(view.env_id, revised) == canonical_action(
            view.env_id, draft.action
        )
        known_p, known_q = p or 0.0, q or 0.0
        opens = action_gate(known_p, known_q, same, config.tau_p, config.tau_q)
        if not config.action_gate:
            opens = revised is not None
        parts = {"p": known_p > config.tau_p, "q": known_q > config.tau_q, "changed": not same}
        constant = config.p_source == "head" and self.head is None
        return {
            "p": _rounded(p),
            "p_source": "constant" if constant else config.p_source,
            "q": _rounded(q),
            "q_source": config.q_source,
            "gate": opens,
            "gate_parts": parts,
            "exec_action": revised if opens else draft.action,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
