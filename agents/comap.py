"""CoMap's agent: draft, look ahead, reflect, and a gate that chooses (arXiv 2606.02372)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from ..envs import canonical_action
from ..errors import LanguageModelError, OptionError
from ..facts import Delta
from ..lm import Completion, Encode, Encoding, Message, NextWord, Score, WordProbabilities
from ..lm.prompts import cut_text
from ..lm.thoughts import is_thinking, without_thoughts
from ..settings import NonNegativeInt, PositiveInt, Share
from ..worldmodel import Imagined
from .base import Decision, Imagine, Reply, Request, View
from .config import AgentConfig, FromModel, ReplyLimit
from .heads import RefinementHead
from .parsing import (
    Reflection,
    final_action_span,
    find_final_action,
    first_line,
    parse_reflection,
)
from .prompting import (
    STOP,
    Draft,
    ask_about,
    ask_text,
    choose_action,
    converse,
    draft_action,
    tokens_of,
)
from .react import replies_in


class GatePath(StrEnum):
    """How a step's action was chosen: ``path`` in the notes of a step."""

    DRAFT_ONLY_FALLBACK = "draft_only_fallback"
    """The draft could not be read, and was taken as it is."""
    REFLECTION_SKIPPED = "reflection_skipped"
    """The draft was taken without a reflection: the gate could not open any more."""
    REFLECTED = "reflected"
    """The policy reflected on the draft, and the action gate chose between the two actions."""


class Piece(NamedTuple):
    """A part of a text, and the completion it was taken from."""

    completion: Completion
    start: int
    """where the part begins in the completion"""
    size: int
    offset: int
    """where the part begins in the text"""


def logprobs_of_span(pieces: Sequence[Piece], start: int, end: int) -> tuple[float, ...] | None:
    """Return the log-probabilities of the tokens that wrote a span; None where some are unknown."""
    span_logprobs: list[float] = []
    covered = 0
    for completion, piece_start, size, offset in pieces:
        low = max(start, offset)
        high = min(end, offset + size)
        if low >= high:
            continue

        shift = piece_start - offset
        piece_logprobs = _logprobs_between(completion, low + shift, high + shift)
        if piece_logprobs is None:
            return None
        span_logprobs += piece_logprobs
        covered += high - low

    # A confidence of a part of the action would be too high: all of it, or nothing.
    is_complete = covered == end - start > 0
    return tuple(span_logprobs) if is_complete else None


def _logprobs_between(completion: Completion, start: int, end: int) -> list[float] | None:
    """Return the log-probabilities of the tokens that wrote a part of a completion's text."""
    tokens = completion.tokens
    logprobs = completion.logprobs
    if tokens is None or logprobs is None or len(tokens) != len(logprobs):
        return None

    # The tokens may write more than the text, which backends trim. Where the text stands in them
    # twice it is not clear which of the two it is.
    generated = "".join(tokens)
    shift = 0
    if not generated.startswith(completion.text):
        shift = generated.find(completion.text)
        if shift < 0 or shift != generated.rfind(completion.text):
            return None

    start += shift
    end += shift
    part_logprobs = []
    token_ends = accumulate(map(len, tokens))
    for token, token_end, logprob in zip(tokens, token_ends, logprobs, strict=True):
        token_start = token_end - len(token)
        # An empty token began a character that a later one completes.
        begins_character = token_end == start and not token
        if token_start < end and (token_end > start or begins_character):
            part_logprobs.append(logprob)
    return part_logprobs


def action_gate(p: float, q: float, same: bool, tau_p: float = 0.5, tau_q: float = 0.6) -> bool:
    """Return whether the reflected action is taken in place of the draft (CoMap, section 2).

    ``g = [p > tau_p] [q > tau_q] [Canon(a_ref) != Canon(a_draft)]``, with strict inequalities.
    """
    return p > tau_p and q > tau_q and not same


ActionGate: TypeAlias = Callable[[float, float, bool, float, float], bool]
"""Says whether the reflected action is taken, of p, q, whether it is the draft, tau_p and tau_q."""


class WorldStateGate(NamedTuple):
    """What the world-state gate says of a prediction."""

    agreement: float
    open: bool


