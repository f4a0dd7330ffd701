"""What an instruction asks for, as far as its words tell, and what of it a product's text meets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import NamedTuple

from ...facts import Fact
from .cleaning import clean

__all__ = ["Wish", "keywords", "met_options", "met_price", "met_words", "wish_of"]

_LIMIT = re.compile(r"price lower than ([0-9]{1,9}(?:\.[0-9]{1,9})?) dollars")
_CHOICES = re.compile(r"(?:with|, and|,) [^,:]{1,40}: ")
_BREAKS = re.compile(r"[^\w%&'’.\- ]+|\.(?= |$)")
_MOST = 40


class Wish(NamedTuple):
    """What an instruction says.

    Attributes:
        pairs: Neighbouring words that may name an attribute.
        limit: The price limit in cents, or None.
        text: The instruction with a blank at both ends.
    """

    pairs: tuple[str, ...]
    limit: int | None
    text: str


@lru_cache(maxsize=1)
def _idle_words() -> frozenset[str]:
    """Return the words that say nothing about a product."""
    text = files(__package__).joinpath("data/idle_words.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text))


@lru_cache(maxsize=256)
def wish_of(instruction: str) -> Wish:
    """Return what a clean instruction says.

    WebShop's attributes are two words ("long lasting"); an instruction does not mark them, so that
    all pairs of neighbouring words with a meaning of their own count, up to 40.

    Example:
        >>> wish = wish_of("find me easy clean rugs, and price lower than 30.00 dollars")
        >>> wish.pairs, wish.limit
        (('easy clean', 'clean rugs'), 3000)
    """
    limits, idle = _LIMIT.findall(instruction), _idle_words()
    pairs: list[str] = []
    for chunk in _BREAKS.split(_CHOICES.split(instruction, maxsplit=1)[0]):
        words = [word.strip("'’.") for word in chunk.replace("-", " ").split()]
        for first, second in pairwise(words):
            if first and second and first not in idle and second not in idle:
                pairs.append(f"{first} {second}")
    return Wish(
        tuple(dict.fromkeys(pairs))[:_MOST],
        round(100 * float(limits[-1])) if limits else None,
        f" {_BREAKS.sub(' ', instruction)} ",
    )


def met_words(instruction: str, texts: Iterable[str]) -> frozenset[Fact]:
    """Return the facts ``attr_match``: what an instruction says that a product's texts have.

    Args:
        instruction: The task, clean.
        texts: Texts of the product, clean.

    Example:
        >>> met_words("find me easy clean rugs", ["an easy-clean rug"])
        frozenset({('attr_match', 'easy clean')})
    """
    text = "\n".join(texts).replace("-", " ")  # no pair has a line break
    return frozenset([("attr_match", pair) for pair in wish_of(instruction).pairs if pair in text])


def met_options(instruction: str, options: Iterable[tuple[str, str]]) -> frozenset[Fact]:
    """Return the facts ``option_available``: pairs of group and value whose value is asked for.

    Example:
        >>> met_options("a rug with color: red", [("color", "red"), ("color", "blue")])
        frozenset({('option_available', 'color', 'red')})
    """
    text = wish_of(instruction).text
    return frozenset(
        [("option_available", group, value) for group, value in options if f" {value} " in text]
    )


def met_price(instruction: str, low: str, high: str) -> frozenset[Fact]:
    """Return the fact ``price_ok``: whether a price is within the limit.

    Args:
        instruction: The task, clean.
        low: The product's least price in cents, empty where it is not known.
        high: Its greatest price in cents.

    Example:
        >>> met_price("a rug, and price lower than 30.00 dollars", "2500", "3500")
        frozenset({('price_ok', 'maybe')})
    """
    if not (low and high):
        return frozenset()
    return frozenset({("price_ok", _within(int(low), int(high), wish_of(instruction).limit))})


def _within(low: int, high: int, limit: int | None) -> str:
    if limit is None or high <= limit:
        return "yes"
    return "no" if low > limit else "maybe"


def keywords(instruction: str) -> tuple[str, str]:
    """Return what to search for: few words of an instruction, and more of them.

    The few are those before the choices of options, without idle words; the more are all but the
    price limit and idle words.

    Example:
        >>> keywords("Find me a washable rug with color: red, and price lower than 30.00 dollars")
        ('washable rug', 'washable rug color red')
    """
    text = _LIMIT.split(clean(instruction), maxsplit=1)[0]
    return _meant(_CHOICES.split(text, maxsplit=1)[0]), _meant(text)


def _meant(text: str) -> str:
    """Return the words of a text without idle ones and repeats, in order."""
    words = (word.strip("'’.,:;!?()\"") for word in text.split())
    idle = _idle_words()
    return " ".join(dict.fromkeys(word for word in words if word and word not in idle))
