"""Which tokens of a reply stand between the action's tags (METHODS.md 2.2, ``span: action_tag``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["action_tokens"]

_ACTION = re.compile(r"<(action|search|answer)>(.*?)</\1>", re.DOTALL)


def action_tokens(tokenizer: Any, ids: Sequence[int]) -> list[bool]:
    """Return for each token of a reply whether its text overlaps what the first action tag holds.

    Where there is no such tag all tokens count, so that every row has an entropy.

    Args:
        tokenizer: The tokenizer.
        ids: The reply's tokens.

    Example:
        >>> from comap.lm.tiny import tokenizer_of
        >>> tokenizer = tokenizer_of(["<action> look </action>"] * 2, 320)
        >>> ids = tokenizer("look", add_special_tokens=False)["input_ids"]
        >>> all(action_tokens(tokenizer, ids))
        True
    """
    ends = [len(tokenizer.decode(ids[: count + 1])) for count in range(len(ids))]
    found = _ACTION.search(tokenizer.decode(ids)) if ids else None
    if found is None:
        return [True] * len(ids)
    first, last = found.span(2)
    begins = [0, *ends[:-1]]
    marked = [b < last and e > first for b, e in zip(begins, ends, strict=True)]
    return marked if any(marked) else [True] * len(ids)