def agreement(
    student: Delta, teacher: Delta, *, student_parsed: bool = True, teacher_parsed: bool = True
) -> float:
    """Return the F1 of the signed fact changes that two predictions make (CoMap, Figure 2)."""
    if not (student_parsed and teacher_parsed):
        return 0.0

    # Signed: a fact that one adds and the other removes is no agreement.
    shared = len(student.added & teacher.added) + len(student.removed & teacher.removed)
    student_size = len(student.added) + len(student.removed)
    teacher_size = len(teacher.added) + len(teacher.removed)
    total = student_size + teacher_size
    if total == 0:
        return 1.0  # both say that nothing changes, and so they agree (the paper leaves it open)
    return 2 * shared / total


def world_state_gate(
    student: Delta,
    teacher: Delta,
    *,
    student_parsed: bool = True,
    teacher_parsed: bool = True,
    tau: float = 0.6,
) -> WorldStateGate:
    """Return whether a student's prediction is reliable enough: ``r >= tau`` (CoMap, Figure 2)."""
    f1 = agreement(student, teacher, student_parsed=student_parsed, teacher_parsed=teacher_parsed)
    return WorldStateGate(f1, f1 >= tau)


StateGate: TypeAlias = Callable[..., WorldStateGate]
"""Says whether a prediction is reliable enough; called as `world_state_gate` is."""

PROBABILITY_ROOM = 24
"""Tokens of a last line that states a probability, where it is asked for by itself, generously."""

_LABEL = "Final Action:"
_LEADS = {"standard": "Reflection:", "brief": "Decision:"}  # what replies begin with
_DECISIONS = ("KEEP", "REVISE")
_NUMBER_TOKENS = 8
_BEFORE_ACTION = " \t\r\n\"'`*_[<("  # what may stand between the label and the action


@dataclass(frozen=True, slots=True)
class Reflected:
    """A reply in reflect mode."""

    text: str
    lead: str
    """what stands before its final action, as far as the label"""
    reflection: Reflection
    logprobs: tuple[float, ...] | None = None
    """of the final action's tokens, where they are known"""

    @classmethod
    def of(
        cls, text: str, pieces: Sequence[Piece] = (), admissible: Sequence[str] | None = None
    ) -> Reflected:
        """Read a reply of which `pieces` were written by completions."""
        reflection = parse_reflection(text, admissible)
        final = find_final_action(text, admissible)
        if final is None:
            return cls(text, "", reflection)

        # Without the blank and the quotes before the action: to be scored it is set behind the
        # label as " action", the way it is taken.
        lead = text[: final.start].rstrip(_BEFORE_ACTION)
        logprobs = logprobs_of_span(pieces, final.start, final.end)
        return cls(text, lead, reflection, logprobs)


def _written(
    view: View, config: CoMapConfig, messages: Sequence[Message]
) -> Generator[Request, Reply, Reflected]:
    """Ask for the lines of a reflection as free text (CoMap, Figure 10)."""
    lead = _LEADS[config.prompts] if config.form == "given" else ""
    reply: Completion = yield ask_text(
        view, config, messages, "reflect", config.reflect_tokens, STOP, lead
    )
    text = f"{lead}{reply.text}".strip()
    start = 0 if lead else reply.text.find(text)
    first_piece = Piece(reply, start, len(text) - len(lead), offset=len(lead))

    # Only a reply that was cut short before the end of its final action is worth going on with.
    # Without a decision (p_source="verbal") or within a think block, that action would not be taken.
    span = final_action_span(text)
    is_action_whole = span is not None and span[1] < len(text)  # more follows the final action
    is_whole = reply.finish != "length" or is_action_whole
    is_undecided = config.p_source == "verbal" and parse_reflection(text).decision is None
    if is_whole or not config.final_tokens or is_undecided or is_thinking(text):
        return Reflected.of(text, (first_piece,), view.admissible_actions)

    beginning = text if span is not None else _with_label(text)
    completion: Completion = yield ask_text(
        view, config, messages, "reflect: final action", config.final_tokens, ("\n",), beginning
    )
    last_piece = Piece(completion, 0, len(completion.text), offset=len(beginning))
    pieces = (first_piece, last_piece)
    return Reflected.of(beginning + completion.text, pieces, view.admissible_actions)


