"""What the engine computes, in the plainest way: one text at a time, the whole text at each pass, no cache.

It is here to be read, and to be compared with: a test has both answer the same requests. `passes.py`
gets the same numbers with prompts that are remembered, rows side by side, and tokens that were guessed.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base import Encode, Generate
from .passes import Branches, Engine, Row

Floats = NDArray[np.float64]


def computed(engine: Engine, kind: type, items: Sequence[Any]) -> list[Any]:
    """Return what `comap.lm.engine.passes.computed` does, item by item."""
    if kind is Generate:
        return [generate(engine.model, row) for row in items]
    if kind is Encode:
        return [last_hidden(engine.model, prompt) for prompt in items]

    logprobs = []
    for all_branches in items:
        logprobs.append([branch_logprobs(engine.model, branches) for branches in all_branches])
    return logprobs


def generate(model: Any, row: Row) -> Row:
    """Write a text token by token, until it ends."""
    row.restart()
    while not row.finish:
        logprobs = next_logprobs(model, [*row.prompt, *row.tokens])
        token = next_token(logprobs, row)
        row.push(token, float(logprobs[token]))
    return row


def next_logprobs(model: Any, tokens: Sequence[int]) -> Floats:
    """Return the log-probability of each token of the vocabulary after a text."""
    after_each: Floats = _logprobs(model, tokens)
    last: Floats = after_each[-1]
    return last


def _logprobs(model: Any, tokens: Sequence[int]) -> Floats:
    """Return the log-probabilities after each token of a text, (tokens, vocabulary)."""
    import torch

    ids = torch.tensor([list(tokens)], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0]
    logprobs: Floats = logits.double().log_softmax(-1).cpu().numpy()
    return logprobs


def next_token(logprobs: Floats, row: Row) -> int:
    """Return the token that follows: the likeliest, or one drawn with temperature and top-p.

    Only tokens of the row's trie are looked at, where it has one.
    """
    tokens = list(range(len(logprobs)))
    if row.trie is not None:
        tokens = sorted(row.trie.children[row.node])
    scores = logprobs[tokens]
    if row.sampling.temperature == 0:
        return tokens[int(scores.argmax())]  # the first of equals

    weights = np.exp((scores - scores.max()) / row.sampling.temperature)
    weights /= weights.sum()
    if row.sampling.top_p < 1:
        # The nucleus (Holtzman et al., 2020): the likeliest tokens, until they have that much.
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        order = order[before < row.sampling.top_p]
        tokens = [tokens[index] for index in order]
        weights = weights[order]

    # One number for each position, whatever the tokens are, so that a seed means the same everywhere.
    cumulated = list(itertools.accumulate(weights.tolist()))
    index = bisect.bisect_right(cumulated, row.random.random() * cumulated[-1])
    return tokens[min(index, len(tokens) - 1)]


def branch_logprobs(model: Any, branches: Branches) -> list[float]:
    """Return for each node of a trie the log-probability of its token after the prompt and its parents."""
    node_logprobs = [0.0] * len(branches.trie)
    for end in set(branches.trie.ends):
        nodes = branches.trie.path(end)
        tokens = [branches.trie.tokens[node] for node in nodes]
        logprobs = _logprobs(model, [*branches.prompt, *tokens])
        for position, (node, token) in enumerate(
            zip(nodes, tokens, strict=True), len(branches.prompt)
        ):
            node_logprobs[node] = float(logprobs[position - 1, token])
    return node_logprobs


def last_hidden(model: Any, prompt: Sequence[int]) -> list[float]:
    """Return the last layer's hidden state, normed, at the last token."""
    import torch

    ids = torch.tensor([list(prompt)], device=model.device)
    states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    hidden: list[float] = states[0, -1].float().tolist()
    return hidden
