"""Micro-batches of sequences: as trees, which read what sequences share once, or as padded rows.

The steps of an episode and the branches of a step begin with the same tokens. In one forward pass of
their tree, each token sees those before it in its own sequences, so that losses and gradients are those
of separate passes. Padded rows are read by fewer and larger kernels, which a GPU needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import masking_utils

from ..lm.engine.cache import common
from ..lm.engine.passes import additive
from .memory import kept_logits
from .row_trainer import fused_nll, on_device, precise, recomputed


class Limb(NamedTuple):
    """Tokens of a tree that follow each other, and the tokens before them, by number."""

    start: int
    end: int  # the number after the last token's
    path: NDArray[np.int64]


class Span(NamedTuple):
    """Tokens of a sequence that are scored: from a position on, to before another.

    Attributes:
        start: The first token's position.
        end: The position after the last token's.
        column: The first token's column in the table of scores.
        has_entropy: Whether the entropy of the distributions is wanted too, where any is.
    """

    start: int
    end: int
    column: int
    has_entropy: bool = True


class Tree:
    """Some sequences as one tree: tokens, each after those that it follows.

    Attributes:
        ids: The tokens.
        depths: The position of each.
        paths: The tokens of each sequence, as numbers.
        limbs: The tokens once more, in stretches.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        arrays = [np.asarray(sequence, np.int64) for sequence in sequences]
        self.ids: list[int] = []
        self.depths: list[int] = []
        self.paths: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(arrays)
        self.limbs: list[Limb] = []

        # In sorted order each sequence shares the most tokens with the one before it.
        previous = np.zeros(0, np.int64)
        path = np.zeros(0, np.int64)
        for index in sorted(range(len(arrays)), key=lambda index: tuple(sequences[index])):
            tokens = arrays[index]
            shared = common(previous, tokens)
            start = len(self.ids)
            end = start + len(tokens) - shared
            if end > start:
                self.ids += tokens[shared:].tolist()
                self.depths += range(shared, len(tokens))
                if self.limbs and shared == len(previous):
                    # The sequence goes on where the one before it ended: so does its limb.
                    self.limbs.append(self.limbs.pop()._replace(end=end))
                else:
                    self.limbs.append(Limb(start, end, path[:shared]))

            path = np.concatenate([path[:shared], np.arange(start, end)])
            self.paths[index] = path
            previous = tokens

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Forest:
    """A micro-batch of sequences in tensors, as trees or as padded rows.

    Places count on from row to row: each place of a tensor (rows, columns) is one number.

    Attributes:
        inputs: What a model reads: input_ids and, of trees, position_ids and attention_mask.
        scored: Of each scored token, (3, M): the place before it among the tokens that are read, the
            token, and its place in the table of scores. Those with an entropy are the first.
        with_entropy: How many of them have an entropy.
        shape: The rows and columns of the table of scores.
    """

    inputs: dict[str, Any]
    scored: Tensor
    with_entropy: int
    shape: tuple[int, int]

    def read(self, model: Any, **options: Any) -> Any:
        """Return what a model returns."""
        with _without_search_for_packed_rows():
            return model(**self.inputs, **options)

    def states(self, hidden: Tensor) -> Tensor:
        """Return the hidden state before each scored token, (M, features)."""
        return hidden.flatten(0, 1).index_select(0, self.scored[0])

    def table(self, values: Tensor) -> Tensor:
        """Return values of the first scored tokens at their rows and columns, and 0 elsewhere."""
        rows, columns = self.shape
        places = self.scored[2, : len(values)]
        return values.new_zeros(rows * columns).index_copy(0, places, values).view(rows, columns)


@contextmanager
def _without_search_for_packed_rows() -> Iterator[None]:
    """Let transformers take each row for one sequence, as it is here.

    It looks whether positions begin anew within a row, and a GPU is waited for at each pass.
    """
    search = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = search


def plant(
    sequences: Sequence[Sequence[int]],
    trees: Sequence[Sequence[int]] | None,
    spans: Sequence[Sequence[Span]],
    width: int,
    *,
    model: Any,
    device: Any,
) -> Forest:
    """Return sequences in tensors.

    Args:
        sequences: The tokens of each row.
        trees: The rows of each tree, by number; see `grouped`. None for padded rows.
        spans: Of each row the tokens whose log-probabilities are wanted.
        width: The columns of the table of scores.
        model: The model that will read them.
        device: Where the tensors are.
    """
    if trees is None:
        inputs, places = _padded_rows(sequences, device)
    else:
        inputs, places = _planted(sequences, trees, model, device)
    scored, with_entropy = _scored(sequences, spans, places, width)
    return Forest(inputs, on_device(scored, device), with_entropy, (max(len(sequences), 1), width))


