"""Which of the tokens that a language model generated wrote a part of a text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ..lm import Completion

__all__ = ["Piece", "logprobs_of_span"]


class Piece(NamedTuple):
    """A part of a text, and the completion it was taken from.

    Attributes:
        completion: The completion.
        start: Where the part begins in the completion's text.
        size: How many characters it has.
        at: Where it is in the whole text.
    """

    completion: Completion
    start: int
    size: int
    at: int


def logprobs_of_span(pieces: Sequence[Piece], start: int, end: int) -> tuple[float, ...] | None:
    """Return the log-probabilities of the tokens that wrote a part of a text.

    A token that wrote more than that counts whole.

    Args:
        pieces: What the text was put together from, in order; between them may be what no model
            wrote.
        start: Where the part begins.
        end: Where it ends.

    Returns:
        Natural logarithms, one for each token; None where it cannot be told exactly: a backend did
        not tell the tokens, they are not those of its text, or not all of the part was generated.

    Example:
        >>> tokens, logprobs = ("Action:", " look", "."), (-1.0, -0.5, -0.1)
        >>> said = Completion("Action: look.", logprobs=logprobs, tokens=tokens)
        >>> logprobs_of_span([Piece(said, 0, 13, at=0)], 8, 12)
        (-0.5,)
    """
    found: list[float] = []
    covered = 0
    for completion, begin, size, at in pieces:
        low, high = max(start, at), min(end, at + size)
        if low >= high:
            continue
        part = _logprobs_between(completion, begin + low - at, begin + high - at)
        if part is None:
            return None
        found += part
        covered += high - low
    return tuple(found) if covered == end - start > 0 else None


def _logprobs_between(completion: Completion, start: int, end: int) -> list[float] | None:
    """Return the log-probabilities of the tokens that wrote a part of a completion's text."""
    tokens, logprobs = completion.tokens, completion.logprobs
    if tokens is None or logprobs is None or len(tokens) != len(logprobs):
        return None
    shift = _place(completion.text, "".join(tokens))
    if shift is None:
        return None
    start, end = start + shift, end + shift
    ends = list(accumulate(map(len, tokens)))
    return [
        logprob
        for token, until, logprob in zip(tokens, ends, logprobs, strict=True)
        # An empty token began a character that a later one completes.
        if until - len(token) < end and (until > start or (until == start and not token))
    ]


def _place(text: str, generated: str) -> int | None:
    """Return where a completion's text is in all that was generated; None where that is not clear.

    The end may have been cut off, and a beginning that was only thought.
    """
    if generated.startswith(text):
        return 0
    place = generated.find(text)
    return place if place == generated.rfind(text) and place >= 0 else None
