"""What in an observation nobody could foresee (METHODS.md 2.9): product codes, first-seen contents."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TypeAlias

from ...facts import Delta

__all__ = ["Spans", "code_spans", "content_spans", "listed_codes", "listing_spans"]

Spans: TypeAlias = Sequence[tuple[int, int]]
"""Where parts of a text begin and end."""

_CODE = re.compile(r"(?=(B[0-9A-Z]{9}))")  # looks ahead, so that codes may overlap
_CAPITALS = re.compile(r"[A-Z]{4,}[0-9]*")
_ASIN = re.compile(r"[0-9A-Z]{10}")  # books have codes of digits
_SEPARATOR = " [SEP] "
_PAGE = re.compile(r"'?Page [0-9]+ \(Total results: [0-9]+\)'?")
_BUTTON = re.compile(r"'?(?:< Prev|Next >)'?")
_FIELDS = 3  # of a listed product: code, title and price


def code_spans(text: str) -> list[tuple[int, int]]:
    """Return where a text has product codes and words in capitals (METHODS.md 2.9).

    A code is a B and nine capitals or digits; a word in capitals has four letters at least, and may
    end with digits.

    Example:
        >>> text = "[SEP] B07XYZ1234 [SEP] A MUG, MODEL42"
        >>> [text[start:end] for start, end in code_spans(text)]
        ['B07XYZ1234', 'MODEL42']
    """
    codes = [match.span(1) for match in _CODE.finditer(text)]
    return sorted({*codes, *(match.span() for match in _CAPITALS.finditer(text))})


def content_spans(delta: Delta, text: str) -> list[tuple[int, int]]:
    """Return where a text names what a receptacle holds whose contents it shows for the first time.

    Which these are the facts tell: ``seen`` of the receptacle and ``in`` it are new at once. What one
    put there oneself, or saw there before, is not new. A name that was cut off is not found.

    Args:
        delta: What the observation changed in the belief.
        text: The observation, or its beginning.

    Example:
        >>> delta = Delta(frozenset({("seen", "desk 1"), ("in", "pen 1", "desk 1")}))
        >>> text = "You arrive at desk 1. On the desk 1, you see a pen 1, and a pen 12."
        >>> [text[start:end] for start, end in content_spans(delta, text)]
        ['pen 1']
    """
    shown = {fact[1] for fact in delta.added if fact[0] == "seen" and len(fact) == 2}
    held = [fact for fact in delta.added if fact[0] == "in" and len(fact) == 3]
    names = {fact[1] for fact in held if fact[2] in shown and fact[1]}
    if not names:
        return []
    longest_first = sorted(names, key=lambda name: (-len(name), name))
    pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
    return [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]


def listing_spans(known: Collection[str], text: str) -> list[tuple[int, int]]:
    """Return where a page of WebShop's results tells of products that were not listed before.

    Noise are code, title and price (ours, beside METHODS.md 2.9's `code_spans`): all that the shop
    holds and no page has shown. Quotes around the parts and what stands between them are none. Pages
    of the observation mode ``text_rich`` have none either.

    Args:
        known: The codes of all products that were listed before.
        text: The page as PaW predicts it, or its beginning.

    Example:
        >>> page = "'Page 1 (Total results: 2)' [SEP] 'B07XYZ1234' [SEP] 'Mug' [SEP] '$5.00'"
        >>> page += " [SEP] 'B07XYZ1235' [SEP] 'Cup'"
        >>> [page[start:end] for start, end in listing_spans({"B07XYZ1235"}, page)]
        ['B07XYZ1234', 'Mug', '$5.00']
    """
    spans: list[tuple[int, int]] = []
    for fields in _listed(text):
        start, end = fields[0]
        if text[start:end] not in known:
            spans += fields
    return spans


def listed_codes(text: str) -> set[str]:
    """Return the codes of the products that a page of WebShop's results lists.

    Args:
        text: The page, its parts quoted or not.

    Example:
        >>> listed_codes("Page 1 (Total results: 1) [SEP] B07XYZ1234 [SEP] Mug [SEP] $5.00")
        {'B07XYZ1234'}
    """
    return {text[slice(*fields[0])] for fields in _listed(text)}


def _listed(text: str) -> list[list[tuple[int, int]]]:
    """Return where code, title and price of each listed product are; what is cut off is left out."""
    parts, start = list[tuple[int, int]](), 0
    for part in text.split(_SEPARATOR):
        parts.append((start, start + len(part)))
        start += len(part) + len(_SEPARATOR)
    texts = [text[start:end] for start, end in parts]
    first = next((at for at, part in enumerate(texts, 1) if _PAGE.fullmatch(part)), len(parts))
    while first < len(parts) and _BUTTON.fullmatch(texts[first]):
        first += 1
    rest = [_unquoted(text, *part) for part in parts[first:]]
    products = [rest[at : at + _FIELDS] for at in range(0, len(rest), _FIELDS)]
    return [fields for fields in products if _ASIN.fullmatch(text[slice(*fields[0])])]


def _unquoted(text: str, start: int, end: int) -> tuple[int, int]:
    """Return where a part is without the quotes around it; the last one may have been cut off."""
    if text[start : start + 1] != "'":
        return start, end
    quoted = end - start > 1 and text[end - 1] == "'"
    return start + 1, end - 1 if quoted else end
