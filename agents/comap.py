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
from .config import AgentConfig
from .gates import action_gate
from .parsing import first_line
from .prompting import converse, fill
from .ranges import require_between
from .react import replies_in
from .refinement import RefinementHead
from .reflecting import Reflected, ask_reflection, weigh

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
    """head (reconstructed), verbalizer (ours) or verbal (the authors' code)."""
    q_source: ConfidenceSource = "token_geo_mean"
    """token_geo_mean (reconstructed), min_token (ours) or proxy (the authors' code)."""
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


class CoMapAgent:
    """Drafts an action, asks a world model what follows, reflects, and takes one of the two actions.

    Each step (METHODS.md 1.2, inference): draft an action; ask the world model what would be observed
    after it; ask the same language model, which now sees that, for a reflected action; take the
    reflected action if ``p > tau_p``, ``q > tau_q`` and it is another action than the draft. That is
    at most three texts a step, the world model's included, but for one reminder of a draft's form and
    one continuation of a reflection that was cut short. The numbers p and q may need passes over the
    prompt that write nothing.

    Deviations: the formula of q and the head are reconstructed (METHODS.md 1.3); a draft that cannot
    be read goes to the environment with no further call, as in the authors' code, but never becomes
    another action, as it does there; the final action is scored as it is taken, without quotes. With
    verbalizer, p is 0 where the model gives neither word any probability. Masked and scored decoding
    ask for the analysis, then for one of the admissible actions, then (verbal) for the probability;
    with brief prompts the analysis is the decision alone. The belief as state text is ours, and so
    are the prompts.

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

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Draft, look ahead, reflect and choose; the notes tell all of it."""
        config, replies = self.config, replies_in(view)
        draft = yield from draft_action(view, config, converse(view, config, replies))
        if not draft.parsed:
            replies[view.step] = draft.text
            return Decision(draft.action, notes=_notes(draft, "draft_only_fallback"))
        imagined: Imagined | None = None
        if config.future_state:
            imagined = yield Imagine(draft.action)
        future = "" if imagined is None else imagined.observation
        messages = self.question(view, replies, draft, future)
        reply, q = None, None
        p = yield from self._early_probability(messages)
        if not self._skips(p):
            reply = yield from ask_reflection(view, config, messages)
            p, q = yield from weigh(config, messages, reply, p)
        verdict = self._verdict(view, draft, reply, p, q)
        action: str = verdict["exec_action"]
        replies[view.step] = _history_reply(draft, reply, action)
        path = "reflection_skipped" if reply is None else "reflected"
        kept = imagined if action == draft.action else None  # it is of no other action
        return Decision(action, kept, _notes(draft, path, future, reply) | verdict)

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
            action=draft.action,
            future=cut_text(future.strip() or _UNKNOWN, 2 * room, view.count_tokens),
        )
        tokens = config.reflect_tokens + config.final_tokens
        return ask_about(view, config, question.content, tokens, replies)

    def _early_probability(
        self, messages: tuple[Message, ...]
    ) -> Generator[Request, Reply, float | None]:
        """Return p if it does not depend on the reflection."""
        if self.config.p_source != "head":
            return None
        if self.head is None:
            return 0.5
        state: Encoding = yield Encode(
            messages, adapter=self.config.adapter, purpose="reflect: state"
        )
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


def _history_reply(draft: Draft, reply: Reflected | None, action: str) -> str:
    """Return what goes into the conversation as the agent's reply (METHODS.md 1.2)."""
    said = None if reply is None else reply.said.text
    thought = first_line(said or draft.thought or "")
    return f"Thought: {thought}\nAction: {action}" if thought else f"Action: {action}"


def _notes(
    draft: Draft, path: str, future: str = "", reply: Reflected | None = None
) -> dict[str, Any]:
    """Return what a trajectory keeps of a decision (METHODS.md 1.0.1, StepRecord)."""
    said = None if reply is None else reply.said
    return {
        "path": path,
        "decoding": draft.decoding,
        "draft_action": draft.action,
        "draft_parsed": draft.parsed,
        "draft_response": draft.text,
        "predicted_next_state": future or None,
        "reflect_response": None if reply is None else reply.text,
        "reflection_text": said and said.text,
        "decision": said and said.decision,
        "ref_action": said and said.action,
        "p": None,
        "p_source": None,
        "q": None,
        "q_source": None,
        "gate": False,
        "gate_parts": None,
        "exec_action": draft.action,
    }