Places: TypeAlias = list[NDArray[np.int64]]
"""Of each row, the places of its tokens among those that are read."""


def _padded_rows(sequences: Sequence[Sequence[int]], device: Any) -> tuple[dict[str, Any], Places]:
    """Return rows that are padded behind, and the places of their tokens.

    No token sees a later one, so that padding needs no mask: attention has its fastest kernels.
    """
    size = max([1, *map(len, sequences)])
    ids = np.zeros((max(len(sequences), 1), size), np.int64)
    places = []
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        places.append(np.arange(row * size, row * size + len(sequence)))
    return {"input_ids": on_device(ids, device)}, places


def _planted(
    sequences: Sequence[Sequence[int]], trees: Sequence[Sequence[int]], model: Any, device: Any
) -> tuple[dict[str, Any], Places]:
    """Return trees of rows, and the places of their tokens."""
    needs_full_mask = model.config._attn_implementation != "sdpa"
    if not needs_full_mask:  # one tree of all: limbs do not see each other, and nothing is padded
        trees = [list(chain.from_iterable(trees))]
    planted = [Tree([sequences[row] for row in rows]) for rows in trees] or [Tree([])]
    size = max(1, *map(len, planted))

    ids, position_ids = np.zeros((2, len(planted), size), np.int64)
    places: Places = [np.zeros(0, np.int64)] * len(sequences)
    for tree_index, (tree, rows) in enumerate(zip(planted, trees, strict=False)):
        ids[tree_index, : len(tree)] = tree.ids
        position_ids[tree_index, : len(tree)] = tree.depths
        for row, path in zip(rows, tree.paths, strict=True):
            places[row] = path + tree_index * size

    if needs_full_mask:
        mask: Any = additive(on_device(_visible(planted, size), device), model.dtype)
    else:
        padding = [Limb(0, 1, np.arange(0))]  # it is read too, so that all weights take part
        mask = TreeMask.of([tree.limbs or padding for tree in planted], size, device)
    inputs = {
        "input_ids": on_device(ids, device),
        "position_ids": on_device(position_ids, device),
        "attention_mask": mask,
    }
    return inputs, places


def _scored(
    sequences: Sequence[Sequence[int]],
    spans: Sequence[Sequence[Span]],
    places: Places,
    width: int,
) -> tuple[NDArray[np.int64], int]:
    """Return what `Forest` has of scored tokens, and how many of them have an entropy."""
    of_spans: dict[bool, list[NDArray[np.int64]]] = {True: [], False: []}
    for row, (sequence, row_spans, row_places) in enumerate(
        zip(sequences, spans, places, strict=True)
    ):
        for start, end, column, has_entropy in row_spans:
            in_table = row * width + column
            of_span = np.empty((3, end - start), np.int64)
            of_span[0] = row_places[start - 1 : end - 1]
            of_span[1] = sequence[start:end]
            of_span[2] = np.arange(in_table, in_table + end - start)
            of_spans[has_entropy].append(of_span)

    with_entropy = sum(of_span.shape[1] for of_span in of_spans[True])
    nothing = np.zeros((3, 0), np.int64)
    return np.concatenate([nothing, *of_spans[True], *of_spans[False]], axis=1), with_entropy


def _visible(trees: Sequence[Tree], size: int) -> NDArray[np.bool_]:
    """Return which tokens each one sees, ``(trees, 1, size, size)``; padding sees itself."""
    visible = np.zeros((len(trees), 1, size, size), np.bool_)
    visible[:, :, range(size), range(size)] = True
    for visible_in_tree, tree in zip(visible[:, 0], trees, strict=True):
        for start, end, path in tree.limbs:
            visible_in_tree[start:end, path] = True
            visible_in_tree[start:end, start:end] = np.tri(end - start, dtype=np.bool_)
    return visible


