"""CoMap's reflect mode: the reply about a draft, how probable a revision is, how sure the action."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import LanguageModelError
from ..lm import Completion, Generate, Message, Score, Words
from .acting import STOP, choose_action, seed_for
from .base import Reply, Request, View
from .generated_tokens import Piece, logprobs_of_span
from .parsing import Reflection, final_action_span, parse_reflection

if TYPE_CHECKING:
    from .comap import CoMapConfig

__all__ = [
    "PROBABILITY_ROOM",
    "Reflected",
    "ask_reflection",
    "token_confidence",
    "verbal_probability",
    "weigh",
]

PROBABILITY_ROOM = 24
"""Tokens of a last line that states a probability, where it is asked for by itself, generously."""

_LABEL = "Final Action:"
_LEADS = {"standard": "Reflection:", "brief": "Decision:"}  # what replies begin with
_DECISIONS = ("KEEP", "REVISE")
_NUMBER_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Reflected:
    """A reply in reflect mode.

    Attributes:
        text: The whole reply.
        head: Its beginning, up to and with ``Final Action:``; empty where it has no such line.
        said: What it says.
        logprobs: The log-probabilities of the tokens that wrote the final action, as it is taken;
            None where they are not known without scoring it.
    """

    text: str
    head: str
    said: Reflection
    logprobs: tuple[float, ...] | None = None

    @classmethod
    def of(cls, text: str, pieces: Sequence[Piece] = ()) -> Reflected:
        r"""Read a reply.

        Args:
            text: The reply.
            pieces: What was generated of it, if the backend may have told the tokens.

        Example:
            >>> Reflected.of("Decision: KEEP\nFinal Action: look").head
            'Decision: KEEP\nFinal Action:'
        """
        span, said = final_action_span(text), parse_reflection(text)
        if span is None:
            return cls(text, "", said)
        logprobs = None
        if said.action is not None:
            start = text.index(said.action, span[0])
            logprobs = logprobs_of_span(pieces, start, start + len(said.action))
        return cls(text, text[: span[0]], said, logprobs)


def ask_reflection(
    view: View, config: CoMapConfig, messages: Sequence[Message]
) -> Generator[Request, Reply, Reflected]:
    """Ask for the four lines of a reflection (METHODS.md 1.1).

    With free decoding, a reply that runs out of tokens before its final action is complete is
    continued by at most ``final_tokens`` more. With masked and scored decoding the analysis is free
    text (standard prompts) or one of two decisions (brief ones), and the final action is one of the
    admissible ones.

    Args:
        view: What the agent sees.
        config: How to ask.
        messages: The conversation that asks: see `CoMapAgent.question`.
    """
    if config.decoding == "free" or not view.admissible_actions:
        return (yield from _written(view, config, tuple(messages)))
    return (yield from _chosen(view, config, tuple(messages)))


def _generate(
    view: View,
    config: CoMapConfig,
    messages: tuple[Message, ...],
    purpose: str,
    tokens: int,
    stop: tuple[str, ...],
    prefix: str = "",
) -> Generate:
    sampling = config.sampling(tokens, stop, seed_for(config, view, purpose))
    return Generate(messages, sampling, prefix, adapter=config.adapter, purpose=purpose)


def _written(
    view: View, config: CoMapConfig, messages: tuple[Message, ...]
) -> Generator[Request, Reply, Reflected]:
    lead = _LEADS[config.prompts] if config.form == "given" else ""
    said: Completion = yield _generate(
        view, config, messages, "reflect", config.reflect_tokens, STOP, lead
    )
    text = f"{lead}{said.text}".strip()
    start = 0 if lead else said.text.find(text)
    first = Piece(said, start, len(text) - len(lead), at=len(lead))
    if said.finish != "length" or not config.final_tokens or _complete(text):
        return Reflected.of(text, (first,))
    head = _up_to_action(text)
    more: Completion = yield _generate(
        view, config, messages, "reflect: final action", config.final_tokens, ("\n",), head
    )
    rest = Piece(more, 0, len(more.text), at=len(head))
    return Reflected.of(head + more.text, (first, rest))


def _complete(text: str) -> bool:
    """Return whether the final action of a reply that ran out of tokens is followed by more."""
    span = final_action_span(text)
    return span is not None and span[1] < len(text)


def _up_to_action(text: str) -> str:
    """Return a reply that ran out of tokens, as far as the final action can be added to it."""
    if final_action_span(text) is not None:
        return text
    before, _, last = text.rpartition("\n")
    if last and _LABEL.startswith(last):  # the label itself was cut
        text = before
    return f"{text}\n{_LABEL}" if text else _LABEL


def _chosen(
    view: View, config: CoMapConfig, messages: tuple[Message, ...]
) -> Generator[Request, Reply, Reflected]:
    if config.prompts == "standard":
        stop = (_LABEL, *STOP)
        asked = _generate(view, config, messages, "reflect", config.reflect_tokens, stop)
        analysis: Completion = yield asked
        lead = analysis.text.strip()
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
        lead = f"Decision: {decision}"
    head = f"{lead}\n{_LABEL}" if lead else _LABEL
    action, _ = yield from choose_action(
        view, config, messages, head, purpose="reflect: final action"
    )
    text, said = f"{head} {action}", replace(parse_reflection(lead), action=action)
    if config.p_source == "verbal":
        line = f"{text}\nRevise Probability:"
        number: Completion = yield _generate(
            view, config, messages, "reflect: probability", _NUMBER_TOKENS, ("\n",), line
        )
        text = line + number.text
        stated = parse_reflection(f"Revise Probability:{number.text}").probability
        said = replace(said, probability=stated)
    return Reflected(text, head, said)


def weigh(
    config: CoMapConfig, messages: Sequence[Message], reply: Reflected, p: float | None
) -> Generator[Request, Reply, tuple[float, float]]:
    """Return ``p``, how probable a revision is, and ``q``, how sure the final action is.

    The final action is scored, unless the backend told the tokens that wrote it.

    Args:
        config: Its ``p_source`` and ``q_source`` say how (METHODS.md 1.3).
        messages: The conversation that asked for the reflection.
        reply: The reply.
        p: The probability, where it is known without the reply.

    Raises:
        LanguageModelError: The model's numbers are none, or it cannot tell them.
    """
    requests: list[Any] = []
    if p is None and config.p_source == "verbalizer":
        requests.append(_words(config, messages, reply))
    known = reply.logprobs
    if reply.said.action is not None and config.q_source != "proxy" and known is None:
        requests.append(_score(config, messages, reply))
    found = list((yield requests) if requests else ())
    if p is None and config.p_source == "verbalizer":
        revise, keep = found.pop(0).probabilities
        p = _share(revise, keep)
    elif p is None:
        p = verbal_probability(reply.said)
    if reply.said.action is None:
        return p, 0.0
    if config.q_source == "proxy":
        return p, 1.0 if "Decision:" in reply.text else 0.7
    return p, token_confidence(found[0].logprobs[0] if known is None else known, config.q_source)


def _score(config: CoMapConfig, messages: Sequence[Message], reply: Reflected) -> Score:
    completions, purpose = (f" {reply.said.action}",), "reflect: confidence"
    return Score(tuple(messages), completions, reply.head, False, config.adapter, purpose)


def _words(config: CoMapConfig, messages: Sequence[Message], reply: Reflected) -> Words:
    text = reply.said.text
    prefix = f"Reflection: {text}\nDecision:" if text else "Decision:"
    words = (" REVISE", " KEEP")
    return Words(tuple(messages), words, prefix, config.adapter, "reflect: probability")


def _share(revise: float, keep: float) -> float:
    total = revise + keep
    if not math.isfinite(total) or revise < 0 or keep < 0:
        raise LanguageModelError(f"expected two probabilities, found {revise!r} and {keep!r}")
    return revise / total if total > 0 else 0.0  # neither word is possible: nothing says revise


def verbal_probability(said: Reflection) -> float:
    """Return the probability that a reply states; without one 1, or 0 if it has no action either.

    What is no number (``high``, ``nan``) counts as none.

    Example:
        >>> verbal_probability(Reflection(action="look")), verbal_probability(Reflection())
        (1.0, 0.0)
    """
    if said.probability is not None:
        return float(said.probability)
    return 0.0 if said.action is None else 1.0


def token_confidence(logprobs: Sequence[float], source: str = "token_geo_mean") -> float:
    """Return how sure a model is of an action, from its tokens' log-probabilities (METHODS.md 1.3).

    Args:
        logprobs: Natural logarithms, at temperature 1; without any the confidence is 0.
        source: ``"token_geo_mean"``, ``exp`` of their mean; ``"min_token"``, of the least.

    Raises:
        LanguageModelError: One of them is not a number.

    Example:
        >>> [round(token_confidence((-0.1, -0.3), s), 3) for s in ("token_geo_mean", "min_token")]
        [0.819, 0.741]
    """
    if not logprobs:
        return 0.0
    if any(math.isnan(value) for value in logprobs):
        raise LanguageModelError("expected log-probabilities of an action's tokens, found nan")
    told = [min(value, 0.0) for value in logprobs]  # rounding may leave a hair above
    return math.exp(min(told) if source == "min_token" else math.fsum(told) / len(told))
