"""Which tokens of a reply stand between the action's tags (METHODS.md 2.2, ``span: action_tag``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .token_texts import token_texts

__all__ = ["action_tokens"]

_ACTION = re.compile(r"<(action|search|answer)>(.*?)</\1>", re.DOTALL)


def action_tokens(tokenizer: Any, ids: Sequence[int]) -> list[bool]:
    """Return for each token of a reply whether its text overlaps what the first action tag holds.

    Where there is no such tag all tokens count, so that every row has an entropy. Tokens that only
    together are a character overlap what the character does.

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
    texts = token_texts(tokenizer, ids)
    whole = tokenizer.decode(list(ids)) if texts is None else "".join(texts)
    found = _ACTION.search(whole)
    if found is None:
        return [True] * len(ids)
    first, last = found.span(2)
    spans = _spans(texts) if texts is not None else _spans_of_beginnings(tokenizer, ids)
    marked = [begin < last and end > first for begin, end in spans]
    return marked if any(marked) else [True] * len(ids)


def _spans(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return where each token's text is; an empty one's is that of the character it begins."""
    found: list[tuple[int, int]] = []
    begin = 0
    for number, text in enumerate(texts, 1):
        if text:
            end = begin + len(text)
            found += [(begin, end)] * (number - len(found))
            begin = end
    return found + [(begin, begin)] * (len(texts) - len(found))


def _spans_of_beginnings(tokenizer: Any, ids: Sequence[int]) -> list[tuple[int, int]]:
    """Return the same where later tokens change earlier text: by the lengths of all beginnings."""
    ends = [len(tokenizer.decode(list(ids[: count + 1]))) for count in range(len(ids))]
    return list(zip([0, *ends[:-1]], ends, strict=True))