class TreeMask(torch.Tensor):  # type: ignore[misc]
    """A mask ``(trees, 1, size, size)`` without memory of that size: only its limbs are stored.

    Each limb attends to its path and itself. As torch's `CausalBias`, the mask computes the attention
    that it is passed to. Most pairs of tokens in a tree do not see each other, so that attention limb by
    limb costs a fraction of the whole square.
    """

    visible: Tensor  # the tokens that each limb sees, one limb after the other
    tokens: Tensor  # the tokens of each limb, one limb after the other
    limbs: list[tuple[int, int, Tensor | None]]  # how many each of these has, and its mask

    @classmethod
    def of(cls, trees: Sequence[Sequence[Limb]], size: int, device: Any) -> TreeMask:
        """Return the mask of trees, each given by its limbs, that are padded on the right to a size."""
        zeros = torch.zeros(1, device=device).expand(len(trees), 1, size, size)
        mask: TreeMask = zeros.as_subclass(cls)
        visible = []
        tokens = []
        mask.limbs = []
        for tree_index, limbs in enumerate(trees):
            for start, end, path in limbs:
                path_length = len(path)
                length = end - start
                if not length:
                    continue

                # Trees lie one after the other: all tokens have numbers of their own.
                visible_to_limb = np.r_[path, start:end] + tree_index * size
                visible.append(visible_to_limb)
                tokens.append(visible_to_limb[path_length:])

                # A limb without a path has no mask: the fastest kernels have a causal one built in.
                limb_mask = None
                if path_length:
                    columns = path_length + length
                    limb_mask = torch.ones(length, columns, dtype=torch.bool, device=device)
                    limb_mask = limb_mask.tril(path_length)
                mask.limbs.append((path_length + length, length, limb_mask))

        mask.visible = on_device(np.concatenate(visible), device)
        mask.tokens = on_device(np.concatenate(tokens), device)
        return mask

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _by_limbs(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


def _by_limbs(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: TreeMask, **options: Any
) -> Tensor:
    """Return scaled dot-product attention, (trees, heads, size, features)."""
    visible_counts, token_counts, masks = zip(*attn_mask.limbs, strict=True)
    trees, _, size, _ = query.shape
    is_padded = len(attn_mask.tokens) < trees * size

    def of_limbs(states: Tensor, tokens: Tensor | None, counts: Any) -> Any:
        """Return the states of each limb's tokens, (1, heads, tokens, features)."""
        flat_states = states.transpose(1, 2).flatten(0, 1)
        if tokens is not None:
            flat_states = flat_states.index_select(0, tokens)
        return [limb_states.transpose(0, 1)[None] for limb_states in flat_states.split(counts)]

    queries = of_limbs(query, attn_mask.tokens if is_padded else None, token_counts)
    keys = of_limbs(key, attn_mask.visible, visible_counts)
    values = of_limbs(value, attn_mask.visible, visible_counts)

    outputs = []
    for q, k, v, mask in zip(queries, keys, values, masks, strict=True):
        limb_options = {**options, "is_causal": mask is None}
        output = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, **limb_options)
        outputs.append(output[0].transpose(0, 1))

    attention = torch.cat(outputs)
    if is_padded:
        zeros = attention.new_zeros(trees * size, *attention.shape[1:])
        attention = zeros.index_copy(0, attn_mask.tokens, attention)
    return attention.unflatten(0, (trees, size)).transpose(1, 2)


