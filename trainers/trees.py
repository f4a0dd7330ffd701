"""Sequences that begin alike, read as trees: what they share passes through a model once.

The steps of an episode and the branches of a step begin with the same tokens. In one forward pass of
their tree, each token sees those before it in its own sequences, so that losses and gradients are those
of separate passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..lm.engine.cache import common
from ..lm.engine.passes import additive
from .row_trainer import precise, recomputed


class Limb(NamedTuple):
    """Tokens of a tree that follow each other, and the tokens before them, by number."""

    start: int
    end: int  # the number after the last token's
    path: NDArray[np.int64]


_CHUNK = 1024  # positions whose logits exist at a time


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
    """A micro-batch of sequences as trees, in tensors."""

    inputs: dict[str, Tensor]  # input_ids, position_ids and attention_mask
    scored: Tensor  # of each scored token, (5, M): tree, token before it, token, row, column
    shape: tuple[int, int]  # the result's rows and columns


def plant(
    sequences: Sequence[Sequence[int]],
    trees: Sequence[Sequence[int]],
    scored: Sequence[Sequence[tuple[int, int]]],
    width: int,
    *,
    model: Any,
    device: Any,
) -> Forest:
    """Return sequences as trees, in tensors.

    Args:
        sequences: The tokens of each row.
        trees: The rows of each tree, by number; see `grouped`.
        scored: Of each row the places in its sequence of the tokens whose log-probabilities are wanted,
            each with its column in the result.
        width: The columns of the result.
        model: The model that will read them.
        device: Where the tensors are.
    """
    needs_full_mask = model.config._attn_implementation != "sdpa"
    if not needs_full_mask:  # one tree of all: limbs do not see each other, and nothing is padded
        trees = [list(chain.from_iterable(trees))]
    planted = [Tree([sequences[row] for row in rows]) for rows in trees] or [Tree([])]
    size = max(1, *map(len, planted))

    ids, position_ids = np.zeros((2, len(planted), size), np.int64)
    scored_by_row: list[NDArray[np.int64]] = [np.zeros((5, 0), np.int64)]
    for tree_index, (tree, rows) in enumerate(zip(planted, trees, strict=False)):
        ids[tree_index, : len(tree)] = tree.ids
        position_ids[tree_index, : len(tree)] = tree.depths
        for row, path in zip(rows, tree.paths, strict=True):
            positions, columns = np.array(scored[row], np.int64).reshape(-1, 2).T
            tokens = np.asarray(sequences[row], np.int64)[positions]
            tree_of_each = np.full_like(positions, tree_index)
            row_of_each = np.full_like(positions, row)
            token_before = path[positions - 1]
            scored_by_row.append(
                np.stack([tree_of_each, token_before, tokens, row_of_each, columns])
            )

    if needs_full_mask:
        visible = torch.from_numpy(_visible(planted, size)).to(device)
        mask: Any = additive(visible, model.dtype)
    else:
        padding = [Limb(0, 1, np.arange(0))]  # it is read too, so that all weights take part
        mask = TreeMask.of([tree.limbs or padding for tree in planted], size, device)
    inputs = {
        "input_ids": torch.from_numpy(ids).to(device),
        "position_ids": torch.from_numpy(position_ids).to(device),
        "attention_mask": mask,
    }
    all_scored = torch.from_numpy(np.concatenate(scored_by_row, axis=1)).to(device)
    return Forest(inputs, all_scored, (max(len(sequences), 1), width))


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

        mask.visible = torch.from_numpy(np.concatenate(visible)).to(device)
        mask.tokens = torch.from_numpy(np.concatenate(tokens)).to(device)
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
) -> Callable[[Any, Any], tuple[Tensor, Tensor]]:
    """Return a function of hidden states and the head: log-probabilities and entropies, (B, C)."""

    def scores_of_chunk(states: Any, tokens: Any, head: Any) -> Any:
        logits = precise(head(states))[0] / temperature
        logps = logits.log_softmax(-1)
        token_logps = logps.gather(-1, tokens[:, None])[:, 0]
        if entropy:
            entropies = -(logps.exp() * logps).sum(-1)
        else:
            entropies = torch.zeros_like(token_logps)
        return torch.stack([token_logps, entropies])

    def scores(hidden: Any, head: Any) -> tuple[Tensor, Tensor]:
        tree, token_before, tokens, row, column = forest.scored
        states = hidden[tree, token_before]
        chunk_scores = partial(scores_of_chunk, head=head)
        chunks = []
        for states_of_chunk, chunk_tokens in zip(
            states.split(_CHUNK), tokens.split(_CHUNK), strict=True
        ):
            if len(chunk_tokens):
                chunks.append(recomputed(chunk_scores, states_of_chunk, chunk_tokens))

        zero = precise(head(hidden[:1, :1]))[0].sum() * 0.0  # all weights take part in any case
        scores_of_tokens = torch.cat(chunks, 1) if chunks else zero.expand(2, 0)

        # Line 0 has log-probabilities, line 1 entropies: each token's at its row and column.
        kind = torch.arange(2, device=row.device)[:, None]
        table = scores_of_tokens.new_zeros(2, *forest.shape)
        table = table.index_put((kind, row, column), scores_of_tokens)
        return table[0] + zero, table[1]

    return scores


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
