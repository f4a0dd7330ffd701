"""The generated catalogue: a shop in WebShop's file format, drawn from a seed, built once and kept."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from ...errors import OptionError, check_number
from ..generated import Draws, kept_folder
from ..storage import packaged
from .build import build_catalog
from .catalog import Catalog

KINDS = ("is", "with", "for")


def shop_words() -> Any:
    """Return the words, kinds of things and sentences that shops are made of."""
    return packaged(__package__, "shop_words")


@dataclass(frozen=True, slots=True)
class Invention:
    """What is decided about a product before it is put into words."""

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
        names = list[str]()
        for kind in KINDS:
            names += self.attributes[kind]
        return names


def record_of(item: Invention, seed: int) -> dict[str, Any]:
    """Return a product as the file of products has it."""
    words = shop_words()
    draws = Draws("webshop", seed, "words", item.number)
    noun = str(item.kind["noun"])

    first, second = draws.some(item.all_attributes(), 2)
    title = draws.pick(words["titles"]).format(
        brand=item.brand,
        line=item.line,
        noun=noun.title(),
        one=first.title(),
        two=second.title(),
    )
    description = draws.pick(words["descriptions"]).format(
        brand=item.brand,
        line=item.line,
        noun=noun,
        **{kind: _listing(item.attributes[kind]) for kind in KINDS},
    )
    bullets = []
    for kind in KINDS:
        for name in item.attributes[kind]:
            bullet = draws.pick(words["bullets"][kind])
            bullets.append(bullet.format(a=name, A=name.capitalize()))

    # WebShop's file has an empty text where a product has no options.
    options: dict[str, list[dict[str, Any]]] = {}
    for group, values in item.options.items():
        options[group] = [{"is_selected": False, "value": value} for value in values]
    dollars = [f"${cents / 100:.2f}" for cents in sorted({item.low, item.high})]
    return {
        "name": title,
        "full_description": description,
        "images": [""],
        "product_category": " › ".join([item.root, *item.kind["path"]]),
        "average_rating": "",
        "small_description": [*bullets, *draws.some(words["fillers"], 2)],
        "customization_options": options or "",
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

    requested = draws.some(names, draws.integer(1, 3))
    words = shop_words()
    text = draws.pick(words["requests"]).format(**_noun(item))
    for kind in KINDS:
        wanted_of_kind = [name for name in item.attributes[kind] if name in requested]
        if wanted_of_kind:
            text += words["parts"][kind].format(all=_listing(wanted_of_kind))
    return {"attributes": names, "instruction": text, "instruction_attributes": list(requested)}


def human_of(item: Invention, seed: int) -> list[dict[str, Any]]:
    """Return an instruction in freer words, for one product in five."""
    draws = Draws("webshop", seed, "human", item.number)
    if draws.share() >= 0.2 or not item.options:
        return []

    names = item.all_attributes()
    requested = draws.some(names, draws.integer(1, 2))
    options = {group: draws.pick(values) for group, values in item.options.items()}
    wanted_groups = draws.some(list(options), min(len(options), 2))
    wanted_options = [options[group] for group in wanted_groups]
    text = draws.pick(shop_words()["human requests"]).format(
        options=_listing(wanted_options),
        attributes=_listing(requested),
        **_noun(item),
    )
    return [
        {
            "asin": item.asin,
            "instruction": f"{text}.",
            "attributes": names,
            "options": [f"{group.lower()}: {value}" for group, value in options.items()],
            "instruction_attributes": list(requested),
            "instruction_options": wanted_options,
        }
    ]


def _noun(item: Invention) -> dict[str, str]:
    """Return what a product is, with its article."""
    noun = str(item.kind["noun"])
    if noun.endswith("s"):
        article = "some"
    else:
        article = "an" if noun[0] in "aeiou" else "a"
    return {"noun": noun, "article": article}


def _listing(names: Iterable[str]) -> str:
    """Return names with commas, and "and" before the last one."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


PRODUCTS_FILE = "items_shuffle.json"
INSTRUCTIONS_FILE = "items_ins_v2.json"  # attributes, and instructions made of them
HUMAN_FILE = "items_human_ins.json"  # instructions in freer words
_FAMILY = 3  # products that share their kind, and much else
_MOST_GOALS = 40  # combinations of a product's options
_MOST_PRODUCTS = 1_000_000
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # no digits: so an id can be one token of a small model
_PLACES = 26**7
_SHELF = 200  # ASINs that are mixed with each other
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
    check_number("products", products, 1, _MOST_PRODUCTS)

    shop = _shop(seed, products)
    human = {item.asin: human_of(item, seed) for item in shop}
    contents = {
        PRODUCTS_FILE: [record_of(item, seed) for item in shop],
        INSTRUCTIONS_FILE: {item.asin: instruction_of(item, seed) for item in shop},
        HUMAN_FILE: {asin: entries for asin, entries in human.items() if entries},
    }

    Path(out).mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        text = json.dumps(content, ensure_ascii=False) + "\n"
        Path(out, name).write_text(text, encoding="utf-8", newline="\n")


