"""Goals: what to buy, in words and in the terms of the reward; and the splits they fall into."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .products import Product

__all__ = [
    "NO_CAP",
    "Goal",
    "combinations",
    "draw_cap",
    "draw_price",
    "legacy_order",
    "price_clause",
    "split_of_asin",
    "synthetic_goal",
    "weight_of",
]

NO_CAP = 1_000_000.0
"""The price cap of goals that have none."""

_CAPS = tuple(10.0 * number for number in range(1, 100))
_LEGACY_SEED = 233


@dataclass(frozen=True, slots=True)
class Goal:
    """One task.

    Attributes:
        kind: ``"synthetic"`` or ``"human"``.
        index: Its place in the order of the catalogue, before WebShop's shuffle.
        asin: The product that it was made from.
        text: The instruction.
        attributes: The attributes that are asked for.
        options: The option values that are asked for, each with its group; the group is empty in
            human goals, which do not name it.
        cap: The highest price, or `NO_CAP`.
        weight: WebShop's weight of the goal in random draws.
    """

    kind: str
    index: int
    asin: str
    text: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    cap: float
    weight: float = 1.0


def combinations(product: Product) -> int:
    """Return how many synthetic goals a product gives: one for each choice of all its options."""
    if product.instruction is None or not product.wanted:
        return 0
    return math.prod(len(values) for _, values in product.options)


def synthetic_goal(product: Product, index: int, number: int, weight: float) -> Goal:
    """Return one of a product's synthetic goals.

    Args:
        product: The product.
        index: The goal's index.
        number: Which of the product's `combinations`; groups in alphabetic order, the last one's
            value changes fastest.
        weight: The goal's weight.

    Example:
        >>> product = Product("B0", "Tea", "$9.0", "", (), (("size", ("s", "m")),), ("green",), "", "",
        ...                   "", instruction="Find me green tea", wanted=("green",), cap=20.0)
        >>> synthetic_goal(product, 5, 1, 1.0).text
        'Find me green tea with size: m, and price lower than 20.00 dollars'
    """
    chosen: list[tuple[str, str]] = []
    for name, values in sorted(product.options, reverse=True):
        number, place = divmod(number, len(values))
        chosen.append((name, values[place]))
    options = tuple(reversed(chosen))
    said = ", and ".join(f"{name}: {value}" for name, value in options)
    text = f"{product.instruction}{' with ' + said if said else ''}{price_clause(product.cap)}"
    return Goal(
        "synthetic", index, product.asin, text, product.wanted, options, product.cap, weight
    )


def price_clause(cap: float) -> str:
    """Return how an instruction ends.

    Example:
        >>> price_clause(20.0), price_clause(NO_CAP)
        (', and price lower than 20.00 dollars', '')
    """
    return f", and price lower than {cap:.2f} dollars" if cap < NO_CAP else ""


def draw_price(prices: Sequence[float], seed: int, asin: str) -> float:
    """Return what a product costs when it is bought: drawn once where its tag shows a range."""
    if len(prices) == 1:
        return prices[0]
    return random.Random(f"{seed} price {asin}").uniform(*prices)


def draw_cap(price: float, seed: int, whose: str) -> float:
    """Return a price cap: the larger of two of the next four multiples of ten above the price.

    Example:
        >>> draw_cap(12.5, 0, "B0") in (30.0, 40.0, 50.0), draw_cap(985.0, 0, "B0") == NO_CAP
        (True, True)
    """
    near = [cap for cap in _CAPS if cap > price][:4]
    if len(near) < 2:
        return NO_CAP
    return max(random.Random(f"{seed} cap {whose}").sample(near, 2))


@lru_cache(maxsize=4)
def legacy_order(count: int) -> tuple[int, ...]:
    """Return WebShop's shuffle of so many goals: at each place, the index before the shuffle.

    Example:
        >>> sorted(legacy_order(5))
        [0, 1, 2, 3, 4]
    """
    order = list(range(count))
    random.Random(_LEGACY_SEED).shuffle(order)
    return tuple(order)


def split_of_asin(asin: str) -> str:
    """Return the split of all goals of a product: 80 % train, 10 % valid, 10 % test.

    Example:
        >>> split_of_asin("B07HRFSNL4")
        'train'
    """
    place = hashlib.sha256(asin.encode("utf-8", "surrogatepass")).digest()[0]
    return "train" if place < 205 else "valid" if place < 230 else "test"


def weight_of(attributes: Iterable[str], counts: dict[str, int]) -> float:
    """Return a synthetic goal's weight: the mean of 1 / (goals that ask for the attribute)."""
    shares = [1 / counts[attribute] for attribute in attributes]
    return sum(shares) / len(shares)
