"""What each of some tokens adds to their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["token_texts"]

_BROKEN = "\N{REPLACEMENT CHARACTER}"  # what an unfinished character decodes to


def token_texts(tokenizer: Any, tokens: Sequence[int]) -> tuple[str, ...] | None:
    """Return the text of each token; joined they are the text of all, special tokens included.

    A token that ends inside a character is empty, and a later one has the character.

    Args:
        tokenizer: A tokenizer of the transformers library.
        tokens: Their ids.

    Returns:
        One text for each token; None where a tokenizer changes earlier text by later tokens, so that
        no token can be said to have written it.

    Example:
        >>> from comap.lm.tiny import tokenizer_of
        >>> tokenizer = tokenizer_of(["look"] * 2, 320)
        >>> token_texts(tokenizer, tokenizer("look é", add_special_tokens=False)["input_ids"])
        ('look', ' ', '', 'é')
    """
    found: list[str] = []
    done = before = 0  # `before` is where the text that was last told apart begins, `done` its end
    said = ""
    for end in range(1, len(tokens) + 1):
        now = _decoded(tokenizer, tokens[before:end])
        if now.endswith(_BROKEN) and end < len(tokens):
            found.append("")
            continue
        found.append(now[len(said) :])
        before, done = done, end
        said = _decoded(tokenizer, tokens[before:done])
    return tuple(found) if "".join(found) == _decoded(tokenizer, tokens) else None


def _decoded(tokenizer: Any, tokens: Sequence[int]) -> str:
    return str(
        tokenizer.decode(
            list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
    )