def _shop(seed: int, number: int) -> list[Invention]:
    """Return the products, one family after another, their kinds in mixed order."""
    departments = shop_words()["departments"]
    kinds = []
    for department in departments:
        kinds += [(department, kind) for kind in department["types"]]

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
    """Return as many ASINs; they follow no order that one could guess the next from."""
    # Mixed a shelf at a time, so that the products of a smaller shop are the first of a larger one.
    places = list[int]()
    for start in range(0, number, _SHELF):
        shelf = range(start, start + _SHELF)
        places += Draws("webshop", seed, "asins", start).shuffled(shelf)

    asins = list[str]()
    for place in places[:number]:
        value = (place + 1) * _STEP % _PLACES
        letters = ""
        for _ in range(7):
            value, letter = divmod(value, len(_LETTERS))
            letters += _LETTERS[letter]
        asins.append(f"B0G{letters}")
    return asins


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
    brand = _brand(draws)
    line = draws.pick(words["lines"])
    options = _options(draws, kind)
    low, high = _prices(draws, *kind["price"])
    return Invention(
        number=number,
        asin=asin,
        category=department["category"],
        root=department["root"],
        kind=kind,
        brand=brand,
        line=line,
        attributes=attributes,
        options=options,
        low=low,
        high=high,
    )


def _brand(draws: Draws) -> str:
    words = shop_words()
    return str(draws.pick(words["brand starts"]) + draws.pick(words["brand ends"]))


def _variant(draws: Draws, first: Invention, number: int, asin: str) -> Invention:
    """Return another product of a family: some of its attributes, brand, price, options differ."""
    attributes = dict(first.attributes)
    for kind in draws.some(KINDS, draws.integer(1, 2)):
        attributes[kind] = draws.some(first.kind[kind], len(attributes[kind]))

    brand = first.brand
    if draws.share() < 0.6:
        brand = _brand(draws)
    low = first.low
    high = first.high
    if draws.share() < 0.8:
        low, high = _prices(draws, *first.kind["price"])
    options = _options(draws, first.kind) if draws.share() < 0.7 else first.options

    return replace(
        first,
        number=number,
        asin=asin,
        brand=brand,
        line=draws.pick(shop_words()["lines"]),
        attributes=attributes,
        options=options,
        low=low,
        high=high,
    )


def _options(draws: Draws, kind: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return some option groups, each with some of its values, and not too many combinations."""
    groups = list(kind["groups"])
    number = (0, 1, 1, 2, 2, 2, 3)[draws.integer(0, 6)]  # mostly two
    options = {}
    for group in draws.some(groups, min(len(groups), number)):
        pool = shop_words()["pools"][kind["groups"][group]]
        options[group] = draws.some(pool, draws.integer(2, 6))

    while prod(map(len, options.values())) > _MOST_GOALS:
        longest = max(options, key=lambda group: len(options[group]))
        options[longest] = options[longest][:-1]
    return options


def _prices(draws: Draws, low: int, high: int) -> tuple[int, int]:
    """Return the least and the greatest price in cents; mostly they are one."""
    # Squared: low prices are more frequent than high ones.
    share = draws.share()
    cents = round(100 * (low + (high - low) * share * share)) // 10 * 10 + draws.pick((0, 5, 9))
    highest = cents + 10 * draws.integer(20, 150) if draws.share() < 0.1 else cents
    return cents, highest


@lru_cache(maxsize=4)
def embedded_catalog(seed: int = 0) -> Catalog:
    """Return the generated catalogue of a seed; made in about a second, and then kept."""

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="comap-webshop-") as source:
            generate_catalog(Path(source), seed=seed)
            build_catalog(
                Path(source, PRODUCTS_FILE),
                target,
                Path(source, INSTRUCTIONS_FILE),
                Path(source, HUMAN_FILE),
                seed=seed,
                nouns="lexical",
            )

    return Catalog.open(kept_folder(__package__, "webshop", seed, make, Catalog.open))
