"""Invented products by the million, written as WebShop's JSON, to measure search and memory on.

Words are drawn by rank from a Zipf-Mandelbrot law whose shares were fitted to WebShop's 1,000
products (107 search terms a product, 68 of them different; the most frequent in 44 % of products).
Nothing here can be shopped for: there are no options and no goals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .invented_words import WordLaw, word

__all__ = ["PRODUCTS", "QUERIES", "write_products"]

PRODUCTS = "items_shuffle.json"
"""The file of products."""

QUERIES = "queries.json"
"""The file of queries: the first words of some products, 3 to 17 of them."""

_WORDS, _SHIFT = 300_000, 18.0
_LENGTH, _SHAPE, _SHORTEST = 107.0, 3.0, 20
_TITLE = 14
_BATCH = 10_000


def write_products(folder: Path, count: int, queries: int = 200, seed: int = 0) -> None:
    """Write products and queries for them; memory does not grow with their number.

    Args:
        folder: Where to; it is made if need be.
        count: How many products.
        queries: How many queries.
        seed: Of all draws.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_products(Path(folder), 3, queries=2)
        ...     records = json.loads(Path(folder, PRODUCTS).read_text())
        ...     [record["asin"] for record in records], len(records[0]["name"].split())
        (['T000000000', 'T000000001', 'T000000002'], 14)
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked: list[str] = []
    every = max(1, count // queries)
    sizes = np.random.default_rng(seed + 1).integers(3, 18, queries + 1)
    with (folder / PRODUCTS).open("w", encoding="utf-8") as file:
        file.write("[\n")
        for number, words in enumerate(_texts(count, seed)):
            if number % every == 0 and len(asked) < queries:
                asked.append(" ".join(words[: sizes[len(asked)]]))
            file.write(",\n" if number else "")
            file.write(json.dumps(_record(number, words)))
        file.write("\n]\n")
    (folder / QUERIES).write_text(json.dumps(asked), encoding="utf-8")


def _texts(count: int, seed: int) -> Iterator[list[str]]:
    """Yield the words of each product."""
    draws = np.random.default_rng(seed)
    law = WordLaw(_WORDS, _SHIFT)
    words = [word(rank) for rank in range(_WORDS)]
    for start in range(0, count, _BATCH):
        means = draws.gamma(_SHAPE, _LENGTH / _SHAPE, min(_BATCH, count - start))
        lengths = np.maximum(_SHORTEST, draws.poisson(means))
        for ranks in law.texts(draws, lengths):
            yield [words[rank] for rank in ranks]


def _record(number: int, words: list[str]) -> dict[str, object]:
    return {
        "asin": f"T{number:09d}",
        "name": " ".join(words[:_TITLE]),
        "full_description": " ".join(words[_TITLE:]),
        "small_description": [],
        "pricing": f"${number % 97 + 3}.5",
        "customization_options": "",
        "category": f"kind {number % 5}",
        "query": f"query {number % 1000}",
        "product_category": f"Kinds \u203a Kind {number % 50}",
    }
