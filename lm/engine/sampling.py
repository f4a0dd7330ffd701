"""The choice of the next tokens by logits: the likeliest, or drawn with temperature and top-p."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .cache import to_device

_TOP = 1024  # tokens among which a nucleus is looked for first
_AT_ONCE = 2**25  # the most logits of a GPU that are chosen from at a time, which bounds memory
_PARTS = 2**40  # into how many parts a GPU divides the probability of 1
_LEAST_TEMPERATURE = 1e-30  # less is 0 in single precision


class Pick(NamedTuple):
    """How a token is chosen.

    Attributes:
        temperature: 0 for the likeliest token.
        top_p: What the tokens that may be drawn have together, at least.
        draw: A random number from 0 to 1, which decides what is drawn.
        allowed: The tokens to choose from, ascending; None for all.
    """

    temperature: float
    top_p: float
    draw: float
    allowed: Sequence[int] | None


Draw: TypeAlias = Callable[[Any, Sequence[Pick]], Any]
"""A function that draws an index into each row of scores."""


def choose(logits: Any, picks: Sequence[Pick]) -> tuple[list[int], list[float]]:
    """Return a token for each row of logits, and its log-probability under the model itself.

    Draws are in double precision: a text is the same on every CPU.
    """
    import torch

    scores = single(logits)
    tokens = _tokens(scores, picks, _draw_in_double)

    # Tokens and numbers are read together.
    logprobs = scores.gather(1, tokens[:, None])[:, 0] - scores.logsumexp(-1)
    token_list, logprob_list = torch.stack([tokens.double(), logprobs.double()]).tolist()
    return [int(token) for token in token_list], logprob_list


def choose_on_gpu(logits: Any, picks: Sequence[Pick]) -> tuple[list[int], list[float]]:
    """Return what `choose` does, in single precision and with one wait for the GPU.

    Where two tokens border on each other within rounding, another one may be drawn than by `choose`. Of
    all tokens none is drawn whose probability is below 1e-12.
    """
    import torch

    tokens = []
    logprobs = []
    rows = max(_AT_ONCE // logits.shape[1], 1)
    for start in range(0, len(picks), rows):
        # Normalized once: for the draw, and for the log-probability of what is drawn.
        scores = logits[start : start + rows].log_softmax(-1, dtype=torch.float32)
        tokens.append(_tokens(scores, picks[start : start + rows], _draw_in_single))
        logprobs.append(scores.gather(1, tokens[-1].clamp(min=0)[:, None])[:, 0])

    both = torch.stack([torch.cat(tokens).double(), torch.cat(logprobs).double()])
    token_list, logprob_list = both.tolist()

    # Seldom: the first tokens of a row do not have top-p together. All of its tokens are sorted then.
    wide = [row for row, token in enumerate(token_list) if token < 0]
    if wide:
        scores = logits[to_device(np.array(wide), logits.device)]
        scores = scores.log_softmax(-1, dtype=torch.float32)
        wide_tokens = _tokens(scores, [picks[row] for row in wide], _draw_from_all_in_single)
        wide_logprobs = scores.gather(1, wide_tokens[:, None])[:, 0]
        both = torch.stack([wide_tokens.double(), wide_logprobs.double()])
        for row, token, logprob in zip(wide, *both.tolist(), strict=True):
            token_list[row] = token
            logprob_list[row] = logprob
    return [int(token) for token in token_list], logprob_list


def single(numbers: Any) -> Any:
    """Return numbers in single precision at least: half precision would round log-probabilities away."""
    return numbers if numbers.dtype.itemsize == 8 else numbers.float()


def _tokens(scores: Any, picks: Sequence[Pick], draw: Draw) -> Any:
    """Return the token of each row of scores; -1 where `draw` leaves it open."""
    import torch

    next_tokens = torch.empty(len(picks), dtype=torch.long, device=scores.device)

    # A row's arithmetic must not depend on its neighbors: rows with top_p, whose probabilities
    # are added up in another order, are apart from rows without, and rows with a trie from others.
    groups: dict[tuple[bool, bool, bool], list[int]] = {}
    for i, pick in enumerate(picks):
        kind = pick.allowed is not None, pick.temperature > 0, pick.top_p < 1
        groups.setdefault(kind, []).append(i)

    for (is_restricted, is_drawn, _), members in groups.items():
        index: Any = slice(None)
        if len(members) < len(picks):
            index = to_device(np.array(members), scores.device)
        group = [picks[i] for i in members]
        group_scores = scores[index]
        if is_restricted:
            tokens = _allowed_tokens(group, scores.device)
            group_scores = group_scores.gather(1, tokens.clamp(min=0))
            group_scores.masked_fill_(tokens < 0, float("-inf"))

        # argmax is documented to be the first of equals. Few tokens are drawn from in double precision
        # on a GPU, too: there what is not allowed must not be drawn by rounding.
        if not is_drawn:
            columns = group_scores.argmax(-1)
        elif is_restricted:
            columns = _draw_in_double(group_scores, group)
        else:
            columns = draw(group_scores, group)
        next_tokens[index] = tokens.gather(1, columns[:, None])[:, 0] if is_restricted else columns
    return next_tokens


def _allowed_tokens(picks: Sequence[Pick], device: Any) -> Any:
    """Return the tokens that each pick allows, in ascending order; -1 where there are fewer."""
    token_lists = [pick.allowed for pick in picks if pick.allowed is not None]
    width = max(map(len, token_lists))
    padded = [[*tokens, *[-1] * (width - len(tokens))] for tokens in token_lists]
    return to_device(np.array(padded), device)


def _draw_in_double(scores: Any, picks: Sequence[Pick]) -> Any:
    """Return an index into each row of scores, drawn with the picks' temperature and top-p.

    Either all picks have a top-p below 1, or none has.
    """
    scaled = scores.double()
    temperatures, top_ps, draws = _columns(picks, scores.device)
    if any(pick.temperature != 1 for pick in picks):
        # First the maximum, then the division, so that no temperature is too small.
        scaled = (scaled - scaled.amax(-1, keepdim=True)) / temperatures
    weights = scaled.softmax(-1)
    if picks[0].top_p == 1:
        return _draw(weights, draws)
    if weights.shape[1] <= 16 * _TOP:
        return _draw_from_nucleus(weights, top_ps, draws)

    # To sort 150,000 tokens takes longer than the model: the nucleus is mostly among the first few.
    top = weights.topk(_TOP, sorted=False).indices.sort(-1).values  # equals stay in their order
    top_weights = weights.gather(1, top)

    # The least of them do not count: others that are as large may have been left out.
    least = top_weights.amin(-1, keepdim=True)
    larger = top_weights.where(top_weights > least, 0.0)
    is_enough = larger.sum(-1, keepdim=True) >= top_ps

    tokens = top[:, 0].clone()
    if bool(is_enough.any()):
        rows_enough = is_enough[:, 0].nonzero()[:, 0]
        columns = _draw_from_nucleus(
            top_weights[rows_enough], top_ps[rows_enough], draws[rows_enough]
        )
        tokens[rows_enough] = top[rows_enough].gather(1, columns[:, None])[:, 0]
    if not bool(is_enough.all()):
        other_rows = (~is_enough[:, 0]).nonzero()[:, 0]
        tokens[other_rows] = _draw_from_nucleus(
            weights[other_rows], top_ps[other_rows], draws[other_rows]
        )
    return tokens


def _columns(picks: Sequence[Pick], device: Any) -> Any:
    """Return the temperatures, top-ps and draws of picks, each as a column, in double precision."""
    numbers = [(pick.temperature, pick.top_p, pick.draw) for pick in picks]
    return to_device(np.array(numbers).T, device)[:, :, None]


def _draw_from_nucleus(weights: Any, top_ps: Any, draws: Any) -> Any:
    """Return the index that is drawn from each row's largest weights, the fewest that add up to top-p."""
    weights, order = weights.sort(stable=True, dim=-1, descending=True)
    weights = weights.where(weights.cumsum(-1) - weights < top_ps, 0.0)
    return order.gather(1, _draw(weights, draws)[:, None])[:, 0]


