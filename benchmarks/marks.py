"""Characters that cannot be seen, made visible: direction marks, controls, lone surrogates.

What a language model wrote may hold characters that reorder a line, hide text or steer a terminal.
Reports, plots and terminal tables show each as its code point instead, for example ``[U+202E]``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

__all__ = ["one_line", "pieces", "visible"]

_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_KEPT = {"\n", "\t"}


def _is_hidden(char: str) -> bool:
    code = ord(char)
    noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return noncharacter or (char not in _KEPT and unicodedata.category(char) in _HIDDEN)


def pieces(text: str) -> Iterator[tuple[bool, str]]:
    r"""Yield the runs of plain text (False) and the name of each hidden character (True).

    Example:
        >>> list(pieces("a\u202eb"))
        [(False, 'a'), (True, 'U+202E'), (False, 'b')]
    """
    start = 0
    for position, char in enumerate(text):
        if _is_hidden(char):
            if start < position:
                yield False, text[start:position]
            yield True, f"U+{ord(char):04X}"
            start = position + 1
    if start < len(text):
        yield False, text[start:]


def visible(text: str) -> str:
    r"""Return `text` with each hidden character as its code point in brackets.

    Example:
        >>> visible("\x1b[31mred")
        '[U+001B][31mred'
    """
    return "".join(f"[{piece}]" if hidden else piece for hidden, piece in pieces(text))


def one_line(text: str, limit: int = 120) -> str:
    r"""Return `visible` text on one line of at most `limit` characters.

    Example:
        >>> one_line("two\nlines")
        'two lines'
        >>> one_line("abcdef", limit=4)
        'abc…'
    """
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
