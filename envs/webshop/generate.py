"""The generated catalogue: an invented shop in WebShop's file format, made from a seed.

Products come in families of three: the same kind of thing, with other attributes, options, brands
and prices, so that finding the kind is not enough. Brands, sentences and numbers are invented; the
words are in ``data/shop_words.json``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from ...errors import OptionError
from ..draws import Draws
from .inventions import KINDS, Invention, human_of, instruction_of, record_of, shop_words

__all__ = ["HUMAN_FILE", "INSTRUCTIONS_FILE", "PRODUCTS_FILE", "generate_catalog"]

PRODUCTS_FILE = "items_shuffle.json"
"""Name of the file of products."""

INSTRUCTIONS_FILE = "items_ins_v2.json"
"""Name of the file of attributes and instructions."""

HUMAN_FILE = "items_human_ins.json"
"""Name of the file of instructions in freer words."""

_FAMILY = 3
_MOST_GOALS = 40
_MOST_PRODUCTS = 1_000_000
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # no digits: so an id can be one token of a small model
_PLACES = 26**7
_SHELF = 200
_STEP = 22_695_477_043  # has no divisor in common with the number of places


def generate_catalog(out: Path, *, seed: int = 0, products: int = 600) -> None:
    """Write an invented catalogue in WebShop's format into a folder.

    The files are `PRODUCTS_FILE`, `INSTRUCTIONS_FILE` and `HUMAN_FILE`; the same seed and number
    give the same bytes on every machine. About two products in three have an instruction, which
    with their options makes some eight goals for each product; one in five has one in freer words.

    Args:
        out: The folder; it is made if need be.
        seed: What all draws depend on.
        products: Number of products, 1 to 1,000,000.

    Raises:
        OptionError: `seed` or `products` is no such number.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     generate_catalog(Path(folder), products=3)
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['items_human_ins.json', 'items_ins_v2.json', 'items_shuffle.json']
    """
    if type(seed) is not int:
        raise OptionError(f"seed must be a whole number, not {seed!r}")
    if type(products) is not int or not 1 <= products <= _MOST_PRODUCTS:
        raise OptionError(
            f"products must be a whole number from 1 to {_MOST_PRODUCTS}, not {products!r}"
        )
    shop = _shop(seed, products)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    _write(out / PRODUCTS_FILE, [record_of(item, seed) for item in shop])
    _write(out / INSTRUCTIONS_FILE, {item.asin: instruction_of(item, seed) for item in shop})
    human = {item.asin: found for item in shop if (found := human_of(item, seed))}
    _write(out / HUMAN_FILE, human)


def _write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


def _shop(seed: int, number: int) -> list[Invention]:
    """Return the products, one family after another, their kinds in mixed order."""
    departments = shop_words()["departments"]
    kinds = [(department, kind) for department in departments for kind in department["types"]]
    shop = list[Invention]()
    for place, asin in enumerate(_asins(seed, number)):
        family, member = divmod(place, _FAMILY)
        draws = Draws("webshop", seed, "product", place)
        if member == 0:
            if family % len(kinds) == 0:
                order = Draws("webshop", seed, "kinds", family).shuffled(kinds)
            department, kind = order[family % len(kinds)]
            shop.append(_first(draws, place, asin, department, kind))
        else:
            shop.append(_variant(draws, shop[place - member], place, asin))
    return shop


def _asins(seed: int, number: int) -> list[str]:
    """Return ids in the form of real ones.

    Shops of a size have the same ids, but for the last few, each for other products: who plays in
    several has to read which id a product has, and cannot know it by heart.
    """
    places = list[int]()
    for start in range(0, number, _SHELF):  # so that fewer products are the first of more
        shelf = range(start, start + _SHELF)
        places += Draws("webshop", seed, "asins", start).shuffled(shelf)
    return [_asin(place) for place in places[:number]]


def _asin(place: int) -> str:
    """Return an id, another for each place."""
    value, letters = (place + 1) * _STEP % _PLACES, ""
    for _ in range(7):
        value, letter = divmod(value, len(_LETTERS))
        letters += _LETTERS[letter]
    return f"B0G{letters}"


def _first(
    draws: Draws, number: int, asin: str, department: dict[str, Any], kind: dict[str, Any]
) -> Invention:
    """Return the first product of a family."""
    words = shop_words()
    attributes = {
        "is": draws.some(kind["is"], 2),
        "with": draws.some(kind["with"], draws.integer(1, 2)),
        "for": draws.some(kind["for"], 1),
    }
    return Invention(
        number,
        asin,
        department["category"],
        department["root"],
        kind,
        draws.pick(words["brand starts"]) + draws.pick(words["brand ends"]),
        draws.pick(words["lines"]),
        attributes,
        _options(draws, kind),
        *_prices(draws, *kind["price"]),
    )


def _variant(draws: Draws, first: Invention, number: int, asin: str) -> Invention:
    """Return a product that is nearly the first of its family."""
    words, attributes = shop_words(), dict(first.attributes)
    for kind in draws.some(KINDS, draws.integer(1, 2)):
        attributes[kind] = draws.some(first.kind[kind], len(attributes[kind]))
    brand, low, high = first.brand, first.low, first.high
    if draws.share() < 0.6:
        brand = draws.pick(words["brand starts"]) + draws.pick(words["brand ends"])
    if draws.share() < 0.8:
        low, high = _prices(draws, *first.kind["price"])
    options = _options(draws, first.kind) if draws.share() < 0.7 else first.options
    return replace(
        first,
        number=number,
        asin=asin,
        brand=brand,
        line=draws.pick(words["lines"]),
        attributes=attributes,
        options=options,
        low=low,
        high=high,
    )


def _options(draws: Draws, kind: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return some option groups, each with some of its values, and not too many combinations."""
    groups = list(kind["groups"])
    chosen = draws.some(groups, min(len(groups), (0, 1, 1, 2, 2, 2, 3)[draws.integer(0, 6)]))
    options = {}
    for group in chosen:
        pool = shop_words()["pools"][kind["groups"][group]]
        options[group] = draws.some(pool, draws.integer(2, 6))
    while prod(map(len, options.values())) > _MOST_GOALS:
        longest = max(options, key=lambda group: len(options[group]))
        options[longest] = options[longest][:-1]
    return options


def _prices(draws: Draws, low: int, high: int) -> tuple[int, int]:
    """Return the least and the greatest price in cents; mostly they are one."""
    share = draws.share()
    cents = round(100 * (low + (high - low) * share * share)) // 10 * 10 + draws.pick((0, 5, 9))
    more = cents + 10 * draws.integer(20, 150) if draws.share() < 0.1 else cents
    return cents, more