def _with_label(text: str) -> str:
    """Return a reply with the final action's label at its end, also where it was cut within it."""
    before, _, last_line = text.rpartition("\n")
    if last_line and _LABEL.startswith(last_line):
        text = before
    return f"{text}\n{_LABEL}".lstrip("\n")


def _chosen(
    view: View, config: CoMapConfig, messages: Sequence[Message]
) -> Generator[Request, Reply, Reflected]:
    """Ask for a reflection in parts, the final action out of the admissible ones."""
    if config.prompts == "standard":
        stop = (_LABEL, *STOP)
        # Renamed after it was made, so that its seed is that of a reflection in free text.
        request = ask_text(view, config, messages, "reflect", config.reflect_tokens, stop)
        reply: Completion = yield replace(request, purpose="reflect: analysis")
        # Read again as a text, what was written may have more tokens than when it was written.
        analysis = without_thoughts(reply.text).strip()
        analysis = cut_text(analysis, config.reflect_tokens, view.count_tokens)
    else:
        decision, _ = yield from choose_action(
            view,
            config,
            messages,
            "Decision:",
            actions=_DECISIONS,
            purpose="reflect: decision",
            ended=False,
        )
        analysis = f"Decision: {decision}"

    lead = f"{analysis}\n{_LABEL}" if analysis else _LABEL
    action, _ = yield from choose_action(
        view, config, messages, lead, purpose="reflect: final action"
    )
    text = f"{lead} {action}"
    reflection = replace(parse_reflection(analysis), action=action)

    # The probability is the last line of the form (CoMap, Figure 10), so it is asked for last.
    if config.p_source == "verbal":
        beginning = f"{text}\nRevise Probability:"
        number: Completion = yield ask_text(
            view, config, messages, "reflect: probability", _NUMBER_TOKENS, ("\n",), beginning
        )
        text = beginning + number.text
        probability = parse_reflection(f"Revise Probability:{number.text}").probability
        reflection = replace(reflection, probability=probability)
    return Reflected(text, lead, reflection)


def weigh(
    config: CoMapConfig, messages: Sequence[Message], reply: Reflected, p: float | None
) -> Generator[Request, Reply, tuple[float, float]]:
    """Return ``p``, how probable a revision is, and ``q``, how sure the final action is."""
    reflection = reply.reflection
    prompt = tuple(messages)

    # Both questions need passes over the same prompt, so they go into one batch.
    requests: list[NextWord | Score] = []
    verbalizes = p is None and config.p_source == "verbalizer"
    if verbalizes:
        requests.append(_decision_request(config, prompt, reflection))
    needs_scores = config.q_source != "proxy" and reply.logprobs is None
    if needs_scores and reflection.action is not None:
        request = Score(
            prompt,
            (f" {reflection.action}",),
            reply.lead,
            False,
            config.adapter,
            "reflect: confidence",
            config.asks_to_think,
        )
        requests.append(request)
    answers: list[Any] = []
    if requests:
        answers = list((yield requests))

    if verbalizes:
        p = _revise_share(answers.pop(0))
    elif p is None:
        p = stated_probability(reflection)

    # Of a reply that cannot be read q is 0, which keeps the draft. The proxy, and its 0.7 for a reply
    # without a decision, are the authors' code, which says that no token's confidence was exposed to it.
    if reflection.action is None:
        return p, 0.0
    if config.q_source == "proxy":
        return p, 1.0 if reflection.decision is not None else 0.7
    logprobs = reply.logprobs
    if logprobs is None:
        logprobs = answers[0].logprobs[0]
    return p, token_confidence(logprobs, config.q_source)


def _decision_request(
    config: CoMapConfig, prompt: tuple[Message, ...], reflection: Reflection
) -> NextWord:
    """Return the question which of the two decisions follows the analysis that a reply gave."""
    prefix = f"Reflection: {reflection.text}\nDecision:" if reflection.text else "Decision:"
    return NextWord(
        prompt,
        (" REVISE", " KEEP"),
        prefix,
        config.adapter,
        "reflect: probability",
        config.asks_to_think,
    )


