"""Text as facts have it, and actions as WebShop takes them apart."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

__all__ = ["cents", "clean", "clean_short", "read_action", "read_written"]

_VERB = re.compile(r"\s*(search|click)\s*\[", re.IGNORECASE)
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
    line = text.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 1))
    return None if start < 1 else (line[:start], line[start + 1 : end].lower())


def read_written(text: str) -> tuple[str, str] | None:
    """Return the verb and argument of an action as agents write it, or None.

    Case and blanks around do not matter, nor does a full stop at the end. Texts are of any length, and
    hostile: this takes time in proportion to it.

    Example:
        >>> read_written(" Click [ Buy  Now ]. "), read_written("search[shoes] please")
        (('click', ' Buy  Now '), None)
    """
    verb = _VERB.match(text)
    if verb is None:
        return None
    rest = text[verb.end() :].rstrip().removesuffix(".").rstrip()
    return (verb[1].lower(), rest[:-1]) if rest.endswith("]") else None


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
