"""Anchor groups: steps of a task group that were taken from the same state (METHODS.md 2.6)."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import numpy as np

from ...errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .rows import PaWRow

__all__ = ["anchor_groups"]


def anchor_groups(rows: Sequence[PaWRow], similarity: float | None = None) -> NDArray[np.int64]:
    """Return the anchor group of each row, numbered as they appear (METHODS.md 2.6, GiGPO item 3).

    Rows of one task group share an anchor group if their raw observations are the same text. With a
    `similarity` a text joins the first anchor group whose first text it is as similar to, in the
    order of the rows, or else opens one; the measure is the ratio of `difflib.SequenceMatcher` with
    its defaults, as upstream has it.

    Args:
        rows: All rows of the update.
        similarity: None for the same text only, or the least ratio, above 0 and at most 1.

    Raises:
        OptionError: `similarity` is out of range.

    Example:
        >>> from comap.trainers.paw.rows import PaWRow
        >>> rows = [PaWRow(group=0, trajectory=0, t=0, prompt_ids=(1,), response_ids=(2,), anchor=a)
        ...         for a in ("a red mug", "a red cup", "a red mug", "a red mug.")]
        >>> anchor_groups(rows).tolist(), anchor_groups(rows, 0.9).tolist()
        ([0, 1, 0, 2], [0, 1, 0, 0])
    """
    if similarity is not None and not 0 < similarity <= 1:
        raise OptionError(f"similarity must be None, or above 0 and at most 1, not {similarity!r}")
    known: dict[tuple[int, str], int] = {}
    first: dict[int, list[tuple[SequenceMatcher[str], int]]] = {}
    count = 0
    for row in rows:
        if (row.group, row.anchor) in known:
            continue
        number = None
        if similarity is not None:
            opened = first.setdefault(row.group, [])
            number = _first_alike(opened, row.anchor, similarity)
            if number is None:
                # The matcher analyses its second text once, the first anew each time.
                opened.append((SequenceMatcher(None, "", row.anchor), count))
        if number is None:
            number, count = count, count + 1
        known[row.group, row.anchor] = number
    return np.array([known[row.group, row.anchor] for row in rows], np.int64)


def _first_alike(
    opened: Sequence[tuple[SequenceMatcher[str], int]], text: str, least: float
) -> int | None:
    """Return the number of the first anchor group whose first text is similar enough."""
    for matcher, number in opened:
        matcher.set_seq1(text)
        # Each is an upper bound of the next, and far cheaper.
        if (
            matcher.real_quick_ratio() >= least
            and matcher.quick_ratio() >= least
            and matcher.ratio() >= least
        ):
            return number
    return None