def _revise_share(reply: WordProbabilities) -> float:
    """Return P(REVISE) / (P(REVISE) + P(KEEP))."""
    revise, keep = reply.probabilities
    total = revise + keep
    if not math.isfinite(total) or revise < 0 or keep < 0:
        raise LanguageModelError(f"expected two probabilities, found {revise!r} and {keep!r}")
    return revise / total if total > 0 else 0.0  # neither word is possible: nothing says revise


def stated_probability(reflection: Reflection) -> float:
    """Return ``p`` as a reply states it in words (``p_source="verbal"``).

    The authors' code reads the number alone, and takes 1 where there is none and an action can be read.
    That opens the gate on ``KEEP``; so here a decision must be readable, and without a number only
    REVISE is worth 1.
    """
    if reflection.decision is None:
        return 0.0
    if reflection.probability is not None:
        return reflection.probability
    return float(reflection.decision == "REVISE" and reflection.action is not None)


def token_confidence(logprobs: Sequence[float], source: str = "token_geo_mean") -> float:
    """Return how sure a model is of an action, from its tokens' log-probabilities (CoMap, section 3.2)."""
    if not logprobs:
        return 0.0
    if any(math.isnan(value) for value in logprobs):
        raise LanguageModelError("expected log-probabilities of an action's tokens, found nan")

    # The paper has no formula for q. A mean over the tokens, not their product: a long action is
    # not less sure for its length.
    bounded = [min(value, 0.0) for value in logprobs]  # rounding may leave a hair above
    if source == "min_token":
        return math.exp(min(bounded))
    return math.exp(math.fsum(bounded) / len(bounded))


class LookAhead(NamedTuple):
    """What is known of the future before a reflection."""

    text: str = ""
    imagined: Imagined | None = None
    notes: Mapping[str, Any] = {}


def step_notes(
    draft: Draft, path: GatePath, shown_reply: str, future: str = "", reply: Reflected | None = None
) -> dict[str, Any]:
    """Return the notes of a step, before the gate has said anything; all have the same keys."""
    reflection = Reflection() if reply is None else reply.reflection
    return {
        "path": path.value,
        "decoding": draft.decoding,
        "draft_action": draft.action,
        "draft_parsed": draft.parsed,
        "draft_response": draft.text,
        "predicted_next_state": future or None,
        "reflect_response": None if reply is None else reply.text,
        "reflection_text": reflection.text,
        "decision": reflection.decision,
        "ref_action": reflection.action,
        "p": None,
        "p_source": None,
        "q": None,
        "q_source": None,
        "gate": False,
        "gate_parts": None,
        "exec_action": draft.action,
        "shown": shown_reply,
    }


ProbabilitySource: TypeAlias = Literal["auto", "head", "verbalizer", "verbal"]
"""Where p comes from: a trained head on a hidden state; the probabilities of two words; what the
model says (CoMap, section 3.2)."""

ConfidenceSource: TypeAlias = Literal["auto", "token_geo_mean", "min_token", "proxy"]
"""Where q comes from: the geometric mean of the action's token probabilities; the least of them; the
form of the reply (CoMap, section 3.2)."""

_UNKNOWN = "Unknown."
_PROBABILITY_LINE = "\nRevise Probability: <a number from 0 to 1>"
_DIGITS = 6
_DRAFT_SHARES = (8, 16, 32)
"""A draft gets one in so many of a prompt's tokens, a future two: the first number that leaves room."""


