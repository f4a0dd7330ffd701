"""Invented products in words: WebShop's records of them, and what is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ..draws import Draws

__all__ = ["KINDS", "Invention", "human_of", "instruction_of", "record_of", "shop_words"]

KINDS = ("is", "with", "for")
"""The kinds of attributes: what a thing is, what it has, what it is for."""


@lru_cache(maxsize=1)
def shop_words() -> dict[str, Any]:
    """Return the words that shops are made of.

    Example:
        >>> "colors" in shop_words()["pools"]
        True
    """
    text = files(__package__).joinpath("data/shop_words.json").read_text(encoding="utf-8")
    words: dict[str, Any] = json.loads(text)
    return words


@dataclass(frozen=True, slots=True)
class Invention:
    """What is decided about a product before it is put into words.

    Attributes:
        number: Its place in the shop.
        asin: Its id.
        category: WebShop's broad category.
        root: First part of its category path.
        kind: The entry of ``data/shop_words.json`` that it is made after.
        brand: Its brand.
        line: Its product line.
        attributes: By kind of attribute.
        options: Values by group.
        low: Its least price in cents.
        high: Its greatest price in cents.
    """

    number: int
    asin: str
    category: str
    root: str
    kind: dict[str, Any]
    brand: str
    line: str
    attributes: dict[str, tuple[str, ...]]
    options: dict[str, tuple[str, ...]]
    low: int
    high: int

    def all_attributes(self) -> list[str]:
        """Return the attributes of all kinds."""
        return [name for kind in KINDS for name in self.attributes[kind]]


def record_of(item: Invention, seed: int) -> dict[str, Any]:
    """Return a product as the file of products has it."""
    words, draws = shop_words(), Draws("webshop", seed, "words", item.number)
    names = item.all_attributes()
    noun = str(item.kind["noun"])
    one, two = (name.title() for name in draws.some(names, 2))
    title = draws.pick(words["titles"]).format(
        brand=item.brand, line=item.line, noun=noun.title(), one=one, two=two
    )
    description = draws.pick(words["descriptions"]).format(
        brand=item.brand,
        line=item.line,
        noun=noun,
        **{kind: _listing(item.attributes[kind]) for kind in KINDS},
    )
    bullets = [
        draws.pick(words["bullets"][kind]).format(a=name, A=name.capitalize())
        for kind in KINDS
        for name in item.attributes[kind]
    ]
    dollars = [f"${cents / 100:.2f}" for cents in sorted({item.low, item.high})]
    return {
        "name": title,
        "full_description": description,
        "images": [""],
        "product_category": " › ".join([item.root, *item.kind["path"]]),
        "average_rating": "",
        "small_description": [*bullets, *draws.some(words["fillers"], 2)],
        "customization_options": {
            group: [{"is_selected": False, "value": value} for value in values]
            for group, values in item.options.items()
        }
        or "",
        "asin": item.asin,
        "category": item.category,
        "query": item.kind["query"],
        "page": 1,
        "pricing": "".join(dollars),
    }


def instruction_of(item: Invention, seed: int) -> dict[str, Any]:
    """Return the attributes of a product and, for two in three, what to ask for."""
    draws = Draws("webshop", seed, "instruction", item.number)
    names = item.all_attributes()
    if draws.share() < 1 / 3:
        return {"attributes": names}
    wanted = draws.some(names, draws.integer(1, 3))
    words = shop_words()
    text = draws.pick(words["requests"]).format(**_noun(item))
    for kind in KINDS:
        if asked := [name for name in item.attributes[kind] if name in wanted]:
            text += words["parts"][kind].format(all=_listing(asked))
    return {"attributes": names, "instruction": text, "instruction_attributes": list(wanted)}


def human_of(item: Invention, seed: int) -> list[dict[str, Any]]:
    """Return an instruction in freer words, for one product in five."""
    draws = Draws("webshop", seed, "human", item.number)
    if draws.share() >= 0.2 or not item.options:
        return []
    names = item.all_attributes()
    wanted = draws.some(names, draws.integer(1, 2))
    chosen = {group: draws.pick(values) for group, values in item.options.items()}
    asked = draws.some(list(chosen), min(len(chosen), 2))
    text = draws.pick(shop_words()["human requests"]).format(
        options=_listing([chosen[group] for group in asked]),
        attributes=_listing(wanted),
        **_noun(item),
    )
    return [
        {
            "asin": item.asin,
            "instruction": f"{text}.",
            "attributes": names,
            "options": [f"{group.lower()}: {value}" for group, value in chosen.items()],
            "instruction_attributes": list(wanted),
            "instruction_options": [chosen[group] for group in asked],
        }
    ]


def _noun(item: Invention) -> dict[str, str]:
    noun = str(item.kind["noun"])
    plural = noun.endswith("s")
    return {"noun": noun, "article": "some" if plural else "an" if noun[0] in "aeiou" else "a"}


def _listing(names: Iterable[str]) -> str:
    """Return names as one reads them out."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