def token_scores(
    forest: Forest, temperature: float = 1.0, *, entropy: bool = True
) -> Callable[[Any, Any], tuple[Tensor, Tensor | None]]:
    """Return a function of hidden states and the head: log-probabilities and entropies, (B, C).

    All logits are kept for gradients where they fit; else they are computed again, a chunk at a time, or
    by one kernel: see `fused_nll`. Without `entropy` there are no entropies.
    """
    with_entropy = forest.with_entropy * entropy

    def scores_of(states: Tensor, tokens: Tensor, head: Any, entropies: int) -> Any:
        logits = precise(head(states))[0]
        if temperature != 1:
            logits = logits / temperature
        return _Scores.apply(logits, tokens, entropies)

    def in_chunks(states: Tensor, tokens: Tensor, head: Any, size: int) -> tuple[Tensor, Tensor]:
        logps = []
        entropies = []
        for start in range(0, len(tokens), size):
            chunk = slice(start, start + size)
            wanted = min(max(with_entropy - start, 0), size)
            scores_of_chunk = partial(scores_of, head=head, entropies=wanted)
            chunk_logps, chunk_entropies = recomputed(scores_of_chunk, states[chunk], tokens[chunk])
            logps.append(chunk_logps)
            entropies.append(chunk_entropies)
        return torch.cat(logps), torch.cat(entropies)

    def scores(hidden: Tensor, head: Any) -> tuple[Tensor, Tensor | None]:
        states = forest.states(hidden)
        tokens = forest.scored[1]
        size = max(kept_logits(hidden.device) // head.weight.shape[0], 1)
        fused = None
        if len(tokens) > size and not with_entropy and temperature == 1:
            fused = fused_nll(head, states)

        if fused is not None:
            logps = -fused(states, tokens)
            entropies = logps.new_zeros(0)
        elif len(tokens) > size:
            logps, entropies = in_chunks(states, tokens, head, size)
        elif len(tokens):
            logps, entropies = scores_of(states, tokens, head, with_entropy)
        else:  # all weights take part in any case
            zero = precise(head(hidden[:1, :1]))[0].sum() * 0.0
            zeros = zero.expand(forest.shape)
            return zeros, zeros

        if not entropy:
            return forest.table(logps), None
        return forest.table(logps), forest.table(entropies)

    return scores


class _Scores(torch.autograd.Function):  # type: ignore[misc]
    """The log-probabilities of tokens (N,), and the entropies of the first distributions.

    A vocabulary is large, and so each pass over it counts: of logits (N, V) only their logarithms of
    probabilities, l, are kept. With p = exp(l), and 1 at the token, the gradient of a token's l by the
    logits is 1 - p, and that of an entropy H is -p (l + H).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, entropies: int) -> tuple[Tensor, Tensor]:
        logps = logits.log_softmax(-1)
        first = logps[:entropies]
        entropy = -(first.exp().mul_(first)).sum(-1)
        ctx.save_for_backward(logps, tokens, entropy)
        ctx.set_materialize_grads(False)
        return logps.gather(-1, tokens[:, None])[:, 0], entropy

    @staticmethod
    def backward(
        ctx: Any, logp_gradient: Tensor | None, entropy_gradient: Tensor | None
    ) -> tuple[Tensor, None, None]:
        logps, tokens, entropy = ctx.saved_tensors
        if logp_gradient is None:
            logp_gradient = logps.new_zeros(len(logps))
        weight = logp_gradient[:, None]
        gradient = logps.exp()

        if entropy_gradient is None:
            gradient.mul_(-weight)
        else:
            # Of the first: p (-g - h (l + H)), with g and h the gradients of both outputs.
            count = len(entropy)
            scale = -entropy_gradient[:, None]
            offset = scale * entropy[:, None] - weight[:count]
            gradient[:count].mul_(offset.addcmul(scale, logps[:count]))
            gradient[count:].mul_(-weight[count:])
        return gradient.scatter_add_(1, tokens[:, None], weight), None, None


MicroBatch: TypeAlias = tuple[tuple[int, ...], ...]
"""The rows of each tree of a micro-batch."""


def grouped(
    numbers: Sequence[int],
    keys: Sequence[Any],
    sequences: Sequence[Sequence[int]],
    *,
    max_rows: int | None,
    max_tokens: int | None,
) -> list[MicroBatch]:
    """Return rows in micro-batches of trees, the widest first.

    Args:
        numbers: The rows.
        keys: Of each of them, which rows may share a tree.
        sequences: The tokens of each of them.
        max_rows: The most rows of a micro-batch.
        max_tokens: The most tokens, padding included; a row by itself may have more.
    """
    limits = _Limits(float(max_rows or math.inf), float(max_tokens or math.inf))
    trees_by_size = [
        (size, tuple(numbers[index] for index in tree))
        for tree, size in _trees(keys, sequences, limits)
    ]
    trees_by_size.sort(key=lambda sized_tree: (-sized_tree[0], sized_tree[1]))

    # A micro-batch is as wide as its first tree, which is its widest.
    width = 0
    micro_batches: list[list[tuple[int, ...]]] = []
    for size, tree in trees_by_size:
        trees = micro_batches[-1] if micro_batches else []
        row_count = sum(map(len, trees)) + len(tree)
        token_count = width * (len(trees) + 1)
        if trees and row_count <= limits.rows and token_count <= limits.tokens:
            trees.append(tree)
        else:
            width = size
            micro_batches.append([tree])
    return [tuple(trees) for trees in micro_batches]


class _Limits(NamedTuple):
    """The most rows and tokens of a micro-batch."""

    rows: float
    tokens: float


def _trees(
    keys: Sequence[Any], sequences: Sequence[Sequence[int]], limits: _Limits
) -> Iterator[tuple[list[int], int]]:
    """Yield the sequences of each tree, and how many tokens it has."""
    tree: list[int] = []
    size = 0
    previous: int | None = None
    order = sorted(range(len(keys)), key=lambda index: (keys[index], tuple(sequences[index])))
    for index in order:
        length = len(sequences[index])
        shared = 0 if previous is None else common(sequences[previous], sequences[index])
        grown_size = size + length - shared
        fits = len(tree) < limits.rows and grown_size <= limits.tokens
        if shared and previous is not None and keys[previous] == keys[index] and fits:
            tree.append(index)
            size = grown_size
        else:
            if tree:
                yield tree, size
            tree = [index]
            size = length
        previous = index

    if tree:
        yield tree, size
