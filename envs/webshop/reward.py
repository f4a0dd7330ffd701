"""What a purchase is worth: WebShop's reward, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rapidfuzz import fuzz, process
from rapidfuzz.utils import default_process

from .goals import Goal
from .products import Product
from .words import table

__all__ = ["reward_of"]

_ALIKE = 85.5  # WebShop rounds a score, half to even, and wants more than 85
_FAIR_TITLE = 0.2
_POOR_TITLE = 0.1
_ALIKE_CATEGORIES = 2


def reward_of(
    bought: Product, chosen: Mapping[str, str], goal: Goal, wanted: Product, strict: bool = False
) -> tuple[float, dict[str, Any]]:
    """Return the reward of a purchase, 0 to 1, and its parts.

    ``reward = r_type * (n_att_matched + n_option_matched + r_price) / (goal's attributes + options +
    1)``. The parts are ``r_type`` (whether it is the right kind of thing), ``r_att``, ``r_option``
    (with its weight absent where the goal has no options), ``r_price``, the weights ``w_*`` of these,
    ``n_att_matched``, ``n_option_matched``, ``query_match``, ``category_match``, ``title_score``.

    Args:
        bought: The product that is bought.
        chosen: The options that are selected, by group.
        goal: What was asked for.
        wanted: The goal's product.
        strict: Whether an option counts only where its value is the goal's, in the goal's group
            (in any group where the goal names none); otherwise WebShop's lenient matching decides.

    Example:
        >>> tea = Product("B0", "Tea", "$9.0", "", (), (("size", ("s", "m")),), ("green",), "tea",
        ...               "grocery", "Food", nouns=("tea",), price=9.0)
        >>> goal = Goal("synthetic", 0, "B0", "", ("green",), (("size", "m"),), 20.0)
        >>> reward_of(tea, {"size": "m"}, goal, tea)[0], reward_of(tea, {}, goal, tea)[1]["r_option"]
        (1.0, 0.0)
    """
    parts = _kind(bought, wanted)
    attributes = sum(_has(bought, attribute) for attribute in goal.attributes)
    match = _exact if strict else _lenient
    options = match(chosen, goal.options)
    cheap = bought.price <= goal.cap
    asked = len(goal.attributes) + len(goal.options) + 1
    parts |= {
        "r_att": attributes / len(goal.attributes),
        "r_price": cheap,
        "n_att_matched": attributes,
        "n_option_matched": options,
        "w_att": len(goal.attributes) / asked,
        "w_price": 1 / asked,
    }
    if goal.options:
        parts |= {
            "r_option": options / len(goal.options),
            "w_option": len(goal.options) / asked,
        }
    total: float = (attributes + options + cheap) / asked * parts["r_type"]
    return total, parts


def _kind(bought: Product, wanted: Product) -> dict[str, Any]:
    """Return how alike two products are in kind."""
    queries = bought.query == wanted.query
    paths = [
        {part.strip() for part in p.product_category.split("\u203a")} for p in (bought, wanted)
    ]
    categories = len(paths[0] & paths[1]) >= _ALIKE_CATEGORIES
    shared = len(set(bought.nouns) & set(wanted.nouns))
    title = shared / len(wanted.nouns) if wanted.nouns else _FAIR_TITLE
    worth = 1.0 if queries or categories or title > _FAIR_TITLE else 0.5
    if title < _POOR_TITLE:
        worth = 0.1
    if title == 0.0:
        worth = 0.0
    return {
        "r_type": worth,
        "query_match": queries,
        "category_match": categories,
        "title_score": title,
    }


def _has(bought: Product, attribute: str) -> bool:
    """Return whether a product has an attribute: nearly among its own, or in its texts."""
    if _alike(attribute, bought.attributes):
        return True
    texts = (bought.title, " ".join(bought.bullets), bought.description)
    return any(attribute in text.lower() for text in texts)


def _exact(chosen: Mapping[str, str], asked: Sequence[tuple[str, str]]) -> int:
    """Return how many of the options that were asked for are chosen."""
    return sum(
        chosen.get(name) == value if name else value in chosen.values() for name, value in asked
    )


def _lenient(chosen: Mapping[str, str], asked: Sequence[tuple[str, str]]) -> int:
    """Return the same as WebShop counts: any chosen value will do that looks alike.

    A synthetic goal's option is compared together with its group's name, in the form that Python
    prints a pair in; that is WebShop's doing.
    """
    values = [_color(value) or value for value in chosen.values()]
    sought = []
    for name, value in asked:
        if name:
            color = next((part for part in (name, value) if part in table("colors")), "")
            sought.append(color or str((name, value)))
        else:
            sought.append(_color(value) or value)
    return sum(_alike(option, values) for option in sought)


def _color(value: str) -> str:
    """Return the first color name, in the order of the list, that stands anywhere in a value."""
    return next(filter(value.__contains__, table("colors")), "")


def _alike(text: str, others: Sequence[str]) -> bool:
    """Return whether a text and any of others share (nearly) all words of the shorter one."""
    plain = map(_plain, others)
    found = process.extractOne(
        _plain(text), plain, scorer=fuzz.token_set_ratio, score_cutoff=_ALIKE
    )
    return found is not None


_LATIN_1 = dict.fromkeys(range(128, 256))


@lru_cache(maxsize=20_000)
def _plain(text: str) -> str:
    """Return letters and digits in lower case; characters 128 to 255 are dropped, as thefuzz does."""
    return default_process(text if text.isascii() else text.translate(_LATIN_1))
