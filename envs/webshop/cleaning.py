"""Text as facts have it, and actions as WebShop takes them apart."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

__all__ = ["cents", "clean", "clean_short", "read_action"]

_ACTION = re.compile(r"(.+)\[(.+)\]")
_PRICE = re.compile(r"\$([0-9]{1,9}(?:\.[0-9]{1,9})?)(?: to \$([0-9]{1,9}(?:\.[0-9]{1,9})?))?")


def clean(text: str) -> str:
    """Return text as facts have it: NFKC, lower case, single blanks.

    Example:
        >>> clean(" Red   Shoes ")
        'red shoes'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())
    return " ".join(text.lower().split())


@lru_cache(maxsize=4096)
def clean_short(text: str) -> str:
    """Return a title or the like clean; the same ones are shown again and again.

    Example:
        >>> clean_short("A Rug")
        'a rug'
    """
    return clean(text)


def read_action(text: str) -> tuple[str, str] | None:
    """Return an action's verb and argument as WebShop understands it, or None.

    WebShop takes the text before the last possible ``[`` for the verb, ignores what follows the last
    ``]``, and lowers the argument's case; nothing else is evened out.

    Example:
        >>> read_action("click[Buy Now]"), read_action("buy it")
        (('click', 'buy now'), None)
    """
    match = _ACTION.match(text)
    return None if match is None else (match[1], match[2].lower())


@lru_cache(maxsize=4096)
def cents(text: str) -> tuple[str, str]:
    """Return the least and the greatest price in cents, empty where the text is no price.

    Example:
        >>> cents("$5.0 to $7.25"), cents("free")
        (('500', '725'), ('', ''))
    """
    match = _PRICE.fullmatch(text)
    if match is None:
        return "", ""
    low = str(round(100 * float(match[1])))
    return low, low if match[2] is None else str(round(100 * float(match[2])))
