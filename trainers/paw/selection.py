"""Which observations are learned: those that follow the actions of most entropy (METHODS.md 2.2)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from ...errors import OptionError, suggest

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

__all__ = [
    "EntropyMode",
    "Selection",
    "rank_correlation",
    "row_entropies",
    "select_rows",
    "top_overlap",
]

EntropyMode = Literal["sampled_plogp", "full", "neg_logp"]
"""What is averaged over an action's tokens, q being the probability of the sampled token: -q log q,
as the paper writes it; the entropy of the whole distribution; or -log q."""

Selection = Literal["top", "random", "bottom"]
"""Which rows are selected: those of most entropy, any, or those of least (METHODS.md 2.10)."""


def row_entropies(
    mode: EntropyMode, logps: Tensor, entropies: Tensor | None, mask: Tensor
) -> Tensor:
    """Return the mean entropy of each row's action tokens, in nats; -inf for a row without tokens.

    Whatever is outside of the mask is not looked at. No gradient is kept.

    Args:
        mode: The definition (METHODS.md 2.2).
        logps: (B, T), the log-probability of each sampled token at temperature 1.
        entropies: (B, T), the entropy of the distribution at each token; only for ``"full"``.
        mask: (B, T), true at the action's tokens.

    Returns:
        (B,), in single precision at least.

    Raises:
        OptionError: The mode is unknown, ``"full"`` is without entropies, or shapes differ.

    Example:
        >>> import torch
        >>> logps = torch.tensor([[1.0, 0.3678794]]).log()
        >>> row_entropies("sampled_plogp", logps, None, torch.ones(1, 2)).round(decimals=4)
        tensor([0.1839])
    """
    _one_of("entropy mode", mode, get_args(EntropyMode))
    source = entropies if mode == "full" else logps
    if source is None:
        raise OptionError("expected the entropies of whole distributions, found None; give them")
    if source.shape != mask.shape:
        raise OptionError(
            f"expected one number for each place of the mask, found shapes {tuple(source.shape)} "
            f"and {tuple(mask.shape)}"
        )
    kept = mask.bool()
    source = source.detach().masked_fill(~kept, 0.0)
    source = source if source.dtype.itemsize > 4 else source.float()
    if mode == "sampled_plogp":
        # A probability of 0 has the entropy 0; 0 times its infinite logarithm would be no number.
        source = -(source.exp() * source.clamp(min=-1e4))
    elif mode == "neg_logp":
        source = -source
    count = kept.sum(-1)
    mean = source.masked_fill(~kept, 0.0).sum(-1) / count.clamp(min=1)
    return mean.masked_fill(count == 0, -math.inf)


def select_rows(
    entropies: ArrayLike,
    eligible: ArrayLike,
    share: float,
    *,
    how: Selection = "top",
    seed: int = 0,
) -> NDArray[np.bool_]:
    """Return which rows are selected: ``ceil(share * |P|)`` of the eligible ones (METHODS.md 2.2).

    Rows of equal entropy are taken in their order. Rows without an action, of entropy -inf, are the
    last to be taken, of most and of least entropy alike. The share is read as a decimal number: 0.07
    of 100 rows are 7, though 0.07 * 100 is a little more in floating-point numbers.

    Args:
        entropies: Of each row of the whole update.
        eligible: Whether the row is in the pool P: it has an observation, and is no copy.
        share: The paper's alpha, 0 to 1; of an empty pool, or with 0, nothing is selected.
        how: Which rows are taken.
        seed: For ``"random"``: the same seed, pool and share select the same rows.

    Raises:
        OptionError: The share is out of range, `how` is unknown, the lengths differ, or the entropy
            of an eligible row is not a number.

    Example:
        >>> select_rows([0.1, 0.9, 0.5, 0.7], [True, True, True, False], 0.5).tolist()
        [False, True, True, False]
    """
    _one_of("selection", how, get_args(Selection))
    if not 0 <= share <= 1:
        raise OptionError(f"share must be from 0 to 1, not {share!r}")
    values, pool = np.asarray(entropies, np.float64), np.asarray(eligible, np.bool_)
    if values.ndim != 1 or values.shape != pool.shape:
        raise OptionError(
            f"expected an entropy and an eligibility for each row, found shapes {values.shape} and "
            f"{pool.shape}"
        )
    places = np.flatnonzero(pool)
    known = values[places]
    if np.isnan(known).any():
        raise OptionError("expected entropies that are numbers, found NaN; look at the model")
    count = math.ceil(Fraction(repr(float(share))) * len(places))
    if how == "random":
        order = np.random.default_rng(seed).permutation(len(places))
    else:
        order = np.lexsort((-known if how == "top" else known, np.isneginf(known)))  # stable
    selected = np.zeros(len(values), np.bool_)
    selected[places[order[:count]]] = True
    return selected


def rank_correlation(a: ArrayLike, b: ArrayLike) -> float | None:
    """Return Spearman's rank correlation, equal values having their mean rank.

    Returns:
        -1 to 1, or None if one of the two is constant or there are fewer than two values.

    Raises:
        OptionError: The lengths differ, or a value is not a number.

    Example:
        >>> rank_correlation([1, 2, 3], [10, 30, 20])
        0.5
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise OptionError(
            f"expected as many of both, found shapes {first.shape} and {second.shape}"
        )
    if np.isnan(first).any() or np.isnan(second).any():
        raise OptionError("expected numbers to rank, found NaN")
    x, y = (_centred_ranks(values) for values in (first, second))
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return max(-1.0, min(1.0, float(x @ y) / scale)) if scale else None


def top_overlap(a: ArrayLike, b: ArrayLike, eligible: ArrayLike, share: float) -> float | None:
    """Return the share of the rows selected by `a` that are selected by `b` too (METHODS.md 2.2).

    Arguments and errors are those of `select_rows`.

    Returns:
        0 to 1, or None if nothing is selected.

    Example:
        >>> top_overlap([3, 2, 1, 0], [3, 0, 1, 2], [True] * 4, 0.5)
        0.5
    """
    first, second = (select_rows(values, eligible, share) for values in (a, b))
    return float((first & second).sum() / first.sum()) if first.any() else None


def _centred_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks, less their mean; all are multiples of a half, so sums are exact."""
    _, number, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(sizes) - (sizes - 1) / 2
    centred: NDArray[np.float64] = ranks[number.reshape(-1)] - (len(values) + 1) / 2
    return centred


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"there is no {what} {value!r}; {suggest(str(value), known)}")
