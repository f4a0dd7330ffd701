"""Sequences that begin alike, read as trees: what they share passes through a model once.

The steps of an episode and the branches of a step begin with the same tokens. In one forward pass of
their tree, each token sees those before it in its own sequences, so that losses and gradients are those
of separate passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..lm.cache import common
from ..lm.decode import additive
from .row_trainer import precise, recomputed

Limb: TypeAlias = tuple[int, int, NDArray[np.int64]]
"""Tokens that follow each other: the first's number, the one after the last's, and those before them."""

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
        arrays = [np.asarray(one, np.int64) for one in sequences]
        self.ids: list[int] = []
        self.depths: list[int] = []
        self.paths: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(arrays)
        self.limbs: list[Limb] = []
        before, path = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for number in sorted(range(len(arrays)), key=lambda n: tuple(sequences[n])):
            tokens = arrays[number]
            alike = common(before, tokens)
            start, end = len(self.ids), len(self.ids) + len(tokens) - alike
            if end > start:
                self.ids += tokens[alike:].tolist()
                self.depths += range(alike, len(tokens))
                if self.limbs and alike == len(before):
                    first, _, root = self.limbs.pop()
                    self.limbs.append((first, end, root))
                else:
                    self.limbs.append((start, end, path[:alike]))
            path = np.concatenate([path[:alike], np.arange(start, end)])
            self.paths[number], before = path, tokens

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Forest:
    """A micro-batch of sequences as trees, in tensors."""

    inputs: dict[str, Tensor]  # input_ids, position_ids and attention_mask
    wanted: Tensor  # of each log-probability (5, M): tree, token before it, token, row, column
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
    alone = model.config._attn_implementation != "sdpa"
    if not alone:  # one tree of all: limbs do not see each other, and nothing is padded
        trees = [[number for rows in trees for number in rows]]
    read = [Tree([sequences[n] for n in rows]) for rows in trees] or [Tree([])]
    size = max(1, *map(len, read))
    ids, places = np.zeros((2, len(read), size), np.int64)
    wanted: list[NDArray[np.int64]] = [np.zeros((5, 0), np.int64)]
    for number, (tree, rows) in enumerate(zip(read, trees, strict=False)):
        ids[number, : len(tree)], places[number, : len(tree)] = tree.ids, tree.depths
        for row, path in zip(rows, tree.paths, strict=True):
            at, columns = np.array(scored[row], np.int64).reshape(-1, 2).T
            tokens = np.asarray(sequences[row], np.int64)[at]
            same = np.full_like(at, number), np.full_like(at, row)
            wanted.append(np.stack([same[0], path[at - 1], tokens, same[1], columns]))
    if alone:
        mask: Any = additive(torch.from_numpy(_seen(read, size)).to(device), model.dtype)
    else:
        nothing = [(0, 1, np.arange(0))]  # padding is read too: all weights take part
        mask = TreeMask.of([tree.limbs or nothing for tree in read], size, device)
    inputs = {
        "input_ids": torch.from_numpy(ids).to(device),
        "position_ids": torch.from_numpy(places).to(device),
        "attention_mask": mask,
    }
    told = torch.from_numpy(np.concatenate(wanted, axis=1)).to(device)
    return Forest(inputs, told, (max(len(sequences), 1), width))


def _seen(trees: Sequence[Tree], size: int) -> NDArray[np.bool_]:
    """Return which tokens each one sees, ``(trees, 1, size, size)``; padding sees itself."""
    found = np.zeros((len(trees), 1, size, size), np.bool_)
    found[:, :, range(size), range(size)] = True
    for seen, tree in zip(found[:, 0], trees, strict=True):
        for start, end, path in tree.limbs:
            seen[start:end, path] = True
            seen[start:end, start:end] = np.tri(end - start, dtype=np.bool_)
    return found


class TreeMask(torch.Tensor):  # type: ignore[misc]
    """A mask ``(trees, 1, size, size)`` that does not exist: each limb attends to its path and itself.

    As torch's `CausalBias`, it does the attention that it is given to. Most pairs of tokens in a tree do
    not see each other, so that limb by limb costs a fraction of the whole square.
    """

    seen: Tensor  # the tokens that each limb sees, one limb after the other
    own: Tensor  # the tokens of each limb, one limb after the other
    limbs: list[tuple[int, int, Tensor | None]]  # how many each of these has, and its mask

    @classmethod
    def of(cls, trees: Sequence[Sequence[Limb]], size: int, device: Any) -> TreeMask:
        """Return the mask of trees, of each its limbs, that are padded on the right to a size."""
        zeros = torch.zeros(1, device=device).expand(len(trees), 1, size, size)
        mask: TreeMask = zeros.as_subclass(cls)
        seen, own, mask.limbs = [], [], []
        for number, limbs in enumerate(trees):
            for first, end, path in limbs:
                before, rows = len(path), end - first
                if not rows:
                    continue
                seen.append(np.r_[path, first:end] + number * size)
                own.append(seen[-1][before:])
                below = None  # where nothing comes before a limb: the fastest kernels take that
                if before:
                    below = torch.ones(rows, before + rows, dtype=torch.bool, device=device)
                    below = below.tril(before)
                mask.limbs.append((before + rows, rows, below))
        mask.seen, mask.own = (
            torch.from_numpy(np.concatenate(some)).to(device) for some in (seen, own)
        )
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
    columns, rows, masks = zip(*attn_mask.limbs, strict=True)
    trees, _, size, _ = query.shape
    padded = len(attn_mask.own) < trees * size

    def parts(states: Tensor, index: Tensor | None, sizes: Any) -> Any:
        """Return what each limb has of states, (1, heads, tokens, features)."""
        found = states.transpose(1, 2).flatten(0, 1)
        found = found if index is None else found.index_select(0, index)
        return [one.transpose(0, 1)[None] for one in found.split(sizes)]

    q = parts(query, attn_mask.own if padded else None, rows)
    k, v = (parts(states, attn_mask.seen, columns) for states in (key, value))
    found = torch.cat(
        [
            torch.nn.functional.scaled_dot_product_attention(
                *three, mask, **{**options, "is_causal": mask is None}
            )[0].transpose(0, 1)
            for *three, mask in zip(q, k, v, masks, strict=True)
        ]
    )
    if padded:
        zeros = found.new_zeros(trees * size, *found.shape[1:])
        found = zeros.index_copy(0, attn_mask.own, found)
    return found.unflatten(0, (trees, size)).transpose(1, 2)


def token_scores(
    forest: Forest, temperature: float = 1.0, *, entropy: bool = True
) -> Callable[[Any, Any], tuple[Tensor, Tensor]]:
    """Return what computes log-probabilities and entropies, (B, C), of hidden states and the head."""

    def part(states: Any, tokens: Any, head: Any) -> Any:
        logits = precise(head(states))[0] / temperature
        logps = logits.log_softmax(-1)
        chosen = logps.gather(-1, tokens[:, None])[:, 0]
        spread = -(logps.exp() * logps).sum(-1) if entropy else torch.zeros_like(chosen)
        return torch.stack([chosen, spread])

    def scores(hidden: Any, head: Any) -> tuple[Tensor, Tensor]:
        tree, before, tokens, row, column = forest.wanted
        states = hidden[tree, before]
        parts = [
            recomputed(lambda one, of: part(one, of, head), some, of)
            for some, of in zip(states.split(_CHUNK), tokens.split(_CHUNK), strict=True)
            if len(of)
        ]
        none = precise(head(hidden[:1, :1]))[0].sum() * 0.0  # all weights take part in any case
        values = torch.cat(parts, 1) if parts else none.expand(2, 0)
        found = values.new_zeros(2, *forest.shape)
        found = found.index_put((torch.arange(2, device=row.device)[:, None], row, column), values)
        return found[0] + none, found[1]

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
    most = float(max_rows or math.inf), float(max_tokens or math.inf)
    units = sorted(
        ((size, tuple(numbers[n] for n in tree)) for tree, size in _trees(keys, sequences, most)),
        key=lambda unit: (-unit[0], unit[1]),
    )
    found: list[tuple[int, list[tuple[int, ...]]]] = []
    for size, tree in units:
        width, trees = found[-1] if found else (0, [])
        rows, tokens = sum(map(len, trees)) + len(tree), width * (len(trees) + 1)
        if trees and rows <= most[0] and tokens <= most[1]:
            trees.append(tree)
        else:
            found.append((size, [tree]))
    return [tuple(trees) for _, trees in found]


def _trees(
    keys: Sequence[Any], sequences: Sequence[Sequence[int]], most: tuple[float, float]
) -> Iterator[tuple[list[int], int]]:
    """Yield the sequences of each tree, and how many tokens it has."""
    tree, size, before = list[int](), 0, None
    for number in sorted(range(len(keys)), key=lambda n: (keys[n], tuple(sequences[n]))):
        alike = 0 if before is None else common(sequences[before], sequences[number])
        grown = size + len(sequences[number]) - alike
        fits = len(tree) < most[0] and grown <= most[1]
        if alike and before is not None and keys[before] == keys[number] and fits:
            tree.append(number)
            size = grown
        else:
            if tree:
                yield tree, size
            tree, size = [number], len(sequences[number])
        before = number
    if tree:
        yield tree, size
