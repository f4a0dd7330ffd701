"""In which order and in which batches examples are learned: all of it is fixed before training begins.

Whoever trains, on however many processes, makes the same updates of the same rows; and a run that was
killed goes on in the middle of the list.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import OptionError

__all__ = ["Batching", "MicroBatch", "plan_updates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How rows are put together.

    Attributes:
        rows: Rows of a micro-batch, in random order; None where `tokens` decides.
        tokens: Most tokens of a micro-batch, padding included: rows of like lengths go together,
            which is what a CPU likes (SMALL.md, section 2); None where `rows` decides.
        accumulate: Micro-batches of an update, over all processes.

    Raises:
        OptionError: Not exactly one of `rows` and `tokens` is given, or one is no number from 1.

    Example:
        >>> Batching(tokens=2048, accumulate=2).rows is None
        True
    """

    rows: int | None = None
    tokens: int | None = None
    accumulate: int = 1

    def __post_init__(self) -> None:
        given = [value for value in (self.rows, self.tokens) if value is not None]
        numbers = (*given, self.accumulate)
        if len(given) != 1 or any(type(value) is not int or value < 1 for value in numbers):
            raise OptionError(
                "expected either rows or tokens of a micro-batch and an accumulation, all at least "
                f"1, found rows={self.rows}, tokens={self.tokens}, accumulate={self.accumulate}"
            )


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that pass through the model together.

    Attributes:
        epoch: The epoch, from 0.
        rows: Numbers of rows of that epoch; none where an epoch's last update is filled up.

    Example:
        >>> MicroBatch(0, (4, 2)).rows
        (4, 2)
    """

    epoch: int
    rows: tuple[int, ...]


def plan_updates(
    lengths: Sequence[Sequence[int]], batching: Batching, seed: int = 0
) -> list[MicroBatch]:
    """Return all micro-batches of a training in their order.

    Each `batching.accumulate` of them are one update; an epoch ends with an update of its own, which
    may have fewer rows. Every row is in each of its epochs once. A row that is longer than
    `batching.tokens` is a batch by itself.

    Args:
        lengths: For each epoch the length of each row, in tokens.
        batching: How rows are put together.
        seed: Seed of the order.

    Example:
        >>> plan = plan_updates([[5, 5, 5]], Batching(rows=1, accumulate=2))
        >>> [len(batch.rows) for batch in plan]
        [1, 1, 1, 0]
    """
    plan = []
    for epoch, rows in enumerate(lengths):
        rng = random.Random(f"{seed}\n{epoch}".encode())
        batches = _batches(rows, batching, rng)
        missing = -len(batches) % batching.accumulate
        plan += [MicroBatch(epoch, batch) for batch in (*batches, *[()] * missing)]
    return plan


def _batches(
    lengths: Sequence[int], batching: Batching, rng: random.Random
) -> list[tuple[int, ...]]:
    """Return the rows of one epoch in batches."""
    order = list(range(len(lengths)))
    rng.shuffle(order)
    if batching.rows is not None:
        size = batching.rows
        return [tuple(order[at : at + size]) for at in range(0, len(order), size)]
    assert batching.tokens is not None
    order.sort(key=lambda row: lengths[row])  # keeps the random order of equal lengths
    batches: list[tuple[int, ...]] = []
    batch: list[int] = []
    for row in order:
        if batch and lengths[row] * (len(batch) + 1) > batching.tokens:
            batches.append(tuple(batch))
            batch = []
        batch.append(row)
    if batch:
        batches.append(tuple(batch))
    rng.shuffle(batches)
    return batches
