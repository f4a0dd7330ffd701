"""What a trajectory keeps of a language model's replies, and whether they are replies at all."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

from ..errors import LanguageModelError, OptionError
from ..lm import (
    Completion,
    Encode,
    Encoding,
    Generate,
    LanguageModel,
    LMReply,
    LMRequest,
    Score,
    Scores,
    TokenTexts,
    WordProbabilities,
    Words,
)
from ..trajectory import Call

__all__ = ["IMAGINE", "Keep", "call_of", "checked_keep", "checked_reply", "imagine_call_of"]

Keep: TypeAlias = Literal["replies", "prompts", "tokens"]
"""How much of each call a trajectory keeps: the reply's text and its token counts; the prompt as well;
or token ids, texts and log-probabilities (to six decimals) as well, as trainers and the viewer need
them. Each includes the one before."""

IMAGINE = "imagine"
"""The kind of a call that a world model made of its own language model; calls of all other kinds are
the agent's."""

_REPLIES: dict[type, type] = {
    Generate: Completion,
    Score: Scores,
    Words: WordProbabilities,
    Encode: Encoding,
}
_LOWEST = -1e9  # stands for the logarithm of 0, which JSON has not
_DIGITS = 6  # what a batch of another size changes is far below, and so is not on record


def checked_keep(keep: str) -> Keep:
    """Return `keep` if it is a `Keep`.

    Raises:
        OptionError: It is none.

    Example:
        >>> checked_keep("tokens")
        'tokens'
    """
    for known in get_args(Keep):
        if keep == known:
            found: Keep = known
            return found
    raise OptionError(f"keep must be one of {', '.join(get_args(Keep))}, not {keep!r}")


def checked_reply(request: LMRequest, reply: object, model: str) -> LMReply:
    """Return a language model's reply, if it is one to this request.

    Raises:
        Exception: What the model returned in place of a reply.
        LanguageModelError: The reply is of another kind or size than was asked for.

    Example:
        >>> checked_reply(Generate(()), Completion("look"), "tiny").text
        'look'
    """
    if isinstance(reply, Exception):
        raise reply
    kind = _REPLIES[type(request)]
    if type(reply) is not kind:
        raise LanguageModelError(
            f"expected {kind.__name__} from {model} in reply to {type(request).__name__}, "
            f"found {reply!r:.80}"
        )
    asked: Any = request
    said: Any = reply
    if isinstance(said, Completion) and not isinstance(said.text, str):
        raise LanguageModelError(f"expected text (str) from {model}, found {said.text!r:.80}")
    if isinstance(said, Scores):
        _check_count(len(asked.completions), said.logprobs, model)
    elif isinstance(said, WordProbabilities):
        _check_count(len(asked.words), said.probabilities, model)
    return reply  # type: ignore[return-value]


def call_of(
    request: LMRequest, reply: LMReply, keep: Keep, lm: LanguageModel | None = None
) -> Call:
    """Return the record of a request and its reply.

    Args:
        request: What was asked.
        reply: What came back.
        keep: How much of it to keep.
        lm: Whose reply it is: may tell its tokens' texts, where the reply does not.

    Example:
        >>> asked = Generate((), purpose="draft")
        >>> call_of(asked, Completion("look", prompt_tokens=9, completion_tokens=2), "replies").text
        'look'
    """
    text, tokens, ids, logprobs, finish = _said(request, reply)
    prompts, details = keep != "replies", keep == "tokens"
    return Call(
        type(request).__name__.lower(),
        request.purpose,
        text,
        reply.prompt_tokens,
        tokens,
        tuple((role, content) for role, content in request.messages) if prompts else None,
        request.prefix if prompts else "",
        ids if details else None,
        _finite(logprobs) if details else None,
        finish,
        request.adapter,
        _texts(request, reply, lm) if details else None,
    )


def imagine_call_of(
    request: Generate, reply: Completion, keep: Keep, lm: LanguageModel | None = None
) -> Call:
    """Return the record of what a world model asked its own language model.

    It is a generation like others, under a kind of its own, so that nobody takes the world model's
    words for the agent's.

    Example:
        >>> imagine_call_of(Generate(()), Completion("It is dark."), "replies").kind
        'imagine'
    """
    return replace(call_of(request, reply, keep, lm), kind=IMAGINE)


_Said: TypeAlias = "tuple[str, int, tuple[int, ...] | None, tuple[float, ...] | None, str]"


def _said(request: LMRequest, reply: LMReply) -> _Said:
    """Return text, number of tokens, token ids, log-probabilities and finish of a reply."""
    if isinstance(reply, Completion):
        return reply.text, reply.completion_tokens, reply.token_ids, reply.logprobs, reply.finish
    if isinstance(reply, Scores) and isinstance(request, Score):
        scored = sum(len(tokens) for tokens in reply.logprobs)
        text = request.completions[reply.best] if request.completions else ""
        return text, scored, None, reply.totals, ""
    if isinstance(reply, WordProbabilities) and isinstance(request, Words):
        logs = tuple(math.log(p) if p > 0 else _LOWEST for p in reply.probabilities)
        text = request.words[logs.index(max(logs))] if logs else ""
        return text, 0, None, logs, ""
    return "", 0, None, None, ""


def _texts(request: LMRequest, reply: LMReply, lm: LanguageModel | None) -> tuple[str, ...] | None:
    """Return the text of what each log-probability is of; None where nobody tells."""
    if isinstance(request, Score):
        return tuple(request.completions)
    if isinstance(request, Words):
        return tuple(request.words)
    if not isinstance(reply, Completion) or reply.tokens is not None or reply.token_ids is None:
        return reply.tokens if isinstance(reply, Completion) else None
    return lm.token_texts(reply.token_ids) if isinstance(lm, TokenTexts) else None


def _finite(logprobs: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """Return log-probabilities that JSON can hold, the same whatever else was in the batch."""
    if logprobs is None:
        return None
    known = (float(value) if value >= _LOWEST else _LOWEST for value in logprobs)
    return tuple(round(value, _DIGITS) + 0.0 for value in known)  # there is no -0.0 then


def _check_count(expected: int, found: tuple[object, ...], model: str) -> None:
    if len(found) != expected:
        raise LanguageModelError(f"expected {expected} values from {model}, found {len(found)}")
