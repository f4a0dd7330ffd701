"""Log-probabilities of many continuations of a prompt in one forward pass.

The continuations' tokens stand after the prompt as a tree: each sees the prompt and its own
ancestors only, and its position is its depth. So the prompt is read once, and so is every beginning
that continuations share. (The idea is that of tree attention in speculative decoding, Miao et al.,
SpecInfer, ASPLOS 2024.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import LanguageModelError
from .hf_batch import Engine
from .trie import TokenTrie

__all__ = ["Branches", "branch_logprobs", "last_hidden", "split"]

_LOGITS = 2**27
"""The most logits of one pass: 134 million, which are 268 MB in bfloat16."""

_SLICE = 2**24
"""The most logits that are made single precision at a time."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Continuations of a prompt.

    Attributes:
        prompt: Token ids, at least one.
        trie: The continuations.
    """

    prompt: Sequence[int]
    trie: TokenTrie


def split(engine: Engine, prompt: int, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return which continuations of a prompt can be scored in one pass: all, or halves of them.

    Args:
        engine: The model and its limits.
        prompt: Number of tokens in the prompt.
        sequences: The continuations.
    """

    def parts(some: list[int]) -> list[list[int]]:
        inner = len(TokenTrie([sequences[i] for i in some]).inner())
        # A tree as long as its prompt costs no more than the prompt, however long that is.
        if len(some) < 2 or (
            prompt + inner <= max(engine.tokens, 2 * prompt)
            and inner * _vocabulary(engine) <= _LOGITS
        ):
            return [some]
        half = len(some) // 2
        return parts(some[:half]) + parts(some[half:])

    return parts(list(range(len(sequences))))


def branch_logprobs(
    engine: Engine, items: Sequence[Branches]
) -> list[list[float] | LanguageModelError]:
    """Return for each node of each item's trie the log-probability of its token there.

    The root's is 0. The model sees only nodes that have children: the log-probability of a leaf
    comes from its parent.
    """
    found: list[list[float] | LanguageModelError] = [[0.0] for _ in items]

    def work(chunk: list[int]) -> None:
        for some in _within_logits(engine, chunk, items):
            for i, values in zip(some, _pass(engine, [items[i] for i in some]), strict=True):
                found[i] = values

    def fail(i: int, error: LanguageModelError) -> None:
        found[i] = error

    asked = [i for i, item in enumerate(items) if len(item.trie) > 1]
    lengths = [len(items[i].prompt) + len(items[i].trie.inner()) - 1 for i in asked]
    engine.run(
        lengths, lambda chunk: work([asked[i] for i in chunk]), lambda i, e: fail(asked[i], e)
    )
    return found


def _vocabulary(engine: Engine) -> int:
    return int(engine.model.config.get_text_config(decoder=True).vocab_size)


def _within_logits(engine: Engine, chunk: list[int], items: Sequence[Branches]) -> list[list[int]]:
    """Cut a chunk so that no pass has too many logits."""
    parts: list[list[int]] = [[]]
    widest = 0
    for i in chunk:
        inner = max(widest, len(items[i].trie.inner()))
        if parts[-1] and (len(parts[-1]) + 1) * inner * _vocabulary(engine) > _LOGITS:
            parts.append([])
            inner = len(items[i].trie.inner())
        parts[-1].append(i)
        widest = inner
    return parts


def _pass(engine: Engine, items: Sequence[Branches]) -> list[list[float]]:
    """Return the log-probabilities of all nodes of some items by one forward pass."""
    import torch

    inner = [item.trie.inner()[1:] for item in items]
    ids, positions, valid = engine.pad([item.prompt for item in items])
    nodes = max(map(len, inner))
    if nodes:
        tokens = [[it.trie.tokens[n] for n in some] for it, some in zip(items, inner, strict=True)]
        depths = [[it.trie.depths[n] for n in some] for it, some in zip(items, inner, strict=True)]
        ids = torch.cat([ids, _padded(tokens, nodes, engine.device)], 1)
        after = positions[:, -1:] + _padded(depths, nodes, engine.device)
        mask = _tree_mask(engine, valid, items, inner, nodes)
        positions = torch.cat([positions, after], 1)
    else:
        mask = engine.causal(valid)
    logits = engine.model(
        input_ids=ids,
        position_ids=positions,
        attention_mask=mask,
        use_cache=False,
        logits_to_keep=nodes + 1,
    ).logits[:, -(nodes + 1) :]
    return _gathered(logits, items, inner)


def _padded(lists: Sequence[Sequence[int]], width: int, device: Any) -> Any:
    import torch

    rows = [list(values) + [0] * (width - len(values)) for values in lists]
    return torch.tensor(rows, device=device)


def _tree_mask(
    engine: Engine, valid: Any, items: Sequence[Branches], inner: list[list[int]], nodes: int
) -> Any:
    """Return the mask: prompts are causal; a node sees the prompt, its ancestors and itself."""
    import numpy as np
    import torch

    rows, width = valid.shape
    ancestors = np.zeros((rows, nodes, nodes), dtype=bool)
    for seen, item, some in zip(ancestors, items, inner, strict=True):
        column = {node: place for place, node in enumerate(some)}
        for place, node in enumerate(some):
            parent = column.get(item.trie.parents[node])
            if parent is not None:
                seen[place] = seen[parent]
            seen[place, place] = True
    allowed = torch.ones(
        width + nodes, width + nodes, dtype=torch.bool, device=engine.device
    ).tril_()
    allowed = allowed.expand(rows, -1, -1).clone()
    allowed[:, :, :width] &= valid[:, None, :]
    allowed[:, width:, width:] = torch.from_numpy(ancestors).to(engine.device)
    return engine.additive(allowed[:, None])


def _gathered(logits: Any, items: Sequence[Branches], inner: list[list[int]]) -> list[list[float]]:
    """Return the log-probability of every node, taken from its parent's logits."""
    import torch

    rows, columns, vocabulary = logits.shape
    flat = logits.reshape(rows * columns, vocabulary)
    normal = torch.cat(
        [_single(part).logsumexp(-1) for part in flat.split(max(_SLICE // vocabulary, 1))]
    )
    places: list[int] = []
    tokens: list[int] = []
    for row, (item, some) in enumerate(zip(items, inner, strict=True)):
        column = {node: 1 + place for place, node in enumerate(some)} | {0: 0}
        places += [row * columns + column[parent] for parent in item.trie.parents[1:]]
        tokens += item.trie.tokens[1:]
    at = torch.tensor(places, device=logits.device)
    of = torch.tensor(tokens, device=logits.device)
    values = iter((_single(flat[at, of]) - normal[at]).tolist())
    return [[0.0] + [next(values) for _ in item.trie.tokens[1:]] for item in items]


def _single(values: Any) -> Any:
    """Return values in at least single precision."""
    import torch

    return values if values.dtype == torch.float64 else values.float()


def last_hidden(engine: Engine, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the last layer's hidden state, normed, at the last token of each prompt."""
    ids, positions, valid = engine.pad(prompts)
    states = engine.model.base_model(
        input_ids=ids,
        position_ids=positions,
        attention_mask=engine.causal(valid),
        use_cache=False,
    ).last_hidden_state
    found: list[list[float]] = states[:, -1].float().tolist()
    return found
