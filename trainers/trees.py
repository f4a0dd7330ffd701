"""Sequences that begin alike, read as trees: what they share passes through a model once.

The steps of an episode and the branches of a step begin with the same tokens. In one forward pass of
their tree, each token sees those before it in its own sequences, so that losses and gradients are those
of separate passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..lm.cache import common
from ..lm.decode import additive
from .row_trainer import precise, recomputed

if TYPE_CHECKING:
    from torch import Tensor

_CHUNK = 1024  # positions whose logits exist at a time


class Tree:
    """Some sequences as one tree: tokens, each after those that it follows.

    Attributes:
        ids: The tokens.
        depths: The position of each.
        paths: The tokens of each sequence, as numbers.
        parts: Of each part that was added at a time its first token, the one after its last, and the
            path before it.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        arrays = [np.asarray(one, np.int64) for one in sequences]
        self.ids: list[int] = []
        self.depths: list[int] = []
        self.paths: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(arrays)
        self.parts: list[tuple[int, int, NDArray[np.int64]]] = []
        before, path = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for number in sorted(range(len(arrays)), key=lambda n: tuple(sequences[n])):
            tokens = arrays[number]
            alike = common(before, tokens)
            start, end = len(self.ids), len(self.ids) + len(tokens) - alike
            if end > start:
                self.ids += tokens[alike:].tolist()
                self.depths += range(alike, len(tokens))
                self.parts.append((start, end, path[:alike]))
            path = np.concatenate([path[:alike], np.arange(start, end)])
            self.paths[number], before = path, tokens

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_chain(self) -> bool:
        """Whether each sequence is the beginning of the longest one."""
        return not self.ids or self.depths[-1] == len(self.ids) - 1


@dataclass(frozen=True, slots=True)
class Forest:
    """A micro-batch of sequences as trees, in tensors.

    Attributes:
        inputs: What the model reads: ``input_ids``, ``position_ids`` and ``attention_mask``.
        wanted: Of each log-probability that is wanted: the tree, the token before it there, the token
            itself, and its row and column in the result, ``(5, M)``.
        shape: The result's rows and columns.
    """

    inputs: dict[str, Tensor]
    wanted: Tensor
    shape: tuple[int, int]


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
    import torch

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
    inputs = {"input_ids": torch.from_numpy(ids), "position_ids": torch.from_numpy(places)}
    if all(tree.is_chain for tree in read):
        mask = np.arange(size) < np.array([[max(len(tree), 1)] for tree in read])
        inputs["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
    else:
        inputs["attention_mask"] = additive(torch.from_numpy(_seen(read, size)), model.dtype)
    told = torch.from_numpy(np.concatenate(wanted, axis=1)).to(device)
    return Forest(
        {name: value.to(device) for name, value in inputs.items()},
        told,
        (max(len(sequences), 1), width),
    )


def _seen(trees: Sequence[Tree], size: int) -> NDArray[np.bool_]:
    """Return which tokens each one sees, ``(trees, 1, size, size)``; padding sees itself."""
    found = np.zeros((len(trees), 1, size, size), np.bool_)
    found[:, :, range(size), range(size)] = True
    for seen, tree in zip(found[:, 0], trees, strict=True):
        for start, end, path in tree.parts:
            seen[start:end, path] = True
            seen[start:end, start:end] = np.tri(end - start, dtype=np.bool_)
    return found


def token_scores(
    forest: Forest, temperature: float = 1.0, *, entropy: bool = True
) -> Callable[[Any, Any], tuple[Tensor, Tensor]]:
    """Return what computes log-probabilities and entropies, (B, C), of hidden states and the head."""

    def part(states: Any, tokens: Any, head: Any) -> Any:
        import torch

        logits = precise(head(states))[0] / temperature
        logps = logits.log_softmax(-1)
        chosen = logps.gather(-1, tokens[:, None])[:, 0]
        spread = -(logps.exp() * logps).sum(-1) if entropy else torch.zeros_like(chosen)
        return torch.stack([chosen, spread])

    def scores(hidden: Any, head: Any) -> tuple[Tensor, Tensor]:
        import torch

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
    hidden: int,
    max_rows: int | None,
    max_tokens: int | None,
) -> list[MicroBatch]:
    """Return rows in micro-batches of trees, the widest first.

    Args:
        numbers: The rows.
        keys: Of each of them, which rows may share a tree.
        sequences: The tokens of each of them.
        hidden: The model's hidden size, on which depends whether a tree pays.
        max_rows: The most rows of a micro-batch.
        max_tokens: The most tokens, padding included; a row by itself may have more.
    """
    most = float(max_rows or math.inf), float(max_tokens or math.inf)
    units = sorted(
        (
            (size, tuple(numbers[n] for n in tree))
            for tree, size in _trees(keys, sequences, hidden, most)
        ),
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
    keys: Sequence[Any],
    sequences: Sequence[Sequence[int]],
    hidden: int,
    most: tuple[float, float],
) -> Iterator[tuple[list[int], int]]:
    """Yield the sequences of each tree, and how many tokens it has.

    Sequences are read together where that costs less: in a layer, a token costs about as much as 6 hidden
    pairs of tokens in its attention, and a tree has all pairs, not only those that see each other.
    """
    tree, size, before = list[int](), 0, None
    for number in sorted(range(len(keys)), key=lambda n: (keys[n], tuple(sequences[n]))):
        length = len(sequences[number])
        alike = 0 if before is None else common(sequences[before], sequences[number])
        grown = size + length - alike
        pays = 6 * hidden * alike + length**2 >= grown**2 - size**2
        fits = len(tree) < most[0] and grown <= most[1]
        if before is not None and keys[before] == keys[number] and pays and fits:
            tree.append(number)
            size = grown
        else:
            if tree:
                yield tree, size
            tree, size = [number], length
        before = number
    if tree:
        yield tree, size
