"""How much of the observation loss's gradient falls on tokens that nobody could foresee.

The diagnostic of METHODS.md 2.9: with the observation scored as in training, each loss pulls at the
logit of a token by an amount that depends on the token's probability p alone: cross-entropy by 1 - p,
the mean absolute error by p (1 - p), and PaW's clipped one by p (1 - p) where p is at most rho. The
share of these pulls that falls on product codes, on all that a list tells of products never listed
before, or on what a receptacle that was never looked into turns out to hold, is what a loss spends on
noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import LanguageModelError, OptionError, suggest
from .noise_spans import Spans
from .token_texts import token_texts

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "GRADIENTS",
    "ScoredObservation",
    "gradient_magnitudes",
    "noise_shares",
    "noisy_tokens",
]

GRADIENTS = ("ce", "mae", "cmae")
"""Cross-entropy, mean absolute error, and the latter clipped (METHODS.md 2.3)."""


def gradient_magnitudes(logprobs: ArrayLike, kind: str, *, rho: float = 0.2) -> NDArray[np.float64]:
    """Return the size of a loss's gradient with respect to each token's own logit (METHODS.md 2.9).

    Args:
        logprobs: Natural log-probability of each token.
        kind: One of `GRADIENTS`.
        rho: With ``cmae`` tokens of a higher probability than this have none (METHODS.md 2.3).

    Raises:
        OptionError: `kind` is none of those, or a log-probability is above 0 or no number.

    Example:
        >>> [gradient_magnitudes(np.log([0.1, 0.5]), kind).round(2).tolist() for kind in GRADIENTS]
        [[0.9, 0.5], [0.09, 0.25], [0.09, 0.0]]
    """
    if kind not in GRADIENTS:
        raise OptionError(f"there is no gradient {kind!r}; {suggest(kind, GRADIENTS)}")
    values = np.asarray(logprobs, dtype=np.float64)
    if not bool((values <= 0).all()):
        worst = values[~(values <= 0)][0]
        raise OptionError(f"expected log-probabilities, which are at most 0, found {worst}")
    away = -np.expm1(values)  # 1 - p, exact where p is nearly 1
    if kind == "ce":
        return away
    p = np.exp(values)
    return p * away if kind == "mae" else np.where(p <= rho, p * away, 0.0)


def noisy_tokens(
    tokenizer: Any, tokens: Sequence[int], spans_of: Callable[[str], Spans]
) -> tuple[bool, ...]:
    """Return for each token whether it shares a character with a noisy span of their text.

    So all pieces of a noisy word are noisy.

    Args:
        tokenizer: A tokenizer of the transformers library.
        tokens: The tokens of an observation.
        spans_of: Returns the noisy spans of a text, such as `code_spans`.

    Raises:
        LanguageModelError: The tokenizer does not tell what each token wrote.

    Example:
        >>> from comap.lm.tiny import tokenizer_of
        >>> from comap.trainers.paw.noise_spans import code_spans
        >>> tokenizer = tokenizer_of(["look"] * 2, 320)
        >>> ids = tokenizer("look MUGS", add_special_tokens=False)["input_ids"]
        >>> "".join(".x"[noisy] for noisy in noisy_tokens(tokenizer, ids, code_spans))
        '..xxxx'
    """
    texts = token_texts(tokenizer, tokens)
    if texts is None:
        raise LanguageModelError(
            "expected a tokenizer that tells what each token wrote, found "
            f"{type(tokenizer).__name__}, which changes earlier text by later tokens"
        )
    spans = spans_of("".join(texts))
    ends = np.cumsum([len(text) for text in texts], dtype=int).tolist()
    noisy = []
    for end, text in zip(ends, texts, strict=True):
        start = end - len(text)
        end = max(end, start + 1)  # an empty one is part of the character that comes next
        noisy.append(any(start < high and low < end for low, high in spans))
    return tuple(noisy)


@dataclass(frozen=True, slots=True)
class ScoredObservation:
    """An observation of which the log-probability of each token is known.

    Attributes:
        logprobs: Natural log-probability of each token.
        noisy: Whether nobody could foresee it.

    Example:
        >>> ScoredObservation((-0.1, -2.0), (False, True)).noisy
        (False, True)
    """

    logprobs: tuple[float, ...]
    noisy: tuple[bool, ...]

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.noisy):
            raise OptionError(
                f"expected a mark for each of {len(self.logprobs)} tokens, found {len(self.noisy)}"
            )


def noise_shares(
    observations: Iterable[ScoredObservation],
    *,
    rho: float = 0.2,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Any]:
    """Return which share of all gradient magnitudes falls on noisy tokens (METHODS.md 2.9).

    Args:
        observations: The scored observations.
        rho: Of the clipped loss.
        draws: How many samples of observations the interval is taken from (bootstrap, percentiles).
        level: What the interval is to cover.
        seed: Seed of those samples.

    Returns:
        JSON data: counts, settings, and ``shares``: for ``count`` (noisy tokens among all) and each
        of `GRADIENTS` the ``share`` with its interval ``low`` to ``high``, None where no token has
        any gradient; and ``probabilities``: for ``noisy`` and ``other`` tokens the ``mean`` and the
        quartiles ``q1``, ``median`` and ``q3`` of what they were given, None where there are none.

    Raises:
        OptionError: There is no observation, or an option is out of its range.

    Example:
        >>> scored = [ScoredObservation(tuple(np.log([0.1, 0.5])), (True, False))] * 3
        >>> found = noise_shares(scored)["shares"]
        >>> {name: round(told["share"], 3) for name, told in found.items()}
        {'count': 0.5, 'ce': 0.643, 'mae': 0.265, 'cmae': 1.0}
    """
    known = list(observations)
    if not known or draws < 1 or not 0 < level < 1:
        raise OptionError(
            "expected at least one observation, one draw and a level between 0 and 1, found "
            f"{len(known)}, {draws} and {level}"
        )
    every, noisy = (np.zeros((len(known), 1 + len(GRADIENTS))) for _ in range(2))
    for place, one in enumerate(known):
        marks = np.asarray(one.noisy, dtype=bool)
        sizes = [np.ones(len(marks))]
        sizes += [gradient_magnitudes(one.logprobs, kind, rho=rho) for kind in GRADIENTS]
        every[place] = [size.sum() for size in sizes]
        noisy[place] = [size[marks].sum() for size in sizes]
    drawn = np.random.default_rng(seed).integers(len(known), size=(draws, len(known)))
    names = ("count", *GRADIENTS)
    shares = {
        name: _share(noisy[:, column], every[:, column], drawn, level)
        for column, name in enumerate(names)
    }
    return {
        "transitions": len(known),
        "tokens": int(every[:, 0].sum()),
        "noisy_tokens": int(noisy[:, 0].sum()),
        "rho": rho,
        "bootstrap": {"draws": draws, "level": level, "seed": seed},
        "shares": shares,
        "probabilities": {
            "noisy": _probabilities(known, True),
            "other": _probabilities(known, False),
        },
    }


def _probabilities(
    observations: Sequence[ScoredObservation], noisy: bool
) -> dict[str, float] | None:
    """Return mean and quartiles of the probabilities of all tokens that are noisy, or are not."""
    found = [
        logprob
        for one in observations
        for logprob, mark in zip(one.logprobs, one.noisy, strict=True)
        if mark == noisy
    ]
    if not found:
        return None
    values = np.exp(found)
    told = zip(("q1", "median", "q3"), np.quantile(values, (0.25, 0.5, 0.75)), strict=True)
    return {name: float(f"{value:.4g}") for name, value in (("mean", values.mean()), *told)}


def _share(
    noisy: NDArray[np.float64], every: NDArray[np.float64], drawn: NDArray[np.int64], level: float
) -> dict[str, float | None]:
    """Return a share of sums and its interval over samples of what is summed."""
    if not every.sum() > 0:
        return {"share": None, "low": None, "high": None}
    above, below = noisy[drawn].sum(1), every[drawn].sum(1)
    known = below > 0  # a sample may have no gradient at all
    edges = ((1 - level) / 2, (1 + level) / 2)
    low, high = np.quantile(above[known] / below[known], edges)
    told = {"share": noisy.sum() / every.sum(), "low": low, "high": high}
    return {name: round(float(value), 6) for name, value in told.items()}
