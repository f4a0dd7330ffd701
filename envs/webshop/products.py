"""What WebShop makes of one product's record when it loads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import DataCorrupt

__all__ = ["Product", "read_product", "search_text"]

_NO_PRICE = (100.0,)
_NO_ATTRIBUTES = ("DUMMY_ATTR",)


@dataclass(frozen=True, slots=True)
class Product:
    """One product, as pages, goals and rewards see it.

    Attributes:
        asin: Its number, at most ten characters.
        title: Its name.
        price_tag: Its price as it is shown, ``$9.99`` or ``$5.0 to $7.5``.
        description: Text of the page *Description*.
        bullets: Lines of the page *Features*.
        options: Option groups, each a name and its values, in the order of the page.
        attributes: What it is known for; the reward looks at them.
        query: What it was found by when the data were gathered; the reward looks at it.
        category: One of a few broad kinds.
        product_category: The path of categories, separated by ``\u203a``.
        nouns: The nouns of the title, with repeats; the reward looks at them.
        price: What it costs when it is bought, in dollars: one number, also for a range.
        instruction: The synthetic instruction's beginning, or None.
        wanted: The attributes that the instruction asks for.
        cap: The highest price of synthetic goals, or 1,000,000 for none.
    """

    asin: str
    title: str
    price_tag: str
    description: str
    bullets: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    attributes: tuple[str, ...]
    query: str
    category: str
    product_category: str
    nouns: tuple[str, ...] = ()
    price: float = 100.0
    instruction: str | None = None
    wanted: tuple[str, ...] = ()
    cap: float = 1_000_000.0

    def to_json(self) -> str:
        """Return the product as a line of JSON."""
        return json.dumps([getattr(self, name) for name in _FIELDS], ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Product:
        """Return the product that `to_json` wrote."""
        parts = json.loads(text)
        for place in _LISTS:
            parts[place] = tuple(parts[place])
        parts[_OPTIONS] = tuple([(name, tuple(values)) for name, values in parts[_OPTIONS]])
        return cls(*parts)


_FIELDS = tuple(Product.__dataclass_fields__)
_OPTIONS = _FIELDS.index("options")
_LISTS = tuple(_FIELDS.index(name) for name in ("bullets", "attributes", "nouns", "wanted"))


def read_product(
    record: Mapping[str, Any], notes: Mapping[str, Any]
) -> tuple[Product, list[float]]:
    """Return a product from WebShop's records, and the one or two prices that it may have.

    Args:
        record: An element of ``items_shuffle.json``.
        notes: The product's entry in ``items_ins_v2.json``; empty where it has none.

    Raises:
        DataCorrupt: A field is of another kind than WebShop's.

    Example:
        >>> product, prices = read_product(
        ...     {"asin": "B00", "name": "Tea", "pricing": "$1,200.5", "customization_options":
        ...      {"Size": [{"value": "Small/8 "}]}}, {})
        >>> product.price_tag, prices, product.options
        ('$1200.5', [1200.5], (('size', ('small | 8',)),))
    """
    if not isinstance(notes, Mapping):
        raise DataCorrupt(
            f"expected attributes of product {record.get('asin')!r:.40}, found {notes!r:.80}; "
            "get items_ins_v2.json again"
        )
    notes = {"asin": record.get("asin"), **notes}
    prices, tag = _prices(record)
    bullets = record.get("small_description")
    lines = bullets if isinstance(bullets, list) else [bullets]
    product = Product(
        asin=_text(record, "asin"),
        title=_text(record, "name"),
        price_tag=tag,
        description=_text(record, "full_description"),
        bullets=tuple(_line(record, line) for line in lines),
        options=_options(record),
        attributes=_texts(notes, "attributes") if "attributes" in notes else _NO_ATTRIBUTES,
        query=_text(record, "query").lower().strip(),
        category=_text(record, "category"),
        product_category=_text(record, "product_category"),
        instruction=_text(notes, "instruction") if notes.get("instruction") is not None else None,
        wanted=_texts(notes, "instruction_attributes"),
    )
    return product, prices


def search_text(product: Product) -> str:
    """Return the text by which search finds a product.

    Example:
        >>> search_text(read_product({"asin": "B0", "name": "Tea", "customization_options":
        ...     {"Size": [{"value": "S"}, {"value": "M"}]}}, {})[0])
        'tea   size: s, m'
    """
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    first = product.bullets[0] if product.bullets else ""
    return f"{product.title} {product.description} {first} {options}".lower()


def _prices(record: Mapping[str, Any]) -> tuple[list[float], str]:
    """Return the prices, one or two, and the tag that shows them."""
    amounts = [re.sub(r"[^\d.]", "", part) for part in _text(record, "pricing").split("$")[1:]]
    try:
        prices = [float(amount) for amount in amounts if amount.strip(".")] or list(_NO_PRICE)
    except ValueError as error:
        raise _wrong(record, "pricing", "amounts in dollars") from error
    tag = f"${prices[0]}" if len(prices) == 1 else f"${prices[0]} to ${prices[1]}"
    return prices[:2], tag


def _options(record: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the option groups; a name that comes twice keeps its place and its last values."""
    groups = record.get("customization_options") or {}
    if not isinstance(groups, dict):
        raise _wrong(record, "customization_options", "option groups by name")
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in groups.items():
        if contents is None:
            continue
        try:
            values = [content["value"] for content in contents]
            options[name.lower()] = tuple(v.strip().replace("/", " | ").lower() for v in values)
        except (TypeError, KeyError, AttributeError) as error:
            raise _wrong(record, "customization_options", "lists of values") from error
    return tuple(options.items())


def _text(record: Mapping[str, Any], key: str) -> str:
    """Return a field that is text, or empty where it is missing."""
    value = record.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(record, key, "text")
    return value


def _line(record: Mapping[str, Any], line: Any) -> str:
    if line is not None and not isinstance(line, str):
        raise _wrong(record, "small_description", "a text or a list of texts")
    return line or ""


def _texts(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return a field that is a list of texts, or empty where it is missing."""
    values = record.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _wrong(record, key, "a list of texts")
    return tuple(values)


def _wrong(record: Mapping[str, Any], key: str, expected: str) -> DataCorrupt:
    return DataCorrupt(
        f"expected {expected} as {key!r} of product {record.get('asin')!r:.40}, found "
        f"{record.get(key)!r:.80}; get WebShop's file again"
    )