@dataclass(frozen=True, kw_only=True)
class CoMapConfig(AgentConfig):
    """Settings of CoMap at inference (CoMap, section 2, Table 5; the ablations of section 4.3)."""

    tau_p: Share = 0.5
    """The draft is revised only if p is above this; at it, it is kept (CoMap, Table 5)."""
    tau_q: Share = 0.6
    """The draft is revised only if q is above this; at it, it is kept (CoMap, Table 5)."""
    reflect_tokens: Annotated[PositiveInt, ReplyLimit(256, 512)] = FromModel(128)  # noqa: RUF009 (an int)
    """Most tokens of a reflection. Default: 256, or 512 where the model thinks first; with prompts=brief
    128, as CoMap's Table 5."""
    final_tokens: NonNegativeInt = 16
    """Most further tokens where the reflection's final action is lacking (CoMap, Table 5).
    0 asks for none, for servers that cannot continue a reply."""
    p_source: ProbabilitySource = "auto"
    """head (reconstructed; needs `Encode`), verbalizer (ours; `NextWord`) or verbal (the authors' code;
    any model). auto is head if the agent has one, else verbal."""
    q_source: ConfidenceSource = "auto"
    """token_geo_mean (reconstructed), min_token (ours), or proxy (the authors' code; any model).
    The first two need `Score`, or with free decoding a backend that returns its tokens. auto is proxy
    if p_source is auto and there is no head, else token_geo_mean."""
    future_state: bool = True
    """Show the predicted observation to the reflection; without it: the ablation "w/o Future State"."""
    action_gate: bool = True
    """Use the action gate; without it, "w/o Action Gate": a reflected action that can be read is taken."""
    reflect_when_closed: bool = True
    """Reflect also where p is known before and keeps the gate closed; without it (not in the paper) the
    same actions cost fewer tokens."""

    def resolved(self, head: bool) -> CoMapConfig:
        """Return the settings with a source in place of each ``auto``, with a head or without one.

        Example:
            >>> CoMapConfig().resolved(head=False).p_source
            'verbal'
        """
        p_source = self.p_source
        q_source = self.q_source

        # Where nothing is set and there is no head, any model must do: then both are read from the
        # reply's words, as in the authors' code.
        if q_source == "auto":
            any_model = p_source == "auto" and not head
            q_source = "proxy" if any_model else "token_geo_mean"
        if p_source == "auto":
            p_source = "head" if head else "verbal"
        return replace(self, p_source=p_source, q_source=q_source)

    def required_capabilities(self) -> frozenset[str]:
        """Return which of `comap.lm.CAPABILITIES` a language model must have for these settings.

        A head needs ``encode`` besides. ``score|tokens`` stands for either of the two.

        Example:
            >>> sorted(CoMapConfig(q_source="min_token").required_capabilities())
            ['generate', 'prefix', 'prefix|tokens', 'score|tokens']
        """
        is_free = self.decoding == "free"
        capabilities = set(super().required_capabilities())
        if self.p_source == "verbalizer":
            capabilities |= {"words", "prefix"}

        # Of an action in free text the tokens' own log-probabilities will do; a chosen one is scored.
        if self.q_source != "proxy":
            capabilities |= {"score|tokens", "prefix|tokens"} if is_free else {"score", "prefix"}
        if is_free and self.final_tokens:  # a reflection that was cut short is continued
            capabilities.add("prefix")
        return frozenset(capabilities)