def _draw(weights: Any, draws: Any) -> Any:
    """Return the index in each row of weights at which a number from 0 to 1, a share of them, falls."""
    import torch

    cumulated = weights.cumsum(-1)
    total = cumulated[:, -1:]

    # Rounding must not lift the number to the total, beyond which there is no token.
    largest = torch.nextafter(total, torch.zeros_like(total))
    thresholds = torch.minimum(draws * total, largest)
    index = torch.searchsorted(cumulated, thresholds, right=True)
    return index.clamp_(max=weights.shape[1] - 1)[:, 0]


def _draw_in_single(scores: Any, picks: Sequence[Pick], *, sorts_all: bool = False) -> Any:
    """Return what `_draw_in_double` does, in single precision; -1 where more must be sorted first.

    Args:
        scores: Log-probabilities.
        picks: How their tokens are drawn.
        sorts_all: Look for the nucleus among all tokens, not among the likeliest alone.
    """
    temperatures, top_ps, draws = _columns(picks, scores.device)
    scaled = scores
    if any(pick.temperature != 1 for pick in picks):
        divisors = temperatures.float().clamp(min=_LEAST_TEMPERATURE)
        scaled = (scores - scores.amax(-1, keepdim=True)) / divisors
    weights = scaled.softmax(-1)
    if picks[0].top_p == 1:
        return _draw_by_parts(weights, draws)

    if sorts_all or weights.shape[1] <= 16 * _TOP:
        weights, order = weights.sort(stable=True, dim=-1, descending=True)
    else:
        weights, order = weights.topk(_TOP)
    cumulated = weights.cumsum(-1)
    nucleus = weights.where(cumulated - weights < top_ps, 0.0)
    tokens = order.gather(1, _draw_by_parts(nucleus, draws)[:, None])[:, 0]
    is_whole = weights.shape[1] == scores.shape[1]
    return tokens if is_whole else tokens.where(cumulated[:, -1] >= top_ps[:, 0], -1)


def _draw_from_all_in_single(scores: Any, picks: Sequence[Pick]) -> Any:
    return _draw_in_single(scores, picks, sorts_all=True)


def _draw_by_parts(weights: Any, draws: Any) -> Any:
    """Return what `_draw` does, of weights in single precision.

    They are added up as whole numbers, which is exact in any order. A GPU adds up in an order of its own:
    by rounding, sums in single precision would draw tokens that have next to no probability.
    """
    import torch

    cumulated = (weights * _PARTS).long().cumsum(-1)
    thresholds = (draws * cumulated[:, -1:]).long()
    index = torch.searchsorted(cumulated, thresholds, right=True)
    return index.clamp_(max=weights.shape[1] - 1)[:, 0]
