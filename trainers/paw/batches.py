"""Mini-batches and micro-batches of an update, the same however many processes share its rows.

An update's rows are dealt into mini-batches by one permutation of all rows of all processes, so that
a mini-batch has the same rows whether one process has them or two. Within a process rows of like
lengths go together into micro-batches that keep to a number of rows or of tokens. Importing this
module imports torch only where tensors are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from .rows import PaWRow

__all__ = ["MiniBatch", "collate", "deal", "micro_batches"]


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """What one step of the optimizer learns from.

    Attributes:
        micro: This process's micro-batches: numbers of its rows. An empty one keeps step with other
            processes, which have more.
        rows: Rows of all processes.
        tokens: Response tokens of all processes.
    """

    micro: tuple[tuple[int, ...], ...]
    rows: int
    tokens: int


def deal(places: NDArray[np.int64], total: int, size: int | None, seed: int) -> list[list[int]]:
    """Return the numbers of this process's rows in each mini-batch.

    Mini-batches differ by one row at most: 300 rows at 256 a mini-batch are two of 150.

    Args:
        places: The place of each of this process's rows among all rows of the update.
        total: Number of all rows.
        size: The most rows of a mini-batch; None for one mini-batch.
        seed: Seed of the permutation.

    Example:
        >>> import numpy as np
        >>> sorted(map(len, deal(np.arange(10), 10, 4, seed=0)))
        [3, 3, 4]
    """
    number = 1 if size is None else max(-(-total // size), 1)
    order = np.random.default_rng(seed).permutation(total)
    owner = {int(place): row for row, place in enumerate(places)}
    return [
        [owner[int(place)] for place in part if int(place) in owner]
        for part in np.array_split(order, number)
    ]


def micro_batches(
    rows: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    most_rows: int | None,
    most_tokens: int | None,
) -> list[tuple[int, ...]]:
    """Return rows in micro-batches, the widest first; each has one row at least.

    A micro-batch is as wide as its longest prompt and its longest completion together, since prompts
    are padded on the left and what follows them on the right (`collate`). Rows that do not fit into
    one are halved by that of the two lengths in which they differ more, until all fit: so rows that are
    alike in both go together, and little of what is computed is padding.

    Args:
        rows: Numbers of rows.
        sizes: Tokens of the prompt of every row, and of what follows it, by its number.
        most_rows: The most rows of a micro-batch, or None.
        most_tokens: The most tokens of one, padding included, or None; a longer row is one alone.

    Example:
        >>> micro_batches([0, 1, 2], [(3, 2), (7, 2), (3, 2)], None, 10)
        [(1,), (0, 2)]
    """
    found: list[tuple[int, ...]] = []
    pending = [sorted(rows)] if rows else []
    while pending:
        some = pending.pop()
        lengths = [[sizes[row][side] for row in some] for side in (0, 1)]
        width = max(lengths[0]) + max(lengths[1])
        room = len(some) if most_rows is None else most_rows
        if most_tokens is not None:
            room = max(min(room, most_tokens // max(width, 1)), 1)
        spreads = [max(side) - min(side) for side in lengths]
        if len(some) <= room or not any(spreads):
            number = -(-len(some) // room)
            found += [tuple(map(int, part)) for part in np.array_split(some, number)]
            continue
        side = 0 if spreads[0] > spreads[1] else 1
        some.sort(key=lambda row: (-sizes[row][side], row))
        pending += [sorted(some[len(some) // 2 :]), sorted(some[: len(some) // 2])]
    return sorted(found, key=lambda micro: (-_width(micro, sizes), micro))


def _width(rows: Sequence[int], sizes: Sequence[tuple[int, int]]) -> int:
    """Return how many tokens wide some rows are together."""
    return sum(max(sizes[row][side] for row in rows) for side in (0, 1))


def collate(
    rows: Sequence[PaWRow], observed: Sequence[bool], pad: int, device: Any = "cpu"
) -> dict[str, Tensor]:
    """Return rows as tensors: prompts padded on the left, what follows them on the right.

    Args:
        rows: The rows; none gives one row of padding that carries no loss.
        observed: Whether each row's next observation is appended after its response.
        pad: The padding token.
        device: Where the tensors are.

    Returns:
        ``prompt_ids`` and ``prompt_mask`` (B, P); ``completion_ids``, ``completion_mask`` (1 for
        tokens of the response), ``seen_mask`` (1 for all that is no padding) and ``observation_mask``
        (1 for scored tokens of the observation), all (B, C) and of 64-bit integers.

    Example:
        >>> from comap.trainers.paw.rows import PaWRow
        >>> row = PaWRow(group=0, trajectory=0, t=0, prompt_ids=(5,), response_ids=(6, 7),
        ...              header_ids=(8,), observation_ids=(9,), footer_ids=(8,))
        >>> collate([row], [True], pad=0)["observation_mask"].tolist()
        [[0, 0, 0, 1, 0]]
    """
    import torch

    prompts = [row.prompt_ids for row in rows] or [(pad,)]
    completions, actions, scored = [], [], []
    for row, shown in zip(rows, observed, strict=True):
        answer, header = len(row.response_ids), len(row.header_ids)
        tail = (row.header_ids, row.observation_ids, row.footer_ids) if shown else ((), (), ())
        completions.append((*row.response_ids, *tail[0], *tail[1], *tail[2]))
        actions.append((1,) * answer)
        scored.append((0,) * (answer + header) + (1,) * len(tail[1]) if shown else ())
    if not rows:
        completions, actions, scored = [(pad,)], [()], [()]
    seen = [(1,) * len(ids) for ids in completions]
    width = max(1, *map(len, completions))  # a model reads one token at least
    columns = {
        "prompt_ids": _padded(prompts, pad, left=True),
        "prompt_mask": _padded([(1,) * len(ids) for ids in prompts], 0, left=True),
        "completion_ids": _padded(completions, pad, width),
        "completion_mask": _padded(actions, 0, width),
        "seen_mask": _padded(seen, 0, width),
        "observation_mask": _padded(scored, 0, width),
    }
    return {name: torch.tensor(value, device=device) for name, value in columns.items()}


def _padded(
    lines: Sequence[Sequence[int]], filler: int, width: int | None = None, left: bool = False
) -> list[list[int]]:
    wide = max(map(len, lines)) if width is None else width
    if left:
        return [[filler] * (wide - len(line)) + list(line) for line in lines]
    return [list(line) + [filler] * (wide - len(line)) for line in lines]


def placed(
    values: Sequence[Tensor], width: int, make: Callable[..., Tensor], like: Tensor
) -> Tensor:
    """Return values of response tokens, one row each, in a tensor as wide as the completions.

    Args:
        values: A tensor (T,) for each row.
        width: Tokens of the widest completion.
        make: Makes the filled tensor: ``torch.zeros``.
        like: Has the device.
    """
    dtype = values[0].dtype if len(values) else None
    found = make(max(len(values), 1), width, device=like.device, dtype=dtype)
    for number, line in enumerate(values):
        found[number, : len(line)] = line
    return found