class CoMapAgent:
    """Drafts an action, asks a world model what follows, reflects, and takes one of the two actions.

    Each step (CoMap, section 2): draft an action; ask the world model what would be observed
    after it; ask the same language model, which now sees that, for a reflected action; take the
    reflected action if ``p > tau_p``, ``q > tau_q`` and it is another action than the draft. That is
    at most three texts a step, the world model's included, but for one reminder of a draft's form and
    one continuation of a reflection that was cut short. Masked and scored decoding write the same
    texts in parts, each going on where the one before ended. The numbers p and q may need passes over
    the prompt that write nothing.

    Not every model can do all of it. Hugging Face models with the engine ``hf`` can; vLLM lacks the
    hidden states that a head reads. Servers of chat completions return no log-probabilities of given
    texts and words, either. So without a head, p is what the model states and q the authors' proxy: any
    model can do both. With ``decoding="free"``, the other sources of q need a server that returns the
    tokens it wrote and their log-probabilities (OpenAI's does, ``transformers serve`` does not); if
    a reflection was continued, also ``final_tokens=0``. Runners refuse settings that a model is known
    not to serve before anything is played, and say which would do.

    Deviations: the formula of q and the head are reconstructed; a draft that cannot
    be read goes to the environment with no further call, as in the authors' code, but never becomes
    another action, as it does there; the final action is scored as it is taken, without quotes; one
    that was cut short is continued too, not only one that is missing. With verbalizer, p is 0 where
    the model gives neither word any probability; with verbal, percentages are read. Masked and
    scored decoding ask for the analysis, then for one of the admissible actions, then (verbal) for
    the probability; with brief prompts the analysis is the decision alone. Where the model states p,
    a reply whose decision cannot be read, or is KEEP, keeps the draft, whatever its final action is: the
    authors' code takes 1 where no number stands, which opens the gate on KEEP. The candidate is quoted by
    its thought and action. The belief as state text is ours, and so are the prompts.

    Args:
        config: Settings; None for the defaults.
        head: Computes p if ``p_source="head"``, or the file of `RefinementHead.save`; without one that
            p is always 0.5.
        gate: Another action gate than `action_gate`.

    Example:
        >>> CoMapAgent().config.q_source
        'proxy'
    """

    name = "comap"

    def __init__(
        self,
        config: CoMapConfig | None = None,
        head: RefinementHead | str | Path | None = None,
        *,
        gate: ActionGate = action_gate,
    ):
        self.config = (config or CoMapConfig()).resolved(head is not None)
        self.gate = gate
        self.head = RefinementHead.load(head) if isinstance(head, str | Path) else head

    @property
    def asks_world_model(self) -> bool:
        """Whether drafts are looked at ahead: not in the ablation without a future state."""
        return self.config.future_state

    def check_settings(self) -> None:
        """Raise `OptionError` if the gate could never open: p or q cannot be above its threshold."""
        tau_p = self.config.tau_p
        tau_q = self.config.tau_q
        if self._has_constant_p():
            highest_p = 0.5
            reason = "p_source='head' without a head, so p is always 0.5"
            remedy = ", give head=FILE, or leave p_source out"
        else:
            highest_p = 1.0
            reason = "1 at most"
            remedy = ""

        # The inequalities are strict: a threshold of 1 already closes the gate for good. A gate of the
        # user's own is not judged.
        uses_our_gate = self.config.action_gate and self.gate is action_gate
        if uses_our_gate and not action_gate(highest_p, 1.0, False, tau_p, tau_q):
            raise OptionError(
                f"expected a gate that can open (p above tau_p={tau_p}, q above tau_q={tau_q}), found "
                f"{reason}; CoMap would act as ReAct does: lower the threshold{remedy}"
            )

    def _has_constant_p(self) -> bool:
        """Return whether p is always 0.5: a head is to compute it, and there is none."""
        return self.config.p_source == "head" and self.head is None

    def required_capabilities(self) -> frozenset[str]:
        """Return which of `comap.lm.CAPABILITIES` the language model must have."""
        capabilities = self.config.required_capabilities()
        if self.config.p_source == "head" and self.head is not None:
            capabilities |= {"encode"}
        return capabilities

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        """Draft, look ahead, reflect and choose; the notes record all of it."""
        config = self.config
        replies = replies_in(view)
        draft = yield from draft_action(view, config, converse(view, config, replies))
        if not draft.parsed:  # there is nothing to imagine, nor to reflect on
            replies[view.step] = draft.shown
            notes = step_notes(draft, GatePath.DRAFT_ONLY_FALLBACK, draft.shown)
            return Decision(draft.action, notes=notes)

        ahead = yield from self.look_ahead(view, draft)
        messages = self.question(view, replies, draft, ahead.text)

        # A head tells p before the reflection is written; where it closes the gate that may be spared.
        reflection = None
        q = None
        p = yield from self._early_probability(messages)
        is_closed = p is not None and p <= config.tau_p and config.action_gate
        if config.reflect_when_closed or not is_closed:
            if config.decoding == "free" or not view.admissible_actions:
                reflection = yield from _written(view, config, messages)
            else:
                reflection = yield from _chosen(view, config, messages)
            p, q = yield from weigh(config, messages, reflection, p)

        verdict = self._verdict(view, draft, reflection, p, q)
        action: str = verdict["exec_action"]

        # What later prompts show of this step: its last thought and the action that was taken.
        analysis = None
        if reflection is not None:
            analysis = reflection.reflection.text
        thought = first_line(analysis or draft.thought or "")
        shown_reply = f"Action: {action}"
        if thought:
            shown_reply = f"Thought: {thought}\n{shown_reply}"
        replies[view.step] = shown_reply

        path = GatePath.REFLECTION_SKIPPED if reflection is None else GatePath.REFLECTED
        notes = step_notes(draft, path, shown_reply, ahead.text, reflection)
        prediction = ahead.imagined if action == draft.action else None  # it is of the draft
        return Decision(action, prediction, {**notes, **ahead.notes, **verdict})

    def look_ahead(self, view: View, draft: Draft) -> Generator[Request, Reply, LookAhead]:
        """Return the future that the reflection reads: the world model's prediction for the draft."""
        if not self.config.future_state:
            return LookAhead()
        imagined: Imagined = yield Imagine(draft.action)
        return LookAhead(imagined.observation, imagined)

    def question(
        self, view: View, replies: Mapping[int, str], draft: Draft, future: str
    ) -> tuple[Message, ...]:
        """Return the conversation that asks for a reflection, for acting and for training."""
        config = self.config
        reply_tokens = config.reflect_tokens + config.final_tokens

        # The form's last line states the probability (CoMap, Figure 10). Where p comes from elsewhere
        # it is not asked for: the model would write what nobody reads.
        line_count = "three"
        probability_line = ""
        if config.p_source == "verbal":
            line_count = "four"
            probability_line = _PROBABILITY_LINE
            if config.prompts == "standard":
                reply_tokens += PROBABILITY_ROOM

        # Where draft and future leave no room for the rest of the prompt, they are cut further.
        for share in _DRAFT_SHARES:
            room = config.max_length // share
            messages = ask_about(
                view,
                config,
                "reflect",
                reply_tokens,
                replies,
                number=line_count,
                probability=probability_line,
                draft=cut_text(draft.shown, room, view.count_tokens),
                action=cut_text(draft.action, room, view.count_tokens),
                future=cut_text(future.strip() or _UNKNOWN, 2 * room, view.count_tokens),
            )
            if tokens_of(view, messages) + reply_tokens <= config.max_length:
                break
        return messages

    def _early_probability(
        self, messages: tuple[Message, ...]
    ) -> Generator[Request, Reply, float | None]:
        """Return p by the head, which reads the prompt alone; None where p comes from elsewhere."""
        if self.config.p_source != "head":
            return None
        if self.head is None:
            return 0.5
        request = Encode(
            messages,
            adapter=self.config.adapter,
            purpose="reflect: state",
            thinking=self.config.asks_to_think,
        )
        state: Encoding = yield request
        return self.head.probability(state.vector)

    def _revised(self, reflection: Reflection) -> str | None:
        """Return the action that a reflection wants in place of the draft.

        Where the model states p in words, its decision is a part of that: one to keep the draft, or one
        that cannot be read, wants no other. A head and the verbalizer say by themselves how probable a
        revision is.
        """
        if self.config.p_source == "verbal" and reflection.decision != "REVISE":
            return None
        return reflection.action

    def _verdict(
        self, view: View, draft: Draft, reply: Reflected | None, p: float | None, q: float | None
    ) -> dict[str, Any]:
        """Return which action is taken and what each part of the gate says, as notes."""
        config = self.config
        revised = None
        if reply is not None:
            revised = self._revised(reply.reflection)

        # Another wording of the draft is no other action: Canon(a_ref) != Canon(a_draft).
        is_same = True
        if revised is not None:
            plain_draft = canonical_action(view.env_id, draft.action)
            is_same = canonical_action(view.env_id, revised) == plain_draft

        gate_p = p or 0.0
        gate_q = q or 0.0
        opens = self.gate(gate_p, gate_q, is_same, config.tau_p, config.tau_q)
        takes_revised = revised is not None and (opens or not config.action_gate)
        return {
            "p": p if p is None else round(p, _DIGITS),
            "p_source": "constant" if self._has_constant_p() else config.p_source,
            "q": q if q is None else round(q, _DIGITS),
            "q_source": config.q_source,
            "gate": takes_revised,
            "gate_parts": {
                "p": gate_p > config.tau_p,
                "q": gate_q > config.tau_q,
                "changed": not is_same,
            },
            "exec_action": revised if takes_revised else draft.action,
        }
